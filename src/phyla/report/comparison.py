"""The comparison of studies and their replicates: final values, tests, convergence."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla.errors import UsageError
from phyla.records import StudyState
from phyla.report.compared import ComparedGroups, ComparedStudy, StudyGroup
from phyla.report.measures import By, Curve, curve
from phyla.validation import look_up

if TYPE_CHECKING:
    import pandas as pd

    from phyla.report.style import Figure


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyComparison(ComparedGroups):
    """Several studies compared, with figures and a report; replicates of one study are a group."""

    def figure(self, name: str = "curves") -> "Figure":
        """Return one of `phyla.report.COMPARISON_FIGURES`, "curves" or "differences"."""
        from phyla.report.figures import COMPARISON_FIGURES

        return look_up("figure", name, COMPARISON_FIGURES)(self)

    def dataframe(self) -> "pd.DataFrame":
        """Return one row per study: its group, replicate, seed, final value, work and time.

        Raises:
            ImportError: pandas is not installed; `pip install "phyla[pandas]"`.
        """
        from phyla.report.notebook import dataframe

        return dataframe(self.rows())

    def _ipython_display_(self) -> None:
        from phyla.report.notebook import display, summary

        found = [rows for rows in (self.table_of_groups(), self.table_of_tests()) if rows]
        shown = [
            [[name.removeprefix(">") for name in rows[0]], *([*row.values()] for row in rows)] for rows in found
        ]
        display(summary("; ".join([repr(self), *self.notes]), *shown), self.figure())

    def write_report(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML file with the figures, in place of an existing one; return its path."""
        from phyla.report.page import write_pages
        from phyla.report.sections import comparison_page, comparison_sections

        now = max(one.data.last_moment for group in self.groups for one in group.studies)
        return write_pages(path, [comparison_page(self)], comparison_sections(self), now)


def compare_studies(
    studies: Sequence[ComparedStudy], *, by: By = "steps", target: float | None = None
) -> StudyComparison:
    """Compare at least two studies with one objective; those of one group are replicates."""
    _check(studies)
    notes = _different_fitness(studies)
    groups: dict[str, dict[ComparedStudy, Curve]] = {one.group: {} for one in studies}
    for one in sorted(studies, key=lambda one: -1 if one.replicate is None else one.replicate):
        its = curve(one.data, by=by)
        if its.xs:
            groups[one.group][one] = its
        else:
            notes.append(f"{one.name} has no completed trial with a finite fitness, and is left out.")
        if one.data.study.state is not StudyState.COMPLETED:
            notes.append(f"{one.name} is {one.data.study.state.value}: what it has so far is taken as its end.")
    if not any(groups.values()):
        names = ", ".join(one.name for one in studies)
        raise UsageError(f"none of the studies {names} has a completed trial with a finite fitness yet")
    found = [
        StudyGroup(name=name, studies=(*its,), curves=(*its.values(),)) for name, its in groups.items() if its
    ]
    maximize = studies[0].data.aim.maximize
    if target is None:
        finals = [group.final.values for group in found]
        target = min(map(statistics.median_low, finals)) if maximize else max(map(statistics.median_high, finals))
    return StudyComparison(
        groups=tuple(found),
        metric=studies[0].data.aim.name,
        maximize=maximize,
        by=by,
        target=target,
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
        # The order of constraints does not matter.
        aim = one.data.aim
        what, *constraints = aim.description.split(", subject to ")
        key = (aim.name, aim.maximize, what, frozenset(" and ".join(constraints).split(" and ")))
        objectives.setdefault(key, []).append(one)
    if len(objectives) > 1:
        told = "; ".join(
            f"{', '.join(one.name for one in its)}: {its[0].data.aim.description}" for its in objectives.values()
        )
        raise UsageError(
            f"studies with different objectives cannot be compared: {told}. Run them with one objective, "
            "constraints too, under new names; metrics that it does not name are kept as well"
        )


def _different_fitness(studies: Sequence[ComparedStudy]) -> list[str]:
    """Return a note if the studies compute fitness by different rules."""
    rules: dict[str, list[str]] = {}
    for one in studies:
        strategy: Any = one.data.study.config.get("strategy") or {}
        rule = strategy.get("fitness")
        if rule:
            plugin = str(rule["plugin"]).rpartition("/")[2]
            settings = ", ".join(f"{name}={value}" for name, value in rule.items() if name != "plugin")
            rules.setdefault(f"{plugin}({settings})", []).append(one.name)
    told = "; ".join(f"{rule} in {', '.join(names)}" for rule, names in rules.items())
    differ = f"The studies compute fitness differently, so values may not be comparable: {told}."
    return [differ] if len(rules) > 1 else []
