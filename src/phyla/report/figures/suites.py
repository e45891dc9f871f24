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
"""Lines of members or branches; of more, the spread is drawn."""
POINTS = 300
"""Points of a line; of more, the outline is drawn."""
PLACES = 100
"""Intervals of steps for the spread of many lines."""
COLUMNS = 300
"""Checkpoints that a matrix shows."""
CELLS = 3_000
"""Cells of a matrix; with more eval tasks, it shows fewer checkpoints."""
WORDY = 1_000
"""Largest number of cells for which tooltips have all details."""
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
    drawn_panels = [*panels.items()][:PANELS]
    lines: dict[str, dict[str, list[GroupValues]]] = defaultdict(lambda: defaultdict(list))
    for result in data.values:
        if result.group.replicate == 0:
            lines[result.group.suite][_series(data, result.seen)].append(result)
    most = max(map(len, lines.values()))
    notes = ["Bands: 95 % intervals where standard errors are known."]
    notes += (
        [f"Bands of more than {SERIES} members: 5 to 95 % and 25 to 75 % of {most:,}."] if most > SERIES else []
    )
    notes += (
        [f"{PANELS} of {format_count(len(panels), 'panel')} are drawn."] if len(drawn_panels) < len(panels) else []
    )
    figure = style.figure(
        title,
        _answer(data),
        height=190 + (300 if len(drawn_panels) == 1 else 210) * len(drawn_panels),
        notes=notes,
        rows=len(drawn_panels),
        shared_xaxes=True,
        vertical_spacing=0.16 / max(2, len(drawn_panels)),
    )
    for row, ((suite, base), names) in enumerate(drawn_panels, start=1):
        for place, name in enumerate(names):
            tag = name.rpartition("/")[0] or ("all" if len(names) > 1 else "")
            drawn = _spread(lines[suite], name, style.series_colour(place), tag)
            if len(lines[suite]) <= SERIES:
                drawn = []
                for order, (series, results) in enumerate(lines[suite].items()):
                    label = plain(", ".join(filter(None, [tag, series])) or base, 40)
                    colour = style.series_colour(order if len(lines[suite]) > 1 else place)
                    drawn += _curve(
                        results, name, series, label, colour, ("solid", "dash", "dot", "dashdot")[place % 4]
                    )
            look = {"marker_symbol": "triangle-down", "legendgroup": "regression"}
            drawn += style.marks(_regressions(data, suite, name), "regression", style.FAILED, 10, **look)
            figure.add_traces(drawn, rows=row, cols=1)
        figure.update_yaxes(title_text=plain(f"{suite}/{base}" if len(lines) > 1 else base, 30), row=row, col=1)
    named: set[str] = set()
    for trace in figure.data:
        # A line in several panels has one legend entry.
        if trace.showlegend is None:
            trace.showlegend = trace.name not in named
            named.add(trace.name)
    figure.update_layout(showlegend=True)
    figure.update_xaxes(tickformat="~s")
    figure.update_xaxes(title_text="step of the checkpoint", row=len(drawn_panels), col=1)
    return figure


def _panels(data: EvaluationData) -> dict[tuple[str, str], list[str]]:
    """Return the aggregates by suite and name without the tag, objectives first."""
    known = dict.fromkeys((result.group.suite, name) for result in data.values for name in result.values)
    panels: dict[tuple[str, str], list[str]] = defaultdict(list)
    for suite, name in sorted(known, key=lambda panel: data.suite(panel[0]).objective != panel[1]):
        panels[suite, name.rpartition("/")[2]].append(name)
    return panels


def _curve(
    results: list[GroupValues], name: str, series: str, label: str, colour: str, dash: str
) -> list[dict[str, Any]]:
    """Return a line with its band, and circles for partial groups."""
    points = [
        (*_point(result, name, series), result.values[name].stderr, result)
        for result in results
        if name in result.values
    ]
    # A member's weights may become younger when it takes over another's, so the line is sorted by their age.
    points.sort(key=lambda row: (row[0], row[-1].seen.id))
    whole = style.outline([row for row in points if not row[-1].partial], POINTS)
    look: dict[str, Any] = {"mode": "lines" if len(whole) > 200 else "lines+markers", "marker": {"size": 5}}
    drawn = style.line((row[:3] for row in whole), label, colour, 1.8, legendgroup=label, line_dash=dash, **look)
    sure = [(x, y, BAND * e) for x, y, _, e, _ in whole if e is not None and math.isfinite(e) and y is not None]
    if len(sure) > 1:
        xs, low, high = zip(*((x, y - e, y + e) for x, y, e in sure), strict=True)
        drawn = [*style.band(xs, low, high, colour, legendgroup=label), *drawn]
    ring: dict[str, Any] = {"marker_symbol": "circle-open", "legendgroup": "partial"}
    return [*drawn, *style.marks((row[:3] for row in points if row[-1].partial), "partial", colour, 7, **ring)]


def _spread(lines: dict[str, list[GroupValues]], name: str, colour: str, tag: str) -> list[dict[str, Any]]:
    """Return the spread of the checkpoints of all lines in intervals of steps."""
    complete = [
        result for results in lines.values() for result in results if name in result.values and not result.partial
    ]
    known = np.array([(result.seen.step, result.values[name].value) for result in complete], dtype=float).reshape(
        -1, 2
    )
    known = known[np.isfinite(known[:, 1])]
    if not len(known):
        return []
    first, last = known[:, 0].min(), known[:, 0].max()
    places = np.minimum(PLACES * (known[:, 0] - first) / max(1, last - first), PLACES - 1).astype(int)
    stretches = [known[places == place] for place in np.unique(places)]
    ends = [float(stretch[:, 0].max()) for stretch in stretches]
    return style.spread(ends, quantiles(stretch[:, 1] for stretch in stretches), colour, name=tag or "median")


def _answer(data: EvaluationData) -> str:
    """Return the best value of each objective, and the number of regressions."""
    best = [
        f"{result.group.suite}/{name} {number(estimate.value)} at {step_of(result.seen)}"
        for result in data.values
        if result.best
        and result.group.replicate == 0
        and (estimate := result.values.get(name := data.suite(result.group.suite).objective or "")) is not None
    ]
    answer = f"Best {', '.join(best[:3])}; " if best else ""
    return answer + format_count(sum(event.kind == "regression" for event in data.events), "regression")


def _regressions(data: EvaluationData, suite: str, name: str) -> list[style.Row]:
    messages: dict[int | None, list[str]] = defaultdict(list)
    for event in data.events:
        if event.kind == "regression" and event.suite == suite:
            messages[event.seen].append(plain(event.message, 120))
    worse = [result for result in data.values_of(suite) if result.seen.id in messages and name in result.values][
        -POINTS:
    ]
    return [(*_point(result, name, "")[:2], "<br>".join(messages[result.seen.id][:6])) for result in worse]


def _series(data: EvaluationData, seen: Checkpoint) -> str:
    """Return the name of a checkpoint's line: its member and branch; empty without either."""
    member = data.members.get(seen.trial or 0)
    parts = [] if member is None else [f"member {member}"]
    parts += [f"branch {seen.branch}"] if seen.branch else []
    parts += [f"model {seen.index}"] if seen.index and member is None else []
    return ", ".join(parts)


def _point(result: GroupValues, name: str, series: str) -> tuple[int, float | None, str]:
    """Return step, value and tooltip; the value is None if it is not finite."""
    estimate, seen = result.values[name], result.seen
    lines = [f"<b>{plain(name)} {format_estimate(estimate.value, estimate.stderr)}</b>", checkpoint_words(seen)]
    lines += [plain(series)] if series else []
    lines += ["the best of its suite"] if result.best else []
    lines += [plain(f"partial: {result.group.why}", 110)] if result.partial else []
    value = estimate.value if math.isfinite(estimate.value) else None
    return seen.step if seen.step >= 0 else seen.number, value, "<br>".join(lines)


def matrix_figure(data: EvaluationData) -> style.Figure:
    """Return a row per eval task and a column per checkpoint: values, or the state of cells without a value."""
    title = "Which checkpoint is good at what?"
    cells = [cell for cell in data.cells if cell.replicate == 0]
    if not cells:
        return style.empty(title, "No checkpoint is registered yet.")
    known = {cell.seen.id for cell in cells}
    checkpoints = [seen for seen in data.checkpoints if seen.id in known]
    names = dict.fromkeys((cell.suite, cell.task) for cell in cells)
    newest = checkpoints[-min(COLUMNS, max(20, CELLS // len(names))) :]
    notes = (
        [f"The newest {len(newest):,} of {format_count(len(checkpoints), 'checkpoint')}."]
        if len(newest) < len(checkpoints)
        else []
    )
    column = {seen.id: index for index, seen in enumerate(newest)}
    tasks = {name: index for index, name in enumerate(names)}
    cells = [cell for cell in cells if cell.seen.id in column]
    counts = Counter(cell.status for cell in cells)
    answer = ", ".join(f"{count:,} {status.value}" for status, count in counts.most_common())
    notes.append("Each row has its own scale; the brightest is its best value.")
    height = 250 + max(2, len(tasks)) * (26 if len(tasks) <= 20 else 16)
    figure = style.figure(title, answer.capitalize(), height=height, notes=notes)
    describe = _cell_words if len(cells) <= WORDY else _cell_brief
    shades: list[list[float | None]] = [[None] * len(column) for _ in tasks]
    words = [[""] * len(column) for _ in tasks]
    measured_cells: dict[tuple[str, str], list[tuple[Cell, float]]] = defaultdict(list)
    for cell in cells:
        if cell.estimate is not None:
            measured_cells[cell.suite, cell.task].append((cell, cell.estimate.value))
    for (suite, task), row in tasks.items():
        measures, maximize = measured_cells[suite, task], data.suite(suite).maximize
        finite = [value for _, value in measures if math.isfinite(value)] or [0.0]
        worst, best = (min(finite), max(finite)) if maximize else (max(finite), min(finite))
        for cell, value in measures:
            shade = 1.0 if best == worst else round((value - worst) / (best - worst), 3)
            shades[row][column[cell.seen.id]] = shade if math.isfinite(value) else 0.0
            words[row][column[cell.seen.id]] = describe(cell)
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
    marks = [
        (status.value, *look, [cell for cell in cells if cell.status is status]) for status, look in MARKS.items()
    ]
    marks.append(("partial: the group is incomplete", "line-ne-open", "#ffffff", partial))
    size = max(3.0, min(9.0, 700 / len(column)))
    for name, symbol, colour, marked in marks:
        rows = [(column[cell.seen.id], tasks[cell.suite, cell.task], describe(cell)) for cell in marked]
        edge = {"width": 1.4, "color": colour}
        figure.add_traces(style.marks(rows, name, colour, size, marker_symbol=symbol, marker_line=edge))
    for index, (before, after) in enumerate(pairwise(newest)):
        if before.branch != after.branch:
            figure.add_vline(index + 0.5, line={"color": style.INK, "width": 1.4, "dash": "dot"})
    ticks = style.pick_evenly(range(len(newest)), 12)
    figure.update_xaxes(
        title_text="step of the checkpoint, in order of registration",
        showgrid=False,
        tickmode="array",
        tickvals=ticks,
        ticktext=[f"{newest[tick].step:,}" if newest[tick].step >= 0 else "?" for tick in ticks],
        range=[-0.5, len(newest) - 0.5],
    )
    several = len({suite for suite, _ in tasks}) > 1
    figure.update_yaxes(style.categories([f"{suite}/{task}" if several else task for suite, task in tasks]))
    return figure


def _cell_brief(cell: Cell) -> str:
    value = cell.status.value if cell.estimate is None else number(cell.estimate.value)
    return f"{step_of(cell.seen)}: {value}"


def _cell_words(cell: Cell) -> str:
    """Return the tooltip of a cell, as Plotly's HTML."""
    lines = [f"<b>{plain(cell.task)}</b>", checkpoint_words(cell.seen)]
    if cell.status.has_value:
        values = list(cell.values.items())[:8]
        lines += [f"{plain(name)} {format_estimate(estimate.value, estimate.stderr)}" for name, estimate in values]
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
    """Return, over time, how many checkpoints waited for each suite or were being evaluated, and for how long."""
    title = "How far is evaluation behind training?"
    if not data.waits:
        return style.empty(title, "No group was queued yet.")
    ends = {suite: np.where(np.isnan(waits.ended), data.now, waits.ended) for suite, waits in data.waits.items()}
    start = min(float(waits.queued.min()) for waits in data.waits.values())
    end = max(float(times.max()) for times in ends.values())
    unit, size = time_unit(end - start)
    answer = "; ".join(map(lag_words, data.lag)) if len(data.lag) < 3 else f"{len(data.lag)} suites"
    figure = style.figure(title, answer, height=360)
    for order, (suite, (queued, ended)) in enumerate(data.waits.items()):
        times = np.unique(np.concatenate([queued, ended[~np.isnan(ended)], [end]]))
        begun, done = (np.searchsorted(np.sort(moments), times, side="right") for moments in (queued, ended))
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
    figure.update_yaxes(title_text="waiting checkpoints", rangemode="tozero")
    figure.update_xaxes(title_text=f"time since {moment(start):%Y-%m-%d %H:%M} UTC ({unit})")
    return figure
