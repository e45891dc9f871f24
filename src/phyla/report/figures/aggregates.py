"""The aggregates of a suite over the steps of training."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from phyla.evaluation import GroupValues
from phyla.report import style
from phyla.report.evaluation import EvaluationData, checkpoint_words, measured, place
from phyla.report.words import counted, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

NAMES = 6
"""Aggregates that are drawn; the objective first."""
SERIES = 40
"""Lines that are drawn of each aggregate."""
POINTS = 2_000
"""Points of one line; beyond, it keeps only its outline."""
BAND = 1.96
"""Standard errors on each side of a line: 95 % if the error is normal."""


def aggregates_figure(data: EvaluationData, suite: str) -> "go.Figure":
    """Return the aggregates of a suite over steps, one panel each, with error bands and regressions.

    There is one line per branch of training, or per member of a population. Groups that are partial are open
    circles, and no line leads through them.

    Args:
        data: the evaluation.
        suite: name of the suite.
    """
    title = f"{suite}: aggregates over steps"
    values = data.values_of(suite)
    known = list(dict.fromkeys(name for one in values for name in one.values))
    if not known:
        return style.empty(title, "No group is complete yet.")
    from plotly.subplots import make_subplots

    objective = data.suite(suite).objective
    names = sorted(known, key=lambda name: name != objective)[:NAMES]
    notes: list[str] = []
    if len(names) < len(known):
        notes.append(f"{len(names)} of {counted(len(known), 'aggregate')} are drawn.")
    lines: dict[str, list[GroupValues]] = {}
    for one in values:
        lines.setdefault(data.series(one.seen), []).append(one)
    if len(lines) > SERIES:
        notes.append(f"{SERIES} of {counted(len(lines), 'line')} are drawn.")
    subtitle = "Bands are 95 % intervals where standard errors are known; triangles mark regressions"
    height = 190 + (300 if len(names) == 1 else 210) * len(names)
    grid = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.16 / max(2, len(names)))
    style.figure(title, subtitle, height=height, notes=notes, grid=grid)
    many = len(lines) > len(style.PALETTE)
    for row, name in enumerate(names, start=1):
        where = {"row": row, "col": 1}
        for order, series in enumerate(list(lines)[:SERIES]):
            colour = style.MUTED if many else style.PALETTE[order % len(style.PALETTE)]
            label = "members" if many else series or "branch 0"
            shown = row == 1 and len(lines) > 1 and (order == 0 or not many)
            having = [one for one in lines[series] if name in one.values]
            # A member's weights get younger when it takes over another's: the line goes by their age.
            whole = sorted(
                (one for one in having if not one.partial), key=lambda one: (place(one.seen), one.seen.id)
            )
            legend = {"name": label, "legendgroup": label, "showlegend": shown}
            for trace in () if many else _band(whole, name, colour, label):
                grid.add_trace(trace, **where)
            rows = [_row(one, name, series) for one in whole]
            rows = [rows[index] for index in style.outline([value for _, value, _ in rows], POINTS)]
            mode = "lines" if many or len(rows) > 200 else "lines+markers"
            line = {"color": colour, "width": 1.2 if many else 1.8}
            if rows:
                grid.add_trace(style.trace(rows, mode=mode, line=line, marker={"size": 5}, **legend), **where)
            partial = [_row(one, name, series) for one in having if one.partial]
            marker = {"symbol": "circle-open", "size": 7, "color": colour, "line": {"width": 1.4}}
            legend = {"name": "partial", "legendgroup": "partial", "showlegend": row == 1 and order == 0}
            if partial:
                grid.add_trace(style.trace(partial, mode="markers", marker=marker, **legend), **where)
        if row == 1:
            found = data.regressions(suite)
            worse = [
                (one, found[one.seen.id][:6]) for one in values if one.seen.id in found and name in one.values
            ]
            points = [
                (*_row(one, name, "")[:2], "<br>".join(plain(short(s, 120)) for s in its)) for one, its in worse
            ]
            marker = {"symbol": "triangle-down", "size": 10, "color": style.FAILED}
            if points:
                grid.add_trace(style.trace(points, mode="markers", marker=marker, name="regression"), **where)
        grid.update_yaxes(title_text=plain(name), **where)
    grid.update_xaxes(tickformat="~s")
    grid.update_xaxes(title_text="step of the checkpoint", row=len(names), col=1)
    return grid


def _band(line: Sequence[GroupValues], name: str, colour: str, group: str) -> Iterator[dict[str, Any]]:
    known = [(place(one.seen), one.values[name].value, one.values[name].stderr) for one in line]
    sure = [(x, y, BAND * e) for x, y, e in known if e is not None and math.isfinite(y) and math.isfinite(e)]
    if len(sure) >= 2:
        xs, low, high = zip(*((x, y - e, y + e) for x, y, e in sure), strict=True)
        yield style.band(xs, low, high, colour, legendgroup=group)


def _row(one: GroupValues, name: str, series: str) -> tuple[int, float | None, str]:
    """Return step, value and what appears under the pointer; the value is None where it is not finite."""
    found = one.values[name]
    lines = [f"<b>{plain(name)} {measured(found.value, found.stderr)}</b>", checkpoint_words(one.seen)]
    lines += [plain(series)] if series else []
    lines += ["the best of its suite"] if one.best else []
    lines += [plain(short(f"partial: {one.group.why}", 110))] if one.partial else []
    return place(one.seen), found.value if math.isfinite(found.value) else None, "<br>".join(lines)
