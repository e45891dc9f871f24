"""Which hyperparameters went with progress."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from phyla.records import Json, TrialRecord
from phyla.report.data import Hyperparameter, StudyData, finite_fitness

if TYPE_CHECKING:
    import numpy as np

FEWEST = 10
"""Trials below which nothing is said."""
NORMAL_95 = 1.96
"""Standard deviations within which 95 of 100 normal values lie."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How much a trial's gain went with one of its hyperparameters.

    Attributes:
        name: flat name of the hyperparameter.
        ordered: whether its values have an order: then `strength` is a rank correlation in [-1, 1], else a
            share in [0, 1] that says nothing about a direction.
        strength: 0 for none; None with fewer than `FEWEST` trials, or where it never varied.
        noise: what `strength` stays below by chance in 95 of 100 cases, were there none.
        trials: how many trials it was taken from: those of generations in which it varied.
        gains: of one without an order, the median gain of the trials of every value.
    """

    name: str
    ordered: bool
    strength: float | None
    noise: float
    trials: int
    gains: Mapping[str, float]


def sensitivities(studies: Sequence[StudyData]) -> list[Sensitivity]:
    """Return how much the gain of a trial went with each hyperparameter, over replicates of one study.

    The gain of a trial is its fitness less that of the trial it started from, so that more is better. Early trials
    gain more and have other hyperparameters than late ones, so both are ranked among the trials of the same
    generation of the same study, as a share in (0, 1), before they are compared:

    - numbers and ordered choices by the correlation of these ranks, Spearman's within generations;
    - other choices by the square root of epsilon squared (Kelley 1935) of the ranks of gains by value: the share
      of their variance between values, less what chance would give.

    It says what went together, not what caused what: an exploit changes all hyperparameters at once.

    Args:
        studies: replicates of one study.
    """
    by_generation: dict[tuple[int, int], list[tuple[TrialRecord, float]]] = defaultdict(list)
    for number, data in enumerate(studies):
        for trial, gain in _gains(data):
            by_generation[number, trial.generation].append((trial, gain))
    found: list[Sensitivity] = []
    for param in studies[0].hyperparameters if studies else ():
        groups = [
            [(trial.params[param.name], gain) for trial, gain in group if param.name in trial.params]
            for group in by_generation.values()
        ]
        if param.categories is None or param.ordered:
            found.append(_ordered(param.name, [_placed(group, param) for group in groups]))
        else:
            found.append(_unordered(param.name, groups))
    return found


def _gains(data: StudyData) -> Iterator[tuple[TrialRecord, float]]:
    sign = 1.0 if data.maximize else -1.0
    for trial in data.scored:
        parent = data.lineage.parent(trial.id)
        before = None if parent is None else finite_fitness(parent)
        if before is not None:
            yield trial, sign * ((trial.fitness or 0.0) - before)


def _placed(group: Sequence[tuple[Json, float]], param: Hyperparameter) -> list[tuple[float, float]]:
    """Return values as numbers: themselves, or their place among the ordered choices."""
    placed: list[tuple[float, float]] = []
    for value, gain in group:
        at = value if param.categories is None else param.place(value)
        if isinstance(at, (int, float)) and math.isfinite(at):
            placed.append((float(at), gain))
    return placed


def _ranks(values: Sequence[float]) -> "np.ndarray[Any, Any]":
    """Return ranks as shares, less one half: symmetric about 0 for any number of values."""
    from scipy import stats

    ranks: np.ndarray[Any, Any] = stats.rankdata(values)
    return (ranks - 0.5) / len(values) - 0.5


def _ordered(name: str, groups: Iterable[Sequence[tuple[float, float]]]) -> Sensitivity:
    # Where one of them is the same all over, the generation says nothing.
    varied = [
        group for group in groups if all(len(set(column)) > 1 for column in zip(*group, strict=True)) and group
    ]
    trials = sum(map(len, varied))
    if trials < FEWEST:
        return Sensitivity(name=name, ordered=True, strength=None, noise=1.0, trials=trials, gains={})
    ranks = [tuple(_ranks(column) for column in zip(*group, strict=True)) for group in varied]
    together = sum(float(x @ y) for x, y in ranks)
    squares = [(float(x @ x), float(y @ y)) for x, y in ranks]
    spread = math.sqrt(sum(x for x, _ in squares) * sum(y for _, y in squares))
    # The variance of the sum if the gains of a generation were dealt out at random.
    chance = sum(x * y / (len(group) - 1) for (x, y), group in zip(squares, varied, strict=True))
    noise = min(1.0, NORMAL_95 * math.sqrt(chance) / spread)
    return Sensitivity(name=name, ordered=True, strength=together / spread, noise=noise, trials=trials, gains={})


def _unordered(name: str, groups: Iterable[Sequence[tuple[Json, float]]]) -> Sensitivity:
    gains: dict[str, list[float]] = defaultdict(list)
    ranks: dict[str, list[float]] = defaultdict(list)
    freedom = 0
    for group in groups:
        labels, its = [str(value) for value, _ in group], [gain for _, gain in group]
        for label, gain in zip(labels, its, strict=True):
            gains[label].append(gain)
        if len(set(labels)) > 1 and len(set(its)) > 1:
            freedom += len(its) - 1
            for label, rank in zip(labels, _ranks(its).tolist(), strict=True):
                ranks[label].append(rank)
    trials, between_freedom = sum(map(len, ranks.values())), len(ranks) - 1
    strength, noise = None, 1.0
    if trials >= FEWEST and 0 < between_freedom < freedom:
        from scipy.stats import chi2

        total = math.fsum(rank * rank for one in ranks.values() for rank in one)
        between = math.fsum(math.fsum(one) ** 2 / len(one) for one in ranks.values())
        within_share = (1 - between / total) * freedom / (freedom - between_freedom)
        strength = math.sqrt(max(0.0, 1 - within_share))
        noise = math.sqrt(min(1.0, (float(chi2.isf(0.05, between_freedom)) - between_freedom) / freedom))
    medians = {label: statistics.median(one) for label, one in sorted(gains.items())}
    return Sensitivity(name=name, ordered=False, strength=strength, noise=noise, trials=trials, gains=medians)
