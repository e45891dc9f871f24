"""The capacity of a worker for its next job: GPUs, labels and time; it gets only jobs that fit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from phyla.records import JobKind, TrialRecord

RECENT = 20
"""Completed trials from which durations are estimated."""
ANY_GPUS = (0, 1_000_000)
SLOW = 0.9
"""The quantile of their seconds per step that predicts the pace of a trial."""
WHOLE = 0.9
"""A job that takes more than this part of a whole run is assigned anyway: later runs have no more time."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The capacity of a worker for its next job.

    Attributes:
        gpus: least and greatest number of GPUs that an eval task may need.
        labels: the labels that eval tasks may need; those without a label always fit.
        left_s: seconds until it must stop; None for no limit. Below 0 it gets nothing.
        run_s: the time limit of its whole run, in seconds.
        resting: identities of eval tasks that are not handed out now.
    """

    gpus: tuple[int, int] = ANY_GPUS
    labels: tuple[str, ...] = ()
    left_s: float | None = None
    run_s: float = math.inf
    resting: frozenset[str] = frozenset()

    def holds(self, expected_s: float | None) -> bool:
        """Return whether to start a job of this expected duration; None if unknown."""
        if self.left_s is None:
            return True
        if expected_s is None:
            return self.left_s >= 0
        return expected_s <= self.left_s or expected_s > WHOLE * self.run_s


NO_LIMIT = Room()
ONLY_END = Room(left_s=-1.0)
"""Claims nothing. Such a request only ends a study that has nothing left to do."""


def expected_s(trial: TrialRecord, recent: Sequence[TrialRecord]) -> float | None:
    """Return the expected duration of an attempt at a trial, from completed trials; None without any.

    Only trials that ended in their first attempt count: for others, the steps of the last attempt are unknown.

    Args:
        trial: a claimed trial; its saved progress is not trained again.
        recent: the newest completed trials.

    Returns:
        Seconds: its steps at the pace of the slower of these trials.
    """
    paces = sorted(
        (previous.ended_at - previous.started_at) / (previous.reached_step - previous.start_step)
        for previous in recent
        if previous.kind is JobKind.TRAIN and previous.token == 1
        if previous.started_at is not None and previous.ended_at is not None
        if previous.reached_step is not None and previous.reached_step > previous.start_step
    )
    if not paces:
        return None
    begin = trial.start_step if trial.progress_step is None else trial.progress_step
    return (trial.end_step - begin) * paces[math.ceil(SLOW * len(paces)) - 1]
