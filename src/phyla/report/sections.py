"""Sections of pages that need the whole history: figures with the tables behind them, and tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phyla.formatting import duration, format_count, number, score, short, time_words
from phyla.lineage import Segment
from phyla.pages import Drawing, Later, Page, Row, Section, Span, Table
from phyla.report import style
from phyla.report.compared import ALPHA, ComparedGroups
from phyla.report.data import EvaluationData, StudyData
from phyla.report.figures import COMPARISON_FIGURES, EVALUATION_FIGURES, STUDY_FIGURES
from phyla.report.figures.progress import progress_figure
from phyla.report.formatting import text

ROWS = 200
"""Rows that a table shows."""
COMPARISON_SECTIONS = ("groups", "curves", "differences", "tests", "time", "studies")

TESTS = (
    "p is the probability of a difference at least this large, in either direction, if there were none. Groups "
    "whose replicates share seeds are compared in pairs. Adjusted by Holm for the number of rows; below "
    f"{ALPHA} in bold. Smallest p: the least that so few replicates can give. Seeds needed: replicates of each "
    "with which a difference like the observed one would be significant in 80 of 100 cases (normal approximation)."
)


def drawing(name: str, figure: style.Figure) -> Drawing:
    """Return a figure as a section: its title and subtitle become a heading of the page."""
    behind = style.tables(figure) if figure.data else []
    title, lead = style.take_heading(figure)
    if not figure.data:
        return Drawing(name=name, title=title, lead=text(figure.layout.annotations[0].text))
    return Drawing(name=name, title=title, lead=lead, figure=figure.to_json(), tables=behind)


def study_sections(data: StudyData, baseline: StudyData | None = None) -> Iterator[Section]:
    """Yield the sections of a study; the best and the median of a baseline are drawn in the figure of progress."""
    for name, draw in STUDY_FIGURES.items():
        if name != "front" or data.aim.tradeoffs:
            yield drawing(name, progress_figure(data, baseline) if name == "progress" else draw(data))
    yield _schedule_table(data)
    if data.aim.tradeoffs:
        yield _front_table(data)


def evaluation_sections(data: EvaluationData) -> Iterator[Section]:
    """Yield the figures of the evaluation of checkpoints."""
    for name, draw in EVALUATION_FIGURES.items():
        yield drawing(name, draw(data))


def comparison_sections(comparison: ComparedGroups) -> Iterator[Section]:
    """Yield the sections of a comparison of studies."""
    for name, draw in COMPARISON_FIGURES.items():
        yield drawing(name, draw(comparison))
    yield _groups_table(comparison)
    yield _tests_table(comparison)
    rows = [(group.name, time_words(group.time)) for group in comparison.groups]
    lead = "Sum over all workers and replicates, including failed attempts."
    yield Table(name="time", title="Where did the time go?", lead=lead, columns=("study", "=time"), rows=rows)
    yield _studies_table(comparison)


def comparison_page(comparison: ComparedGroups) -> Page:
    """Return the page of a comparison."""
    groups, sections = comparison.groups, [Later(name) for name in COMPARISON_SECTIONS]
    names = " and ".join(group.name for group in groups)
    title = short(names, 200) if len(groups) < 4 else f"{len(groups)} studies compared"
    kind = f"comparison of studies, {'maximize' if comparison.maximize else 'minimize'} {comparison.metric}"
    return Page(study="", title=title, kind=kind, sections=sections)


def _limited(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the rows that a table shows, and a note with their total if there are more."""
    left_out = f"the first {ROWS} of {number(len(rows))} rows" if len(rows) > ROWS else ""
    return {"rows": rows[:ROWS], "note": left_out}


def _schedule_table(data: StudyData) -> Table:
    name, title, goals = "schedule", "The winner's schedule", data.aim.tradeoffs
    if data.schedule is None:
        return Table(name=name, title=title, columns=(), rows=(), empty="No trial has a finite fitness yet.")
    changes, names = data.schedule.changes(), data.schedule.names()
    whose = f"that are best in {goals[0].metric}" if goals else "of the winner"
    often = f"changed {format_count(len(changes) - 1, 'time')}" if len(changes) > 1 else "never changed"
    parameters = f"Hyperparameters that trained the weights {whose}, {number(data.schedule.steps)} steps in all"
    rows = [_segment(segment, before, names) for before, segment in zip([None, *changes], changes, strict=False)]
    return Table(
        name=name,
        title=title,
        lead=f"{parameters}; they {often}. Changed values are bold.",
        columns=(">from step", ">to step", *(f">{name}" for name in names), ">member", ">trial"),
        **_limited(rows),
    )


def _segment(segment: Segment, before: Segment | None, names: Sequence[str]) -> Row:
    values = [
        Span(
            short(number(segment.params[name]), 60) if name in segment.params else "-",
            look="changed" if before and before.params.get(name) != segment.params.get(name) else "",
        )
        for name in names
    ]
    member, trial = (
        Span(str(segment.member), f"members/{segment.member}"),
        Span(str(segment.trial), f"trials/{segment.trial}"),
    )
    return (number(segment.start_step), number(segment.end_step), *values, member, trial)


def _front_table(data: StudyData) -> Table:
    goals = data.aim.tradeoffs
    stored = [(trial, path) for trial in data.front if (path := data.path_of(trial.checkpoint or ""))]
    lead = f"Trials that no other trial beats in all goals, the best in {goals[0].metric} first."
    if len(stored) < len(data.front):
        count, present = number(len(data.front)), number(len(stored))
        lead += f" These {present} of {count} still have their checkpoints; the most crowded were deleted."
    rows: list[Row] = []
    for trial, path in stored:
        criteria = trial.criteria.values if trial.criteria else {}
        values = (score(criteria.get(goal.metric)) for goal in goals)
        at = number(trial.reached_step)
        rows.append((Span(str(trial.id), f"trials/{trial.id}"), str(trial.member), at, *values, path))
    columns = (">trial", ">member", ">step", *(f">{goal.metric}" for goal in goals), "=checkpoint")
    return Table(name="front-trials", title="The front", lead=lead, columns=columns, **_limited(rows))


def _listed(rows: Sequence[Mapping[str, str]], looks: Sequence[str]) -> list[Row]:
    return [[Span(cell, look=look) for cell in row.values()] for row, look in zip(rows, looks, strict=True)]


def _groups_table(comparison: ComparedGroups) -> Table:
    groups, choose = comparison.groups, max if comparison.maximize else min
    best = choose(groups, key=lambda group: group.final.median) if len(groups) > 1 else None
    rows = comparison.table_of_groups()
    looks = ["winner" if group is best else "" for group in groups]
    lead = " ".join(comparison.notes)
    return Table(
        name="groups", title="Final values", lead=lead, columns=[*rows[0]], **_limited(_listed(rows, looks))
    )


def _tests_table(comparison: ComparedGroups) -> Table:
    rows = comparison.table_of_tests()
    looks = ["changed" if test.is_significant else "" for test in comparison.tests]
    return Table(
        name="tests",
        title="The tests",
        lead=TESTS,
        columns=[*rows[0]] if rows else (),
        **_limited(_listed(rows, looks)),
        empty="There is only one study, so there is nothing to test.",
    )


def _studies_table(comparison: ComparedGroups) -> Table:
    steps = comparison.by == "steps"

    def work(value: float | None) -> str:
        return "never" if value is None else f"{value:,.0f}" if steps else duration(value)

    rows = [
        (
            *(row["study"], row["state"], str(row["seed"]), score(row["final"]), number(row["steps"])),
            *(number(row["age"]), duration(row["wall_s"]), work(row["reached_target_at"])),
        )
        for row in comparison.rows()
    ]
    until, final = f">{comparison.by} until {score(comparison.target)}", f">{comparison.final_name}"
    columns = ("study", "state", ">seed", final, ">steps", ">age of the best weights", ">wall time", until)
    return Table(name="studies", title="Studies", columns=columns, **_limited(rows))
