"""The matrix of checkpoints and eval tasks as a heatmap."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phyla.evaluation import Cell, CellStatus, SuiteOutline
from phyla.report import style
from phyla.report.evaluation import EvaluationData, checkpoint_words, measured
from phyla.report.words import counted, duration, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLUMNS = 300
"""Checkpoints that a matrix shows."""
MARKED = 50
"""Rewinds of training that are marked."""
HATCHED = 2_000
"""Cells of partial groups that are hatched one by one."""

STATUSES = {
    CellStatus.QUEUED: ("circle-open", style.INK),
    CellStatus.RUNNING: ("circle", style.JUMP),
    CellStatus.SKIPPED: ("line-ew-open", style.INK),
    CellStatus.FAILED: ("x", style.FAILED),
    CellStatus.GONE: ("x-thin-open", style.INK),
    CellStatus.QUARANTINED: ("hexagon-open", style.FAILED),
    CellStatus.MISSING: ("diamond-open", style.INK),
}
"""Symbol and colour of cells without a value."""


def matrix_figure(data: EvaluationData, suite: str) -> "go.Figure":
    """Return one row per eval task and one column per checkpoint: values, and what became of the others.

    Each row has its own scale, from the worst value to the best. Cells of partial groups are hatched; dotted lines
    are where training was rewound.

    Args:
        data: the evaluation.
        suite: name of the suite.
    """
    outline = data.suite(suite)
    title = f"{suite}: eval tasks on checkpoints"
    cells = data.cells_of(suite)
    if not cells:
        return style.empty(title, "No checkpoint was seen yet.")
    notes: list[str] = []
    order = {seen.id: seen for seen in data.checkpoints}
    shown = [seen for seen in order.values() if any(True for cell in cells if cell.seen.id == seen.id)]
    if len(shown) > COLUMNS:
        notes.append(f"The newest {COLUMNS:,} of {counted(len(shown), 'checkpoint')}.")
        shown = shown[-COLUMNS:]
    column = {seen.id: index for index, seen in enumerate(shown)}
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    row = {name: index for index, name in enumerate(tasks)}
    cells = [cell for cell in cells if cell.seen.id in column]
    better = "the highest" if outline.maximize else "the lowest"
    height = 26 if len(tasks) <= 20 else 16
    figure = style.figure(
        title,
        f"Each row has its own scale; the brightest is {better} value of the row",
        height=250 + max(2, len(tasks)) * height + 18 * len(notes),
        notes=notes,
    )
    figure.add_trace(_heatmap(outline, cells, column, row))
    _add_hatches(figure, cells, column, row)
    for status, (symbol, colour) in STATUSES.items():
        chosen = [cell for cell in cells if cell.status is status]
        if chosen:
            figure.add_trace(_symbols(chosen, column, row, status.value, symbol, colour))
    rewound = [index for index in range(1, len(shown)) if shown[index].branch != shown[index - 1].branch]
    for index in rewound[-MARKED:]:
        figure.add_vline(index - 0.5, line={"color": style.INK, "width": 1.4, "dash": "dot"})
    ticks = style.kept(len(shown), 12)
    figure.update_layout(
        xaxis=style.axis(
            "step of the checkpoint, in the order in which they were seen",
            showgrid=False,
            tickmode="array",
            tickvals=ticks,
            ticktext=[f"{shown[tick].step:,}" if shown[tick].step >= 0 else "?" for tick in ticks],
            range=[-0.5, len(shown) - 0.5],
        ),
        yaxis=style.axis(
            showgrid=False,
            tickmode="array",
            tickvals=list(range(len(tasks))),
            ticktext=[f"{plain(short(name, 40))} " for name in tasks],
            range=[len(tasks) - 0.5, -0.5],
        ),
        barmode="overlay",
        bargap=0,
    )
    return figure


def _heatmap(
    suite: SuiteOutline, cells: Sequence[Cell], column: dict[int, int], row: dict[str, int]
) -> "go.Heatmap":
    import plotly.graph_objects as go

    shade: list[list[float | None]] = [[None] * len(column) for _ in row]
    words = [[""] * len(column) for _ in row]
    ends: dict[str, tuple[float, float]] = {}
    for name in row:
        known = [cell.estimate.value for cell in cells if cell.task == name and cell.estimate is not None]
        finite = [value for value in known if math.isfinite(value)]
        ends[name] = (min(finite), max(finite)) if finite else (0.0, 0.0)
    for cell in cells:
        if cell.estimate is None:
            continue
        low, high = ends[cell.task]
        value = cell.estimate.value
        part = (value - low) / (high - low) if high > low else 1.0
        part = part if suite.maximize or high <= low else 1 - part
        place = row[cell.task], column[cell.seen.id]
        # What is no finite number is as bad as can be.
        shade[place[0]][place[1]] = part if math.isfinite(value) else 0.0
        words[place[0]][place[1]] = cell_words(cell)
    return go.Heatmap(
        z=shade,
        text=words,
        hoverinfo="text",
        hoverongaps=False,
        colorscale=style.SCALE,
        zmin=0,
        zmax=1,
        xgap=1 if len(column) <= 120 else 0,
        ygap=1,
        colorbar={
            "tickvals": [0, 1],
            "ticktext": ["worst", "best"],
            "thickness": 10,
            "outlinewidth": 0,
            "ticks": "",
        },
    )


def _add_hatches(figure: Any, cells: Sequence[Cell], column: dict[int, int], row: dict[str, int]) -> None:
    import plotly.graph_objects as go

    partial = [cell for cell in cells if cell.partial and cell.estimate is not None][-HATCHED:]
    if not partial:
        return
    figure.add_trace(
        go.Bar(
            x=[column[cell.seen.id] for cell in partial],
            y=[1] * len(partial),
            base=[row[cell.task] - 0.5 for cell in partial],
            width=1,
            marker={
                "color": "rgba(0,0,0,0)",
                "line": {"width": 0},
                "pattern": {
                    "shape": "/",
                    "size": 7,
                    "solidity": 0.3,
                    "fgcolor": "#ffffff",
                    "bgcolor": "rgba(0,0,0,0.35)",
                },
            },
            hoverinfo="skip",
            name="partial: not all eval tasks of the group",
        )
    )


def _symbols(
    cells: Sequence[Cell], column: dict[int, int], row: dict[str, int], name: str, symbol: str, colour: str
) -> "go.Scatter":
    import plotly.graph_objects as go

    size = max(3.0, min(9.0, 700 / len(column)))
    return go.Scatter(
        x=[column[cell.seen.id] for cell in cells],
        y=[row[cell.task] for cell in cells],
        mode="markers",
        marker={"symbol": symbol, "color": colour, "size": size, "line": {"width": 1.4, "color": colour}},
        text=[cell_words(cell) for cell in cells],
        hoverinfo="text",
        name=name,
    )


def cell_words(cell: Cell) -> str:
    """Return everything about a cell that a pointer over it should tell, as Plotly's HTML."""
    lines = [f"<b>{plain(cell.task)}</b>", checkpoint_words(cell.seen)]
    if cell.status.has_value:
        lines += [
            f"{plain(name)} {measured(one.value, one.stderr)}" for name, one in list(cell.values.items())[:8]
        ]
        if cell.n is not None:
            lines.append(counted(cell.n, "sample"))
        spent = duration(cell.duration_s)
        lines.append(f"{cell.status.value}, {spent} in {counted(cell.shards, 'shard')}")
    else:
        part = f", {cell.shards_done} of {cell.shards} shards" if cell.shards_done else ""
        lines.append(f"{cell.status.value}{part}")
    if cell.why:
        lines.append(plain(short(cell.why.strip().splitlines()[-1], 110)))
    if cell.partial and cell.group is not None and cell.group.why and cell.status.has_value:
        lines.append(plain(short(f"partial group: {cell.group.why}", 110)))
    if cell.attempts > cell.shards:
        lines.append(counted(cell.attempts, "attempt"))
    if cell.worker:
        lines.append(plain(short(cell.worker, 60)))
    return "<br>".join(lines)
