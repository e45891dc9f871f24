"""The outcome of one simulated run of a study."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import final

from phyla.records import Group, GroupState, StudyState


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationLag:
    """How long checkpoints waited for a suite's results."""

    complete: int  # groups that ended complete
    others: int  # groups that were skipped, partial, gone, or still queued at the end
    median_s: float  # from the commit of the checkpoint to the end of its group; nan without any
    longest_s: float  # the longest of them

    @classmethod
    def of(cls, lags: Sequence[float], suite: str, groups: Sequence[Group]) -> "EvaluationLag":
        """Return the lag of a suite from that of each complete group."""
        return cls(
            complete=len(lags),
            others=sum(group.suite == suite and group.state is not GroupState.COMPLETE for group in groups),
            median_s=median(lags) if lags else math.nan,
            longest_s=max(lags, default=math.nan),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """One simulated run of a study."""

    state: StudyState  # how the study ended; running if it came to stand still
    message: str | None  # why it stopped, failed or stands still
    wall_s: float  # from the first claim to the end
    # What the workers did; together they are workers x wall time. training: steps of attempts that completed;
    # evaluating: eval tasks that completed; moving: loading and saving checkpoints for either; waiting: nothing to
    # claim, at barriers, for evaluations, or because there are more workers than members; lost: work that did not
    # complete, and workers that were gone.
    seconds: dict[str, float]
    # Training steps, by what became of them. kept: a member's last weights descend from them; abandoned: they
    # completed, but every member that had them took over another's weights since; preempted: of attempts whose
    # worker was preempted or crashed; failed: of attempts that failed.
    steps: dict[str, int]
    completed: int  # trials that completed
    failed: int  # trials that were given up after their last attempt
    attempts: int  # attempts at trials
    trial_steps: tuple[int, int]  # of the shortest and the longest completed trial that trained; zeros without any
    checkpoints: int  # that were there at the same time, at most
    lag: dict[str, EvaluationLag]  # per suite, how long evaluation took to follow
    best: float  # the best fitness at the end; nan without any. Of the synthetic curve it says nothing
