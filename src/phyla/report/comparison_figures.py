"""Figures of a comparison of studies."""

from typing import TYPE_CHECKING, Any

from phyla.report import style
from phyla.report.comparison import StudyComparison, StudyGroup
from phyla.report.fitness import LOG_RATIO
from phyla.report.sensitivity import Sensitivity
from phyla.report.words import counted, number, plain, score, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

PARAMS = 30
"""Hyperparameters that get a bar."""
POINTS = 2_000
"""Places where a band is drawn; beyond, an even choice of them."""


def curves_figure(comparison: StudyComparison) -> "go.Figure":
    """Return the median of every group over work, with a band between its quartiles."""
    import plotly.graph_objects as go

    unit, size = _work(comparison)
    what = "Best so far" if comparison.measure == "best" else "Median of members"
    figure = style.figure(
        f"{what}: {comparison.metric}, {'higher' if comparison.maximize else 'lower'} is better",
        "Line: median of replicates; band: between their quartiles; dotted: the target",
        height=520,
    )
    values: list[float] = []
    for place, group in enumerate(comparison.groups):
        colour = _colour(place)
        band = group.band
        if not band.xs:
            continue
        picked = style.kept(len(band.xs), POINTS)
        xs = [band.xs[at] / size for at in picked]
        low, middle, high = ([line[at] for at in picked] for line in (band.low, band.middle, band.high))
        values += [*low, *high]
        if len(group.curves) > 1:
            across, down = _stairs(xs, high)
            back, up = _stairs(xs, low)
            figure.add_trace(
                go.Scatter(
                    x=[*across, *reversed(back)],
                    y=[*down, *reversed(up)],
                    fill="toself",
                    mode="lines",
                    line={"width": 0},
                    fillcolor=style.faint(colour),
                    hoverinfo="skip",
                    legendgroup=group.name,
                    showlegend=False,
                    name=f"{plain(group.name)}: quartiles",
                )
            )
        figure.add_trace(
            go.Scatter(
                x=xs,
                y=middle,
                mode="lines" if len(xs) > 1 else "markers",
                line={"color": colour, "width": 2.2, "shape": "hv", "dash": _dash(place)},
                text=[
                    f"<b>{plain(short(group.name, 60))}</b><br>median {score(m)}"
                    f"<br>quartiles {score(a)} to {score(b)}"
                    for a, m, b in zip(low, middle, high, strict=True)
                ],
                hoverinfo="text",
                legendgroup=group.name,
                name=f"{plain(short(group.name, 60))} ({counted(len(group.curves), 'replicate')})",
            )
        )
    figure.add_hline(y=comparison.target, line={"color": style.MUTED, "width": 1.2, "dash": "dot"})
    figure.update_layout(
        showlegend=True,
        xaxis=style.axis(unit, rangemode="tozero", tickformat="~s" if comparison.by == "steps" else None),
        yaxis=_values_axis(comparison, values),
    )
    return figure


def finals_figure(comparison: StudyComparison) -> "go.Figure":
    """Return the final value of every replicate, one column per group; grey lines join those of one seed."""
    import plotly.graph_objects as go

    figure = style.figure(
        f"Final values: {comparison.metric}",
        "A point is a replicate, a bar the median of a group; grey lines join replicates of one seed",
        height=440,
    )
    groups = comparison.groups
    if len(groups) > 1:
        figure.add_trace(_pairs(go, comparison))
    for place, group in enumerate(groups):
        colour = _colour(place)
        final = group.final
        figure.add_trace(
            go.Scatter(
                x=[place - 0.18, place + 0.18],
                y=[final.median, final.median],
                mode="lines",
                line={"color": colour, "width": 3},
                hoverinfo="skip",
                showlegend=False,
                name="median",
            )
        )
        figure.add_trace(
            go.Scatter(
                x=[place] * len(final.values),
                y=list(final.values),
                mode="markers",
                marker={"color": colour, "size": 9, "line": {"color": "#fff", "width": 1}, "opacity": 0.9},
                text=[
                    f"<b>{plain(short(one.name, 60))}</b><br>{plain(comparison.metric)} {score(value)}"
                    f"<br>seed {one.data.study.seed}"
                    for one, value in zip(group.studies, final.values, strict=True)
                ],
                hoverinfo="text",
                showlegend=False,
                name=plain(group.name),
            )
        )
    every = [value for group in groups for value in group.final.values]
    figure.update_layout(
        showlegend=False,
        xaxis=style.axis(
            tickmode="array",
            tickvals=list(range(len(groups))),
            ticktext=[plain(short(group.name, 24 if len(groups) < 7 else 12)) for group in groups],
            range=[-0.6, len(groups) - 0.4],
            showgrid=False,
        ),
        yaxis=_values_axis(comparison, every),
    )
    return figure


def sensitivity_figure(comparison: StudyComparison) -> "go.Figure":
    """Return a bar per hyperparameter and group: how much the gain of a trial went with it."""
    import plotly.graph_objects as go

    title = "What progress went with"
    names = list(dict.fromkeys(one.name for group in comparison.groups for one in group.sensitivity))
    found: dict[str, dict[str, Sensitivity]] = {
        group.name: {one.name: one for one in group.sensitivity if one.strength is not None}
        for group in comparison.groups
    }
    names = [name for name in names if any(name in its for its in found.values())]
    if not names:
        return style.empty(title, "Too few trials continued another one with other hyperparameters than the rest.")
    notes = [f"The first {PARAMS} of {len(names)} hyperparameters are shown."] if len(names) > PARAMS else []
    names = names[:PARAMS]
    drawn = [(place, group) for place, group in enumerate(comparison.groups) if found[group.name]]
    figure = style.figure(
        title,
        "To the right: higher values went with larger gains; where a whisker reaches 0, it may be chance",
        height=170 + len(names) * (22 + 16 * len(drawn)) + 18 * len(notes),
        notes=notes,
    )
    for place, group in drawn:
        its = found[group.name]
        having = [name for name in names if name in its]
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=[_label(its[name]) for name in having],
                x=[its[name].strength for name in having],
                error_x={
                    "type": "data",
                    "array": [its[name].noise for name in having],
                    "arrayminus": [_below(its[name]) for name in having],
                    "color": style.INK,
                    "thickness": 1,
                    "width": 3,
                },
                text=[_gains(its[name]) for name in having],
                textposition="none",
                hovertemplate="%{text}<extra></extra>",
                marker={"color": _colour(place)},
                name=plain(short(group.name, 60)),
            )
        )
    figure.update_layout(
        barmode="group",
        bargap=0.3,
        showlegend=True,
        legend={"traceorder": "normal"},
        xaxis=style.axis(
            "rank correlation within generations; of choices, its counterpart without a sign", zeroline=True
        ),
        yaxis=style.categories(),
    )
    figure.update_xaxes(zerolinecolor=style.MUTED)
    return figure


def _below(one: Sensitivity) -> float:
    """Return how far the whisker goes to the left; what has no direction is not below 0."""
    return one.noise if one.ordered else min(one.noise, one.strength or 0.0)


def _label(one: Sensitivity) -> str:
    return plain(short(one.name, 40)) + ("" if one.ordered else " (choice)")


def _gains(one: Sensitivity) -> str:
    lines = [
        f"<b>{plain(short(one.name, 60))}</b>: {one.strength:.2f}, by chance up to {one.noise:.2f}",
        f"from {counted(one.trials, 'trial')}",
    ]
    lines += [
        f"{plain(short(value, 40))}: median gain {number(gain)}" for value, gain in list(one.gains.items())[:12]
    ]
    return "<br>".join(lines)


def _colour(place: int) -> str:
    return style.PALETTE[place % len(style.PALETTE)]


def _dash(place: int) -> str:
    """Return how a line is drawn, so that lines of one colour can be told apart."""
    return ("solid", "dash", "dot")[place // len(style.PALETTE) % 3]


def _stairs(xs: list[float], ys: list[float]) -> tuple[list[float], list[float]]:
    """Return the corners of a right-continuous step function."""
    across, up = [xs[0]], [ys[0]]
    for x, before, after in zip(xs[1:], ys, ys[1:], strict=False):
        across += [x, x]
        up += [before, after]
    return across, up


def _work(comparison: StudyComparison) -> tuple[str, float]:
    """Return the label of the axis of work, and by what to divide it."""
    if comparison.by == "steps":
        return "steps of all members together", 1.0
    longest = max(one.last for group in comparison.groups for one in group.curves)
    for unit, size in (("s", 1.0), ("min", 60.0), ("h", 3600.0)):
        if longest < 300 * size or unit == "h":
            return f"time in which anything was running ({unit})", size
    raise AssertionError


def _values_axis(comparison: StudyComparison, values: list[float]) -> dict[str, Any]:
    title = comparison.metric
    # A value that is to rise would be squeezed where it gets good.
    if not comparison.maximize and values and min(values) > 0 and max(values) > LOG_RATIO * min(values):
        return style.axis(title, type="log")
    return style.axis(title)


def _pairs(go: Any, comparison: StudyComparison) -> Any:
    """Return lines between neighbouring groups, one for each seed that both have."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for place, (group, other) in enumerate(zip(comparison.groups, comparison.groups[1:], strict=False)):
        ours, theirs = _by_seed(group), _by_seed(other)
        for seed in ours.keys() & theirs.keys():
            xs += [place, place + 1, None]
            ys += [ours[seed], theirs[seed], None]
    return go.Scatter(
        x=xs,
        y=ys,
        mode="lines",
        line={"color": style.MUTED, "width": 1},
        hoverinfo="skip",
        showlegend=False,
        name="same seed",
    )


def _by_seed(group: StudyGroup) -> dict[int, float]:
    finals = group.final.values
    return {one.data.study.seed: value for one, value in zip(group.studies, finals, strict=True)}
