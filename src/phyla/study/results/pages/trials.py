"""The pages of trials and members."""

from collections.abc import Iterable, Sequence
from typing import Any

from phyla.formatting import fitness, format_count, number, params, short
from phyla.pages import Page, Row, Span, Table
from phyla.records import JobKind, StudyRecord, TrialRecord, summarize_error
from phyla.strategies import describe

ROWS = 100
"""Rows of a table on one page; links lead to the rest."""


def trial_link(trial: int, text: str | None = None) -> Span:
    """Return a link to a trial."""
    return Span(str(trial) if text is None else text, f"trials/{trial}")


def trials_page(study: StudyRecord, trials: Sequence[TrialRecord], count: int) -> Page:
    """Return one page of a study's trials."""
    note = f"{number(len(trials))} of {format_count(count, 'trial')}" if len(trials) < count else ""
    links = [Span("from the oldest", "?after=0"), *later_link(trials), Span("the newest", "?")]
    section = trials_table(trials, "trials-table", "Trials", anchors=True, note=note, links=links)
    return Page(study=study.name, title=f"Trials of {study.name}", key="trials", sections=[section])


def later_link(trials: Sequence[TrialRecord]) -> list[Span]:
    """Return a link to later trials, if there may be more."""
    return [Span("later", f"?after={trials[-1].id}")] if len(trials) == ROWS else []


def links_around(first: int, end: int, total: int) -> list[Span]:
    """Return links to the rows before and after some of them."""
    before = [Span("before", f"?from={max(0, first - ROWS)}")] if first else []
    return [*before, *([Span("after", f"?from={end}")] if end < total else [])]


def trials_table(trials: Iterable[TrialRecord], name: str, title: str, **more: Any) -> Table:
    """Return trials as a table."""
    columns = (">trial", ">member", ">generation", "state", "steps", ">fitness", "=decision", "hyperparameters")
    return Table(name=name, title=title, columns=columns, rows=[*map(_trial_row, trials)], **more)


def _trial_row(trial: TrialRecord) -> Row:
    end = trial.end_step if trial.reached_step is None else trial.reached_step
    return (
        trial_link(trial.id),
        Span(str(trial.member), f"members/{trial.member}"),
        str(trial.generation),
        trial.state if trial.kind is JobKind.TRAIN else f"{trial.state} ({trial.kind})",
        f"{number(trial.start_step)} to {number(end)}",
        fitness(trial),
        short(summarize_error(trial.error) if trial.error else describe(trial.reason), 180),
        short(params(trial.params), 120),
    )
