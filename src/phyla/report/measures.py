"""What a comparison measures of studies: how good they were after how much work, and what progress went with."""

import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np

from phyla.records import StudyState
from phyla.report.data import Hyperparameter, Interval, StudyData, finite_fitness, trained

By: TypeAlias = Literal["steps", "time"]
"""What counts as work: steps of all members together, or seconds in which anything was running."""
Measure: TypeAlias = Literal["best", "median"]
"""What counts as good: the best fitness so far, or the median of every member's newest one."""
FEWEST = 10
"""Trials below which there is no strength."""
NORMAL_95 = 1.96
"""Standard deviations within which 95 of 100 normal values lie."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A step function: from `xs[i]` on, until the next one, its value is `ys[i]`.

    `last` is the total work; if the study is `finished`, the last value holds from there on.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    last: float
    finished: bool

    def at(self, x: float) -> float | None:
        """Return its value; None before the first one, and beyond the end of what is not finished."""
        place = bisect_right(self.xs, x)
        return None if place == 0 or (x > self.last and not self.finished) else self.ys[place - 1]

    def first(self, target: float, *, maximize: bool) -> float | None:
        """Return where it first is as good as a target; None if it never is."""
        reached = (x for x, y in zip(self.xs, self.ys, strict=True) if (y >= target if maximize else y <= target))
        return next(reached, None)


@final
class Band(NamedTuple):
    """Median and quartiles of curves, interpolated linearly: step functions too, which change at `xs`."""

    xs: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    middle: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def curve(data: StudyData, *, by: By = "steps", measure: Measure = "best") -> Curve:
    """Return how good a study was after how much work.

    Steps count when a trial completes. Time passes while a trial or an eval task is running, so it stands still
    while a study is interrupted. A fitness counts from the moment that its trial completed.
    """
    passed = time_in([*data.running, *data.evaluating]) if by == "time" else None
    points: dict[float, float] = {}
    newest: dict[int, float] = {}
    value: float | None = None
    work, steps = 0.0, 0
    for trial in sorted(data.completed, key=lambda trial: (trial.ended_at or 0.0, trial.id)):
        steps += trained(trial)
        work = float(steps) if passed is None else passed(trial.ended_at or 0.0)
        fitness, before = finite_fitness(trial), value
        newest.pop(trial.member, None)
        if fitness is not None:
            newest[trial.member] = fitness
        if measure == "median":
            value = statistics.median(newest.values()) if newest else before
        elif fitness is not None and (before is None or (fitness > before) == data.aim.maximize):
            value = fitness
        if value is not None and value != before:
            points[work] = value
    finished = data.study.state is StudyState.COMPLETED
    return Curve(xs=tuple(points), ys=tuple(points.values()), last=work, finished=finished)


def time_in(intervals: Sequence[Interval]) -> Callable[[float], float]:
    """Return a function that gives the seconds before a moment that lie in at least one of the intervals."""
    merged: list[list[float]] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    begins, ends = np.array(merged, dtype=float).reshape(-1, 2).T
    return lambda moment: float((np.minimum(moment, ends) - begins).clip(0).sum())


def band(curves: Sequence[Curve]) -> Band:
    """Return median and quartiles of curves, wherever all of those that have values have one."""
    known = [one for one in curves if one.xs]
    if not known:
        return Band()
    first = max(one.xs[0] for one in known)
    end = min([max(one.last for one in known), *(one.last for one in known if not one.finished)])
    xs = sorted({x for one in known for x in (*one.xs, one.last) if first <= x <= end})
    values = np.array([[one.at(x) for x in xs] for one in known], dtype=float).reshape(len(known), len(xs))
    return Band(tuple(xs), *map(tuple, np.quantile(values, [0.25, 0.5, 0.75], axis=0).tolist()))


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
    found: list[Sensitivity] = []
    for param in studies[0].hyperparameters if studies else ():
        groups = [
            [(_comparable(param, params[param.name]), gain) for params, gain in each if param.name in params]
            for each in generations.values()
        ]
        found.append(_sensitivity(param, [[pair for pair in each if pair[0] is not None] for each in groups]))
    return found


def _sensitivity(param: Hyperparameter, known: Sequence[Sequence[tuple[Any, float]]]) -> Sensitivity:
    """Return how much gains went with the values of a hyperparameter, from those of every generation."""
    from scipy import stats

    ordered = param.categories is None or param.ordered
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
        by_value = _by_value(*zip(*pairs, strict=True)) if pairs else {}
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


def _by_value(values: Iterable[str], numbers: Iterable[float]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for value, number in zip(values, numbers, strict=True):
        found[value].append(number)
    return found
