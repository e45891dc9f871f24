"""Copies of remote checkpoints on this machine, shared by all its processes, up to a number of bytes."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from phyla import settings
from phyla.checkpoints.disk import Disk, make_dirs, storage_errors
from phyla.checkpoints.local import LocalCheckpoints
from phyla.checkpoints.manifest import MANIFEST_NAME, Manifest
from phyla.errors import CheckpointError
from phyla.system import file_locks

LOCKS = ".locks"
DOWNLOADING = ".download"
_WORK = (".staging", ".deleting")


class Unflushed(Disk):
    """A disk whose files need not survive a power cut."""

    def fsync_file(self, path: Path) -> None:
        """Do nothing."""

    def fsync_dir(self, path: Path) -> None:
        """Do nothing."""


@dataclass
class _Held:
    descriptor: int
    count: int = 0


@final
class Cache:
    """One study's copies. Caches below the same `root` share the bound.

    `local` keeps them. A copy is never removed while any process holds it: with a shared kernel lock on a file of
    its name, which ends with the process. A killed process holds no files.
    """

    def __init__(self, root: Path, folder: str) -> None:
        self._root = root.absolute()
        self._folder = self._root / folder
        self._locks = self._folder / LOCKS
        self._disk = Unflushed()
        self._mutex = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._bound = settings.cache_bytes()
        self.local = LocalCheckpoints(self._folder, self._disk)

    def hold(self, name: str, *, count: int = 0) -> None:
        """Hold the copy of a name until it is released, or this process ends; adds `count` readers."""
        with self._mutex, storage_errors("lock", self._locks / name):
            if name not in self._held:
                self._held[name] = _Held(self._lock_name(name, shared=True))
            self._held[name].count += count
            # The kernel's own time has steps of milliseconds.
            os.utime(self._held[name].descriptor, ns=(int(settings.system_clock() * 1e9),) * 2)

    def release(self, name: str, *, count: int = 0) -> None:
        """Reduce the count of holds on a name, and unlock it at zero."""
        with self._mutex:
            held = self._held.get(name)
            if held is None:
                return
            held.count -= count
            if held.count <= 0:
                os.close(self._held.pop(name).descriptor)

    @contextmanager
    def downloading(self, name: str) -> Iterator[None]:
        """Hold the exclusive right on this machine to download a checkpoint; other processes wait."""
        with storage_errors("lock", self._locks / name):
            descriptor = self._lock_name(name + DOWNLOADING, shared=False)
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock_name(self, name: str, *, shared: bool) -> int:
        path = self._locks / name
        if not self._locks.is_dir():
            make_dirs(self._disk, self._locks)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                file_locks.wait_for(descriptor, shared=shared)
                # A process that evicted the copy has removed the file, too.
                if path.stat().st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def place(self, name: str, manifest: bytes) -> Path:
        """Move staged and verified files to their name."""
        staged, path = self._folder / ".staging" / name, self._folder / name
        with storage_errors("keep", path):
            for folder, _, files in os.walk(staged):
                for file in files:
                    if not Path(folder, file).is_symlink():
                        self._disk.make_read_only(Path(folder, file))
            self._disk.write_file(staged / MANIFEST_NAME, manifest)
            self._disk.rename(staged, path)
        return path

    def unplace(self, name: str) -> None:
        """Turn a copy whose upload failed back into a staged directory."""
        with storage_errors("keep", self._folder / name):
            self._disk.rename(self._folder / name, self._folder / ".staging" / name)

    def forget(self, name: str) -> None:
        """Remove the copy of a checkpoint, unless a process holds it."""
        path = self._folder / name
        if path.is_dir():
            _remove(self._folder, path)

    def evict(self) -> None:
        """Remove copies without holders: unfinished ones, and beyond the bound the least recently used."""
        entries: list[tuple[float, int, Path]] = []
        for folder in _folders(self._root):
            for work in _WORK:
                for path in _folders(folder / work):
                    _remove(folder, path)
            entries += [(*_use_of(path), path) for path in _folders(folder)]
        excess = sum(size for _, size, _ in entries) - self._bound
        for _, size, path in sorted(entries):
            if excess <= 0:
                return
            if _remove(path.parent, path):
                excess -= size


def _use_of(path: Path) -> tuple[float, int]:
    """Return when a copy was last used, and its size; unknown for a damaged copy."""
    try:
        size = Manifest.from_bytes((path / MANIFEST_NAME).read_bytes()).size_bytes
        return (path.parent / LOCKS / path.name).stat().st_mtime, size
    except (OSError, CheckpointError):
        return 0.0, 0


def _folders(path: Path) -> list[Path]:
    with suppress(OSError):
        return [folder for folder in path.iterdir() if folder.is_dir() and (folder.name not in (*_WORK, LOCKS))]
    return []


def _remove(folder: Path, path: Path) -> bool:
    """Remove a directory, and the lock files of its name, if no process holds it."""
    lock = folder / LOCKS / path.name
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        file_locks.lock(descriptor)
        if lock.stat().st_ino != os.fstat(descriptor).st_ino:
            return False
        Disk().remove_tree(path)
        lock.with_name(lock.name + DOWNLOADING).unlink(missing_ok=True)
        lock.unlink()
    except OSError:
        # A process holds it, or its file system has no locks.
        return False
    finally:
        os.close(descriptor)
    return True
