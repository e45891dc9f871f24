"""The aggregates of a suite over the steps of training."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phyla.evaluation import GroupValues, SuiteOutline
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
"""Points of one line; beyond, it keeps its outline only."""
BAND = 1.96
"""Standard errors on each side of a line: 95 % if the error is normal."""


def aggregates_figure(data: EvaluationData, suite: str) -> "go.Figure":
    """Return the aggregates of a suite over steps, one panel each, with error bands and regressions.

    One line per branch of training, or per member of a population. Groups that are partial are drawn as open
    circles, and no line leads through them.

    Args:
        data: the evaluation.
        suite: name of the suite.
    """
    outline = data.suite(suite)
    title = f"{suite}: aggregates over steps"
    values = data.values_of(suite)
    names = _names(outline, values)
    if not names:
        return style.empty(title, "No group is complete yet.")
    from plotly.subplots import make_subplots

    notes: list[str] = []
    everything = {name for one in values for name in one.values}
    if len(names) < len(everything):
        notes.append(f"{len(names)} of {counted(len(everything), 'aggregate')} are drawn.")
    lines: dict[str, list[GroupValues]] = {}
    for one in values:
        lines.setdefault(data.series(one.seen), []).append(one)
    if len(lines) > SERIES:
        notes.append(f"{SERIES} of {counted(len(lines), 'line')} are drawn.")
        lines = {name: lines[name] for name in list(lines)[:SERIES]}
    panel = 300 if len(names) == 1 else 210
    figure = style.figure(
        title,
        "Bands are 95 % intervals where standard errors are known; triangles mark regressions",
        height=190 + panel * len(names) + 18 * len(notes),
        notes=notes,
    )
    grid = make_subplots(
        rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.16 / max(2, len(names)), figure=figure
    )
    for row, name in enumerate(names, start=1):
        for order, (series, its) in enumerate(lines.items()):
            _add_line(grid, series, its, name, order, row=row, lines=len(lines))
        if row == 1:
            _add_regressions(grid, data, suite, values, name)
        grid.update_yaxes(style.axis(name), row=row, col=1)
    grid.update_xaxes(style.axis(tickformat="~s"))
    grid.update_xaxes(title=style.axis("step of the checkpoint")["title"], row=len(names), col=1)
    return figure


def _names(suite: SuiteOutline, values: Sequence[GroupValues]) -> list[str]:
    known = dict.fromkeys(name for one in values for name in one.values)
    first = [suite.objective] if suite.objective in known else []
    return [*first, *(name for name in known if name not in first)][:NAMES]


def _add_line(
    figure: Any, series: str, its: Sequence[GroupValues], name: str, order: int, *, row: int, lines: int
) -> None:
    import plotly.graph_objects as go

    many, several = lines > len(style.PALETTE), lines > 1
    having = [one for one in its if name in one.values]
    # A member's weights get younger when it takes over another's; its line goes by age.
    line = sorted((one for one in having if not one.partial), key=lambda one: (place(one.seen), one.seen.id))
    colour = style.MUTED if many else style.PALETTE[order % len(style.PALETTE)]
    label = series or "branch 0"
    shown = row == 1 and (not many or order == 0)
    finite = [v if math.isfinite(v := one.values[name].value) else None for one in line]
    known = [value for value in finite if value is not None]
    filler = sum(known) / len(known) if known else 0.0
    picked = style.outline([filler if value is None else value for value in finite], POINTS, {})
    line, finite = [line[index] for index in picked], [finite[index] for index in picked]
    if not many:
        _add_band(figure, line, name, colour, row, label)
    if line:
        figure.add_trace(
            go.Scatter(
                x=[place(one.seen) for one in line],
                y=finite,
                text=[_words(one, name, series) for one in line],
                hoverinfo="text",
                mode="lines+markers" if len(line) <= 200 and not many else "lines",
                line={"color": colour, "width": 1.2 if many else 1.8},
                marker={"size": 5},
                connectgaps=False,
                name="members" if many else label,
                legendgroup="members" if many else label,
                showlegend=shown and several,
            ),
            row=row,
            col=1,
        )
    partial = [one for one in having if one.partial]
    if partial:
        figure.add_trace(
            go.Scatter(
                x=[place(one.seen) for one in partial],
                y=[one.values[name].value for one in partial],
                text=[_words(one, name, series) for one in partial],
                hoverinfo="text",
                mode="markers",
                marker={"symbol": "circle-open", "size": 7, "color": colour, "line": {"width": 1.4}},
                name="partial",
                legendgroup="partial",
                showlegend=row == 1 and order == 0,
            ),
            row=row,
            col=1,
        )


def _add_band(figure: Any, line: Sequence[GroupValues], name: str, colour: str, row: int, group: str) -> None:
    import plotly.graph_objects as go

    known = [(place(one.seen), one.values[name].value, one.values[name].stderr) for one in line]
    sure = [(x, y, e) for x, y, e in known if e is not None and math.isfinite(y) and math.isfinite(e)]
    if len(sure) < 2:
        return
    upper, lower = [y + BAND * e for _, y, e in sure], [y - BAND * e for _, y, e in sure]
    xs = [x for x, _, _ in sure]
    figure.add_trace(
        go.Scatter(
            x=[*xs, *reversed(xs)],
            y=[*upper, *reversed(lower)],
            fill="toself",
            mode="lines",
            line={"width": 0},
            fillcolor=style.faint(colour),
            hoverinfo="skip",
            legendgroup=group,
            showlegend=False,
        ),
        row=row,
        col=1,
    )


def _add_regressions(
    figure: Any, data: EvaluationData, suite: str, values: Sequence[GroupValues], name: str
) -> None:
    import plotly.graph_objects as go

    found = data.regressions(suite)
    worse = [one for one in values if one.seen.id in found and name in one.values]
    if not worse:
        return
    figure.add_trace(
        go.Scatter(
            x=[place(one.seen) for one in worse],
            y=[one.values[name].value for one in worse],
            text=["<br>".join(plain(short(message, 120)) for message in found[one.seen.id][:6]) for one in worse],
            hoverinfo="text",
            mode="markers",
            marker={"symbol": "triangle-down", "size": 10, "color": style.FAILED},
            name="regression",
        ),
        row=1,
        col=1,
    )


def _words(one: GroupValues, name: str, series: str) -> str:
    value = one.values[name]
    lines = [f"<b>{plain(name)} {measured(value.value, value.stderr)}</b>", checkpoint_words(one.seen)]
    if series:
        lines.append(plain(series))
    if one.best:
        lines.append("the best of its suite")
    if one.partial:
        lines.append(plain(short(f"partial: {one.group.why}", 110)))
    return "<br>".join(lines)
