"""Figures of the evaluation of checkpoints: aggregates over steps, the matrix of eval tasks, and the lag."""

import math
from collections import defaultdict
from itertools import pairwise
from typing import Any

from phyla.evaluation import Cell, CellStatus, GroupValues
from phyla.records import Checkpoint, said_by
from phyla.report import style
from phyla.report.data import EvaluationData
from phyla.report.words import checkpoint_words, plain
from phyla.words import counted, duration, measured

PANELS = 6
"""Aggregates that are drawn; objectives first."""
SERIES = 40
"""Lines that are drawn of each aggregate."""
POINTS = 2_000
"""Points of one line; beyond, it keeps only its outline."""
COLUMNS = 300
"""Checkpoints that a matrix shows."""
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


def aggregates_figure(data: EvaluationData) -> style.Figure:
    """Return the aggregates of every suite over steps, a panel each, with a line per branch or per member."""
    title = "How do the evaluations go?"
    panels = _panels(data)
    if not panels:
        return style.empty(title, "No group is complete yet.")
    shown = panels[:PANELS]
    notes = [f"{PANELS} of {counted(len(panels), 'aggregate')} are drawn."] if len(shown) < len(panels) else []
    lines: dict[str, dict[str, list[GroupValues]]] = {}
    for suite in dict.fromkeys(suite for suite, _ in shown):
        found = lines[suite] = defaultdict(list)
        for one in data.values_of(suite):
            found[_series(data, one.seen)].append(one)
    most = max(map(len, lines.values()))
    notes += [f"{SERIES} of {counted(most, 'line')} are drawn."] if most > SERIES else []
    figure = style.figure(
        title,
        "Bands are 95 % intervals where standard errors are known; triangles mark regressions",
        height=190 + (300 if len(shown) == 1 else 210) * len(shown),
        notes=notes,
        rows=len(shown),
        shared_xaxes=True,
        vertical_spacing=0.16 / max(2, len(shown)),
    )
    many = most > len(style.PALETTE)
    several = len(lines) > 1
    for row, (suite, name) in enumerate(shown, start=1):
        for order, (series, its) in enumerate([*lines[suite].items()][:SERIES]):
            colour = style.MUTED if many else style.series_colour(order)
            label = "members" if many else series or "branch 0"
            having = [(_point(one, name, series), one) for one in its if name in one.values]
            # A member's weights get younger when it takes over another's: the line goes by their age.
            having.sort(key=lambda pair: (pair[0][0], pair[1].seen.id))
            whole = [one for one in having if not one[1].partial]
            rows = style.outline([point for point, _ in whole], POINTS)
            legend: dict[str, Any] = {
                "legendgroup": label,
                "showlegend": row == 1 and most > 1 and (order == 0 or not many),
            }
            mode = "lines" if many or len(rows) > 200 else "lines+markers"
            width = 1.2 if many else 1.8
            if not many:
                errors = [(x, y, one.values[name].stderr) for (x, y, _), one in whole]
                sure = [
                    (x, y, BAND * e) for x, y, e in errors if e is not None and math.isfinite(e) and y is not None
                ]
                if len(sure) > 1:
                    xs, low, high = zip(*((x, y - e, y + e) for x, y, e in sure), strict=True)
                    figure.add_traces(style.band(xs, low, high, colour, legendgroup=label), rows=row, cols=1)
            line = style.line(rows, label, colour, width, mode=mode, marker={"size": 5}, **legend)
            once: dict[str, Any] = {"legendgroup": "partial", "showlegend": row == 1 and order == 0}
            partial = [point for point, one in having if one.partial]
            circles = style.marks(
                partial, "partial", colour, 7, marker_symbol="circle-open", marker_line={"width": 1.4}, **once
            )
            figure.add_traces([*line, *circles], rows=row, cols=1)
        worse = _regressions(data, suite, name)
        again: dict[str, Any] = {"legendgroup": "regression", "showlegend": row == 1}
        triangles = style.marks(worse, "regression", style.FAILED, 10, marker_symbol="triangle-down", **again)
        figure.add_traces(triangles, rows=row, cols=1)
        figure.update_yaxes(title_text=plain(f"{suite}/{name}" if several else name), row=row, col=1)
    figure.update_xaxes(tickformat="~s")
    figure.update_xaxes(title_text="step of the checkpoint", row=len(shown), col=1)
    return figure


def _panels(data: EvaluationData) -> list[tuple[str, str]]:
    """Return suite and name of every aggregate: the objectives first."""
    known = dict.fromkeys((one.group.suite, name) for one in data.values for name in one.values)
    return sorted(known, key=lambda panel: data.suite(panel[0]).objective != panel[1])


def _regressions(data: EvaluationData, suite: str, name: str) -> list[style.Row]:
    found: dict[int | None, list[str]] = defaultdict(list)
    for event in data.events:
        if event.kind == "regression" and event.suite == suite:
            found[event.seen].append(plain(event.message, 120))
    worse = [one for one in data.values_of(suite) if one.seen.id in found and name in one.values]
    return [(*_point(one, name, "")[:2], "<br>".join(found[one.seen.id][:6])) for one in worse]


def _series(data: EvaluationData, seen: Checkpoint) -> str:
    """Return the line that a checkpoint lies on: its member and branch; empty without either."""
    member = data.members.get(seen.trial or 0)
    parts = [] if member is None else [f"member {member}"]
    parts += [f"branch {seen.branch}"] if seen.branch else []
    parts += [f"model {seen.index}"] if seen.index and member is None else []
    return ", ".join(parts)


def _point(one: GroupValues, name: str, series: str) -> tuple[int, float | None, str]:
    """Return step, value and what appears under the pointer; the value is None where it is not finite."""
    found, seen = one.values[name], one.seen
    lines = [f"<b>{plain(name)} {measured(found.value, found.stderr)}</b>", checkpoint_words(seen)]
    lines += [plain(series)] if series else []
    lines += ["the best of its suite"] if one.best else []
    lines += [plain(f"partial: {one.group.why}", 110)] if one.partial else []
    value = found.value if math.isfinite(found.value) else None
    return seen.step if seen.step >= 0 else seen.number, value, "<br>".join(lines)


def matrix_figure(data: EvaluationData) -> style.Figure:
    """Return one row per eval task and one column per checkpoint: values, and the state of cells without one."""
    title = "Which checkpoint is good at what?"
    cells = [cell for cell in data.cells if cell.replicate == 0]
    if not cells:
        return style.empty(title, "No checkpoint was seen yet.")
    known = {cell.seen.id for cell in cells}
    every = [seen for seen in data.checkpoints if seen.id in known]
    shown = every[-COLUMNS:]
    notes = [f"The newest {COLUMNS:,} of {counted(len(every), 'checkpoint')}."] if len(shown) < len(every) else []
    column = {seen.id: index for index, seen in enumerate(shown)}
    tasks = {task: index for index, task in enumerate(dict.fromkeys((cell.suite, cell.task) for cell in cells))}
    cells = [cell for cell in cells if cell.seen.id in column]
    subtitle = "Each row has its own scale; the brightest is its best value"
    height = 250 + max(2, len(tasks)) * (26 if len(tasks) <= 20 else 16)
    figure = style.figure(title, subtitle, height=height, notes=notes)
    shades: list[list[float | None]] = [[None] * len(column) for _ in tasks]
    words = [[""] * len(column) for _ in tasks]
    measured_cells: dict[tuple[str, str], list[tuple[Cell, float]]] = defaultdict(list)
    for one in cells:
        if one.estimate is not None:
            measured_cells[one.suite, one.task].append((one, one.estimate.value))
    for (suite, task), row in tasks.items():
        measures, maximize = measured_cells[suite, task], data.suite(suite).maximize
        finite = [value for _, value in measures if math.isfinite(value)] or [0.0]
        worst, best = (min(finite), max(finite)) if maximize else (max(finite), min(finite))
        for one, value in measures:
            shade = 1.0 if best == worst else (value - worst) / (best - worst)
            shades[row][column[one.seen.id]] = shade if math.isfinite(value) else 0.0
            words[row][column[one.seen.id]] = _cell_words(one)
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
    partial = [cell for cell in cells if cell.partial and cell.estimate is not None]
    marks = [
        (status.value, *look, [cell for cell in cells if cell.status is status]) for status, look in MARKS.items()
    ]
    marks.append(("partial: not all eval tasks of the group", "line-ne-open", "#ffffff", partial))
    size = max(3.0, min(9.0, 700 / len(column)))
    for name, symbol, colour, found in marks:
        rows = [(column[cell.seen.id], tasks[cell.suite, cell.task], _cell_words(cell)) for cell in found]
        edge = {"width": 1.4, "color": colour}
        figure.add_traces(style.marks(rows, name, colour, size, marker_symbol=symbol, marker_line=edge))
    for index, (before, after) in enumerate(pairwise(shown)):
        if before.branch != after.branch:
            figure.add_vline(index + 0.5, line={"color": style.INK, "width": 1.4, "dash": "dot"})
    ticks = style.kept(range(len(shown)), 12)
    figure.update_xaxes(
        title_text="step of the checkpoint, in the order in which they were seen",
        showgrid=False,
        tickmode="array",
        tickvals=ticks,
        ticktext=[f"{shown[tick].step:,}" if shown[tick].step >= 0 else "?" for tick in ticks],
        range=[-0.5, len(shown) - 0.5],
    )
    several = len({suite for suite, _ in tasks}) > 1
    figure.update_yaxes(style.categories([f"{suite}/{task}" if several else task for suite, task in tasks]))
    return figure


def _cell_words(cell: Cell) -> str:
    """Return what appears under the pointer over a cell, as Plotly's HTML."""
    lines = [f"<b>{plain(cell.task)}</b>", checkpoint_words(cell.seen)]
    if cell.status.has_value:
        values = list(cell.values.items())[:8]
        lines += [f"{plain(name)} {measured(one.value, one.stderr)}" for name, one in values]
        lines += [] if cell.n is None else [counted(cell.n, "sample")]
        lines.append(f"{cell.status.value}, {duration(cell.duration_s)} in {counted(cell.shards, 'shard')}")
    else:
        part = f", {cell.shards_done} of {cell.shards} shards" if cell.shards_done else ""
        lines.append(f"{cell.status.value}{part}")
    lines += [plain(said_by(cell.why), 110)] if cell.why else []
    if cell.partial and cell.group is not None and cell.group.why and cell.status.has_value:
        lines.append(plain(f"partial group: {cell.group.why}", 110))
    lines += [counted(cell.attempts, "attempt")] if cell.attempts > cell.shards else []
    lines += [plain(cell.worker, 60)] if cell.worker else []
    return "<br>".join(lines)
