"""The time limit of a run, and how it stops."""

import math
import signal
from dataclasses import dataclass, field
from typing import final

from phyla import settings

PERSON = "interrupted by a person"
GRACE_S = 30.0
"""Seconds that a run waits for training and eval tasks to stop after a signal."""
STOP_AHEAD_S = 60.0
"""The most seconds before the time limit at which a run asks its workers to save and stop."""


@final
@dataclass(frozen=True, kw_only=True)
class Term:
    """The time limit and signals of a run.

    Attributes:
        stop_signal: a signal that stops it, besides SIGINT, SIGTERM and SIGHUP; None for no other.
        limit_s: the longest duration in seconds; None for no limit.
        grace_s: seconds that workers have to stop after a signal, before they are killed.
        began_at: when it began, in seconds since the epoch.
    """

    stop_signal: int | None = None
    limit_s: float | None = None
    grace_s: float = GRACE_S
    began_at: float = field(default_factory=settings.system_clock)

    @property
    def ends_at(self) -> float:
        """When running workers are killed, in seconds since the epoch."""
        return math.inf if self.limit_s is None else self.began_at + self.limit_s

    @property
    def stops_at(self) -> float:
        """When workers are asked to save and stop, in seconds since the epoch."""
        return self.ends_at if self.limit_s is None else self.ends_at - min(STOP_AHEAD_S, self.limit_s / 10)

    @property
    def overrun_message(self) -> str:
        """The message about a worker that did not stop in time."""
        return (
            f"did not stop within {self.grace_s:g} s and was killed; work since its last save will be repeated. "
            "Check trial.should_stop in training, or raise grace_s (--grace) if saving takes longer"
        )

    def end_message(self, *, over: bool) -> str:
        """Return the message that the time limit is reached, or that too little time is left."""
        how = "is reached" if over else "leaves too little time for more work"
        return f"the time limit of {0 if self.limit_s is None else self.limit_s:g} s {how}"

    @property
    def signals(self) -> tuple[int, ...]:
        """The signals that stop it."""
        more = [] if self.stop_signal is None else [self.stop_signal]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup makes it
            more.append(signal.SIGHUP)
        return (signal.SIGINT, signal.SIGTERM, *more)
