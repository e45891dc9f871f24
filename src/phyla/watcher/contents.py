"""Whether files are whole, told from as little of them as possible.

Headers, directories of archives and the pickles that describe storages are read, weights never: a check costs a
few milliseconds, whatever the size of the checkpoint.
"""

import json
import os
import pickletools
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from phyla.watcher.files import File
from phyla.watcher.format import Finish, Verdict

_HEADER_BYTES_AT_MOST = 100_000_000
"""What the safetensors library itself accepts."""
_TICK_NS = 20_000_000
"""By how much the time of a folder may be after that of the file last made in it: both are told from clocks of
different fineness, and a file that is made empty is never written."""

_ZIP_START = b"PK\x03\x04"
_TORCH_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first pickle of `torch.save` before its zip layout: a number of ten bytes."""

SAFETENSORS_ENDING = ".safetensors"
TORCH_ENDINGS = (".pt", ".pth", ".ckpt", ".bin")

PICKLE_BYTES_AT_MOST = 2**24
"""Of a description; a longer one takes too long to take apart, and is believed."""

_STORAGE_BYTES = {
    "ComplexDoubleStorage": 16,
    "ComplexFloatStorage": 8,
    "DoubleStorage": 8,
    "LongStorage": 8,
    "FloatStorage": 4,
    "IntStorage": 4,
    "BFloat16Storage": 2,
    "HalfStorage": 2,
    "ShortStorage": 2,
    "BoolStorage": 1,
    "ByteStorage": 1,
    "CharStorage": 1,
    "UntypedStorage": 1,
}
"""Bytes per element of the storages that `torch.save` names."""

_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_SILENT = frozenset({"PROTO", "FRAME", "MARK", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})
_REFERENCE = object()
"""The place of a persistent id among the words of a pickle."""


def check_file(path: Path, size_bytes: int) -> Verdict:
    """Return whether one file is whole, by its ending and its first bytes.

    Raises:
        OSError: it is gone or cannot be read.
        ValueError: it is damaged in a way that has no better words; and what zipfile raises.
    """
    if size_bytes == 0:
        return Verdict.partial(f"{path.name} is empty")
    with path.open("rb") as file:
        if path.name.endswith(SAFETENSORS_ENDING):
            verdict = _check_safetensors(path.name, file)
        else:
            start = file.read(len(_TORCH_MAGIC))
            if len(start) < len(_ZIP_START) and _ZIP_START.startswith(start):
                verdict = Verdict.partial(f"{path.name} has {len(start)} bytes")
            elif start.startswith(_ZIP_START):
                verdict = _check_zip(path.name, file)
            elif start == _TORCH_MAGIC:
                verdict = _check_legacy(path.name, file)
            else:
                verdict = Verdict.settling(f"nothing in {path.name} tells where it ends")
        status = os.fstat(file.fileno())
    if verdict.finish is Finish.COMPLETE and status.st_blocks * 512 < status.st_size:
        # Space may be reserved before it is written; a compressing file system looks the same.
        return Verdict.settling(f"{path.name} has holes, as files have whose space was reserved first")
    return verdict


def tensors(file: IO[bytes], name: str) -> dict[str, tuple[int, int]]:
    """Return begin and end of every tensor in a safetensors file, in bytes after its header.

    Raises:
        ValueError: the header is cut off or no header.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 + length or not 2 <= length <= _HEADER_BYTES_AT_MOST:
        raise ValueError(f"{name} has {size} bytes and a header of {length}")
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"{name} has a header that is no JSON object")
    found: dict[str, tuple[int, int]] = {}
    for key, value in header.items():
        if key != "__metadata__":
            begin, end = (int(offset) for offset in value["data_offsets"])
            if not 0 <= begin <= end:
                raise ValueError(f"{name} has tensor {key!r} from byte {begin} to {end}")
            found[key] = (begin, end)
    return found


def _check_safetensors(name: str, file: IO[bytes]) -> Verdict:
    try:
        found = tensors(file, name)
    except (ValueError, LookupError, TypeError) as error:
        return Verdict.partial(f"{name} is cut off or damaged: {error}")
    wanted = file.tell() + max((end for _, end in found.values()), default=0)
    size = os.fstat(file.fileno()).st_size
    if size != wanted:
        return Verdict.partial(f"{name} has {size} bytes where its header says {wanted}")
    return Verdict.complete(f"{name} has the {wanted} bytes that its header says")


def _check_zip(name: str, file: IO[bytes]) -> Verdict:
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        return Verdict.partial(f"{name} is cut off: {error}")
    members = {member.filename: member for member in archive.infolist()}
    if not members or min(member.header_offset for member in members.values()) != 0:
        # An archive stored inside another one has a directory of its own, which ends too early.
        return Verdict.partial(f"{name} is cut off: its directory does not describe the whole file")
    described = [key for key in members if key.endswith("/data.pkl") and key.count("/") == 1]
    if not described:
        if any(key.endswith("/.data/serialization_id") for key in members):
            return Verdict.partial(f"{name} was closed by torch.save before anything was in it")
        return Verdict.complete(f"{name} has its directory of {len(members)} members")
    member = members[described[0]]
    if member.file_size > PICKLE_BYTES_AT_MOST:
        return Verdict.complete(f"{name} has its directory of {len(members)} members")
    # torch.save may be told to leave checksums out; zipfile then compares with nonsense.
    member.CRC = None  # type: ignore[assignment]
    with archive.open(member) as description:
        wanted = storages(description.read())
    folder = member.filename.rpartition("/")[0]
    missing = [key for key in wanted if f"{folder}/data/{key}" not in members]
    if missing:
        # torch.save closes the archive properly even when it is interrupted by an exception.
        return Verdict.partial(f"{name} lacks {len(missing)} of {len(wanted)} storages: saving was interrupted")
    return Verdict.complete(f"{name} has its directory and all {len(wanted)} storages")


def _check_legacy(name: str, file: IO[bytes]) -> Verdict:
    size = os.fstat(file.fileno()).st_size
    file.seek(len(_TORCH_MAGIC))
    try:
        for _ in ("protocol version", "system"):
            storages(file)
        wanted = storages(file)
        storages(file)  # their keys in order
    except ValueError as error:
        return Verdict.partial(f"{name} is cut off: {error}")
    lengths = [length for length in wanted.values() if length is not None]
    end = file.tell() + sum(8 + length for length in lengths)
    if len(lengths) < len(wanted) or size < end:
        finish = Verdict.partial if size < end else Verdict.settling
        return finish(f"{name} has {size} bytes where its description says at least {end}")
    return Verdict.complete(f"{name} has all {len(wanted)} storages in {size} bytes")


def closed_by(
    closing: File, verdict: Verdict, files: Iterable[File] = (), folders_ns: int = 0, *, slack_ns: int = _TICK_NS
) -> Verdict:
    """Return the verdict, less sure if something changed after the file that is written last.

    A checkpoint that is being overwritten or deleted looks like that: the closing file of before is still there.

    Args:
        closing: the file that is written last.
        verdict: what the content says.
        files: those that it closes.
        folders_ns: when entries of their directories changed last.
        slack_ns: how much later than the file the directories may have changed.
    """
    late = max(files, key=lambda file: file.modified_ns, default=closing)
    if verdict.finish is not Finish.COMPLETE:
        return verdict
    if late.modified_ns > closing.modified_ns:
        return Verdict.settling(f"{late.name} was written after {closing.name}: it may be overwritten right now")
    if folders_ns > closing.modified_ns + slack_ns:
        return Verdict.settling(f"files came or went after {closing.name}, which is written last")
    return verdict


def _words(source: bytes | IO[bytes]) -> Iterator[object]:
    """Yield the values that a pickle mentions, in order: text, numbers, names, None for anything else.

    Nothing of it is run: `pickletools` takes it apart, and raises `ValueError` for what is cut off or no pickle.
    A persistent id comes as `_REFERENCE`, right after the words of its tuple; the name of a class as
    `module name`, in newer protocols after the two words by themselves.
    """
    memo: dict[object, object] = {}
    last: object = None
    before: object = None
    for code, argument, _ in pickletools.genops(source):
        if code.name in _PUTS:
            memo[argument] = last
            continue
        if code.name == "MEMOIZE":
            memo[len(memo)] = last
            continue
        if code.name in _SILENT:
            last = None
            continue
        if code.name in _GETS:
            word = memo.get(argument)
        elif code.name == "BINPERSID":
            word = _REFERENCE
        elif code.name == "STACK_GLOBAL":
            word = f"{before} {last}"
        else:
            word = argument if isinstance(argument, str | int) else None
        before, last = last, word
        yield word


def storages(source: bytes | IO[bytes]) -> dict[str, int | None]:
    """Return the storages that a pickle of `torch.save` refers to: bytes by key, None where unknown."""
    found: dict[str, int | None] = {}
    recent: list[object] = []
    for word in _words(source):
        if word is not _REFERENCE:
            recent.append(word)
            del recent[:-9]
            continue
        # ("storage", class, key, location, elements), and in the layout before zip a sixth, which is None.
        fields = recent[:-1] if recent and recent[-1] is None else recent
        match fields:
            case [*start, kind, str(key), str(), int(elements)] if "storage" in start:
                each = _STORAGE_BYTES.get(str(kind).rpartition(" ")[2])
                found[key] = None if each is None else each * elements
        recent.clear()
    return found


def extents(source: bytes | IO[bytes]) -> dict[str, int]:
    """Return how long each data file must be at least, by the `.metadata` of `torch.distributed.checkpoint`."""
    found: dict[str, int] = {}
    recent: list[object] = []
    for word in _words(source):
        recent.append(word)
        del recent[:-6]
        match recent:
            case ["relative_path", str(path), "offset", int(offset), "length", int(length)]:
                found[path] = max(found.get(path, 0), offset + length)
    return found
