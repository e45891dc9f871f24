"""One watcher per run: a lock file that the kernel frees when its process ends."""

import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, final

from phyla.errors import RunFollowed

try:
    import fcntl
except ImportError:  # Windows: nothing keeps two watchers apart there.
    fcntl = None  # type: ignore[assignment]  # a module that is missing here

TRIES = 5
TRY_AGAIN_S = 0.05
"""Between two tries: `holder` holds the lock for a moment, too."""


def holder(path: Path) -> str | None:
    """Return which process of this machine holds the lock file of a run; None if none does, or it is not known."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _who(descriptor)
    except OSError:
        # Its file system has no locks.
        return None
    finally:
        os.close(descriptor)
    return None


def _lock(descriptor: int) -> None:
    for _ in range(TRIES - 1):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(TRY_AGAIN_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _who(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"


@final
class Lock:
    """The right to follow a run, until it is closed or its process ends, however that ends.

    Args:
        path: a file; made where missing, never removed.
        run: name of the run, for messages.

    Raises:
        RunFollowed: another process holds it.
    """

    def __init__(self, path: Path, run: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if fcntl is not None:
            try:
                _lock(self._descriptor)
            except OSError as error:
                who = _who(self._descriptor)
                self.close()
                raise RunFollowed(
                    f"run {run!r} is followed by {who} already (lock file {path}); stop that one first, or add "
                    f"workers to it with: phyla worker SUITES.py --study {run}"
                ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"process {os.getpid()} on {platform.node() or 'this host'}\n".encode())

    def close(self) -> None:
        """Give the right back."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
