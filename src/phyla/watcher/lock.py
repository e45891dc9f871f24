"""One watcher per run: a lock file that the kernel frees when its process ends."""

import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import Self, final

from phyla import file_locks
from phyla.errors import RunFollowed

TRIES = 5
TRY_AGAIN_S = 0.05
"""Between two tries: `holder` holds the lock for a moment, too."""


def holder(path: Path) -> str | None:
    """Return which process of this machine holds the lock file of a run; None if none does, or it is not known."""
    return _who(path) if file_locks.is_held(path) else None


def _who(path: Path) -> str:
    return path.read_text(errors="replace").strip() or "another process"


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
        try:
            for _ in range(TRIES - 1):
                with suppress(BlockingIOError):
                    file_locks.lock(self._descriptor)
                    break
                time.sleep(TRY_AGAIN_S)
            else:
                file_locks.lock(self._descriptor)
        except OSError as error:
            self.close()
            raise RunFollowed(
                f"run {run!r} is followed by {_who(path)} already (lock file {path}); stop that one first, or add "
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

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()
