"""`phyla evaluations`: the results of every eval task on every checkpoint."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from phyla.cli import options
from phyla.cli.output import page_width, pick, print_json, print_table
from phyla.errors import UsageError
from phyla.formatting import duration, format_count, format_estimate, lag_words
from phyla.records import escape_name
from phyla.terminal import show as print

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
"""The marks of cells without a value."""
AGAIN = (
    "evaluations that failed for good are retried when you restart the watch or the run; while it runs: "
    "phyla evaluations NAME --retry"
)
OF_CHECKPOINT = ("step", "branch", "index", "number", "trial")
PARTIAL = "~"
BEST = "*"


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
    as_json: options.AsJson = False,
) -> None:
    """Show the matrix of checkpoints and eval tasks: values, or why there is none."""
    from phyla.study import load_evaluations
    from phyla.study.results.pages.evaluations import waiting_lines

    evaluated = load_evaluations(run, **options.where(ctx))
    if retry:
        count = evaluated.retry()
        say = format_count(count, "evaluation is queued again", "evaluations are queued again")
        print_json({"retried": count}) if as_json else print(f"{evaluated.name}: {say}")
        return
    suites = evaluated.suites if suite is None else (evaluated.suite(suite),)
    known = {known_task.name for outline in suites for known_task in outline.tasks}
    for name in task or ():
        if name not in known:
            raise UsageError(f"--task {name}: no such eval task; available: {', '.join(sorted(known)) or 'none'}")
    limit = last if last is not None or missing or as_json else ROWS
    cells = [cell for cell in evaluated.cells(suite, last=limit) if not task or cell.task in task]
    if missing:
        lacking = {(cell.seen.id, cell.suite) for cell in cells if not cell.status.has_value}
        cells = [cell for cell in cells if (cell.seen.id, cell.suite) in lacking]
    values = [group for outline in suites for group in evaluated.values(outline.name, last=limit)]
    # Repetitions do not count.
    once = [cell for cell in cells if cell.replicate == 0]
    counts = Counter(cell.status.value for cell in once)
    summary = {status: counts[status] for status in ("done", "reused", *MARKS) if counts[status]}
    if as_json:
        print_json({**_as_json(evaluated, suites, cells, values), "summary": summary})
        return
    cut = limit is not None and len({cell.seen.id for cell in cells}) == limit
    newest = f"the newest {'checkpoint' if limit == 1 else f'{limit} checkpoints'}: " if cut else ""
    counted_cells = ", ".join(f"{count} {status}" for status, count in summary.items())
    print(f"{evaluated.name}: {evaluated.state}; {newest}{counted_cells or 'nothing to show'}")
    names = {suite.name for suite in suites}
    for lag in evaluated.lag():
        if lag.suite in names:
            print(lag_words(lag))
    for line in waiting_lines(evaluated):
        print(line)
    for outline in suites:
        groups = [row for row in values if (row.group.suite, row.group.replicate) == (outline.name, 0)]
        aggregates = {row.seen.id: row for row in groups}
        _print_matrix(outline, [cell for cell in once if cell.suite == outline.name], aggregates)
    if cut:
        print("more checkpoints with --last N")
    legend = [f"{mark} {name}" for name, mark in MARKS.items() if any(cell.status == name for cell in cells)]
    if any(cell.partial for cell in cells):
        legend.append(
            f"{PARTIAL} of a partial group: eval tasks or the aggregation failed, so it does not count as fitness"
        )
    if any(cell.group is not None and cell.group.best for cell in cells):
        legend.append(f"{BEST} the best of its suite")
    if legend:
        print(f"\n{'; '.join(legend)}")
    print_running(cells)
    print_whys(cells)
    print_events(evaluated)


def _as_json(
    evaluations: "Evaluations",
    suites: "Sequence[SuiteOutline]",
    cells: "Sequence[Cell]",
    values: "Sequence[GroupValues]",
) -> dict[str, Any]:
    keys = {(cell.seen.id, cell.suite) for cell in cells}
    return {
        **pick(evaluations.run, "kind", "state", run="name"),
        "suites": [
            {
                **pick(suite, "name", "objective", "maximize"),
                "tasks": [pick(task, "name", "tags") for task in suite.tasks],
            }
            for suite in suites
        ],
        "lag": evaluations.lag(),
        "waiting": evaluations.waiting(),
        "cells": [_cell_json(cell) for cell in cells],
        "values": [_values_json(value) for value in values if (value.seen.id, value.group.suite) in keys],
        "events": [
            pick(event, "kind", "suite", "message", "data", "created_at") for event in evaluations.events()
        ],
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


def _print_matrix(suite: "SuiteOutline", cells: "Sequence[Cell]", aggregates: "dict[int, GroupValues]") -> None:
    """Print the matrix of a suite, as one or several tables."""
    seen = sorted({cell.seen.id: cell.seen for cell in cells}.values(), key=lambda checkpoint: -checkpoint.number)
    row_heads: list[list[str]] = []
    styles = []
    for checkpoint in seen:
        at, name, values = (
            str(checkpoint.step) if checkpoint.step >= 0 else "?",
            escape_name(checkpoint.name),
            aggregates.get(checkpoint.id),
        )
        row_heads.append(
            [
                f"{at}@{checkpoint.branch}" if checkpoint.branch else at,
                f"{name}[{checkpoint.index}]" if checkpoint.index else name,
            ]
        )
        if suite.objective is not None:
            row_heads[-1].append("" if values is None else _aggregate(values, suite.objective))
        styles.append("bold" if values is not None and values.best else "")
    texts = {(cell.seen.id, cell.task): _cell(cell) for cell in cells}
    columns = {
        task: [texts.get((checkpoint.id, task), MARKS["missing"]) for checkpoint in seen]
        for task in dict.fromkeys(cell.task for cell in cells)
    }
    width = page_width()
    first = 10 + max((len(escape_name(checkpoint.name)) for checkpoint in seen), default=0)
    room = width - min(first, width // 2) - (max(20, len(suite.objective)) + 3 if suite.objective else 0)
    pages: list[list[str]] = []
    used = 0
    for task, column in columns.items():
        wide = max(len(task), *map(len, column)) + 3
        if not pages or used + wide > room:
            pages.append([])
            used = 0
        pages[-1].append(task)
        used += wide
    fixed = [">step", f"~{suite.name}: checkpoint", *([f">{suite.objective}"] if suite.objective else [])]
    for page in pages:
        rows = ([*row, *(columns[task][at] for task in page)] for at, row in enumerate(row_heads))
        print_table([*fixed, *(f">{task}" for task in page)], rows, styles, gap=True)


def _aggregate(values: "GroupValues", name: str) -> str:
    estimate = values.values.get(name)
    text = "" if estimate is None else format_estimate(estimate.value, estimate.stderr)
    return f"{BEST if values.best else ''}{PARTIAL if values.partial else ''}{text}"


def _cell(cell: "Cell") -> str:
    estimate = cell.estimate
    if estimate is not None:
        return f"{PARTIAL if cell.partial else ''}{format_estimate(estimate.value, estimate.stderr)}"
    if cell.status.has_value:
        return "unread" if cell.unread else "saved" if cell.files else "done"
    return MARKS[cell.status] + (f" {cell.shards_done}/{cell.shards}" if cell.shards_done else "")


def print_running(cells: "Iterable[Cell]") -> None:
    """Print how long eval tasks have been running, the longest first, so that hanging tasks show."""
    claimed = [(cell.running_s, cell) for cell in cells if cell.running_s is not None]
    running = sorted(claimed, key=lambda pair: -pair[0])
    for seconds, cell in running[:WHYS]:
        where = f"at step {cell.seen.step}" if cell.seen.step >= 0 else f"on {escape_name(cell.seen.name)}"
        print(f"running  {cell.suite}/{cell.task} {where} for {duration(seconds)}, by {cell.worker}")
    if len(running) > WHYS:
        print(f"and {len(running) - WHYS} more: --json")


def print_whys(cells: "Iterable[Cell]") -> None:
    """Print why values are missing, the most frequent reasons first."""
    from phyla.evaluation.matrix import causes

    known_causes = causes(cell for cell in cells if cell.replicate == 0)
    for cause in known_causes[:WHYS]:
        seen, newest = cause.checkpoints, cause.checkpoints[-4:]
        known = all(checkpoint.step >= 0 for checkpoint in newest)
        where = ", ".join(str(checkpoint.step) if known else escape_name(checkpoint.name) for checkpoint in newest)
        more = f" and {len(seen) - len(newest)} more" if len(seen) > len(newest) else ""
        subject = cause.suite if cause.task is None else f"{cause.suite}/{cause.task}"
        print(f"{cause.status}  {subject} {'at step' if known else 'on'} {where}{more}: {cause.why}")
    if len(known_causes) > WHYS:
        print(f"and {len(known_causes) - WHYS} more: --json")
    if any(cause.status == "failed" and cause.task is not None for cause in known_causes):
        print(AGAIN)


def print_events(evaluated: "Evaluations") -> None:
    """Print the last events of a run that a user should see."""
    events = [event for event in evaluated.events() if event.kind not in ("gone", "quarantined")]
    for event in events[-EVENTS:]:
        print(event.message)
    if len(events) > EVENTS:
        counts = Counter(event.kind for event in events)
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        print(f"the last {EVENTS} of {len(events)} events ({kinds}); all: --json")
