"""What a worker has for its next job: GPUs, labels and time. Jobs that do not fit are not handed to it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from phyla.records import JobKind, TrialRecord

RECENT = 20
"""Completed trials from which durations are learned."""
ANY_GPUS = (0, 1_000_000)
SLOW = 0.9
"""The quantile of their seconds per step that a trial is expected to take."""
WHOLE = 0.9
"""A job that takes more than this part of a whole run is handed out anyway: later runs would have no more time."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a worker has for its next job.

    Attributes:
        gpus: least and greatest number of GPUs that an eval task may ask for.
        labels: what eval tasks may ask for; those that ask for no label always fit.
        left_s: seconds until it is asked to stop; None for no limit.
        run_s: seconds that its whole run has, from its start.
        resting: identities of eval tasks that are not given out now.
    """

    gpus: tuple[int, int] = ANY_GPUS
    labels: tuple[str, ...] = ()
    left_s: float | None = None
    run_s: float = math.inf
    resting: frozenset[str] = frozenset()

    def holds(self, expected_s: float | None) -> bool:
        """Return whether to begin a job of this expected duration; None is an unknown duration."""
        if self.left_s is None or expected_s is None:
            return True
        return expected_s <= self.left_s or expected_s > WHOLE * self.run_s


NO_LIMIT = Room()


def expected_s(trial: TrialRecord, recent: Sequence[TrialRecord]) -> float | None:
    """Return how long an attempt at a trial takes, by the durations of completed ones; None where there are none.

    Only trials that ended in their first attempt count: for others, the steps of the last attempt are unknown.

    Args:
        trial: a trial that was claimed; its saved progress need not be trained again.
        recent: the newest completed trials.

    Returns:
        Seconds: its steps at the pace of the slower ones of these.
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
