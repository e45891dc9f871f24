"""How do the evaluations look? Aggregates over steps, the matrix of eval tasks, and the lag behind training."""

import math
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np

from phyla.evaluation import Cell, CellStatus, GroupValues
from phyla.formatting import duration, format_count, format_estimate, lag_words, number
from phyla.records import Checkpoint, summarize_error
from phyla.report import style
from phyla.report.data import EvaluationData
from phyla.report.formatting import checkpoint_words, moment, plain, step_of, time_unit
from phyla.report.measures import quantiles

PANELS = 6
"""Panels of aggregates; objectives first."""
SERIES = 6
"""Members or branches up to which each has a line; beyond, their spread is drawn."""
POINTS = 300
"""Points of one line; beyond, it keeps only its outline."""
PLACES = 100
"""Stretches of steps in which the spread of many lines is drawn."""
COLUMNS = 300
"""Checkpoints that a matrix shows."""
CELLS = 3_000
"""Cells of a matrix; beyond, it shows fewer checkpoints."""
WORDY = 1_000
"""Cells up to which all is said of a cell under the pointer."""
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
    """Return the aggregates of every suite over steps, with a line per branch, or the spread of the members.

    Aggregates that differ only in the tag of their eval tasks, such as those in and out of distribution, are in
    one panel.
    """
    title = "How do the evaluations look?"
    panels = _panels(data)
    if not panels:
        return style.empty(title, "No group is complete yet.")
    shown = [*panels.items()][:PANELS]
    lines: dict[str, dict[str, list[GroupValues]]] = defaultdict(lambda: defaultdict(list))
    for one in data.values:
        if one.group.replicate == 0:
            lines[one.group.suite][_series(data, one.seen)].append(one)
    most = max(map(len, lines.values()))
    notes = ["Bands: 95 % intervals where standard errors are known."]
    notes += (
        [f"Bands of more than {SERIES} members: 5 to 95 % and 25 to 75 % of {most:,}."] if most > SERIES else []
    )
    notes += [f"{PANELS} of {format_count(len(panels), 'panel')} are drawn."] if len(shown) < len(panels) else []
    figure = style.figure(
        title,
        _answer(data),
        height=190 + (300 if len(shown) == 1 else 210) * len(shown),
        notes=notes,
        rows=len(shown),
        shared_xaxes=True,
        vertical_spacing=0.16 / max(2, len(shown)),
    )
    for row, ((suite, base), names) in enumerate(shown, start=1):
        for place, name in enumerate(names):
            tag = name.rpartition("/")[0] or ("all" if len(names) > 1 else "")
            drawn = _spread(lines[suite], name, style.series_colour(place), tag)
            if len(lines[suite]) <= SERIES:
                drawn = []
                for order, (series, its) in enumerate(lines[suite].items()):
                    label = plain(", ".join(filter(None, [tag, series])) or base, 40)
                    colour = style.series_colour(order if len(lines[suite]) > 1 else place)
                    drawn += _curve(
                        its, name, series, label, colour, ("solid", "dash", "dot", "dashdot")[place % 4]
                    )
            look = {"marker_symbol": "triangle-down", "legendgroup": "regression"}
            drawn += style.marks(_regressions(data, suite, name), "regression", style.FAILED, 10, **look)
            figure.add_traces(drawn, rows=row, cols=1)
        figure.update_yaxes(title_text=plain(f"{suite}/{base}" if len(lines) > 1 else base, 30), row=row, col=1)
    named: set[str] = set()
    for trace in figure.data:
        # A line of several panels is in the legend once.
        if trace.showlegend is None:
            trace.showlegend = trace.name not in named
            named.add(trace.name)
    figure.update_layout(showlegend=True)
    figure.update_xaxes(tickformat="~s")
    figure.update_xaxes(title_text="step of the checkpoint", row=len(shown), col=1)
    return figure


def _panels(data: EvaluationData) -> dict[tuple[str, str], list[str]]:
    """Return the aggregates by suite and name without the tag: the objectives first."""
    known = dict.fromkeys((one.group.suite, name) for one in data.values for name in one.values)
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for suite, name in sorted(known, key=lambda panel: data.suite(panel[0]).objective != panel[1]):
        found[suite, name.rpartition("/")[2]].append(name)
    return found


def _curve(
    its: list[GroupValues], name: str, series: str, label: str, colour: str, dash: str
) -> list[dict[str, Any]]:
    """Return a line with its band, and circles for what is partial."""
    having = [(*_point(one, name, series), one.values[name].stderr, one) for one in its if name in one.values]
    # A member's weights get younger when it takes over another's: the line goes by their age.
    having.sort(key=lambda row: (row[0], row[-1].seen.id))
    whole = style.outline([row for row in having if not row[-1].partial], POINTS)
    look: dict[str, Any] = {"mode": "lines" if len(whole) > 200 else "lines+markers", "marker": {"size": 5}}
    drawn = style.line((row[:3] for row in whole), label, colour, 1.8, legendgroup=label, line_dash=dash, **look)
    sure = [(x, y, BAND * e) for x, y, _, e, _ in whole if e is not None and math.isfinite(e) and y is not None]
    if len(sure) > 1:
        xs, low, high = zip(*((x, y - e, y + e) for x, y, e in sure), strict=True)
        drawn = [*style.band(xs, low, high, colour, legendgroup=label), *drawn]
    ring: dict[str, Any] = {"marker_symbol": "circle-open", "legendgroup": "partial"}
    return [*drawn, *style.marks((row[:3] for row in having if row[-1].partial), "partial", colour, 7, **ring)]


def _spread(lines: dict[str, list[GroupValues]], name: str, colour: str, tag: str) -> list[dict[str, Any]]:
    """Return the spread of the checkpoints of all lines within stretches of steps."""
    every = [one for its in lines.values() for one in its if name in one.values and not one.partial]
    known = np.array([(one.seen.step, one.values[name].value) for one in every], dtype=float).reshape(-1, 2)
    known = known[np.isfinite(known[:, 1])]
    if not len(known):
        return []
    first, last = known[:, 0].min(), known[:, 0].max()
    places = np.minimum(PLACES * (known[:, 0] - first) / max(1, last - first), PLACES - 1).astype(int)
    groups = [known[places == place] for place in np.unique(places)]
    ends = [float(its[:, 0].max()) for its in groups]
    return style.spread(ends, quantiles(its[:, 1] for its in groups), colour, name=tag or "median")


def _answer(data: EvaluationData) -> str:
    """Return the best value of each objective, and how many regressions there are."""
    best = [
        f"{one.group.suite}/{name} {number(found.value)} at {step_of(one.seen)}"
        for one in data.values
        if one.best
        and one.group.replicate == 0
        and (found := one.values.get(name := data.suite(one.group.suite).objective or "")) is not None
    ]
    told = f"Best {', '.join(best[:3])}; " if best else ""
    return told + format_count(sum(event.kind == "regression" for event in data.events), "regression")


def _regressions(data: EvaluationData, suite: str, name: str) -> list[style.Row]:
    found: dict[int | None, list[str]] = defaultdict(list)
    for event in data.events:
        if event.kind == "regression" and event.suite == suite:
            found[event.seen].append(plain(event.message, 120))
    worse = [one for one in data.values_of(suite) if one.seen.id in found and name in one.values][-POINTS:]
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
    lines = [f"<b>{plain(name)} {format_estimate(found.value, found.stderr)}</b>", checkpoint_words(seen)]
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
    names = dict.fromkeys((cell.suite, cell.task) for cell in cells)
    shown = every[-min(COLUMNS, max(20, CELLS // len(names))) :]
    notes = (
        [f"The newest {len(shown):,} of {format_count(len(every), 'checkpoint')}."]
        if len(shown) < len(every)
        else []
    )
    column = {seen.id: index for index, seen in enumerate(shown)}
    tasks = {name: index for index, name in enumerate(names)}
    cells = [cell for cell in cells if cell.seen.id in column]
    counts = Counter(cell.status for cell in cells)
    answer = ", ".join(f"{count:,} {status.value}" for status, count in counts.most_common())
    notes.append("Each row has its own scale; the brightest is its best value.")
    height = 250 + max(2, len(tasks)) * (26 if len(tasks) <= 20 else 16)
    figure = style.figure(title, answer.capitalize(), height=height, notes=notes)
    told = _cell_words if len(cells) <= WORDY else _cell_brief
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
            shade = 1.0 if best == worst else round((value - worst) / (best - worst), 3)
            shades[row][column[one.seen.id]] = shade if math.isfinite(value) else 0.0
            words[row][column[one.seen.id]] = told(one)
    figure.add_heatmap(
        z=shades,
        text=words,
        name="value",
        colorscale=style.SCALE,
        zmin=0,
        zmax=1,
        xgap=1 if len(column) <= 120 else 0,
        ygap=1,
        colorbar=style.colorbar(tickvals=[0, 1], ticktext=["worst", "best"]),
    )
    partial = [cell for cell in cells if cell.partial and cell.estimate is not None]
    marks = [(one.value, *look, [cell for cell in cells if cell.status is one]) for one, look in MARKS.items()]
    marks.append(("partial: not all eval tasks of the group", "line-ne-open", "#ffffff", partial))
    size = max(3.0, min(9.0, 700 / len(column)))
    for name, symbol, colour, found in marks:
        rows = [(column[cell.seen.id], tasks[cell.suite, cell.task], told(cell)) for cell in found]
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


def _cell_brief(cell: Cell) -> str:
    value = cell.status.value if cell.estimate is None else number(cell.estimate.value)
    return f"{step_of(cell.seen)}: {value}"


def _cell_words(cell: Cell) -> str:
    """Return what appears under the pointer over a cell, as Plotly's HTML."""
    lines = [f"<b>{plain(cell.task)}</b>", checkpoint_words(cell.seen)]
    if cell.status.has_value:
        values = list(cell.values.items())[:8]
        lines += [f"{plain(name)} {format_estimate(one.value, one.stderr)}" for name, one in values]
        lines += [] if cell.n is None else [format_count(cell.n, "sample")]
        lines.append(f"{cell.status.value}, {duration(cell.duration_s)} in {format_count(cell.shards, 'shard')}")
    else:
        part = f", {cell.shards_done} of {cell.shards} shards" if cell.shards_done else ""
        lines.append(f"{cell.status.value}{part}")
    lines += [plain(summarize_error(cell.why), 110)] if cell.why else []
    if cell.partial and cell.group is not None and cell.group.why and cell.status.has_value:
        lines.append(plain(f"partial group: {cell.group.why}", 110))
    lines += [format_count(cell.attempts, "attempt")] if cell.attempts > cell.shards else []
    lines += [plain(cell.worker, 60)] if cell.worker else []
    return "<br>".join(lines)


def lag_figure(data: EvaluationData) -> style.Figure:
    """Return how many checkpoints waited for each suite, or were being evaluated, over time, and how long."""
    title = "How far is evaluation behind training?"
    if not data.waits:
        return style.empty(title, "Nothing was queued yet.")
    ends = {suite: np.where(np.isnan(its.ended), data.now, its.ended) for suite, its in data.waits.items()}
    start = min(float(its.queued.min()) for its in data.waits.values())
    end = max(float(its.max()) for its in ends.values())
    unit, size = time_unit(end - start)
    told = "; ".join(map(lag_words, data.lag)) if len(data.lag) < 3 else f"{len(data.lag)} suites"
    figure = style.figure(title, told, height=360)
    for order, (suite, (queued, ended)) in enumerate(data.waits.items()):
        times = np.unique(np.concatenate([queued, ended[~np.isnan(ended)], [end]]))
        begun, done = (np.searchsorted(np.sort(one), times, side="right") for one in (queued, ended))
        waiting = [*zip(times.tolist(), (begun - done).tolist(), strict=True)]
        rows = []
        for at, count in style.outline(waiting, POINTS):
            words = f"{plain(suite, 40)}: {format_count(count, 'checkpoint')}"
            if count:
                oldest = float(queued[(queued <= at) & ~(ended <= at)].min())
                words += f", the oldest for {duration(at - oldest)}"
            rows.append(((at - start) / size, count, words))
        line = style.line(rows, plain(suite, 40), style.series_colour(order), 1.6, line_shape="hv")
        figure.add_traces(line)
    figure.update_layout(showlegend=True)
    figure.update_yaxes(title_text="checkpoints that wait", rangemode="tozero")
    figure.update_xaxes(title_text=f"time since {moment(start):%Y-%m-%d %H:%M} UTC ({unit})")
    return figure
