"""`phyla evaluations`: the results of every eval task on every checkpoint."""

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from phyla.cli import options
from phyla.cli.output import csv_lines, pick, print_json, print_page, print_section
from phyla.errors import UsageError
from phyla.formatting import format_count
from phyla.terminal import show as print

if TYPE_CHECKING:
    from phyla.evaluation import Cell, GroupValues
    from phyla.pages import Table
    from phyla.study import Evaluations
    from phyla.study.results.pages.evaluations import Matrix

SHOWN = 10
"""Reasons and warnings that the terminal shows; all: --json."""


class ResultFormat(StrEnum):
    """Formats of the results on one checkpoint."""

    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


OF_CHECKPOINT = ("step", "branch", "index", "number", "trial")


def evaluations(
    ctx: Context,
    run: options.RunName,
    suite: Annotated[str | None, Option(help="Only this suite.", show_default="all")] = None,
    task: Annotated[list[str] | None, Option(help="Only this eval task; repeatable.", show_default="all")] = None,
    missing: Annotated[bool, Option("--missing", help="Only checkpoints where a value is missing.")] = False,
    last: Annotated[
        int | None,
        Option(min=1, help="Only the newest N checkpoints.", show_default="20; all if --json or --missing"),
    ] = None,
    retry: Annotated[
        bool, Option("--retry", help="Retry evaluations that failed for good, instead of showing them.")
    ] = False,
    against: Annotated[
        str | None,
        Option(
            metavar="CHECKPOINT",
            help="Compare with this one, sample by sample: a name, a step, best, or a file of results of "
            "lm-evaluation-harness.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        Option(
            help="The checkpoint of --against and --format: a name, a step, newest or best.", show_default="newest"
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        ResultFormat | None,
        Option(
            help="Print the results on one checkpoint in the format of lm-evaluation-harness.", show_default=False
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the matrix of checkpoints and eval tasks: values, or why there is none."""
    from phyla.study import load_evaluations
    from phyla.study.results.pages.evaluations import FEW, evaluations_page, read_matrix

    chosen = {"--suite": suite, "--task": task, "--missing": missing, "--last": last}
    for option in (option for option, value in chosen.items() if value):
        if retry or format is not None or against is not None:
            raise UsageError(f"leave out {option}: --retry, --format and --against take all suites and tasks")
    if checkpoint is not None and format is None and against is None:
        raise UsageError(f"--checkpoint {checkpoint}: add --format or --against; the matrix shows all checkpoints")
    evaluated = load_evaluations(run, **options.where(ctx))
    if retry:
        count = evaluated.retry()
        say = format_count(count, "evaluation is queued again", "evaluations are queued again")
        print_json({"retried": count}) if as_json else print(f"{evaluated.name}: {say}")
        return
    if format is not None:
        _print_results(evaluated, checkpoint or "newest", format)
        return
    if against is not None:
        _print_differences(evaluated, checkpoint or "newest", against, as_json=as_json)
        return
    suites = evaluated.suites if suite is None else [evaluated.suite(suite)]
    known = {known_task.name for outline in suites for known_task in outline.tasks}
    for name in task or ():
        if name not in known:
            raise UsageError(f"--task {name}: no such eval task; available: {', '.join(sorted(known)) or 'none'}")
    limit = last if last is not None or missing or as_json else FEW
    matrix = read_matrix(evaluated, suite, task or (), last=limit, missing=missing)
    if as_json:
        print_json(_as_json(evaluated, matrix))
        return
    page = evaluations_page(evaluated, matrix)
    print_page(replace(page, sections=[*page.sections, *problem_tables(evaluated, matrix.cells)]))
    if matrix.is_cut:
        print("more checkpoints with --last N")


def _print_results(evaluated: "Evaluations", checkpoint: str, result_format: ResultFormat) -> None:
    """Print the results on one checkpoint as lm-evaluation-harness does."""
    from phyla.integrations.harness_results import COLUMNS, table_rows, to_harness, to_markdown

    results = evaluated.model_results(checkpoint)
    if result_format is ResultFormat.JSON:
        print_json(to_harness(results))
    elif result_format is ResultFormat.MARKDOWN:
        print(to_markdown(results))
    else:
        rows = (dict(zip(COLUMNS, row, strict=True)) for row in table_rows(results))
        for line in csv_lines(rows, COLUMNS):
            print(line, end="")


def _print_differences(evaluated: "Evaluations", checkpoint: str, against: str, *, as_json: bool) -> None:
    """Print how one checkpoint differs from another."""
    from phyla.study.results.pages.models import differences_table

    comparison = evaluated.compare_models(against, checkpoint)
    if as_json:
        print_json(comparison)
        return
    table = differences_table(comparison)
    print(table.title)
    print_section(table)


def problem_tables(evaluated: "Evaluations", cells: "Iterable[Cell]") -> "list[Table]":
    """Return why values are missing, and the last warnings."""
    from phyla.study.results.pages.evaluations import causes_table, warnings_table

    return [causes_table(cells, SHOWN), warnings_table(evaluated.events(), SHOWN)]


def _as_json(evaluations: "Evaluations", matrix: "Matrix") -> dict[str, Any]:
    keys = {(cell.seen.id, cell.suite) for cell in matrix.cells}
    return {
        **pick(evaluations.run, "kind", "state", run="name"),
        "suites": [
            {
                **pick(suite, "name", "objective", "maximize"),
                "tasks": [pick(task, "name", "tags") for task in suite.tasks],
            }
            for suite in matrix.suites
        ],
        "lag": evaluations.lag(),
        "waiting": evaluations.waiting(),
        "cells": [_cell_json(cell) for cell in matrix.cells],
        "values": [_values_json(value) for value in matrix.values if (value.seen.id, value.group.suite) in keys],
        "events": [
            pick(event, "kind", "suite", "message", "data", "created_at") for event in evaluations.events()
        ],
        "summary": matrix.counts,
    }


def _cell_json(cell: "Cell") -> dict[str, Any]:
    return {
        **pick(cell.seen, *OF_CHECKPOINT, "written_at", checkpoint="name"),
        **pick(cell, "suite", "task", "replicate", "status", "why", "partial", "metric"),
        **(pick(cell.estimate, "value", "stderr") or {"value": None, "stderr": None}),
        **pick(cell, "n", "values", "shards", "shards_done"),
        **pick(cell, "duration_s", "running_s", "attempts", "worker", "evaluated_at"),
        **({"unread": cell.unread} if cell.unread else {}),
    }


def _values_json(group_values: "GroupValues") -> dict[str, Any]:
    return {
        **pick(group_values.seen, *OF_CHECKPOINT, checkpoint="name"),
        **pick(group_values.group, "suite", "replicate"),
        **pick(group_values, "partial", "best", "values"),
        **pick(group_values.group, "why", "ended_at"),
    }
