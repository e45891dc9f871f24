"""Which hyperparameters went with progress."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from phyla.report.data import Hyperparameter, StudyData, finite_fitness

FEWEST = 10
"""Trials below which there is no strength."""
NORMAL_95 = 1.96
"""Standard deviations within which 95 of 100 normal values lie."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How much a trial's gain went with one of its hyperparameters.

    Attributes:
        ordered: whether its values have an order: then `strength` is a rank correlation in [-1, 1], else a
            share in [0, 1] without a direction.
        strength: 0 for none; None with fewer than `FEWEST` trials, or if it never varied.
        noise: the bound below which chance alone keeps `strength` in 95 of 100 cases.
        trials: those of generations in which it varied.
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
    gain more and have other hyperparameters than late ones, so both are ranked within one generation of one study:
    numbers and ordered choices by the correlation of these ranks (Spearman's), other choices by the square root of
    epsilon squared (Kelley 1935): the share of the variance of ranks between values, less that of chance.
    A correlation is not a cause: an exploit changes all hyperparameters at once.
    """
    generations: dict[tuple[int, int], list[tuple[Mapping[str, Any], float]]] = defaultdict(list)
    for number, data in enumerate(studies):
        for trial in data.scored:
            parent = data.lineage.parent(trial.id)
            before = None if parent is None else finite_fitness(parent)
            if before is not None and trial.fitness is not None:
                gain = trial.fitness - before if data.aim.maximize else before - trial.fitness
                generations[number, trial.generation].append((trial.params, gain))
    return [_of(param, [*generations.values()]) for param in (studies[0].hyperparameters if studies else ())]


def _of(param: Hyperparameter, generations: Sequence[Sequence[tuple[Mapping[str, Any], float]]]) -> Sensitivity:
    from scipy import stats

    ordered = param.categories is None or param.ordered
    known = [
        [(_comparable(param, params[param.name]), gain) for params, gain in each if param.name in params]
        for each in generations
    ]
    known = [[(value, gain) for value, gain in each if value is not None] for each in known]
    # Generations in which the hyperparameter or the gain does not vary say nothing.
    varied = [each for each in known if each and all(len(set(column)) > 1 for column in zip(*each, strict=True))]
    columns = [tuple(zip(*each, strict=True)) for each in varied]
    gains = _ranks([gains for _, gains in columns])
    trials, strength, noise = len(gains), None, 1.0
    freedom = trials - len(varied)
    if ordered and trials >= FEWEST:
        strength = float(stats.pearsonr(_ranks([values for values, _ in columns]), gains).statistic)
        noise = min(1.0, NORMAL_95 / math.sqrt(freedom))
    elif trials >= FEWEST:
        by_value = _by_value((value for values, _ in columns for value in values), gains)
        between = len(by_value) - 1
        if between < freedom:
            # Ranks within generations have fewer degrees of freedom than the test of Kruskal and Wallis assumes.
            h = float(stats.kruskal(*by_value.values()).statistic) * freedom / (trials - 1)
            strength = math.sqrt(max(0.0, (h - between) / (freedom - between)))
            noise = math.sqrt(min(1.0, (float(stats.chi2.isf(0.05, between)) - between) / freedom))
    medians = {}
    if not ordered:
        pairs = sorted(pair for each in known for pair in each)
        by_value = _by_value((value for value, _ in pairs), [gain for _, gain in pairs])
        medians = {value: statistics.median(its) for value, its in by_value.items()}
    return Sensitivity(
        name=param.name, ordered=ordered, strength=strength, noise=noise, trials=trials, gains=medians
    )


def _comparable(param: Hyperparameter, value: Any) -> Any:
    """Return a value as a number, by its place if it is an ordered choice; as a text if it has no order."""
    if param.categories is not None:
        return param.place(value) if param.ordered else str(value)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _ranks(groups: Sequence[Sequence[float]]) -> list[float]:
    """Return ranks within each group as shares less one half, which are symmetric about 0."""
    from scipy import stats

    ranked = [stats.rankdata(group) for group in groups]
    return [float(rank - 0.5) / len(ranks) - 0.5 for ranks in ranked for rank in ranks]


def _by_value(values: Any, numbers: Sequence[float]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for value, number in zip(values, numbers, strict=True):
        found[value].append(number)
    return found
