"""Background tasks of a run, each in its own thread: they neither slow nor end the run."""

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from phyla.formatting import duration
from phyla.system.drafts import replace_text

LOG = logging.getLogger("phyla")

EVERY_S = 2.0
TRIES = 6
"""Consecutive failures after which a task is abandoned when the run ends; before that, waits double."""
MOST_AFTER_FAILURE_S = 300.0
REST = 4
"""A task rests this many times as long as it took, but no longer than `MOST_S`."""
MOST_S = 30.0
LAST_WAIT_S = 60.0
"""How long the end of a run waits for a task."""
SAID_AFTER_S = 5.0
"""How long the end of a run waits silently."""


@final
class Beside:
    """Repeats a task every few seconds during a run, and once at its end.

    Each kind of failure logs one warning, and the task is retried. When the run ends, it is abandoned after
    `TRIES` failures in a row.

    Args:
        task: what it does, as messages name it.
        act: does it.
        instead: what a user can do once the task was abandoned.
        close: called in the same thread at the end, and after a failure.
    """

    def __init__(
        self,
        task: str,
        act: Callable[[], object],
        instead: str,
        *,
        close: Callable[[], object] = lambda: None,
        every_s: float | None = None,
    ) -> None:
        self._task = task
        self._act = act
        self._instead = instead
        self._close = close
        self._every_s = EVERY_S if every_s is None else every_s
        self._end = threading.Event()
        self._left = False
        self._said: set[str] = set()
        # A daemon: what hangs must not keep the process.
        self._thread = threading.Thread(target=self._run, name=f"phyla: {task}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(SAID_AFTER_S)
        if self._thread.is_alive():
            LOG.warning("waiting for %s, for %s at most", self._task, duration(LAST_WAIT_S))
            self._thread.join(LAST_WAIT_S - SAID_AFTER_S)
        if self._thread.is_alive():
            self._left = True
            LOG.warning(
                "warning: %s does not answer for %s and is given up; %s",
                *(self._task, duration(LAST_WAIT_S), self._instead),
            )

    def _run(self) -> None:
        failures, wait_s, last = 0, 0.0, False
        while not last or failures:
            if last:
                time.sleep(self._every_s)
            last = self._end.wait(wait_s)
            began = time.monotonic()
            try:
                self._act()
                if last:
                    self._close()
            except BaseException as error:  # noqa: BLE001  # a SystemExit would end this thread silently
                if self._left:
                    return
                failures += 1
                given_up = last and failures >= TRIES
                self._warn(error, given_up=given_up)
                try:
                    self._close()
                except BaseException:  # it has failed already
                    LOG.debug("closing %s failed", self._task, exc_info=True)
                if given_up:
                    return
                wait_s = min(MOST_AFTER_FAILURE_S, self._every_s * 2 ** min(failures, 20))
            else:
                failures, wait_s = 0, max(self._every_s, min(MOST_S, REST * (time.monotonic() - began)))

    def _warn(self, error: BaseException, *, given_up: bool) -> None:
        """Log a failure, unless one of its kind was logged: the same but for numbers and addresses."""
        text = f"{type(error).__name__}: {error}"
        kind = re.sub(r"0x[0-9a-f]+|\d+", "", text)
        if given_up or kind not in self._said:
            self._said.add(kind)
            then = f"is given up; {self._instead}" if given_up else "is retried"
            LOG.warning("warning: %s failed: %s; it %s", self._task, text, then)


@final
class Remembered:
    """A value in a JSON file, for the next process that continues; None where no readable value exists."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> Any:
        """Return the value."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self._file.read_text())
        return None

    def write(self, value: Any) -> None:
        """Replace the value as a whole."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(self._file, json.dumps(value))
