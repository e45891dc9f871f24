"""Whether foreign checkpoints have the same weights, by what their files record, without reading all of them."""

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import IO

from phyla.errors import CheckpointStorageFailed
from phyla.records import Checkpoint
from phyla.watcher.format import is_companion
from phyla.watcher.formats.pickles import PICKLE_BYTES_AT_MOST, numbers
from phyla.watcher.formats.siblings import endings
from phyla.watcher.formats.torch import read_member
from phyla.watcher.formats.weights import SAFETENSORS_ENDING, tensors
from phyla.watcher.listing import File, Listing, Place, listing

_REMEMBERED = 2**14
_ZIP_START = b"PK\x03\x04"
_STORAGE = re.compile(r"[^/]+/data/\d+")
_WEIGHTS = (".pth", ".h5", ".npy")
"""Endings of the members that hold weights, in archives of Stable-Baselines3, Keras and NumPy."""
_SCALAR_BYTES = 8
"""What saves a checkpoint may keep scores in tensors of its own, as Lightning's callbacks do."""
_STATE = "trainer_state.json"
_TENSOR_BYTES = 64
"""Of each tensor of a safetensors file, which has no checksums."""


@lru_cache(_REMEMBERED)
def digest(root: Place, paths: tuple[str, ...], fingerprint: str) -> str | None:
    """Return a hash of the weights of a checkpoint that a scan saw; None if it has none, or is gone.

    Files that record no checksums are the same only if they are links to one file.
    """
    del fingerprint  # other files, other hash
    inside = len(paths[0]) + 1 if len(paths) == 1 else 0
    with suppress(OSError, CheckpointStorageFailed):
        files = [file for file in listing(root, paths).files if _has_weights(file)]
        # A file and a directory without other weights may be the same: a Trainer's last save is often at the top.
        names = [file.relative[inside:] if len(files) > 1 else "" for file in files]
        contents = [_digest_file(root, file) or file.inode for file in files]
        lines = [f"{name}\0{content}" for name, content in zip(names, contents, strict=True)]
        return _hash(lines) if lines else None
    return None


def find_added(root: Place, paths: tuple[str, ...], before: Checkpoint) -> list[str]:
    """Return the files that were added to a checkpoint; none if the weights, or anything else, changed."""
    with suppress(OSError, CheckpointStorageFailed):
        files = listing(root, paths).files
        old = tuple(file for file in files if file.modified_ns / 1e9 <= before.written_at)
        added = [file for file in files if file not in old]
        if Listing(old).fingerprint == before.fingerprint and not any(map(_has_weights, added)):
            return [file.relative for file in added]
    return []


def _has_weights(file: File) -> bool:
    return file.name.endswith((*endings(), ".zip", ".distcp")) and not is_companion(file.name)


def _digest_file(root: Place, file: File) -> str | None:
    """Return a hash of the checksums in one file; None without any."""
    with (
        (root / file.relative).open("rb") as opened,
        suppress(ValueError, LookupError, TypeError, zipfile.BadZipFile),
    ):
        if file.name.endswith(SAFETENSORS_ENDING):
            return _hash(_tensor_lines(opened, file.name))
        if opened.read(len(_ZIP_START)) == _ZIP_START:
            return _digest_archive(opened)
    return None


def _tensor_lines(file: IO[bytes], name: str) -> Iterator[str]:
    ranges = tensors(file, name)
    start = file.tell()
    for key, (begin, end) in sorted(ranges.items()):
        file.seek(start + begin)
        yield f"{key}\0{begin}\0{end}\0{file.read(min(_TENSOR_BYTES, end - begin)).hex()}"


def _digest_archive(file: IO[bytes]) -> str | None:
    # A copy that is saved anew may differ in its archive's name, and in the state of what saves it.
    members = zipfile.ZipFile(file).infolist()
    storages = [member for member in members if _STORAGE.fullmatch(member.filename)]
    storages = [member for member in storages if member.file_size > _SCALAR_BYTES] or storages
    weights = storages or [member for member in members if member.filename.endswith(_WEIGHTS)]
    lines = sorted(f"{member.file_size}\0{member.CRC}" for member in weights)
    # torch.save can be configured to omit checksums.
    return _hash(lines) if any(member.CRC for member in weights) else None


def _hash(lines: Iterator[str] | list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


@lru_cache(_REMEMBERED)
def counts(root: Place, paths: tuple[str, ...], fingerprint: str) -> dict[str, int]:
    """Return the integers that a checkpoint records at its top, such as `global_step`; none if it is gone."""
    del fingerprint  # other files, other numbers
    odd = (ValueError, LookupError, TypeError, AttributeError, RecursionError, zipfile.BadZipFile)
    with suppress(OSError, CheckpointStorageFailed, *odd):
        path = root / paths[0]
        if path.is_dir():
            return _integers(json.loads((path / _STATE).read_bytes()))
        with path.open("rb") as file:
            return _counts_in(path.name, file)
    return {}


def _counts_in(name: str, file: IO[bytes]) -> dict[str, int]:
    if name.endswith(SAFETENSORS_ENDING):
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return _integers({key: int(text) for key, text in header["__metadata__"].items() if text.isdecimal()})
    archive = zipfile.ZipFile(file)
    for member in archive.infolist():
        if member.file_size > PICKLE_BYTES_AT_MOST:
            continue
        if member.filename == "data":
            return _integers(json.loads(read_member(archive, member)))
        if member.filename.partition("/")[2] == "data.pkl":
            return numbers(read_member(archive, member))
    return {}


def _integers(values: object) -> dict[str, int]:
    items = values.items() if isinstance(values, dict) else ()
    return {key: value for key, value in items if isinstance(value, int) and not isinstance(value, bool)}
