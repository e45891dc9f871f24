"""When a run has to stop, and how."""

import math
import signal
from dataclasses import dataclass, field
from typing import final

from phyla import settings

PERSON = "interrupted by a person"
GRACE_S = 30.0
"""Seconds that a run which a signal stops waits for training and eval tasks that do not notice."""
STOP_AHEAD_S = 60.0
"""How long before the end of its time, at most, a run asks its workers to save and stop."""


@final
@dataclass(frozen=True, kw_only=True)
class Term:
    """When a run has to stop.

    Attributes:
        stop_signal: a signal that asks it to, besides SIGINT, SIGTERM and SIGHUP; None for no other.
        limit_s: seconds that it may last; None for no limit.
        grace_s: seconds that what runs has to stop after a signal, before it is ended.
        began_at: when it began, in seconds since the epoch.
    """

    stop_signal: int | None = None
    limit_s: float | None = None
    grace_s: float = GRACE_S
    began_at: float = field(default_factory=settings.system_clock)

    @property
    def ends_at(self) -> float:
        """When workers that are still running are ended, in seconds since the epoch."""
        return math.inf if self.limit_s is None else self.began_at + self.limit_s

    @property
    def stops_at(self) -> float:
        """When workers are asked to save and stop, in seconds since the epoch."""
        return self.ends_at if self.limit_s is None else self.ends_at - min(STOP_AHEAD_S, self.limit_s / 10)

    @property
    def deaf(self) -> str:
        """Say that something did not stop in time."""
        return (
            f"did not stop within {self.grace_s:g} s, and was ended; what it did since its last save is repeated. "
            "Look at trial.should_stop, or raise grace_s (--grace) if saving takes longer"
        )

    def over(self, *, wholly: bool) -> str:
        """Say that the time is over, or that too little of it is left."""
        how = "is over" if wholly else "leaves too little time for more work"
        return f"the time limit of {0 if self.limit_s is None else self.limit_s:g} s {how}"

    @property
    def signals(self) -> tuple[int, ...]:
        """The signals that ask it to stop."""
        more = [] if self.stop_signal is None else [self.stop_signal]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup makes it
            more.append(signal.SIGHUP)
        return (signal.SIGINT, signal.SIGTERM, *more)
