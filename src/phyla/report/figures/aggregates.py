"""The aggregates of a suite over the steps of training."""

import math
from collections.abc import Sequence
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
            if not many:
                _add_band(grid, whole, name, colour, label, where)
            if whole:
                _add_line(
                    grid, whole, name, series, {"name": label, "showlegend": shown}, colour, where, many=many
                )
            partial = [one for one in having if one.partial]
            if partial:
                marker = {"symbol": "circle-open", "size": 7, "color": colour, "line": {"width": 1.4}}
                texts = [_words(one, name, series) for one in partial]
                look = {"marker": marker, "showlegend": row == 1 and order == 0}
                _add_points(grid, partial, name, texts, "partial", where, **look)
        if row == 1:
            found = data.regressions(suite)
            worse = [one for one in values if one.seen.id in found and name in one.values]
            texts = ["<br>".join(plain(short(said, 120)) for said in found[one.seen.id][:6]) for one in worse]
            marker = {"symbol": "triangle-down", "size": 10, "color": style.FAILED}
            _add_points(grid, worse, name, texts, "regression", where, marker=marker)
        grid.update_yaxes(title_text=plain(name), **where)
    grid.update_xaxes(tickformat="~s")
    grid.update_xaxes(title_text="step of the checkpoint", row=len(names), col=1)
    return grid


def _add_line(
    grid: "go.Figure",
    line: Sequence[GroupValues],
    name: str,
    series: str,
    legend: dict[str, Any],
    colour: str,
    where: dict[str, int],
    *,
    many: bool,
) -> None:
    finite = [v if math.isfinite(v := one.values[name].value) else None for one in line]
    picked = style.outline(finite, POINTS)
    grid.add_scatter(
        x=[place(line[index].seen) for index in picked],
        y=[finite[index] for index in picked],
        text=[_words(line[index], name, series) for index in picked],
        mode="lines+markers" if len(picked) <= 200 and not many else "lines",
        line={"color": colour, "width": 1.2 if many else 1.8},
        marker={"size": 5},
        legendgroup=legend["name"],
        **legend,
        **where,
    )


def _add_points(
    grid: "go.Figure",
    its: Sequence[GroupValues],
    name: str,
    text: Sequence[str],
    label: str,
    where: Any,
    **look: Any,
) -> None:
    if its:
        xs, ys = [place(one.seen) for one in its], [one.values[name].value for one in its]
        grid.add_scatter(x=xs, y=ys, text=text, mode="markers", name=label, legendgroup=label, **look, **where)


def _add_band(
    grid: "go.Figure", line: Sequence[GroupValues], name: str, colour: str, group: str, where: dict[str, int]
) -> None:
    known = [(place(one.seen), one.values[name].value, one.values[name].stderr) for one in line]
    sure = [(x, y, BAND * e) for x, y, e in known if e is not None and math.isfinite(y) and math.isfinite(e)]
    if len(sure) >= 2:
        xs, upper, lower = [x for x, _, _ in sure], [y + e for _, y, e in sure], [y - e for _, y, e in sure]
        grid.add_scatter(**style.band(xs, lower, upper, colour), legendgroup=group, **where)


def _words(one: GroupValues, name: str, series: str) -> str:
    value = one.values[name]
    lines = [f"<b>{plain(name)} {measured(value.value, value.stderr)}</b>", checkpoint_words(one.seen)]
    lines += [plain(series)] if series else []
    lines += ["the best of its suite"] if one.best else []
    lines += [plain(short(f"partial: {one.group.why}", 110))] if one.partial else []
    return "<br>".join(lines)
