"""How good a population was over time, in few numbers: what a line of a terminal shows."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, final

from phyla.records import JobState

if TYPE_CHECKING:
    from phyla.store import Reader

SAMPLE = 30
"""Trials that are read for one point, at most."""


@final
@dataclass(frozen=True, slots=True)
class Course:
    """Fitness from the first trial to the newest; all have a value for each point.

    Attributes:
        best: the best so far.
        median: of the trials at that point.
        low: of which a quarter of these trials is no better.
    """

    best: list[float]
    median: list[float]
    low: list[float]


def course(reader: "Reader", points: int) -> Course:
    """Return how good the population was at so many points at most, each of a sample of trials in a row.

    It reads no more of a long history than of a short one. A point has at least one trial of each member.
    """
    found = Course([], [], [])
    first, last = reader.trials(limit=1), reader.newest_trials(1)
    if not first or not last:
        return found
    size = max(1, reader.study().population_size)
    start, count = first[0].id - 1, last[0].id - first[0].id + 1
    points = max(1, min(points, count // size))
    ends = [start + count * point // points for point in range(points + 1)]
    (best,) = reader.best_trials(1) or (None,)
    top = (-math.inf, math.nan)
    for after, end in pairwise(ends):
        trials = (one for one in reader.trials(after=after, limit=SAMPLE) if one.id <= end)
        scores = sorted(
            (one.order, one.fitness)
            for one in trials
            if one.state is JobState.COMPLETED
            and one.fitness is not None
            and one.order is not None
            and math.isfinite(one.order)
        )
        if scores:
            top = max(top, scores[-1])
            found.best.append(top[1])
            found.median.append(scores[len(scores) // 2][1])
            found.low.append(scores[len(scores) // 4][1])
    if found.best and best is not None and best.fitness is not None:
        found.best[-1] = best.fitness
    return found
