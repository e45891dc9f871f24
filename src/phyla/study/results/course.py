"""How good a population was over time, from few trials: what a line of a terminal shows, and what opens a page."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from phyla.machine import Reader
from phyla.records import JobState, TrialRecord

SAMPLE = 30
"""Trials that are read for one point, at most."""
DRAWN = 1_500
"""Trials that are drawn, about; of more, the histories of some members."""
ANCESTORS = 1_000
FEW = 20
"""Members that are drawn at least."""


def course(reader: Reader, points: int) -> list[tuple[float, float, float]]:
    """Return how good the population was, from the first trial to the newest, at no more than `points` points.

    A point is the best fitness so far, and of the trials at that time the median and the worse quartile.
    It is of a sample of trials, so that a long history takes no longer.
    """
    ends, quantiles, top = [0], list[tuple[float, float, float]](), (-math.inf, math.nan)
    for newest in reader.newest_trials(1):
        start = reader.trials(limit=1)[0].id - 1
        points = max(1, min(points, (newest.id - start) // max(1, reader.study().population_size)))
        ends = [start + (newest.id - start) * point // points for point in range(points + 1)]
    for after, end in pairwise(ends):
        trials = [trial for trial in reader.trials(after=after, limit=SAMPLE) if trial.id <= end]
        trained = [trial for trial in trials if not trial.measures]
        completed = [trial for trial in trained if trial.state is JobState.COMPLETED and trial.fitness is not None]
        scores = sorted(
            (trial.order or 0.0, trial.fitness or 0.0) for trial in completed if math.isfinite(trial.order or 0.0)
        )
        if scores:
            top = max(top, scores[-1])
            quantiles.append((top[1], scores[len(scores) // 2][1], scores[len(scores) // 4][1]))
    best = next(iter(reader.best_trials(1)), None)
    if quantiles and best is not None and best.fitness is not None:
        quantiles[-1] = (best.fitness, *quantiles[-1][1:])
    return quantiles


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Histories:
    """Trials of a population that are enough for a picture.

    Attributes:
        trials: all trials, or some of some members and those of `path`, by id.
        path: ids of the trials that trained the best weights, root first.
        members: of how many members all are.
    """

    trials: list[TrialRecord]
    path: list[int]
    members: int


def histories(reader: Reader, best: int | None) -> Histories:
    """Return the trials of all members, or of some where there are many, and those that led to the best one."""
    path = [] if best is None else list(reader.ancestry(best, ANCESTORS))[::-1]
    size, total = max(1, reader.study().population_size), sum(reader.counts().values())
    count = size if total <= DRAWN else min(size, max(FEW, DRAWN * size // total))
    if total <= DRAWN:
        trials = reader.trials()
    else:
        shown = [size * place // count for place in range(count)]
        trials = [trial for member in shown for trial in _history(reader, member, DRAWN // count)]
    by_id = {trial.id: trial for trial in (*trials, *path)}
    return Histories(
        trials=[trial for _, trial in sorted(by_id.items())],
        path=[trial.id for trial in path],
        members=count,
    )


def _history(reader: Reader, member: int, most: int) -> Iterator[TrialRecord]:
    """Yield the trials of a member: all, or evenly spread ones if there are more than `most`."""
    trials = reader.trials(member=member, limit=most + 1)
    if len(trials) <= most:
        yield from trials
        return
    (newest,) = reader.newest_trials(1)
    start = trials[0].id - 1
    for place in range(most):
        yield from reader.trials(member=member, after=start + (newest.id - start) * place // most, limit=1)
