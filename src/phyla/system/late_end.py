"""Exits a process that does not end after a signal, since what it waits for does not answer."""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, final

from phyla.system.fork_safe_signals import EXIT_PREEMPTED

AGAIN_S = 5.0
"""Seconds that the process has to end after the second signal."""
POLL_S = 0.5
"""A process that is paused counts no time."""

SHOW_CURSOR = "\x1b[?25h"


@final
class LateEnd:
    """Lets a block end in time after a signal, or exits the process.

    A call into a database or a file system that hangs cannot be interrupted; the process can be ended.

    Args:
        limit_s: seconds that the block has after the first signal; None if it may take as long as it needs.
        message: what is printed then.
    """

    def __init__(self, limit_s: float | None, message: str) -> None:
        self._limit_s, self._message = limit_s, message
        self._remaining_s = math.inf
        self._done = False

    def after(self, act: Callable[[], None]) -> Callable[[], None]:
        """Return what a signal handler calls: it acts, and starts or shortens the time."""

        def signalled() -> None:
            if self._limit_s is not None:
                self._remaining_s = min(
                    self._remaining_s, self._limit_s if math.isinf(self._remaining_s) else AGAIN_S
                )
            act()

        return signalled

    def __enter__(self) -> Self:
        if self._limit_s is not None:
            threading.Thread(target=self._watch, name="phyla-late-end", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done = True

    def _watch(self) -> None:
        while self._remaining_s > 0:
            time.sleep(POLL_S)
            if self._done:
                return
            self._remaining_s -= POLL_S
        # The terminal may be gone, or what reads the output may stand still.
        threading.Timer(POLL_S, os._exit, [EXIT_PREEMPTED]).start()
        with contextlib.suppress(OSError, ValueError):
            if sys.stdout.isatty():
                sys.stdout.write(SHOW_CURSOR)  # a live view hides it
                sys.stdout.flush()
            sys.stderr.write(f"{self._message}\n")
            sys.stderr.flush()
        os._exit(EXIT_PREEMPTED)
