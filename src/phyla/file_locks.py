"""Kernel locks on files, which are free once the last process that inherited their descriptor has ended."""

import fcntl
import os
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


def is_held(path: Path) -> bool | None:
    """Return whether a process of this machine holds the lock of a file; None if that cannot be told."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Shared, so that two who look at the same time do not take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
