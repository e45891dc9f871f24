"""Kernel locks on files, which are free once the last process that inherited their descriptor has ended."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def lock(descriptor: int) -> None:
    """Lock an open file for as long as its descriptor lives.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: its file system has no locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def wait_for(descriptor: int, *, shared: bool) -> None:
    """Wait until an open file can be locked, alone or shared.

    Raises:
        OSError: its file system has no locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock file exclusively, if its file system has locks; create it if missing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with contextlib.suppress(OSError):
            wait_for(descriptor, shared=False)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool | None:
    """Return whether a process of this machine holds the lock of a file; None if that is unknown."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Shared, so that two concurrent checks do not take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
