"""`phyla compare`: studies beside each other."""

import csv
import io
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phyla.cli import options
from phyla.cli.output import show as print

if TYPE_CHECKING:
    from phyla.report import StudyComparison


class Metric(StrEnum):
    """What counts as good."""

    BEST = "best"
    MEDIAN = "median"


class By(StrEnum):
    """What counts as work."""

    STEPS = "steps"
    TIME = "time"


class Format(StrEnum):
    """How it is printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


def compare(
    ctx: typer.Context,
    studies: Annotated[
        list[str],
        typer.Argument(metavar="STUDY...", help="Names of studies; one with replicates means all of them."),
    ],
    metric: Annotated[
        Metric, typer.Option(help="The best fitness so far, or the median of every member's newest one.")
    ] = Metric.BEST,
    by: Annotated[
        By, typer.Option(help="Over the steps of all members together, or the time in which anything was running.")
    ] = By.STEPS,
    target: Annotated[
        float | None,
        typer.Option(help="The value whose first time is told.", show_default="the worst median of final values"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write a report as one HTML file; replaced.")
    ] = None,
    written: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TEXT,
) -> None:
    """Compare studies and their replicates: final values, significance, convergence, what mattered, time."""
    from phyla import study
    from phyla.cli.output import print_json, write_file

    comparison = study.compare(studies, metric=metric.value, by=by.value, target=target, **options.stores(ctx))
    if output is not None:
        write_file(output, comparison.write_report, replace=True)
    if written is Format.JSON:
        print_json(comparison.to_json())
    elif written is Format.CSV:
        print(_csv(comparison), end="")
    else:
        _print(comparison)
        if output is not None:
            print(output)


def _csv(comparison: "StudyComparison") -> str:
    rows = comparison.rows()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _print(comparison: "StudyComparison") -> None:
    from phyla.cli.output import add_row, console, table
    from phyla.cli.words import NOTHING, number

    out = console()
    for note in comparison.notes:
        out.print(note, markup=False, soft_wrap=True)
    metric = f"final {comparison.metric}"
    until = f"{comparison.by} until {number(comparison.target)}"
    names = ("replicates", metric, "quartiles", "mean", until, "steps trained", "age of best")
    made = table("study", *names, right=tuple(name for name in names if name != "quartiles"))
    for group in comparison.groups:
        final = group.final
        add_row(
            made,
            group.name,
            len(final.values),
            number(final.median),
            f"{number(final.low)} .. {number(final.high)}" if len(final.values) > 1 else NOTHING,
            number(final.mean),
            _until(comparison, *comparison.reached(group), len(group.studies)),
            f"{group.steps:.0f}",
            f"{group.age:.0f}",
        )
    out.print(made)
    if comparison.tests:
        out.print()
        out.print(_tests(comparison))
    strengths = _strengths(comparison)
    if strengths is not None:
        out.print()
        out.print(strengths)
    out.print()
    for group in comparison.groups:
        out.print(f"time of {group.name}: {group.time.words()}", markup=False, soft_wrap=True)


def _until(comparison: "StudyComparison", count: int, work: float | None, replicates: int) -> str:
    from phyla.cli.words import duration

    told = "never" if work is None else f"{work:.0f}" if comparison.by == "steps" else duration(work)
    return told if count == replicates else f"{told} ({count} of {replicates})"


def _tests(comparison: "StudyComparison") -> object:
    from phyla.cli.output import add_row, table
    from phyla.cli.words import counted, number
    from phyla.report import p_words

    names = ("n", "p", "p adjusted", "smallest p", "seeds needed")
    made = table("study", "against", "difference", "test", *names, right=("difference", *names))
    for test in comparison.tests:
        add_row(
            made,
            test.first,
            test.second,
            number(test.difference),
            test.test,
            counted(test.count[0], "pair") if test.paired else f"{test.count[0]}, {test.count[1]}",
            p_words(test.p),
            p_words(test.p_holm),
            p_words(None if test.p is None else test.smallest),
            test.needed_words,
            style="bold" if test.is_significant else "",
        )
    return made


def _strengths(comparison: "StudyComparison") -> object | None:
    from phyla.cli.output import add_row, table
    from phyla.cli.words import NOTHING

    names = dict.fromkeys(one.name for group in comparison.groups for one in group.sensitivity)
    groups = [group.name for group in comparison.groups]
    known = {
        (group.name, one.name): f"{one.strength:+.2f}" if one.ordered else f"{one.strength:.2f}"
        for group in comparison.groups
        for one in group.sensitivity
        if one.strength is not None
    }
    if not known:
        return None
    made = table("gain went with", *groups, right=groups)
    for name in names:
        cells = [known.get((group, name), NOTHING) for group in groups]
        add_row(made, name, *cells)
    return made
