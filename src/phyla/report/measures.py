"""What a comparison measures of studies: how good they were after how much work."""

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
"""What counts as work: steps of all members together, or seconds in which anything was running."""


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


def curve(data: StudyData, *, by: By = "steps") -> Curve:
    """Return the best fitness of a study after how much work.

    Steps count when a trial completes, or a rule stops it. Time passes while a trial or an eval task is running,
    so it stands still while a study is interrupted. A fitness counts from the moment that its trial completed.
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
    # Trials that were stopped only cost work.
    unknown = np.full(len(trials.stopped), math.nan)
    columns = (
        np.concatenate(pair)[order].tolist()
        for pair in (
            (trials.end - trials.start, trials.stopped[:, 1]),
            (ended,),
            (trials.fitness, unknown),
        )
    )
    for its, at, fitness in zip(*columns, strict=True):
        steps += its
        work, before = float(steps) if passed is None else passed(at), value
        if math.isfinite(fitness) and (before is None or (fitness > before) == data.aim.maximize):
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


def founders(parents: Iterable[int]) -> list[int]:
    """Return the root of each lineage, given the place of the one that it branches off, an earlier one or -1."""
    found: list[int] = []
    for at, parent in enumerate(parents):
        found.append(at if parent < 0 else found[parent])
    return found


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""What is drawn of a population."""


def grid(trials: Trials, most: int = 200) -> Any:
    """Return at which progress to look at a population: where trials ended, or evenly spread places."""
    ends = np.unique(trials.progress)
    return ends if len(ends) <= most else np.linspace(ends[-1] / most, ends[-1], most)


def newest(trials: Trials, places: Any) -> Any:
    """Return each member's newest completed trial at each progress; -1 where it has not come so far."""
    slots = np.searchsorted(places, trials.progress)
    members = np.unique(trials.member, return_inverse=True)[1]
    found = np.full((members.max(initial=-1) + 1, len(places)), -1)
    found[members, slots] = np.arange(len(members))
    last = np.zeros(len(found), dtype=int)
    np.maximum.at(last, members, slots)
    found = np.maximum.accumulate(found, axis=1)
    found[np.arange(len(places)) > last[:, None]] = -1
    return found


def quantiles(groups: Iterable[Any], at: Sequence[float] = QUANTILES) -> Any:
    """Return a row per quantile of the finite values of each group; nan where there are none."""
    known = [group[np.isfinite(group)] for group in groups]
    return np.array([np.quantile(one, at) if len(one) else [math.nan] * len(at) for one in known]).T
