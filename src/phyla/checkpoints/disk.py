"""The calls that make a checkpoint durable, in one class, so that a test can watch or fail them."""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from phyla.errors import CheckpointStorageFailed, advice_on

REMOVERS = 1000
"""Retries of a removal during which a thread or process removed or wrote entries."""

LITTLE_ROOM = 1 << 20
"""In bytes: with less free space, the disk is taken for the cause of a training failure."""


class Disk:
    """All changes that `LocalCheckpoints` makes on disk; all methods raise OSError."""

    def make_dir(self, path: Path) -> None:
        """Create one directory, whose parent exists."""
        path.mkdir()

    def write_file(self, path: Path, data: bytes) -> None:
        """Write a new read-only file in place of an old one; nothing is flushed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            descriptor = os.open(path, flags, 0o444)
        except FileExistsError:
            path.unlink()
            descriptor = os.open(path, flags, 0o444)
        with open(descriptor, "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]

    def make_read_only(self, path: Path) -> None:
        """Remove all write permissions of a file."""
        try:
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
        except OSError as error:
            # Protection against accidents only: some file systems keep no permissions.
            if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}:
                raise

    def make_writable(self, path: Path) -> None:
        """Give the owner write permission to a directory."""
        path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o700)

    def fsync_file(self, path: Path) -> None:
        """Flush the content of a file; return when the device has it."""
        _fsync(path, os.O_RDONLY)

    def fsync_dir(self, path: Path) -> None:
        """Flush the entries of a directory; return when the device has them."""
        try:
            _fsync(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            # Some network and user-space file systems cannot flush a directory, and raise.
            if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
                raise

    def rename(self, source: Path, target: Path) -> None:
        """Give a directory another name within the same file system, atomically."""
        source.rename(target)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and everything in it, or what replaced it; a missing directory is ignored."""
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)
            return
        try:
            for _ in range(REMOVERS):
                try:
                    shutil.rmtree(path)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise
                if not path.exists():
                    return
            shutil.rmtree(path)
        except PermissionError:
            # A directory that its owner may not write to keeps its entries: unlock them all, once.
            self.make_writable(path)
            for folder, folders, _ in os.walk(path):
                for child in folders:
                    inner = Path(folder, child)
                    if not inner.is_symlink():
                        self.make_writable(inner)
            shutil.rmtree(path)


def make_dirs(disk: Disk, path: Path) -> None:
    """Create a directory and those above it, and flush each parent, so that they survive a power cut."""
    if path.is_dir():
        return
    make_dirs(disk, path.parent)
    with suppress(FileExistsError):
        disk.make_dir(path)
    disk.fsync_dir(path.parent)


def full(folders: Iterable[Path]) -> OSError | None:
    """Return the error of a full file system, which a command or a library may have hidden."""
    for folder in filter(os.path.isdir, folders):
        room = os.statvfs(folder)
        # Some file systems count no inodes.
        if (room.f_blocks and room.f_bavail * room.f_frsize < LITTLE_ROOM) or (room.f_files and not room.f_favail):
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    return None


@contextmanager
def storage_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn system errors into `CheckpointStorageFailed`, with advice."""
    try:
        yield
    except OSError as error:
        raise CheckpointStorageFailed(
            f"cannot {doing} {path}: {error.strerror or error} ({error.filename or path}); {advice_on(error)}"
        ) from error


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
