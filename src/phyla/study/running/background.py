"""Background tasks of a run, each in its own thread: they neither slow nor end the run."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from phyla.formatting import duration

LOG = logging.getLogger("phyla")

EVERY_S = 2.0
TRIES = 6
"""Consecutive failures after which a task is abandoned; during the run the waits between them double."""
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

    A failure logs a warning, and the task is retried; after `TRIES` failures in a row it is abandoned.

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
            LOG.warning("the work is done; waiting for %s, for %s at most", self._task, duration(LAST_WAIT_S))
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
            except Exception as error:  # noqa: BLE001  # whatever a tracker raises must not harm the study
                if self._left:
                    return
                failures += 1
                given_up = failures >= TRIES
                if failures == 1 or given_up:
                    then = f"is given up; {self._instead}" if given_up else "is retried"
                    LOG.warning("warning: %s failed: %s: %s; it %s", self._task, type(error).__name__, error, then)
                try:
                    self._close()
                except Exception:  # it has failed already
                    LOG.debug("closing %s failed", self._task, exc_info=True)
                if given_up:
                    return
                wait_s = self._every_s * 2**failures
            else:
                failures, wait_s = 0, max(self._every_s, min(MOST_S, REST * (time.monotonic() - began)))


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
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(value))
        draft.replace(self._file)
