"""StudyComparison: studies and their replicates compared, with figures and a report."""

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


NOISY = "Scores look noisy in {} of {} studies. Final values are the best single scores, which are lucky"
UNCLEAR = (
    "{} of {} studies have too few trials to tell if scores are noisy. Final values are the best single scores. "
    "If scores are noisy, these are lucky"
)
LUCK = (
    "{}, and more so with more trials. To compare expected scores, hold a final of every study: "
    "phyla final STUDY --file FILE."
)


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

        tables = [rows for rows in (self.table_of_groups(), self.table_of_tests()) if rows]
        texts = [
            [[name.removeprefix(">") for name in rows[0]], *([*row.values()] for row in rows)] for rows in tables
        ]
        display(summary("; ".join([repr(self), *self.notes]), *texts), self.figure())

    def write_report(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML file with the figures, replacing an existing file; return its path."""
        from phyla.report.page import write_pages
        from phyla.report.sections import comparison_page, comparison_sections

        now = max(study.data.last_moment for group in self.groups for study in group.studies)
        return write_pages(path, [comparison_page(self)], comparison_sections(self), now)


def compare_studies(
    studies: Sequence[ComparedStudy], *, by: By = "steps", target: float | None = None
) -> StudyComparison:
    """Compare at least two studies with one objective; those of one group are replicates."""
    _check(studies)
    notes = _different_fitness(studies)
    groups: dict[str, dict[ComparedStudy, Curve]] = {study.group: {} for study in studies}
    for study in sorted(studies, key=lambda study: -1 if study.replicate is None else study.replicate):
        progress = curve(study.data, by=by)
        if progress.xs:
            groups[study.group][study] = progress
        else:
            notes.append(f"{study.name} is excluded: it has no completed trial with a finite fitness.")
        if study.data.study.state is not StudyState.COMPLETED:
            notes.append(f"{study.name} is {study.data.study.state.value}: its results so far count as final.")
    if not any(groups.values()):
        names = ", ".join(study.name for study in studies)
        raise UsageError(f"none of the studies {names} has a completed trial with a finite fitness yet")
    finished = [study.data for curves in groups.values() for study in curves]
    noisy = sum(data.expected is not None for data in finished)
    unclear = sum(data.unclear for data in finished)
    expected = noisy == len(finished)
    if not expected and (noisy or unclear):
        reason = NOISY.format(noisy, len(finished)) if noisy else UNCLEAR.format(unclear, len(finished))
        notes.append(LUCK.format(reason))
    finite = [
        StudyGroup(
            name=name,
            studies=(*curves,),
            curves=(*curves.values(),),
            values=tuple(_final(study, progress, expected=expected) for study, progress in curves.items()),
        )
        for name, curves in groups.items()
        if curves
    ]
    maximize = studies[0].data.aim.maximize
    if target is None:
        ends = [[curve.ys[-1] for curve in group.curves] for group in finite]
        target = min(map(statistics.median_low, ends)) if maximize else max(map(statistics.median_high, ends))
    return StudyComparison(
        groups=tuple(finite),
        metric=studies[0].data.aim.name,
        maximize=maximize,
        by=by,
        target=target,
        expected=expected,
        notes=tuple(notes),
    )


def _final(study: ComparedStudy, progress: Curve, *, expected: bool) -> float:
    known = study.data.expected if expected else None
    return progress.ys[-1] if known is None else known


def _check(studies: Sequence[ComparedStudy]) -> None:
    if len(studies) < 2:
        count = f"only {studies[0].name}" if studies else "none"
        raise UsageError(
            f"a comparison needs at least two studies, or replicates of one, but there is {count}. To see one "
            "study run `phyla report STUDY`; to make replicates run `phyla run FILE --replicates 6`"
        )
    objectives: dict[object, list[ComparedStudy]] = {}
    for study in studies:
        # The order of constraints does not matter.
        aim = study.data.aim
        goal, *constraints = aim.description.split(", subject to ")
        key = (aim.name, aim.maximize, goal, frozenset(" and ".join(constraints).split(" and ")))
        objectives.setdefault(key, []).append(study)
    if len(objectives) > 1:
        aims = "; ".join(
            f"{', '.join(study.name for study in group)}: {group[0].data.aim.description}"
            for group in objectives.values()
        )
        raise UsageError(
            f"studies with different objectives cannot be compared: {aims}. Run them again with one objective, "
            "constraints included, under new names; metrics that are not in the objective are stored too"
        )


def _different_fitness(studies: Sequence[ComparedStudy]) -> list[str]:
    """Return a note if the studies compute fitness by different rules."""
    rules: dict[str, list[str]] = {}
    for study in studies:
        strategy: Any = study.data.study.config.get("strategy") or {}
        rule = strategy.get("fitness")
        if rule:
            plugin = str(rule["plugin"]).rpartition("/")[2]
            settings = ", ".join(f"{name}={value}" for name, value in rule.items() if name != "plugin")
            rules.setdefault(f"{plugin}({settings})", []).append(study.name)
    uses = "; ".join(f"{rule} in {', '.join(names)}" for rule, names in rules.items())
    differ = f"The studies compute fitness differently, so values may not be comparable: {uses}."
    return [differ] if len(rules) > 1 else []
