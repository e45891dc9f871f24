"""How good a population was over time, in few numbers: what a line of a terminal shows."""

import math
from itertools import pairwise

from phyla.machine import Reader
from phyla.records import JobState

SAMPLE = 30
"""Trials that are read for one point, at most."""


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
