"""The matrix of checkpoints and eval tasks as a heatmap."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from phyla.evaluation import Cell, CellStatus
from phyla.report import style
from phyla.report.evaluation import EvaluationData, checkpoint_words, measured
from phyla.report.words import counted, duration, last_line, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLUMNS = 300
"""Checkpoints that a matrix shows."""
MARKED = 50
"""Rewinds of training that are marked."""
HATCHED = 2_000
"""Cells of partial groups that are hatched one by one."""

MARKS = {
    CellStatus.QUEUED: ("circle-open", style.INK),
    CellStatus.RUNNING: ("circle", style.JUMP),
    CellStatus.SKIPPED: ("line-ew-open", style.INK),
    CellStatus.FAILED: ("x", style.FAILED),
    CellStatus.GONE: ("x-thin-open", style.INK),
    CellStatus.QUARANTINED: ("hexagon-open", style.FAILED),
    CellStatus.MISSING: ("diamond-open", style.INK),
}
"""Symbol and colour of cells without a value."""
HATCH = {"shape": "/", "size": 7, "solidity": 0.3, "fgcolor": "#ffffff", "bgcolor": "rgba(0,0,0,0.35)"}


def matrix_figure(data: EvaluationData, suite: str) -> "go.Figure":
    """Return one row per eval task and one column per checkpoint: values, and the state of cells without one.

    Each row has its own scale, from the worst value to the best. Cells of partial groups are hatched; dotted lines
    are where training was rewound.

    Args:
        data: the evaluation.
        suite: name of the suite.
    """
    title = f"{suite}: eval tasks on checkpoints"
    cells = data.cells_of(suite)
    if not cells:
        return style.empty(title, "No checkpoint was seen yet.")
    notes: list[str] = []
    known = {cell.seen.id for cell in cells}
    shown = [seen for seen in data.checkpoints if seen.id in known]
    if len(shown) > COLUMNS:
        notes.append(f"The newest {COLUMNS:,} of {counted(len(shown), 'checkpoint')}.")
        shown = shown[-COLUMNS:]
    column = {seen.id: index for index, seen in enumerate(shown)}
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    cells = [cell for cell in cells if cell.seen.id in column]
    maximize = data.suite(suite).maximize
    subtitle = (
        f"Each row has its own scale; the brightest is the {'highest' if maximize else 'lowest'} value of the row"
    )
    row_height = 26 if len(tasks) <= 20 else 16
    figure = style.figure(title, subtitle, height=250 + max(2, len(tasks)) * row_height, notes=notes)
    shades = [_shades([cell for cell in cells if cell.task == task], column, maximize=maximize) for task in tasks]
    figure.add_heatmap(
        z=[row for row, _ in shades],
        text=[words for _, words in shades],
        colorscale=style.SCALE,
        zmin=0,
        zmax=1,
        xgap=1 if len(column) <= 120 else 0,
        ygap=1,
        colorbar=style.colorbar(tickvals=[0, 1], ticktext=["worst", "best"]),
    )
    partial = [cell for cell in cells if cell.partial and cell.estimate is not None][-HATCHED:]
    if partial:
        figure.add_bar(
            x=[column[cell.seen.id] for cell in partial],
            y=[1] * len(partial),
            base=[tasks.index(cell.task) - 0.5 for cell in partial],
            width=1,
            marker={"color": style.CLEAR, "line": {"width": 0}, "pattern": HATCH},
            hoverinfo="skip",
            hovertemplate="",
            name="partial: not all eval tasks of the group",
        )
    size = max(3.0, min(9.0, 700 / len(column)))
    for status, (symbol, colour) in MARKS.items():
        rows = [
            (column[cell.seen.id], tasks.index(cell.task), cell_words(cell))
            for cell in cells
            if cell.status is status
        ]
        marker = {"symbol": symbol, "color": colour, "size": size, "line": {"width": 1.4, "color": colour}}
        figure.add_traces([style.trace(rows, mode="markers", marker=marker, name=status.value)] if rows else [])
    rewound = [index + 0.5 for index, (a, b) in enumerate(pairwise(shown)) if a.branch != b.branch]
    for place in rewound[-MARKED:]:
        figure.add_vline(place, line={"color": style.INK, "width": 1.4, "dash": "dot"})
    ticks = style.kept(len(shown), 12)
    labels = [f"{shown[tick].step:,}" if shown[tick].step >= 0 else "?" for tick in ticks]
    title = "step of the checkpoint, in the order in which they were seen"
    figure.update_xaxes(title_text=title, showgrid=False, tickmode="array", tickvals=ticks, ticktext=labels)
    figure.update_xaxes(range=[-0.5, len(shown) - 0.5])
    figure.update_yaxes(style.categories([short(name, 40) for name in tasks]))
    figure.update_layout(barmode="overlay", bargap=0)
    return figure


def _shades(
    cells: Sequence[Cell], column: dict[int, int], *, maximize: bool
) -> tuple[list[float | None], list[str]]:
    """Return the shades of a row, from 0 for the worst value to 1 for the best, and what each cell says."""
    shades: list[float | None] = [None] * len(column)
    words = [""] * len(column)
    estimates = [cell.estimate.value for cell in cells if cell.estimate is not None]
    finite = [value for value in estimates if math.isfinite(value)]
    worst, best = (min(finite, default=0.0), max(finite, default=0.0))[:: 1 if maximize else -1]
    for cell in cells:
        if cell.estimate is not None:
            value, place = cell.estimate.value, column[cell.seen.id]
            part = (value - worst) / (best - worst) if best != worst else 1.0
            shades[place] = part if math.isfinite(value) else 0.0
            words[place] = cell_words(cell)
    return shades, words


def cell_words(cell: Cell) -> str:
    """Return what appears under the pointer over a cell, as Plotly's HTML."""
    lines: list[Any] = [f"<b>{plain(cell.task)}</b>", checkpoint_words(cell.seen)]
    if cell.status.has_value:
        lines += [
            f"{plain(name)} {measured(one.value, one.stderr)}" for name, one in list(cell.values.items())[:8]
        ]
        lines += [] if cell.n is None else [counted(cell.n, "sample")]
        lines.append(f"{cell.status.value}, {duration(cell.duration_s)} in {counted(cell.shards, 'shard')}")
    else:
        part = f", {cell.shards_done} of {cell.shards} shards" if cell.shards_done else ""
        lines.append(f"{cell.status.value}{part}")
    if cell.why:
        lines.append(plain(short(last_line(cell.why), 110)))
    if cell.partial and cell.group is not None and cell.group.why and cell.status.has_value:
        lines.append(plain(short(f"partial group: {cell.group.why}", 110)))
    if cell.attempts > cell.shards:
        lines.append(counted(cell.attempts, "attempt"))
    if cell.worker:
        lines.append(plain(short(cell.worker, 60)))
    return "<br>".join(lines)
