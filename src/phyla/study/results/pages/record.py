"""The record of a study: when it began, its actions, changes of settings, and starts."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from phyla.formatting import moment, number, short
from phyla.pages import Fact, Span, Table, Text
from phyla.records import ACTION, EvalEvent, RunStart, StudyRecord, with_differences

if TYPE_CHECKING:
    from phyla.study.results.results import ConfigChange

FEW = 20
"""Rows of each kind of the newest entries."""


def since(study: StudyRecord) -> Fact:
    """Return when a study began."""
    date, clock = moment(study.created_at)[:-3].split()
    return Fact("since", date, f"{clock} UTC")


def newest_of(most: int, count: int) -> str:
    """Return which rows a table shows that leaves out older ones."""
    return f"the last {most} of {number(count)}" if count > most else ""


def record_table(
    events: Iterable[EvalEvent],
    changes: Iterable["ConfigChange"] = (),
    starts: Iterable[RunStart] = (),
    empty: str = "",
) -> Table:
    """Return the actions, changes and starts of a study, newest first."""
    rows: list[tuple[float, Text]] = [
        *[(event.created_at, short(event.message, 400)) for event in events if event.kind == ACTION][-FEW:],
        *[
            (change.at, f"{change.name} was changed from {_value(change.before)} to {_value(change.after)}")
            for change in changes
        ][-FEW:],
        *[(start.at, _start(start, differs)) for start, differs in with_differences([*starts])[-FEW:]],
    ]
    return Table(
        name="record",
        title="Record",
        lead="Actions, changes of settings, and starts; newest first.",
        columns=("when (UTC)", "=what"),
        rows=[(moment(at), text) for at, text in sorted(rows, key=lambda row: -row[0])],
        empty="Nothing yet.",
    )


def _value(value: Any) -> str:
    return short(number(value), 80)


def _start(start: RunStart, differs: str) -> Text:
    facts: Any = start.facts
    difference = f"; differs: {short(differs, 160)}" if differs else ""
    where = f"started on {facts['machine']['name']}, commit {start.commit}"
    return Span(f"{where}: {short(start.command, 160)}{difference}", look="changed" if differs else "")
