"""Which hyperparameters went with progress."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

from phyla.records import Json
from phyla.report.data import Hyperparameter, StudyData, finite_fitness

Pair = TypeVar("Pair", bound=tuple[object, float])

FEWEST = 10
"""Trials below which there is no strength."""
NORMAL_95 = 1.96
"""Standard deviations within which 95 of 100 normal values lie."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How much a trial's gain went with one of its hyperparameters.

    Attributes:
        name: flat name of the hyperparameter.
        ordered: whether its values have an order: then `strength` is a rank correlation in [-1, 1], else a
            share in [0, 1] without a direction.
        strength: 0 for none; None with fewer than `FEWEST` trials, or if it never varied.
        noise: the bound below which chance alone keeps `strength` in 95 of 100 cases.
        trials: the trials that it is based on: those of generations in which it varied.
        gains: for a hyperparameter without order, the median gain of the trials by value.
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
    - other choices by the square root of epsilon squared (Kelley 1935), from the test of Kruskal and Wallis: the
      share of the variance of these ranks that lies between values, less what chance would give.

    A correlation is not a cause: an exploit changes all hyperparameters at once.
    """
    generations: dict[tuple[int, int], list[tuple[Mapping[str, Json], float]]] = defaultdict(list)
    for number, data in enumerate(studies):
        for trial in data.scored:
            parent = data.lineage.parent(trial.id)
            before = None if parent is None else finite_fitness(parent)
            if before is not None and trial.fitness is not None:
                gain = trial.fitness - before if data.aim.maximize else before - trial.fitness
                generations[number, trial.generation].append((trial.params, gain))
    found: list[Sensitivity] = []
    for param in studies[0].hyperparameters if studies else ():
        groups = [
            [(params[param.name], gain) for params, gain in group if param.name in params]
            for group in generations.values()
        ]
        if param.categories is None or param.ordered:
            found.append(_ordered(param.name, [_placed(group, param) for group in groups]))
        else:
            found.append(_unordered(param.name, [[(str(value), gain) for value, gain in one] for one in groups]))
    return found


def _placed(group: Sequence[tuple[Json, float]], param: Hyperparameter) -> list[tuple[float, float]]:
    """Return values as numbers: themselves, or their place among the ordered choices."""
    places = [(value if param.categories is None else param.place(value), gain) for value, gain in group]
    return [(float(at), gain) for at, gain in places if isinstance(at, (int, float)) and math.isfinite(at)]


def _varied(groups: Iterable[Sequence[Pair]]) -> list[Sequence[Pair]]:
    """Return the generations in which both the hyperparameter and the gain vary: the others say nothing."""
    return [
        group for group in groups if group and all(len(set(column)) > 1 for column in zip(*group, strict=True))
    ]


def _ranks(groups: Iterable[Iterable[float]]) -> list[float]:
    """Return ranks within each group as shares less one half, which are symmetric about 0."""
    from scipy import stats

    ranked = [stats.rankdata(list(group)) for group in groups]
    return [float(rank - 0.5) / len(ranks) - 0.5 for ranks in ranked for rank in ranks]


def _ordered(name: str, groups: Iterable[Sequence[tuple[float, float]]]) -> Sensitivity:
    from scipy import stats

    varied = _varied(groups)
    trials, strength, noise = sum(map(len, varied)), None, 1.0
    if trials >= FEWEST:
        values, gains = (_ranks((pair[column] for pair in group) for group in varied) for column in (0, 1))
        strength = float(stats.pearsonr(values, gains).statistic)
        noise = min(1.0, NORMAL_95 / math.sqrt(trials - len(varied)))
    return Sensitivity(name=name, ordered=True, strength=strength, noise=noise, trials=trials, gains={})


def _unordered(name: str, groups: Sequence[Sequence[tuple[str, float]]]) -> Sensitivity:
    from scipy import stats

    varied = _varied(groups)
    ranks: dict[str, list[float]] = defaultdict(list)
    labels = [label for group in varied for label, _ in group]
    for label, rank in zip(labels, _ranks((gain for _, gain in group) for group in varied), strict=True):
        ranks[label].append(rank)
    trials, strength, noise = len(labels), None, 1.0
    between, freedom = len(ranks) - 1, trials - len(varied)
    if trials >= FEWEST and between < freedom:
        # Ranks within generations have fewer degrees of freedom than the test of Kruskal and Wallis assumes.
        h = float(stats.kruskal(*ranks.values()).statistic) * freedom / (trials - 1)
        strength = math.sqrt(max(0.0, (h - between) / (freedom - between)))
        noise = math.sqrt(min(1.0, (float(stats.chi2.isf(0.05, between)) - between) / freedom))
    by_value: dict[str, list[float]] = defaultdict(list)
    for label, gain in sorted(pair for group in groups for pair in group):
        by_value[label].append(gain)
    medians = {label: statistics.median(gains) for label, gains in by_value.items()}
    return Sensitivity(name=name, ordered=False, strength=strength, noise=noise, trials=trials, gains=medians)
