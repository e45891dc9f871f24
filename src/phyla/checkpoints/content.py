"""What lies in a checkpoint directory, what may not lie there, and the digests of its files.

Definition of a digest (manifest format 1), in hexadecimal:

- of a file: the BLAKE3 of its content, as `b3sum` prints it;
- of a symbolic link: the BLAKE3 of `symlink`, a NUL byte and the name of its target.

BLAKE3 takes a third of the processor time of SHA-256, the fastest hash of the standard library, even
where the processor has instructions for SHA; and that is what a commit has to hide behind its flush.
"""

import os
import posixpath
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import final

from blake3 import blake3

from phyla.checkpoints.manifest import MANIFEST_NAME
from phyla.errors import CheckpointError

INLINE_BYTES = 2**20
"""Below this size in all, starting threads costs more than it saves."""
BUFFER_BYTES = 2**18
"""Small enough to stay in a core's own cache between reading and hashing."""
THREADS_AT_MOST = 4


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """A regular file or a symbolic link of a checkpoint, as it was when it was looked at.

    Attributes:
        relative: path within the checkpoint, with `/` between its parts.
        size_bytes: its length; of a link, the length of its target's name.
    """

    relative: str
    path: Path
    size_bytes: int
    modified_ns: int
    is_link: bool


@final
@dataclass(frozen=True, slots=True)
class Tree:
    """The files, links and inner directories of a checkpoint, without its manifest; deepest directories first."""

    entries: tuple[Entry, ...]
    folders: tuple[Path, ...]


def scan(root: Path) -> Tree:
    """Look through a checkpoint directory.

    Raises:
        CheckpointError: there is something that cannot be part of a checkpoint: a link that leads
            out of it or nowhere, a socket, a pipe or a device.
    """
    entries: list[Entry] = []
    folders: list[Path] = []

    def descend(folder: str, prefix: str) -> None:
        with os.scandir(folder) as found:
            for item in sorted(found, key=lambda item: item.name):
                relative = prefix + item.name
                if item.is_dir(follow_symlinks=False):
                    descend(item.path, f"{relative}/")
                    folders.append(Path(item.path))
                elif relative != MANIFEST_NAME:
                    entries.append(_entry(root, relative, item))

    descend(str(root), "")
    return Tree(tuple(entries), tuple(folders))


def _entry(root: Path, relative: str, item: os.DirEntry[str]) -> Entry:
    path = Path(item.path)
    if item.is_symlink():
        _refuse_leaving(root, relative, path)
    elif not item.is_file(follow_symlinks=False):
        raise CheckpointError(
            f"{path} is a socket, a pipe or a device, which a checkpoint cannot hold: "
            "remove it before the training function returns"
        )
    status = item.stat(follow_symlinks=False)
    return Entry(relative, path, status.st_size, status.st_mtime_ns, stat.S_ISLNK(status.st_mode))


def _refuse_leaving(root: Path, relative: str, path: Path) -> None:
    # Both looks are needed: the text must survive the move to the final name, and a text that
    # stays inside may still lead out by way of another link.
    target = path.readlink().as_posix()
    written = posixpath.normpath(posixpath.join(posixpath.dirname(relative), target))
    inside = not (posixpath.isabs(target) or written.split("/", 1)[0] == "..")
    try:
        inside = inside and path.resolve(strict=True).is_relative_to(root.resolve())
    except (FileNotFoundError, RuntimeError):
        inside = False
    if not inside:
        raise CheckpointError(
            f"{path} is a link to {target}, which is not inside the checkpoint: a checkpoint must be "
            "complete in itself; save a copy of the file, or link by a relative path to a file next to it"
        )


def is_small(entries: Sequence[Entry]) -> bool:
    """Return whether starting threads to read them would cost more than it saves."""
    return sum(entry.size_bytes for entry in entries) <= INLINE_BYTES


def digests(entries: Sequence[Entry]) -> list[str]:
    """Return the digest of every entry, in order; of large content in several threads."""
    if is_small(entries):
        return [_digest(entry) for entry in entries]
    # Reading and hashing release the interpreter.
    with ThreadPoolExecutor(min(THREADS_AT_MOST, len(entries)), "phyla-digest") as pool:
        return list(pool.map(_digest, entries))


def _digest(entry: Entry) -> str:
    if entry.is_link:
        return blake3(b"symlink\0" + os.fsencode(entry.path.readlink())).hexdigest()
    whole = blake3()
    buffer = memoryview(bytearray(min(BUFFER_BYTES, max(entry.size_bytes, 1))))
    # Not by mapping it: a file that somebody truncates meanwhile would kill the process.
    with open(entry.path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            whole.update(buffer[:count])
    return whole.hexdigest()
