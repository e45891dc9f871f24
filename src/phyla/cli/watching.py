"""Watches a running study: looks at it from time to time and shows what it sees."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, final

from phyla import settings
from phyla.errors import StoreError
from phyla.records import Attempt, Member

if TYPE_CHECKING:
    from phyla.study import Progress, Results

LIVE_EVERY_S = 0.25
LINES_EVERY_S = 1.0
SHARE = 20
"""Looking takes at most this part of the time, however large the study is."""

STOPPING = "stopping: running trials go back to the queue; press Ctrl-C again to stop at once"
STOPPING_AT_ONCE = "stopping at once"


class Display(Protocol):
    """Shows how far a study is."""

    def choose(self, members: Sequence[Member]) -> Iterable[Member]:
        """Return the members whose trials are wanted."""
        ...

    def show(self, progress: "Progress", left_s: float | None) -> None:
        """Show how far it is and how long it may take."""
        ...

    def failed(self, attempt: Attempt) -> None:
        """Show an attempt that failed."""
        ...

    def interrupted(self, message: str) -> None:
        """Show that a person wants to stop; called inside a signal handler."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


@final
class Watch:
    """Looks at a running study often enough for a person, and seldom enough for the study.

    Args:
        study: name of the study.
    """

    def __init__(self, study: str) -> None:
        self._display: Display
        if sys.stdout.isatty():
            from phyla.cli.live import LiveDisplay

            self._display, self._every_s = LiveDisplay(study), LIVE_EVERY_S
        else:
            from phyla.cli.lines import LinesDisplay

            self._display, self._every_s = LinesDisplay(), LINES_EVERY_S
        self._started = time.monotonic()
        self._since = settings.system_clock()
        self._next = self._started
        self._failures: Callable[[], list[Attempt]] | None = None
        self._pace: Pace | None = None
        self._interrupts = 0
        self._results: Results | None = None
        self.seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.monotonic() - self._started
        if self._results is not None:
            with suppress(StoreError):
                self._look(self._results)
        self._display.close()

    def progressed(self, results: "Results") -> None:
        """Look at the study if it is time; the last look is at the end."""
        self._results = results
        before = time.monotonic()
        if before < self._next:
            return
        try:
            self._look(results)
        except StoreError:
            # Showing is not worth ending a run for; training tells if the store is gone for good.
            self._failures = None
        after = time.monotonic()
        self._next = after + max(self._every_s, SHARE * (after - before))

    def interrupted(self) -> None:
        """Say what happens now; called inside a signal handler."""
        self._interrupts += 1
        self._display.interrupted(STOPPING if self._interrupts == 1 else STOPPING_AT_ONCE)

    def _look(self, results: "Results") -> None:
        if self._failures is None:
            self._failures = results.failures(self._since)
        for attempt in self._failures():
            self._display.failed(attempt)
        progress = results.progress(self._display.choose)
        if self._pace is None:
            self._pace = Pace(progress.now, progress.spent_steps)
        self._display.show(progress, self._pace.left_s(progress.now, progress.spent_steps, progress.total_steps))


@final
class Pace:
    """Estimates the time left from what was done since the first look.

    Args:
        now: time of the first look.
        spent: steps that were completed by then.
    """

    def __init__(self, now: float, spent: int) -> None:
        self._now = now
        self._spent = spent

    def left_s(self, now: float, spent: int, total: int | None) -> float | None:
        """Return the seconds left; None while nothing was completed, or without a total."""
        if total is None:
            return None
        if spent >= total:
            return 0.0
        done, elapsed = spent - self._spent, now - self._now
        return elapsed * (total - spent) / done if done > 0 and elapsed > 0 else None


def write_at_once(text: str) -> None:
    """Write to standard error without any buffer, as a signal handler must."""
    os.write(2, f"{text}\n".encode())
