"""Groups of replicates and what a comparison computes of them: final values, tests, convergence."""

import math
import statistics
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple, final

import numpy as np

from phyla.formatting import duration, format_count, number, score
from phyla.records import Phase, TimeSpent
from phyla.report.data import StudyData
from phyla.report.formatting import p_words
from phyla.report.measures import Band, By, Curve, band
from phyla.significance import (
    difference_interval,
    holm,
    mean_of,
    median_of,
    nonzero_differences,
    rank_sum,
    replicates_needed,
    signed_rank,
    smallest_p,
    unit_of,
)

ALPHA = 0.05
"""Adjusted p below which a difference counts as significant."""
MOST_NEEDED = 10_000
"""Replicates needed beyond which a table does not give their number."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStudy:
    """One study of a comparison: its data, the study that it replicates (or its own name), and its number."""

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
    """Whether the final values of two groups, `first` and `second`, differ.

    Attributes:
        paired: whether replicates were compared in pairs of one seed.
        count: how many replicates of each group were compared.
        difference: median of the first minus that of the second, over the compared replicates.
        p: two-sided; None where a group has fewer than two replicates to compare.
        p_holm: p adjusted for all pairs of groups (Holm 1979).
        smallest: the smallest p that this number of replicates can give; only pairs that differ count.
        mean: mean of the first minus that of the second.
        interval: its 95 % t-interval (Welch's where replicates are not in pairs); None with fewer than two.
        needed: replicates of each, more than there are, that would make the observed difference significant
            with a power of 80 %; None if it is, if there is no difference, or with fewer than two replicates.
    """

    first: str
    second: str
    paired: bool
    count: tuple[int, int]
    difference: float
    mean: float
    interval: tuple[float, float] | None
    p: float | None
    p_holm: float | None = None
    smallest: float = 1.0
    needed: int | None = None

    @property
    def is_significant(self) -> bool:
        """Whether the adjusted p is below 5 %."""
        return self.p_holm is not None and self.p_holm < ALPHA

    @property
    def test(self) -> str:
        """Name of the test."""
        return "Wilcoxon signed-rank" if self.paired else "Mann-Whitney"

    def row(self) -> dict[str, str]:
        """Return the test as a row of a table; a heading that begins with `>` is for numbers."""
        if self.needed is None:
            needed = "-" if self.is_significant else p_words(None) if self.p is None else "no difference"
        else:
            needed = f"{self.needed:,}" if self.needed <= MOST_NEEDED else f"> {MOST_NEEDED:,}"
        return {
            "study": self.first,
            "against": self.second,
            ">difference": number(self.difference),
            "test": self.test,
            ">n": format_count(self.count[0], "pair") if self.paired else f"{self.count[0]}, {self.count[1]}",
            ">p": p_words(self.p),
            ">p adjusted": p_words(self.p_holm),
            ">smallest p": "-" if self.p is None else p_words(self.smallest),
            ">seeds needed": needed,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the test as JSON values."""
        return {
            **{name: getattr(self, name) for name in ("first", "second", "test", "difference", "p", "p_holm")},
            "n": list(self.count),
            "mean": self.mean,
            "interval": self.interval and list(self.interval),
            "smallest_p": self.smallest,
            "seeds_needed": self.needed,
        }


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyGroup:
    """The replicates of one study that have a finite fitness, and the curve and the final value of each."""

    name: str
    studies: tuple[ComparedStudy, ...]
    curves: tuple[Curve, ...]
    values: tuple[float, ...]

    @cached_property
    def band(self) -> Band:
        """Median and quartiles over its replicates."""
        return band(self.curves)

    @cached_property
    def final(self) -> Spread:
        """The final values of the replicates."""
        values, unit = self.values, unit_of(self.values)
        low, median, high = (unit * np.quantile(np.divide(values, unit), [0.25, 0.5, 0.75])).tolist()
        return Spread(values, low, median, high, mean_of(values))

    @cached_property
    def by_seed(self) -> dict[int, float]:
        """The final values by seed of the replicate."""
        return {study.data.study.seed: value for study, value in zip(self.studies, self.values, strict=True)}

    @property
    def steps(self) -> float:
        """Total steps of all members; the median over replicates."""
        return statistics.median(study.data.total_steps for study in self.studies)

    @property
    def age(self) -> float:
        """Age of the best weights, in steps; the median over replicates."""
        return statistics.median(study.data.best_age or 0 for study in self.studies)

    @cached_property
    def time(self) -> TimeSpent:
        """How the workers spent their time, over all replicates."""
        times = [study.data.time for study in self.studies]
        return TimeSpent(
            seconds={phase: sum(time.seconds[phase] for time in times) for phase in Phase},
            timed=sum(time.timed for time in times),
            ended=sum(time.ended for time in times),
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ComparedGroups:
    """Several studies compared; replicates of one study are a group.

    Attributes:
        groups: those with at least one finite fitness, in the order given.
        by: `steps` of all members together, or `time` in seconds in which anything was running.
        target: the score to reach. By default it is the worst median of the groups' best scores,
            the worse of two middle scores, so that more than half of each group's replicates reached it.
        expected: whether final values are the expected scores of the best trials; else they are the best scores.
        notes: warnings, such as studies that were excluded or are not complete.
    """

    groups: tuple[StudyGroup, ...]
    metric: str
    maximize: bool
    by: By
    target: float
    expected: bool
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{group.name!r} ({len(group.studies)})" for group in self.groups)
        return f"<{type(self).__name__} of {sizes} by {self.metric!r}>"

    @property
    def final_name(self) -> str:
        """What final values are."""
        return f"{'expected' if self.expected else 'final'} {self.metric}"

    def reached(self, group: StudyGroup) -> tuple[int, float | None]:
        """Return how many replicates reached the target, and the median work until then, None if most did not."""
        works = [curve.first(self.target, maximize=self.maximize) for curve in group.curves]
        middle = statistics.median(math.inf if work is None else work for work in works)
        return sum(work is not None for work in works), middle if math.isfinite(middle) else None

    @cached_property
    def tests(self) -> list[PairTest]:
        """Tests of each pair of groups: paired if the larger group has all seeds of the smaller, else unpaired."""
        pairs = list(combinations(self.groups, 2))
        tests = [_test(first, second, alpha=ALPHA / len(pairs)) for first, second in pairs]
        adjusted = iter(holm([test.p for test in tests if test.p is not None]))
        tests = [replace(test, p_holm=None if test.p is None else next(adjusted)) for test in tests]
        return [replace(test, needed=None) if test.is_significant else test for test in tests]

    def table_of_groups(self) -> list[dict[str, str]]:
        """Return a row of a table per group; a heading that begins with `>` is for numbers."""
        rows = []
        for group in self.groups:
            final, (count, work) = group.final, self.reached(group)
            until = "never" if work is None else number(round(work)) if self.by == "steps" else duration(work)
            until += f" ({count} of {len(group.studies)})" if count < len(group.studies) else ""
            spread = f"{score(final.low)} to {score(final.high)}" if len(final.values) > 1 else "-"
            rows.append(
                {
                    "study": group.name,
                    ">replicates": str(len(final.values)),
                    f">{self.final_name}": score(final.median),
                    ">quartiles": spread,
                    ">mean": score(final.mean),
                    f">{self.by} until {score(self.target)}": until,
                    ">steps trained": number(round(group.steps)),
                    ">age of best": number(round(group.age)),
                }
            )
        return rows

    def table_of_tests(self) -> list[dict[str, str]]:
        """Return a row of a table per test, like `table_of_groups`."""
        return [test.row() for test in self.tests]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        rows, groups = self.rows(), []
        for group in self.groups:
            count, work = self.reached(group)
            final, band, time = group.final._asdict(), group.band, group.time
            groups.append(
                {
                    "group": group.name,
                    "final": {"n": len(final.pop("values")), **final},
                    "reached": {"replicates": count, "median": work},
                    "steps": group.steps,
                    "age": group.age,
                    "curve": {"x": band.xs, "low": band.low, "median": band.middle, "high": band.high},
                    "time_s": {phase.value: seconds for phase, seconds in time.seconds.items()},
                    "attempts": {"timed": time.timed, "ended": time.ended},
                    "studies": [row for row in rows if row["group"] == group.name],
                }
            )
        return {
            **{name: getattr(self, name) for name in ("metric", "maximize", "by", "target", "expected")},
            "groups": groups,
            "tests": [test.to_json() for test in self.tests],
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat row per study."""
        return [
            {
                "group": group.name,
                "study": study.name,
                "replicate": study.replicate,
                "seed": study.data.study.seed,
                "state": study.data.study.state.value,
                "final": value,
                "work": curve.last,
                "steps": study.data.total_steps,
                "age": study.data.best_age,
                "wall_s": study.data.wall_seconds,
                "reached_target_at": curve.first(self.target, maximize=self.maximize),
                **{f"{phase.value}_s": study.data.time.seconds[phase] for phase in Phase},
            }
            for group in self.groups
            for study, curve, value in zip(group.studies, group.curves, group.values, strict=True)
        ]


def _test(first: StudyGroup, second: StudyGroup, *, alpha: float) -> PairTest:
    shared = sorted(first.by_seed.keys() & second.by_seed.keys())
    paired = len(shared) == min(len(first.studies), len(second.studies))
    ours, theirs = first.final.values, second.final.values
    if paired:
        ours, theirs = (tuple(group.by_seed[seed] for seed in shared) for group in (first, second))
    fewer = min(len(ours), len(theirs))
    needed = replicates_needed(ours, theirs, paired=paired, alpha=alpha)
    differ = len(nonzero_differences(ours, theirs)) if paired else len(ours)
    return PairTest(
        first=first.name,
        second=second.name,
        paired=paired,
        count=(len(ours), len(theirs)),
        difference=median_of(ours) - median_of(theirs),
        mean=mean_of(ours) - mean_of(theirs),
        interval=difference_interval(ours, theirs, paired=paired) if fewer > 1 else None,
        p=(signed_rank if paired else rank_sum)(ours, theirs) if fewer > 1 else None,
        smallest=smallest_p(differ, len(theirs), paired=paired),
        needed=None if needed is None else max(needed, fewer + 1),
    )
