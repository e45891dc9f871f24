"""Retries of unreachable databases, services and object stores: how long and how often."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, final

PATIENCE_S: Final = 300.0
"""How long a worker retries, in seconds: its training is worth the wait."""
PAUSE_S = (0.1, 5.0)
"""The shortest and the longest pause between two attempts, in seconds."""
_WAITS: ContextVar[bool] = ContextVar("waits", default=True)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Disable retries in this thread inside the block."""
    before = _WAITS.set(False)
    try:
        yield
    finally:
        _WAITS.reset(before)


@final
class Patience:
    """Pauses between attempts, each twice as long as the last, until too little time is left for another one.

    Args:
        seconds: returns how long to continue from the start; called each time, so that a signal handler can
            shorten it.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        self.pause_s, self._longest_s = PAUSE_S

    @property
    def over(self) -> bool:
        """Whether there is no time for another attempt."""
        return not _WAITS.get() or time.monotonic() + self.pause_s > self._began + self._seconds()

    def pause(self) -> None:
        """Sleep until the next attempt."""
        time.sleep(self.pause_s)
        self.pause_s = min(2 * self.pause_s, self._longest_s)
