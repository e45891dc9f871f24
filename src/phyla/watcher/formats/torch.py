"""Single files of `torch.save`, and sets of them with an index."""

import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, ClassVar, final

from phyla.watcher.format import Candidate, Check, CheckpointFormat, Verdict, check_all
from phyla.watcher.formats.pickles import PICKLE_BYTES_AT_MOST, storages
from phyla.watcher.formats.weights import TORCH_ENDINGS, TORCH_INDEX, check_folder, weight_files
from phyla.watcher.listing import File, Place, Root

_ZIP_START = b"PK\x03\x04"
_POLICY_ENDING, _POLICY_LAST = ".zip", "_stable_baselines3_version"


@final
@dataclass(frozen=True, kw_only=True)
class TorchFiles(CheckpointFormat):
    """Files named `*.pt`, `*.pth`, `*.pth.tar`, `*.ckpt` or `*.bin`, directly in the root.

    `torch.save` writes straight to the final name. Its archive ends with a directory of its members, which
    is there only at the end, and describes every storage that must be in it. Whatever else has such a name, such
    as files of torch before 1.6, is ready when it is quiet.

    A policy of Stable-Baselines3 is an archive `*.zip` that begins with a member `data`; the version of the
    library is written after the weights.
    """

    name: ClassVar[str] = "torch"
    awaits: ClassVar[str] = "files *.pt, *.pth, *.ckpt or *.bin"
    endings: ClassVar[tuple[str, ...]] = TORCH_ENDINGS
    rank: ClassVar[int] = 2

    @classmethod
    def folders(cls, root: Root) -> Mapping[str, Check]:
        return {folder: check_folder for folder in root.folders if root.has(folder, (".index.json",))}

    @classmethod
    def files(cls, root: Root) -> Iterable[Candidate]:
        policies = [
            Candidate.entry(name, check_all)
            for name, file in root.files.items()
            if name.endswith(_POLICY_ENDING) and _is_policy(root.path, file)
        ]
        return [*weight_files(root, cls.endings, TORCH_INDEX), *policies]

    def candidates(self, root: Root) -> Iterable[Candidate]:
        return self.files(root)

    @classmethod
    def check_content(cls, name: str, file: IO[bytes]) -> Verdict | None:
        start = file.read(len(_ZIP_START))
        if len(start) < len(_ZIP_START) and _ZIP_START.startswith(start):
            return Verdict.partial(f"{name} has {len(start)} bytes")
        return _check_zip(name, file) if start == _ZIP_START else None


@lru_cache(2**14)
def _is_policy(folder: Place, file: File) -> bool:
    """Return whether the first member of an archive is that of a policy, even if the rest is not written yet."""
    start = b""
    with suppress(OSError), (folder / file.relative).open("rb") as opened:
        start = opened.read(34)
    return start[:4] == _ZIP_START and start[26:28] == b"\x04\x00" and start[30:] == b"data"


def _check_zip(name: str, file: IO[bytes]) -> Verdict:
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        return Verdict.partial(f"{name} is cut off: {error}")
    members = {member.filename: member for member in archive.infolist()}
    if not members or min(member.header_offset for member in members.values()) != 0:
        # An archive stored inside another one has a directory of its own, which ends too early.
        return Verdict.partial(f"{name} is truncated: its directory does not describe the whole file")
    described = [member for key, member in members.items() if key.endswith("/data.pkl") and key.count("/") == 1]
    if not described and any(key.endswith("/.data/serialization_id") for key in members):
        return Verdict.partial(f"{name} was closed by torch.save while still empty")
    if "data" in members and _POLICY_LAST not in members:
        return Verdict.settling(f"{name} lacks {_POLICY_LAST}, which is written after the weights")
    if not described or described[0].file_size > PICKLE_BYTES_AT_MOST:
        return Verdict.complete(f"{name} has its directory of {len(members)} members")
    member = described[0]
    wanted = storages(read_member(archive, member))
    folder = member.filename.rpartition("/")[0]
    missing = [key for key in wanted if f"{folder}/data/{key}" not in members]
    if missing:
        # torch.save closes the archive properly even when it is interrupted by an exception.
        return Verdict.partial(f"{name} lacks {len(missing)} of {len(wanted)} storages: saving was interrupted")
    return Verdict.complete(f"{name} has its directory and all {len(wanted)} storages")


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the content of one member of an archive."""
    # torch.save can be configured to omit checksums; zipfile then compares with garbage.
    member.CRC = None  # type: ignore[assignment]
    with archive.open(member) as opened:
        return opened.read()
