"""`phyla evaluations`: what became of every eval task on every checkpoint."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from phyla.cli import options
from phyla.cli.output import page_width, picked, print_json, print_table
from phyla.cli.output import show as print
from phyla.cli.words import step, value
from phyla.errors import UsageError
from phyla.records import shown

if TYPE_CHECKING:
    from phyla.evaluation import Cell, GroupValues, SuiteOutline
    from phyla.study import Evaluations

ROWS = 20
WHYS = 10
EVENTS = 5

MARKS = {
    "queued": ".",
    "running": ">",
    "skipped": "-",
    "failed": "!",
    "gone": "x",
    "quarantined": "q",
    "missing": "?",
}
"""What stands for a cell without a value."""
PARTIAL = "~"
BEST = "*"


def evaluations(
    ctx: Context,
    run: options.RunName,
    suite: Annotated[str | None, Option(help="Only this suite.", show_default="all")] = None,
    task: Annotated[
        list[str] | None, Option(help="Only this eval task; several times.", show_default="all")
    ] = None,
    missing: Annotated[bool, Option("--missing", help="Only checkpoints where a value is missing.")] = False,
    last: Annotated[
        int | None,
        Option(min=1, help="Only the newest N checkpoints.", show_default="20; all if --json or --missing"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the matrix of checkpoints and eval tasks: values, what is queued, what was skipped or failed, why."""
    from phyla.report import lag_words
    from phyla.study import load_evaluations
    from phyla.study.rows import cell_row, values_row

    found = load_evaluations(run, **options.where(ctx))
    suites = found.suites if suite is None else (found.suite(suite),)
    known = {one.name for each in suites for one in each.tasks}
    for name in task or ():
        if name not in known:
            raise UsageError(
                f"--task {name}: there is no such eval task; there are: {', '.join(sorted(known)) or 'none'}"
            )
    limit = last if last is not None or missing or as_json else ROWS
    cells = [one for one in found.cells(suite, last=limit) if not task or one.task in task]
    if missing:
        lacking = {(one.seen.id, one.suite) for one in cells if not one.status.has_value}
        cells = [one for one in cells if (one.seen.id, one.suite) in lacking]
    values = [one for each in suites for one in found.values(each.name, last=limit)]
    # Repetitions do not count.
    once = [cell for cell in cells if cell.replicate == 0]
    counts = Counter(cell.status.value for cell in once)
    summary = {status: counts[status] for status in ("done", "reused", *MARKS) if counts[status]}
    if as_json:
        chosen = {(one.seen.id, one.suite) for one in cells}
        print_json(
            {
                **picked(found.run, "kind", run="name"),
                "state": found.state,
                "suites": [
                    {
                        **picked(suite, "name", "objective", "maximize"),
                        "tasks": [picked(task, "name", "tags") for task in suite.tasks],
                    }
                    for suite in suites
                ],
                "lag": found.lag(),
                "summary": summary,
                "cells": [cell_row(cell) for cell in cells],
                "values": [values_row(one) for one in values if (one.seen.id, one.group.suite) in chosen],
                "events": [
                    picked(event, "kind", "suite", "message", "data", "created_at") for event in found.events()
                ],
            }
        )
        return
    cut = limit is not None and len({cell.seen.id for cell in cells}) == limit
    newest = f"the newest {'checkpoint' if limit == 1 else f'{limit} checkpoints'}: " if cut else ""
    told = ", ".join(f"{count} {status}" for status, count in summary.items())
    print(f"{found.name}: {found.state}; {newest}{told or 'nothing to show'}")
    names = {suite.name for suite in suites}
    for lag in found.lag():
        if lag.suite in names:
            print(lag_words(lag))
    for each in suites:
        aggregates = {v.seen.id: v for v in values if v.group.suite == each.name and v.group.replicate == 0}
        _print_matrix(each, [cell for cell in once if cell.suite == each.name], aggregates)
    if cut:
        print("more checkpoints with --last N")
    _print_legend(cells)
    print_whys(cells)
    print_events(found)


def _print_matrix(suite: "SuiteOutline", cells: "Sequence[Cell]", aggregates: "dict[int, GroupValues]") -> None:
    """Print the matrix of a suite, in as many tables side by side as it needs."""
    by_place = {(cell.seen.id, cell.task): _cell(cell) for cell in cells}
    seen = sorted({cell.seen.id: cell.seen for cell in cells}.values(), key=lambda one: -one.number)
    left: list[list[tuple[str, object]]] = []
    for one in seen:
        at, name = str(one.step) if one.step >= 0 else "?", shown(one.name)
        row: list[tuple[str, object]] = [
            (">step", f"{at}@{one.branch}" if one.branch else at),
            (f"~{suite.name}: checkpoint", f"{name}[{one.index}]" if one.index else name),
        ]
        if suite.objective is not None:
            row.append((f">{suite.objective}", _aggregate(aggregates.get(one.id), suite.objective)))
        left.append(row)
    styles = ["bold" if one.id in aggregates and aggregates[one.id].best else "" for one in seen]
    columns = {
        task: [by_place.get((one.id, task), MARKS["missing"]) for one in seen]
        for task in dict.fromkeys(cell.task for cell in cells)
    }
    widths = {task: max(len(task), *map(len, texts)) + 3 for task, texts in columns.items()}
    first = 10 + max((len(shown(one.name)) for one in seen), default=0)
    width = page_width()
    room = width - min(first, width // 2) - (max(20, len(suite.objective)) + 3 if suite.objective else 0)
    tasks = list(columns)
    while tasks:
        fitting = [tasks.pop(0)]
        while tasks and sum(widths[task] for task in (*fitting, tasks[0])) <= room:
            fitting.append(tasks.pop(0))
        rows = [[*row, *((f">{task}", columns[task][at]) for task in fitting)] for at, row in enumerate(left)]
        print_table(rows, styles, gap=True)


def _aggregate(values: "GroupValues | None", name: str) -> str:
    if values is None:
        return ""
    found = values.values.get(name)
    text = "" if found is None else value(found.value, found.stderr)
    return f"{BEST if values.best else ''}{PARTIAL if values.partial else ''}{text}"


def _cell(cell: "Cell") -> str:
    estimate = cell.estimate
    if estimate is not None:
        return f"{PARTIAL if cell.partial else ''}{value(estimate.value, estimate.stderr)}"
    if cell.status.has_value:
        return "unread" if cell.unread else "saved" if cell.files else "done"
    return MARKS[cell.status] + (f" {cell.shards_done}/{cell.shards}" if cell.shards_done else "")


def _print_legend(cells: "Sequence[Cell]") -> None:
    statuses = {cell.status.value for cell in cells}
    parts = [f"{mark} {name}" for name, mark in MARKS.items() if name in statuses]
    if any(cell.partial for cell in cells):
        parts.append(f"{PARTIAL} of a partial group: some eval tasks failed, so it is no fitness")
    if any(cell.group is not None and cell.group.best for cell in cells):
        parts.append(f"{BEST} the best of its suite")
    if parts:
        print(f"\n{'; '.join(parts)}")


def print_whys(cells: "Iterable[Cell]") -> None:
    """Print why values are missing, the most frequent reasons first."""
    from phyla.evaluation.cells import causes

    found = causes(cell for cell in cells if cell.replicate == 0)
    for cause in found[:WHYS]:
        steps = [step(seen.step) for seen in cause.checkpoints]
        listed = ", ".join(steps[-4:]) + (f" and {len(steps) - 4} others" if len(steps) > 4 else "")
        what = cause.suite if cause.task is None else f"{cause.suite}/{cause.task}"
        print(f"{cause.status}  {what} at step {listed}: {cause.why}")
    if len(found) > WHYS:
        print(f"and {len(found) - WHYS} more: --json")


def print_events(found: "Evaluations") -> None:
    """Print the last things that a person should know of a run."""
    events = [event for event in found.events() if event.kind not in ("gone", "quarantined")]
    for event in events[-EVENTS:]:
        print(event.message)
    if len(events) > EVENTS:
        counts = Counter(event.kind for event in events)
        told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        print(f"the last {EVENTS} of {len(events)} events ({told}); all: --json")
