"""Whether files are whole, told from as little of them as possible.

Headers, directories of archives and indexes are read, weights never: a check costs a few
milliseconds, whatever the size of the checkpoint.
"""

import json
import os
import posixpath
import zipfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import IO

from phyla.watcher.listing import File
from phyla.watcher.pickles import extents, storages
from phyla.watcher.verdict import Finish, Verdict, worst

HEADER_BYTES_AT_MOST = 100_000_000
"""What the safetensors library itself accepts."""
PICKLE_BYTES_AT_MOST = 2**24
"""Of a description; a longer one takes too long to take apart, and is believed."""
RENAME_SLACK_NS = 2 * 10**9
"""Between the last write to a file that is flushed and then renamed, and the renaming."""

ZIP_START = b"PK\x03\x04"
TORCH_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first pickle of `torch.save` before its zip layout: a number of ten bytes."""

SAFETENSORS_ENDING = ".safetensors"
TORCH_ENDINGS = (".pt", ".pth", ".ckpt", ".bin")
INDEX_ENDINGS = (".safetensors.index.json", ".bin.index.json")


def check_file(path: Path, size_bytes: int) -> Verdict:
    """Return whether one file is whole, by its ending and its first bytes.

    Args:
        path: the file.
        size_bytes: its length as listed.

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
            start = file.read(len(TORCH_MAGIC))
            if len(start) < len(ZIP_START) and ZIP_START.startswith(start):
                verdict = Verdict.partial(f"{path.name} has {len(start)} bytes")
            elif start.startswith(ZIP_START):
                verdict = _check_zip(path.name, file)
            elif start == TORCH_MAGIC:
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
    if size < 8 + length or not 2 <= length <= HEADER_BYTES_AT_MOST:
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
    file.seek(len(TORCH_MAGIC))
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


def check_index(folder: Path, index: str, files: Mapping[str, File]) -> Verdict:
    """Return whether all shards that an index names are whole, and are the ones it was written for.

    Args:
        folder: where the index lies.
        index: its name.
        files: what lies in `folder`, by relative path.

    Raises:
        OSError: something is gone or cannot be read.
        ValueError: as `check_file`.
    """
    try:
        mapping = json.loads((folder / index).read_bytes())["weight_map"]
        by_shard: dict[str, list[str]] = {}
        for tensor, shard in mapping.items():
            by_shard.setdefault(_inside(shard), []).append(tensor)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return Verdict.partial(f"{index} is cut off or damaged: {error}")
    missing = sorted(shard for shard in by_shard if shard not in files)
    if missing:
        return Verdict.partial(f"{index} names {missing[0]}, which is missing ({len(missing)} of {len(by_shard)})")
    if not by_shard:
        return Verdict.partial(f"{index} names no shard")
    verdict = worst(_check_shard(folder, files[shard], shard, names) for shard, names in by_shard.items())
    late = newest(files[shard] for shard in by_shard)
    if verdict.finish is Finish.COMPLETE and late.modified_ns > files[index].modified_ns:
        return Verdict.settling(f"{late.name} was written after {index}: it may be overwritten right now")
    return verdict


def _check_shard(folder: Path, file: File, shard: str, names: Collection[str]) -> Verdict:
    path = folder / shard
    verdict = check_file(path, file.size_bytes)
    if verdict.finish is Finish.COMPLETE and shard.endswith(SAFETENSORS_ENDING):
        with path.open("rb") as opened:
            held = tensors(opened, shard)
        absent = sorted(set(names) - held.keys())
        if absent:
            return Verdict.partial(f"{shard} lacks tensor {absent[0]!r}, which the index says is in it")
    return verdict


def _inside(shard: object) -> str:
    if not isinstance(shard, str):
        raise TypeError(f"{shard!r} is no name of a file")
    path = posixpath.normpath(shard)
    if path.startswith(("/", "../")) or path in {"..", "."}:
        raise ValueError(f"{shard!r} is outside the checkpoint")
    return path


def check_distributed(folder: Path, files: Mapping[str, File]) -> Verdict:
    """Return whether a checkpoint of `torch.distributed.checkpoint` is whole.

    `.metadata` is written last, under another name, and then renamed; it says how long each data
    file is. A rank that saves without the others writes `__RANK.metadata` instead.

    Args:
        folder: its directory.
        files: what lies in there, by relative path.

    Raises:
        OSError: something is gone or cannot be read.
        ValueError: `.metadata` is no pickle.
    """
    data = {name: file for name, file in files.items() if name.endswith(".distcp")}
    unfinished = next((name for name in files if name.endswith(".metadata.tmp")), None)
    if unfinished is not None:
        return Verdict.partial(f"{unfinished} is there: a save into this directory has not finished")
    empty = next((name for name, file in data.items() if file.size_bytes == 0), None)
    if empty is not None:
        return Verdict.partial(f"{empty} is empty")
    if ".metadata" not in files:
        ranks = {name.removeprefix("__").partition("_")[0] for name in data}
        absent = sorted(rank for rank in ranks if f"__{rank}.metadata" not in files)
        if absent or not ranks:
            return Verdict.partial(".metadata is missing, which is written last")
        return Verdict.settling(f"{len(ranks)} ranks saved on their own; how many there are, nothing tells")
    if files[".metadata"].size_bytes <= 4 * PICKLE_BYTES_AT_MOST:
        with (folder / ".metadata").open("rb") as file:
            wanted = extents(file)
        for name, length in sorted(wanted.items()):
            size = files[name].size_bytes if name in files else 0
            if size < length:
                return Verdict.partial(f"{name} has {size} bytes where .metadata says at least {length}")
    late = newest(data.values()) if data else files[".metadata"]
    if late.modified_ns > files[".metadata"].modified_ns:
        return Verdict.settling(f"{late.name} was written after .metadata: it may be overwritten right now")
    return Verdict.complete(f".metadata and {len(data)} data files are whole")


def newest(files: Iterable[File]) -> File:
    """Return the file that changed last."""
    return max(files, key=lambda file: file.modified_ns)


TICK_NS = 20_000_000
"""By how much the time of a folder may be after that of the file last made in it: both are told from clocks of
different fineness, and a file that is made empty is never written."""


def settled(verdict: Verdict, closing: File, folders_ns: int, *, slack_ns: int = TICK_NS) -> Verdict:
    """Return the verdict, less sure if entries came or went after the file that closes a checkpoint.

    A checkpoint that is being deleted looks like that: some files are gone, the closing one is not yet.

    Args:
        verdict: what its content says.
        closing: the file that is written last.
        folders_ns: when entries of its directories changed last.
        slack_ns: how much later than the file the directory may have changed.
    """
    if verdict.finish is Finish.COMPLETE and folders_ns > closing.modified_ns + slack_ns:
        return Verdict.settling(f"files came or went after {closing.name}, which is written last")
    return verdict
