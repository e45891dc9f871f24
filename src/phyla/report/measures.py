"""Curves and quantiles of studies: fitness over work or progress."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np

from phyla.records import StudyState
from phyla.report.columns import Trials
from phyla.report.data import Interval, StudyData

By: TypeAlias = Literal["steps", "time"]
"""The unit of work: total steps of all members, or seconds in which any job was running."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A step function: its value is `ys[i]` from `xs[i]` until the next x.

    `last` is the total work; if the study is `finished`, the last value holds from there on.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    last: float
    finished: bool

    def at(self, x: float) -> float | None:
        """Return its value at `x`; None before the first point, and beyond the end of an unfinished study."""
        place = bisect_right(self.xs, x)
        return None if place == 0 or (x > self.last and not self.finished) else self.ys[place - 1]

    def first(self, target: float, *, maximize: bool) -> float | None:
        """Return the first x at which it reaches a target; None if it never does."""
        reached = (x for x, y in zip(self.xs, self.ys, strict=True) if (y >= target if maximize else y <= target))
        return next(reached, None)


@final
class Band(NamedTuple):
    """Median and quartiles of curves (interpolated linearly), themselves step functions that change at `xs`."""

    xs: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    middle: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def curve(data: StudyData, *, by: By = "steps") -> Curve:
    """Return the best fitness of a study over work.

    Steps count when a trial completes, or a rule stops it. Time passes while a trial or an eval task is running,
    so it pauses while a study is interrupted. A fitness counts from the moment its trial completed.
    """
    trials, passed = data.trials, None
    if by == "time":
        attempts = zip(data.attempts.begin.tolist(), data.ends.tolist(), strict=True)
        tasks = zip(data.evaluating.begin.tolist(), data.evaluating.end.tolist(), strict=True)
        passed = time_in([*attempts, *tasks])
    points: dict[float, float] = {}
    value: float | None = None
    work, steps = 0.0, 0
    ended = np.nan_to_num(np.concatenate([trials.ended, trials.stopped[:, 0]]))
    order = np.argsort(ended, kind="stable")
    # Stopped trials cost work but have no fitness.
    unknown = np.full(len(trials.stopped), math.nan)
    columns = (
        np.concatenate(pair)[order].tolist()
        for pair in (
            (trials.end - trials.start, trials.stopped[:, 1]),
            (ended,),
            (trials.fitness, unknown),
        )
    )
    for trained, at, fitness in zip(*columns, strict=True):
        steps += trained
        work, before = float(steps) if passed is None else passed(at), value
        if math.isfinite(fitness) and (before is None or (fitness > before) == data.aim.maximize):
            value = fitness
        if value is not None and value != before:
            points[work] = value
    finished = data.study.state is StudyState.COMPLETED
    return Curve(xs=tuple(points), ys=tuple(points.values()), last=work, finished=finished)


def time_in(intervals: Sequence[Interval]) -> Callable[[float], float]:
    """Return a function that counts the seconds before a moment that lie in at least one interval."""
    merged: list[list[float]] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    begins, ends = np.array(merged, dtype=float).reshape(-1, 2).T
    return lambda moment: float((np.minimum(moment, ends) - begins).clip(0).sum())


def band(curves: Sequence[Curve]) -> Band:
    """Return median and quartiles of the curves that have values, where all of them have one."""
    known = [curve for curve in curves if curve.xs]
    if not known:
        return Band()
    first = max(curve.xs[0] for curve in known)
    end = min([max(curve.last for curve in known), *(curve.last for curve in known if not curve.finished)])
    xs = sorted({x for curve in known for x in (*curve.xs, curve.last) if first <= x <= end})
    values = np.array([[curve.at(x) for x in xs] for curve in known], dtype=float).reshape(len(known), len(xs))
    return Band(tuple(xs), *map(tuple, np.quantile(values, [0.25, 0.5, 0.75], axis=0).tolist()))


def founders(parents: Iterable[int]) -> list[int]:
    """Return the root of each lineage, given the index of its parent, an earlier lineage or -1."""
    roots: list[int] = []
    for at, parent in enumerate(parents):
        roots.append(at if parent < 0 else roots[parent])
    return roots


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles that figures draw of a population."""


def grid(trials: Trials, most: int = 200) -> Any:
    """Return places along progress: the ends of trials, or `most` evenly spread places if there are more."""
    ends = np.unique(trials.progress)
    return ends if len(ends) <= most else np.linspace(ends[-1] / most, ends[-1], most)


def newest(trials: Trials, places: Any) -> Any:
    """Return each member's newest completed trial at each progress; -1 beyond its own progress."""
    slots = np.searchsorted(places, trials.progress)
    members = np.unique(trials.member, return_inverse=True)[1]
    trial_at = np.full((members.max(initial=-1) + 1, len(places)), -1)
    trial_at[members, slots] = np.arange(len(members))
    last = np.zeros(len(trial_at), dtype=int)
    np.maximum.at(last, members, slots)
    trial_at = np.maximum.accumulate(trial_at, axis=1)
    trial_at[np.arange(len(places)) > last[:, None]] = -1
    return trial_at


def quantiles(groups: Iterable[Any], at: Sequence[float] = QUANTILES) -> Any:
    """Return a row per quantile of the finite values of each group; nan for a group without any."""
    known = [group[np.isfinite(group)] for group in groups]
    return np.array([np.quantile(group, at) if len(group) else [math.nan] * len(at) for group in known]).T
