"""Figures of the evaluation of checkpoints: aggregates over steps, the matrix of eval tasks, and the lag."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from phyla.evaluation import Cell, CellStatus, GroupValues
from phyla.records import Group, GroupState
from phyla.report import style
from phyla.report.evaluation_data import EvaluationData, checkpoint_words, measured, place
from phyla.report.words import counted, duration, last_line, moment, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

NAMES = 6
"""Aggregates that are drawn; the objective first."""
SERIES = 40
"""Lines that are drawn of each aggregate."""
POINTS = 2_000
"""Points of one line; beyond, it keeps only its outline."""
COLUMNS = 300
"""Checkpoints that a matrix shows."""
MARKED = 50
"""Rewinds of training that are marked."""
HATCHED = 2_000
"""Cells of partial groups that are hatched one by one."""
BAND = 1.96
"""Standard errors on each side of a line: 95 % if the error is normal."""
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
TIME = "%Y-%m-%d %H:%M:%S"


def aggregates_figure(data: EvaluationData, suite: str) -> "go.Figure":
    """Return the aggregates of a suite over steps, one panel each, with error bands and regressions.

    There is one line per branch of training, or per member of a population. Groups that are partial are open
    circles, and no line leads through them.
    """
    title = f"{suite}: aggregates over steps"
    values = data.values_of(suite)
    known = list(dict.fromkeys(name for one in values for name in one.values))
    if not known:
        return style.empty(title, "No group is complete yet.")
    from plotly.subplots import make_subplots

    objective = data.suite(suite).objective
    names = sorted(known, key=lambda name: name != objective)[:NAMES]
    lines: dict[str, list[GroupValues]] = {}
    for one in values:
        lines.setdefault(data.series(one.seen), []).append(one)
    notes: list[str] = []
    if len(names) < len(known):
        notes.append(f"{len(names)} of {counted(len(known), 'aggregate')} are drawn.")
    if len(lines) > SERIES:
        notes.append(f"{SERIES} of {counted(len(lines), 'line')} are drawn.")
    subtitle = "Bands are 95 % intervals where standard errors are known; triangles mark regressions"
    height = 190 + (300 if len(names) == 1 else 210) * len(names)
    grid = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.16 / max(2, len(names)))
    style.figure(title, subtitle, height=height, notes=notes, grid=grid)
    many = len(lines) > len(style.PALETTE)
    for row, name in enumerate(names, start=1):
        for order, series in enumerate(list(lines)[:SERIES]):
            having = [one for one in lines[series] if name in one.values]
            colour = style.MUTED if many else style.series_colour(order)
            label = "members" if many else series or "branch 0"
            shown = row == 1 and len(lines) > 1 and (order == 0 or not many)
            legend = {"name": label, "legendgroup": label, "showlegend": shown}
            partial = {"name": "partial", "legendgroup": "partial", "showlegend": row == 1 and order == 0}
            # A member's weights get younger when it takes over another's: the line goes by their age.
            whole = sorted(
                (one for one in having if not one.partial), key=lambda one: (place(one.seen), one.seen.id)
            )
            if not many:
                grid.add_traces(_bands(whole, name, colour, label), rows=row, cols=1)
            rows = [_row(one, name, series) for one in whole]
            rows = [rows[index] for index in style.outline([value for _, value, _ in rows], POINTS)]
            mode = "lines" if many or len(rows) > 200 else "lines+markers"
            look = {"line": {"color": colour, "width": 1.2 if many else 1.8}, "marker": {"size": 5}}
            open_circle = {"symbol": "circle-open", "size": 7, "color": colour, "line": {"width": 1.4}}
            open_rows = [_row(one, name, series) for one in having if one.partial]
            drawn = [
                style.trace(rows, mode=mode, **look, **legend),
                style.trace(open_rows, mode="markers", marker=open_circle, **partial),
            ]
            grid.add_traces([one for one in drawn if one["x"]], rows=row, cols=1)
        grid.update_yaxes(title_text=plain(name), row=row, col=1)
    found = data.regressions(suite)
    worse = [one for one in values if one.seen.id in found and names[0] in one.values]
    points = [
        (*_row(one, names[0], "")[:2], "<br>".join(plain(short(text, 120)) for text in found[one.seen.id][:6]))
        for one in worse
    ]
    marker = {"symbol": "triangle-down", "size": 10, "color": style.FAILED}
    if points:
        grid.add_trace(style.trace(points, mode="markers", marker=marker, name="regression"), row=1, col=1)
    grid.update_xaxes(tickformat="~s")
    grid.update_xaxes(title_text="step of the checkpoint", row=len(names), col=1)
    return grid


def _bands(line: Sequence[GroupValues], name: str, colour: str, group: str) -> list[dict[str, Any]]:
    known = [(place(one.seen), one.values[name].value, one.values[name].stderr) for one in line]
    sure = [(x, y, BAND * e) for x, y, e in known if e is not None and math.isfinite(y) and math.isfinite(e)]
    if len(sure) < 2:
        return []
    xs, low, high = zip(*((x, y - e, y + e) for x, y, e in sure), strict=True)
    return [style.band(xs, low, high, colour, legendgroup=group)]


def _row(one: GroupValues, name: str, series: str) -> tuple[int, float | None, str]:
    """Return step, value and what appears under the pointer; the value is None where it is not finite."""
    found = one.values[name]
    lines = [f"<b>{plain(name)} {measured(found.value, found.stderr)}</b>", checkpoint_words(one.seen)]
    lines += [plain(series)] if series else []
    lines += ["the best of its suite"] if one.best else []
    lines += [plain(short(f"partial: {one.group.why}", 110))] if one.partial else []
    return place(one.seen), found.value if math.isfinite(found.value) else None, "<br>".join(lines)


def matrix_figure(data: EvaluationData, suite: str) -> "go.Figure":
    """Return one row per eval task and one column per checkpoint: values, and the state of cells without one.

    Each row has its own scale, from the worst value to the best. Cells of partial groups are hatched; dotted lines
    are where training was rewound.
    """
    title = f"{suite}: eval tasks on checkpoints"
    cells = data.cells_of(suite)
    if not cells:
        return style.empty(title, "No checkpoint was seen yet.")
    known = {cell.seen.id for cell in cells}
    every = [seen for seen in data.checkpoints if seen.id in known]
    shown = every[-COLUMNS:]
    notes = [f"The newest {COLUMNS:,} of {counted(len(every), 'checkpoint')}."] if len(shown) < len(every) else []
    column = {seen.id: index for index, seen in enumerate(shown)}
    tasks = {task: index for index, task in enumerate(dict.fromkeys(cell.task for cell in cells))}
    cells = [cell for cell in cells if cell.seen.id in column]
    maximize = data.suite(suite).maximize
    brightest = "highest" if maximize else "lowest"
    subtitle = f"Each row has its own scale; the brightest is the {brightest} value of the row"
    height = 250 + max(2, len(tasks)) * (26 if len(tasks) <= 20 else 16)
    figure = style.figure(title, subtitle, height=height, notes=notes)
    shades: list[list[float | None]] = [[None] * len(column) for _ in tasks]
    words = [[""] * len(column) for _ in tasks]
    for task, row in tasks.items():
        _shade([cell for cell in cells if cell.task == task], column, shades[row], words[row], maximize=maximize)
    figure.add_heatmap(
        z=shades,
        text=words,
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
            base=[tasks[cell.task] - 0.5 for cell in partial],
            width=1,
            marker={"color": style.CLEAR, "line": {"width": 0}, "pattern": HATCH},
            hoverinfo="skip",
            hovertemplate="",
            name="partial: not all eval tasks of the group",
        )
    size = max(3.0, min(9.0, 700 / len(column)))
    for status, (symbol, colour) in MARKS.items():
        found = [cell for cell in cells if cell.status is status]
        rows = [(column[cell.seen.id], tasks[cell.task], _cell_words(cell)) for cell in found]
        marker = {"symbol": symbol, "color": colour, "size": size, "line": {"width": 1.4, "color": colour}}
        figure.add_traces([style.trace(rows, mode="markers", marker=marker, name=status.value)] if rows else [])
    rewound = [index + 0.5 for index, (a, b) in enumerate(pairwise(shown)) if a.branch != b.branch]
    for at in rewound[-MARKED:]:
        figure.add_vline(at, line={"color": style.INK, "width": 1.4, "dash": "dot"})
    ticks = style.kept(len(shown), 12)
    labels = [f"{shown[tick].step:,}" if shown[tick].step >= 0 else "?" for tick in ticks]
    title = "step of the checkpoint, in the order in which they were seen"
    figure.update_xaxes(title_text=title, showgrid=False, tickmode="array", tickvals=ticks, ticktext=labels)
    figure.update_xaxes(range=[-0.5, len(shown) - 0.5])
    figure.update_yaxes(style.categories([short(name, 40) for name in tasks]))
    figure.update_layout(barmode="overlay", bargap=0)
    return figure


def _shade(
    cells: Sequence[Cell], column: dict[int, int], shades: list[float | None], words: list[str], *, maximize: bool
) -> None:
    """Write the shades of a row, from 0 for the worst value to 1 for the best, and what each cell says."""
    known = [(column[cell.seen.id], cell, cell.estimate.value) for cell in cells if cell.estimate is not None]
    finite = sorted((value for _, _, value in known if math.isfinite(value)), reverse=not maximize) or [0.0]
    worst, best = finite[0], finite[-1]
    for at, cell, value in known:
        shades[at] = (
            0.0 if not math.isfinite(value) else 1.0 if best == worst else (value - worst) / (best - worst)
        )
        words[at] = _cell_words(cell)


def _cell_words(cell: Cell) -> str:
    """Return what appears under the pointer over a cell, as Plotly's HTML."""
    lines = [f"<b>{plain(cell.task)}</b>", checkpoint_words(cell.seen)]
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


def lag_figure(data: EvaluationData) -> "go.Figure":
    """Return how many checkpoints waited for each suite, and how long each took, over time."""
    title = "Lag: checkpoints that wait for their evaluation"
    groups = [group for group in data.groups if group.state is not GroupState.SKIPPED]
    if not groups:
        return style.empty(title, "Nothing was queued yet.")
    from plotly.subplots import make_subplots

    grid = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    subtitle = "Above: queued or being evaluated. Below: from being queued until complete"
    style.figure(title, subtitle, height=520, grid=grid)
    most = 0
    for order, suite in enumerate(dict.fromkeys(group.suite for group in groups)):
        own = [group for group in groups if group.suite == suite]
        look = {"name": plain(suite), "legendgroup": suite}
        colour = style.series_colour(order)
        line = _waiting(own, data.now)
        most = max(most, *(count for _, count in line))
        picked = [line[index] for index in style.outline([count for _, count in line], POINTS)]
        rows = [(moment(at), count, f"{count} waiting<br>{moment(at):{TIME}}") for at, count in picked]
        shape = {"shape": "hv", "color": colour, "width": 1.6}
        grid.add_trace(style.trace(rows, mode="lines", line=shape, **look), row=1, col=1)
        done = [one for one in own if one.state is GroupState.COMPLETE]
        ends = [(one.ended_at, one.ended_at - one.created_at) for one in done if one.ended_at]
        ends = [ends[index] for index in style.outline([took for _, took in ends], POINTS)]
        points = [
            (moment(at), took, f"complete after {duration(took)}<br>{moment(at):{TIME}}") for at, took in ends
        ]
        marker = {"color": colour, "size": 4, "opacity": 0.7}
        grid.add_trace(style.trace(points, mode="markers", marker=marker, showlegend=False, **look), row=2, col=1)
    step = 1 if most <= 8 else None
    grid.update_yaxes(title_text="checkpoints", rangemode="tozero", tickformat=",d", dtick=step, row=1, col=1)
    grid.update_yaxes(title_text="seconds", rangemode="tozero", row=2, col=1)
    grid.update_xaxes(title_text="time (UTC)", row=2, col=1)
    return grid


def _waiting(groups: Sequence[Group], now: float) -> list[tuple[float, int]]:
    """Return how many groups were open from which moment on."""
    begun = [(group.created_at, 1) for group in groups]
    ended = [(group.ended_at, -1) for group in groups if group.ended_at is not None]
    counts: dict[float, int] = {}
    count = 0
    for at, change in sorted([*begun, *ended]):
        count += change
        counts[at] = count
    line = list(counts.items())
    return [*line, (max(now, line[-1][0]), count)] if count else line
