"""Exits a process that does not end after a signal, since what it waits for does not answer."""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, final

from phyla.system.fork_safe_signals import EXIT_PREEMPTED

POLL_S = 0.5
"""A process that is paused counts no time."""

SHOW_CURSOR = "\x1b[?25h"


@final
class LateEnd:
    """Lets a block end in time after a signal, or exits the process.

    A call into a database or a file system that hangs cannot be interrupted; the process can be ended.

    Args:
        limits_s: seconds that the block has after the first signal, after the second, and so on; inf is as long as
            it needs. The last holds for all further signals.
        message: what is printed then.
    """

    def __init__(self, limits_s: Sequence[float], message: str) -> None:
        self._limits_s, self._message = [*limits_s], message
        self._remaining_s = math.inf
        self._done = False

    def after(self, act: Callable[[], None]) -> Callable[[], None]:
        """Return what a signal handler calls: it acts, and starts or shortens the time."""

        def signalled() -> None:
            limit_s = self._limits_s.pop(0) if len(self._limits_s) > 1 else self._limits_s[0]
            self._remaining_s = min(self._remaining_s, limit_s)
            act()

        return signalled

    def __enter__(self) -> Self:
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
