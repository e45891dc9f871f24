"""Measures how the time of a trial is spent."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from phyla.records import Phase


@final
class Stopwatch:
    """Adds up the seconds that one thread spends in each phase; it is always in exactly one."""

    def __init__(self, timer: Callable[[], float] = time.perf_counter, phase: Phase = Phase.CONTROL) -> None:
        self._timer = timer
        self._phase = phase
        self._since = timer()
        self._seconds: dict[str, float] = {}

    def enter(self, phase: Phase) -> Phase:
        """Enter a phase; return the previous one."""
        before, now = self._phase, self._timer()
        self._seconds[before.value] = self._seconds.get(before.value, 0.0) + now - self._since
        self._phase, self._since = phase, now
        return before

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        """Spend the block in a phase, then return to the previous one."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def rename(self, old: Phase, new: Phase) -> None:
        """Move the seconds of one phase to another."""
        self.enter(self._phase)
        if old.value in self._seconds:
            self._seconds[new.value] = self._seconds.get(new.value, 0.0) + self._seconds.pop(old.value)

    def take(self) -> dict[str, float]:
        """Return the seconds by phase since the last call, and restart at zero in `Phase.CONTROL`."""
        self.enter(Phase.CONTROL)
        seconds_by_phase, self._seconds = self._seconds, {}
        return {phase: round(seconds, 6) for phase, seconds in seconds_by_phase.items() if seconds >= 1e-6}
