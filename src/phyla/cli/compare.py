"""`phyla compare`: studies beside each other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.table import Table
from typer import Argument, Context, Option

from phyla.cli import options
from phyla.cli.output import console, csv_lines, print_json, table, write_file
from phyla.cli.output import show as print
from phyla.cli.words import counted, duration, number

if TYPE_CHECKING:
    from phyla.report import StudyComparison


def compare(
    ctx: Context,
    studies: Annotated[
        list[str], Argument(metavar="STUDY...", help="Names of studies; one with replicates means all of them.")
    ],
    metric: Annotated[
        Literal["best", "median"],
        Option(help="The best fitness so far, or the median of every member's newest one."),
    ] = "best",
    by: Annotated[
        Literal["steps", "time"],
        Option(help="Over the steps of all members together, or the time in which anything was running."),
    ] = "steps",
    target: Annotated[
        float | None,
        Option(help="The value whose first time is told.", show_default="the worst median of final values"),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Also write a report as one HTML file; replaced.")
    ] = None,
    written: Annotated[Literal["text", "json", "csv"], Option("--format", help="How to print it.")] = "text",
) -> None:
    """Compare studies and their replicates: final values, significance, convergence, what mattered, time."""
    from phyla import study

    comparison = study.compare(studies, metric=metric, by=by, target=target, **options.where(ctx))
    if output is not None:
        write_file(output, comparison.write_report, replace=True)
    if written == "json":
        print_json(comparison.to_json())
    elif written == "csv":
        print("".join(csv_lines(comparison.rows())), end="")
    else:
        _print(comparison)
        if output is not None:
            print(output)


def _print(comparison: "StudyComparison") -> None:
    for note in comparison.notes:
        print(note)
    metric = f"final {comparison.metric}"
    until = f"{comparison.by} until {number(comparison.target)}"
    rows = (
        {
            "study": group.name,
            "replicates": len(group.final.values),
            metric: number(group.final.median),
            "quartiles": f"{number(group.final.low)} .. {number(group.final.high)}"
            if len(group.final.values) > 1
            else None,
            "mean": number(group.final.mean),
            until: _until(comparison, *comparison.reached(group), len(group.studies)),
            "steps trained": f"{group.steps:.0f}",
            "age of best": f"{group.age:.0f}",
        }
        for group in comparison.groups
    )
    made = table(rows, right=("replicates", metric, "mean", until, "steps trained", "age of best"))
    for one in (made, _tests(comparison), _strengths(comparison)):
        if one.rows:
            console().print(one)
            print()
    for group in comparison.groups:
        print(f"time of {group.name}: {group.time.words()}")


def _until(comparison: "StudyComparison", count: int, work: float | None, replicates: int) -> str:
    told = "never" if work is None else f"{work:.0f}" if comparison.by == "steps" else duration(work)
    return told if count == replicates else f"{told} ({count} of {replicates})"


def _tests(comparison: "StudyComparison") -> Table:
    from phyla.report import p_words

    rows = (
        {
            "study": test.first,
            "against": test.second,
            "difference": number(test.difference),
            "test": test.test,
            "n": counted(test.count[0], "pair") if test.paired else f"{test.count[0]}, {test.count[1]}",
            "p": p_words(test.p),
            "p adjusted": p_words(test.p_holm),
            "smallest p": p_words(None if test.p is None else test.smallest),
            "seeds needed": test.needed_words,
        }
        for test in comparison.tests
    )
    return table(
        rows,
        right=("difference", "n", "p", "p adjusted", "smallest p", "seeds needed"),
        styles=["bold" if test.is_significant else "" for test in comparison.tests],
    )


def _strengths(comparison: "StudyComparison") -> Table:
    known = {
        (group.name, one.name): f"{one.strength:+.2f}" if one.ordered else f"{one.strength:.2f}"
        for group in comparison.groups
        for one in group.sensitivity
        if one.strength is not None
    }
    names = dict.fromkeys(one.name for group in comparison.groups for one in group.sensitivity)
    groups = [group.name for group in comparison.groups]
    rows = ({"gain went with": name, **{group: known.get((group, name)) for group in groups}} for name in names)
    return table(rows if known else (), right=groups)
