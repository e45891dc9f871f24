"""The comparison of studies and their replicates: final values, tests, convergence."""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from phyla.errors import UsageError
from phyla.records import Phase, StudyState
from phyla.report.curves import Band, By, Curve, Measure, band, curve
from phyla.report.data import StudyData
from phyla.report.sensitivity import Sensitivity, sensitivities
from phyla.report.times import TimeSpent, time_spent
from phyla.report.words import p_words
from phyla.significance import holm, rank_sum, replicates_needed, signed_rank, smallest_p

ALPHA = 0.05
"""Adjusted p below which a difference counts as significant."""
MOST_NEEDED = 10_000
"""Replicates needed beyond which a table does not give their number."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStudy:
    """One study of a comparison: its records, what it is a replicate of (else its own name), and which one."""

    data: StudyData
    group: str
    replicate: int | None = None

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.data.study.name


@final
class Spread(NamedTuple):
    """Values of replicates, their quartiles (interpolated linearly) and their mean."""

    values: tuple[float, ...]
    low: float
    median: float
    high: float
    mean: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PairTest:
    """Whether the final values of two groups differ.

    Attributes:
        first: name of a group.
        second: name of another one.
        paired: whether replicates were compared in pairs of one seed.
        count: replicates that were compared of each.
        difference: median of the first less that of the second, over the replicates that were compared.
        p: two-sided; None where a group has fewer than two replicates to compare.
        p_holm: p adjusted for all pairs of groups (Holm 1979).
        smallest: the smallest p that so few replicates can give.
        needed: replicates of each, more than there are, with which the observed difference would be significant
            after the adjustment with a power of 80 %, by `significance.replicates_needed`. None if it is
            significant, if there is no difference, or with fewer than two replicates.
    """

    first: str
    second: str
    paired: bool
    count: tuple[int, int]
    difference: float
    p: float | None
    p_holm: float | None = None
    smallest: float = 1.0
    needed: int | None = None

    @property
    def is_significant(self) -> bool:
        """Whether the adjusted p is below 5 %."""
        return self.p_holm is not None and self.p_holm < ALPHA

    @property
    def needed_words(self) -> str:
        """What a table shows for `needed`."""
        if self.is_significant:
            return "-"
        if self.needed is None:
            return p_words(None) if self.p is None else "no difference"
        return f"{self.needed:,}" if self.needed <= MOST_NEEDED else f"> {MOST_NEEDED:,}"

    @property
    def test(self) -> str:
        """Name of the test."""
        return "Wilcoxon signed-rank" if self.paired else "Mann-Whitney"


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyGroup:
    """Replicates of one study: those with a finite fitness, and how good each was after how much work."""

    name: str
    studies: tuple[ComparedStudy, ...]
    curves: tuple[Curve, ...]

    @cached_property
    def band(self) -> Band:
        """Median and quartiles over its replicates."""
        return band(self.curves)

    @cached_property
    def final(self) -> Spread:
        """The last values of its replicates."""
        values = [one.ys[-1] for one in self.curves]
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
        return Spread(tuple(values), low, median, high, statistics.fmean(values))

    @cached_property
    def by_seed(self) -> dict[int, float]:
        """The last values by the seed of the replicate."""
        return {one.data.study.seed: value for one, value in zip(self.studies, self.final.values, strict=True)}

    @property
    def steps(self) -> float:
        """Steps that all members together have trained; the median over replicates."""
        return statistics.median(one.data.total_steps for one in self.studies)

    @property
    def age(self) -> float:
        """Age of the best weights, in steps; the median over replicates."""
        return statistics.median(one.data.best_age or 0 for one in self.studies)

    @cached_property
    def sensitivity(self) -> list[Sensitivity]:
        """How much progress went with each hyperparameter."""
        return sensitivities([one.data for one in self.studies])

    @cached_property
    def time(self) -> TimeSpent:
        """Where the time of its workers went, over all replicates."""
        attempts = [attempt for one in self.studies for attempt in one.data.attempts]
        return time_spent(attempts, [interval for one in self.studies for interval in one.data.evaluating])


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyComparison:
    """Several studies compared; replicates of one study are a group.

    Attributes:
        groups: those with at least one finite fitness, in the order given.
        metric: name of the objective.
        maximize: whether more is better.
        measure: `best`, the best fitness so far, or `median`, the median of every member's newest one.
        by: `steps` of all members together, or `time` in seconds in which anything was running.
        given_target: the target that was asked for, if any.
        notes: warnings, such as studies that were left out or are not complete.
    """

    groups: tuple[StudyGroup, ...]
    metric: str
    maximize: bool
    measure: Measure
    by: By
    given_target: float | None
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{group.name!r} ({len(group.studies)})" for group in self.groups)
        return f"<StudyComparison of {sizes} by {self.metric!r}>"

    @property
    def target(self) -> float:
        """The value whose first time is shown.

        By default it is the worst median of the groups' final values, of two in the middle the worse one; so more
        than half of each group's replicates reached it.
        """
        if self.given_target is not None:
            return self.given_target
        finals = [group.final.values for group in self.groups]
        if self.maximize:
            return min(map(statistics.median_low, finals))
        return max(map(statistics.median_high, finals))

    def reached(self, group: StudyGroup) -> tuple[int, float | None]:
        """Return how many replicates reached the target, and the median work after which they did.

        Replicates that never reached it count as last; the median is None if one of them is in the middle.
        """
        found = [one.first(self.target, maximize=self.maximize) for one in group.curves]
        middle = statistics.median(math.inf if one is None else one for one in found)
        return sum(one is not None for one in found), middle if math.isfinite(middle) else None

    @cached_property
    def tests(self) -> list[PairTest]:
        """Whether the final values of each two groups differ.

        Groups are compared in pairs of replicates of one seed where all seeds of the smaller group are in the
        other one, too, by Wilcoxon's signed-rank test; else by the Mann-Whitney test.
        """
        pairs = list(combinations(self.groups, 2))
        found = [_test(first, second, alpha=ALPHA / len(pairs)) for first, second in pairs]
        adjusted = iter(holm([test.p for test in found if test.p is not None]))
        found = [replace(test, p_holm=None if test.p is None else next(adjusted)) for test in found]
        return [replace(test, needed=None) if test.is_significant else test for test in found]

    def write_report(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML file with the figures, in place of an existing one; return its path.

        Raises:
            OSError: the file cannot be written.
        """
        from phyla.report.page import write_comparison_report

        return write_comparison_report(self, path)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "metric": self.metric,
            "maximize": self.maximize,
            "measure": self.measure,
            "by": self.by,
            "target": self.target,
            "groups": [self._group(group) for group in self.groups],
            "tests": [
                {
                    "first": test.first,
                    "second": test.second,
                    "test": test.test,
                    "difference": test.difference,
                    "p": test.p,
                    "p_holm": test.p_holm,
                    "n": list(test.count),
                    "smallest_p": test.smallest,
                    "seeds_needed": test.needed,
                }
                for test in self.tests
            ],
            "notes": list(self.notes),
        }

    def _group(self, group: StudyGroup) -> dict[str, Any]:
        count, work = self.reached(group)
        final, band, time = group.final, group.band, group.time
        return {
            "group": group.name,
            "final": {
                "median": final.median,
                "low": final.low,
                "high": final.high,
                "mean": final.mean,
                "n": len(final.values),
            },
            "reached": {"replicates": count, "median": work},
            "steps": group.steps,
            "age": group.age,
            "curve": {"x": band.xs, "low": band.low, "median": band.middle, "high": band.high},
            "sensitivity": [asdict(one) for one in group.sensitivity],
            "time_s": {phase.value: seconds for phase, seconds in time.seconds.items()},
            "attempts": {"timed": time.timed, "ended": time.ended},
            "studies": [row for row in self.rows() if row["group"] == group.name],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat row per study."""
        rows: list[dict[str, Any]] = []
        for group in self.groups:
            for one, its in zip(group.studies, group.curves, strict=True):
                rows.append(
                    {
                        "group": group.name,
                        "study": one.name,
                        "replicate": one.replicate,
                        "seed": one.data.study.seed,
                        "state": one.data.study.state.value,
                        "final": its.final,
                        "work": its.last,
                        "steps": one.data.total_steps,
                        "age": one.data.best_age,
                        "wall_s": one.data.wall_seconds,
                        "reached_target_at": its.first(self.target, maximize=self.maximize),
                        **{f"{phase.value}_s": one.data.time.seconds[phase] for phase in Phase},
                    }
                )
        return rows


def compare_studies(
    studies: Sequence[ComparedStudy], *, measure: Measure = "best", by: By = "steps", target: float | None = None
) -> StudyComparison:
    """Compare studies; those of one group are replicates.

    Args:
        studies: at least two.
        measure: what counts as good.
        by: what counts as work.
        target: as in `StudyComparison.target`, which gives the default.

    Raises:
        UsageError: fewer than two studies, different objectives, or none has a finite fitness.
    """
    _check(studies)
    notes = _different_fitness(studies)
    groups: dict[str, list[tuple[ComparedStudy, Curve]]] = {one.group: [] for one in studies}
    for one in sorted(studies, key=lambda one: -1 if one.replicate is None else one.replicate):
        its = curve(one.data, by=by, measure=measure)
        if its.xs:
            groups[one.group].append((one, its))
        else:
            notes.append(f"{one.name} has no completed trial with a finite fitness, and is left out.")
        if one.data.study.state is not StudyState.COMPLETED:
            notes.append(f"{one.name} is {one.data.study.state.value}: what it has so far is taken as its end.")
    if not any(groups.values()):
        names = ", ".join(one.name for one in studies)
        raise UsageError(f"none of the studies {names} has a completed trial with a finite fitness yet")
    return StudyComparison(
        groups=tuple(
            StudyGroup(name=name, studies=tuple(one for one, _ in its), curves=tuple(one for _, one in its))
            for name, its in groups.items()
            if its
        ),
        metric=studies[0].data.aim.name,
        maximize=studies[0].data.aim.maximize,
        measure=measure,
        by=by,
        given_target=target,
        notes=tuple(notes),
    )


def _check(studies: Sequence[ComparedStudy]) -> None:
    if len(studies) < 2:
        what = f"only {studies[0].name}" if studies else "none"
        raise UsageError(
            f"a comparison needs at least two studies, or replicates of one; there is {what}. One study is shown "
            "by `phyla report STUDY`; `phyla run FILE --replicates 5` makes replicates"
        )
    objectives: dict[object, list[ComparedStudy]] = {}
    for one in studies:
        objectives.setdefault(_objective(one.data), []).append(one)
    if len(objectives) > 1:
        told = "; ".join(
            f"{', '.join(one.name for one in its)}: {its[0].data.aim.description}" for its in objectives.values()
        )
        raise UsageError(
            f"studies with different objectives cannot be compared: {told}. Run them with one objective, "
            "constraints too, under new names; metrics that it does not name are kept as well"
        )


def _objective(data: StudyData) -> object:
    """Return a key that is equal for equal objectives; the order of constraints does not matter."""
    what, *constraints = data.aim.description.split(", subject to ")
    return data.aim.name, data.aim.maximize, what, frozenset(" and ".join(constraints).split(" and "))


def _different_fitness(studies: Sequence[ComparedStudy]) -> list[str]:
    """Return a note if the studies compute fitness by different rules."""
    rules: dict[str, list[str]] = {}
    for one in studies:
        strategy = one.data.study.config.get("strategy")
        rule = strategy.get("fitness") if isinstance(strategy, Mapping) else None
        if isinstance(rule, Mapping):
            settings = ", ".join(f"{name}={value}" for name, value in rule.items() if name != "plugin")
            told = f"{str(rule.get('plugin')).rpartition('/')[2]}({settings})"
            rules.setdefault(told, []).append(one.name)
    if len(rules) < 2:
        return []
    told = "; ".join(f"{rule} in {', '.join(names)}" for rule, names in rules.items())
    return [f"The studies compute fitness differently, so values may not be comparable: {told}."]


def _test(first: StudyGroup, second: StudyGroup, *, alpha: float) -> PairTest:
    shared = sorted(first.by_seed.keys() & second.by_seed.keys())
    paired = len(shared) == min(len(first.studies), len(second.studies))
    ours, theirs = (
        [group.by_seed[seed] for seed in shared] if paired else list(group.final.values)
        for group in (first, second)
    )
    fewer = min(len(ours), len(theirs))
    needed = replicates_needed(ours, theirs, paired=paired, alpha=alpha)
    return PairTest(
        first=first.name,
        second=second.name,
        paired=paired,
        count=(len(ours), len(theirs)),
        difference=statistics.median(ours) - statistics.median(theirs),
        p=(signed_rank if paired else rank_sum)(ours, theirs) if fewer > 1 else None,
        smallest=smallest_p(len(ours), len(theirs), paired=paired),
        needed=None if needed is None else max(needed, fewer + 1),
    )
