"""`phyla evaluations`: what became of every eval task on every checkpoint."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from phyla.cli import options
from phyla.cli.output import console, page_width, picked, print_json, table
from phyla.cli.output import show as print
from phyla.cli.words import counted, duration, step, value
from phyla.errors import UsageError
from phyla.records import shown

if TYPE_CHECKING:
    from phyla.evaluation import Cell, GroupValues, Lag, SuiteOutline
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
        list[str] | None, Option(help="Only this eval task; may be repeated.", show_default="all")
    ] = None,
    missing: Annotated[bool, Option("--missing", help="Only checkpoints where a value is missing.")] = False,
    last: Annotated[
        int | None,
        Option(min=1, help="Only the newest N checkpoints.", show_default="20; all if --json or --missing"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the matrix of checkpoints and eval tasks: values, what is queued, what was skipped or failed, why."""
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
    if as_json:
        shown = {(one.seen.id, one.suite) for one in cells}
        values = [one for one in values if (one.seen.id, one.group.suite) in shown]
        print_json(
            {
                "run": found.run.name,
                "kind": found.run.kind,
                "state": found.state,
                "suites": [
                    {
                        "name": suite.name,
                        "tasks": [picked(task, "name", "tags") for task in suite.tasks],
                        **picked(suite, "objective", "maximize"),
                    }
                    for suite in suites
                ],
                "lag": found.lag(),
                "summary": _summary(cells),
                "cells": [cell_row(cell) for cell in cells],
                "values": [values_row(one) for one in values],
                "events": [
                    picked(event, "kind", "suite", "message", "data", "created_at") for event in found.events()
                ],
            }
        )
        return
    _print(found, suites, cells, values, limit)


def _summary(cells: "Sequence[Cell]") -> dict[str, int]:
    """Return how many cells that are shown have each status; repetitions do not count."""
    counts = Counter(cell.status.value for cell in cells if cell.replicate == 0)
    return {status: counts[status] for status in ("done", "reused", *MARKS) if counts[status]}


def lag_line(lag: "Lag") -> str:
    """Return how far a suite is behind on one line."""
    more = lag.waiting - lag.checkpoints
    older = f"; {more} older or repeated evaluations wait" if more else ""
    if not lag.checkpoints:
        if lag.complete is None:
            return f"{lag.suite}: nothing is evaluated yet{older}"
        return f"{lag.suite}: up to date at step {step(lag.complete)}{older}"
    count = counted(lag.checkpoints, "checkpoint")
    steps = "" if lag.steps is None or lag.complete is None else f" and {counted(lag.steps, 'step')}"
    done = "none is complete" if lag.complete is None else f"complete up to step {step(lag.complete)}"
    return f"{lag.suite}: {count}{steps} behind, the oldest for {duration(lag.oldest_s)}; {done}{older}"


def _print(
    found: "Evaluations",
    suites: "Sequence[SuiteOutline]",
    cells: "Sequence[Cell]",
    values: "Sequence[GroupValues]",
    limit: int | None,
) -> None:
    checkpoints = len({cell.seen.id for cell in cells})
    cut = limit is not None and checkpoints == limit
    told = ", ".join(f"{count} {status}" for status, count in _summary(cells).items())
    if cut:
        told = f"the newest {'checkpoint' if limit == 1 else f'{limit} checkpoints'}: {told}"
    print(f"{found.name}: {found.state}; {told or 'nothing to show'}")
    chosen = {suite.name for suite in suites}
    for lag in found.lag():
        if lag.suite in chosen:
            print(lag_line(lag))
    for suite in suites:
        own = [cell for cell in cells if cell.suite == suite.name and cell.replicate == 0]
        aggregates = {
            one.seen.id: one for one in values if one.group.suite == suite.name and one.group.replicate == 0
        }
        for made in _tables(suite, own, aggregates, page_width()):
            print()
            console().print(made)
    if cut:
        print("more checkpoints with --last N")
    _legend(cells)
    print_whys(cells)
    print_events(found)


def _tables(
    suite: "SuiteOutline", cells: "Sequence[Cell]", aggregates: "dict[int, GroupValues]", width: int
) -> Iterable[Any]:
    """Return the matrix of a suite, in as many tables side by side as it needs."""
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    by_place = {(cell.seen.id, cell.task): cell for cell in cells}
    seen = sorted({cell.seen.id: cell.seen for cell in cells}.values(), key=lambda one: -one.number)
    texts = {name: [_cell(by_place.get((one.id, name))) for one in seen] for name in tasks}
    objective = suite.objective
    first = 10 + max((len(shown(one.name)) for one in seen), default=0)
    room = width - min(first, width // 2) - (0 if objective is None else max(20, len(objective)) + 3)
    while tasks:
        fitting: list[str] = []
        used = 0
        while tasks and (not fitting or used + _width(tasks[0], texts[tasks[0]]) <= room):
            used += _width(tasks[0], texts[tasks[0]])
            fitting.append(tasks.pop(0))
        rows: list[list[tuple[str, object]]] = []
        for row, one in enumerate(seen):
            at = str(one.step) if one.step >= 0 else "?"
            name = shown(one.name)
            aggregate = [] if objective is None else [(objective, _aggregate(aggregates.get(one.id), objective))]
            rows.append(
                [
                    ("step", f"{at}@{one.branch}" if one.branch else at),
                    (f"{suite.name}: checkpoint", f"{name}[{one.index}]" if one.index else name),
                    *aggregate,
                    *((task, texts[task][row]) for task in fitting),
                ]
            )
        best = {place for place, values in aggregates.items() if values.best}
        yield table(
            rows,
            right=["step", *fitting, *([] if objective is None else [objective])],
            elastic=(f"{suite.name}: checkpoint",),
            styles=["bold" if one.id in best else "" for one in seen],
        )


def _width(name: str, texts: Sequence[str]) -> int:
    return max(len(name), *map(len, texts)) + 3


def _aggregate(values: "GroupValues | None", name: str) -> str:
    if values is None:
        return ""
    found = values.values.get(name)
    text = "" if found is None else value(found.value, found.stderr)
    return f"{BEST if values.best else ''}{PARTIAL if values.partial else ''}{text}"


def _cell(cell: "Cell | None") -> str:
    if cell is None:
        return MARKS["missing"]
    estimate = cell.estimate
    if estimate is not None:
        return f"{PARTIAL if cell.partial else ''}{value(estimate.value, estimate.stderr)}"
    if cell.status.has_value:
        return "unread" if cell.unread else "saved" if cell.files else "done"
    part = f" {cell.shards_done}/{cell.shards}" if cell.shards_done else ""
    return f"{MARKS[cell.status]}{part}"


def _legend(cells: "Sequence[Cell]") -> None:
    statuses = {cell.status.value for cell in cells}
    parts = [f"{mark} {name}" for name, mark in MARKS.items() if name in statuses]
    if any(cell.partial for cell in cells):
        parts.append(f"{PARTIAL} of a partial group: some eval tasks failed, so it is no fitness")
    if any(cell.group is not None and cell.group.best for cell in cells):
        parts.append(f"{BEST} the best of its suite")
    if parts:
        print()
        print("; ".join(parts))


def print_whys(cells: "Iterable[Cell]") -> None:
    """Print why values are missing, the most frequent reasons first."""
    from phyla.evaluation import causes

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
    counts = Counter(event.kind for event in events)
    for event in events[-EVENTS:]:
        print(event.message)
    if len(events) > EVENTS:
        told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        print(f"the last {EVENTS} of {len(events)} events ({told}); all: --json")
