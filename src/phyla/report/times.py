"""Where the time went: seconds of workers by phase."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from phyla.records import Attempt, Phase
from phyla.report.words import duration

Interval: TypeAlias = tuple[float, float]
"""Begin and end, in seconds since the epoch."""
PHASES = (Phase.TRAINING, Phase.LOADING, Phase.SAVING, Phase.EVALUATING, Phase.CONTROL, Phase.WAITING)
"""All phases, in the order in which they are shown."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """Where the time of attempts went.

    Attributes:
        seconds: by phase, added up over attempts and workers; every phase is there.
        timed: attempts whose time is known.
        ended: attempts that have ended.
    """

    seconds: Mapping[Phase, float]
    timed: int
    ended: int

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    def words(self) -> str:
        """Return the shares of the phases, largest first: `training 91 %, saving 6 %, loading 3 %`."""
        if not self.total_s:
            return "not known"
        shares = sorted(((100 * s / self.total_s, p) for p, s in self.seconds.items() if s), reverse=True)
        told = ", ".join(f"{phase} {share:.0f} %" if share >= 0.5 else f"{phase} < 1 %" for share, phase in shares)
        return f"{told} of {duration(self.total_s)}"


def time_spent(attempts: Sequence[Attempt], evaluating: Sequence[Interval] = ()) -> TimeSpent:
    """Add up where the time of attempts went.

    Args:
        attempts: of one study. Those that were released, crashed, or were made by an older version have no times.
        evaluating: when each eval task of the study ran, on any worker. If there are any, they give the time of
            evaluation; attempts know only of the eval tasks that training workers ran.
    """
    known = [attempt.timings for attempt in attempts if attempt.timings is not None]
    seconds = {phase: sum(timings.get(phase.value, 0.0) for timings in known) for phase in PHASES}
    if evaluating:
        seconds[Phase.EVALUATING] = sum(max(0.0, end - begin) for begin, end in evaluating)
    return TimeSpent(
        seconds=seconds, timed=len(known), ended=sum(attempt.ended_at is not None for attempt in attempts)
    )
