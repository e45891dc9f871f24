"""The lock of a watched run: one process of a machine watches it."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from phyla.errors import RunFollowed
from phyla.system import file_locks

LOCK_TRIES = 5
LOCK_AGAIN_S = 0.05
"""Seconds between two attempts: `holder` also holds the lock for a moment."""


def holder(path: Path) -> str | None:
    """Return the local process that holds the lock file of a run; None if none does, or it is unknown."""
    return _describe_holder(path) if file_locks.is_held(path) else None


def _describe_holder(path: Path) -> str:
    return path.read_text(errors="replace").strip() or "another process"


@contextmanager
def lock(path: Path, run: str) -> Iterator[None]:
    """Hold the run's lock until the end of the block or of the process.

    The file is made where missing, never removed. `RunFollowed` says that another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            for _ in range(LOCK_TRIES - 1):
                with suppress(BlockingIOError):
                    file_locks.lock(descriptor)
                    break
                time.sleep(LOCK_AGAIN_S)
            else:
                file_locks.lock(descriptor)
        except OSError as error:
            how = f"stop that one first, or add workers to it with: phyla worker SUITES.py --study {run}"
            raise RunFollowed(
                f"run {run!r} is already watched by {_describe_holder(path)} (lock file {path}); {how}"
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node() or 'this host'}\n".encode())
        yield
    finally:
        os.close(descriptor)
