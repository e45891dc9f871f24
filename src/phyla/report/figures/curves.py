"""How good compared studies were after how much work."""

from typing import TYPE_CHECKING

from phyla.report import style
from phyla.report.comparison import StudyComparison
from phyla.report.words import counted, plain, score, short, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 2_000
"""Places where a band is drawn; beyond, an even selection of them."""


def curves_figure(comparison: StudyComparison) -> "go.Figure":
    """Return the median of every group over work, with a band between its quartiles."""
    unit, size = "steps of all members together", 1.0
    if comparison.by == "time":
        unit, size = time_unit(max(one.last for group in comparison.groups for one in group.curves))
        unit = f"time in which anything was running ({unit})"
    what = "Best so far" if comparison.measure == "best" else "Median of members"
    title = f"{what}: {comparison.metric}, {'higher' if comparison.maximize else 'lower'} is better"
    subtitle = "Line: median of replicates; band: between their quartiles; dotted: the target"
    figure = style.figure(title, subtitle, height=520)
    values: list[float] = []
    for place, group in enumerate(comparison.groups):
        band = group.band
        if not band.xs:
            continue
        colour = style.PALETTE[place % len(style.PALETTE)]
        picked = style.kept(len(band.xs), POINTS)
        xs = [band.xs[at] / size for at in picked]
        low, middle, high = ([line[at] for at in picked] for line in (band.low, band.middle, band.high))
        values += [*low, *high]
        if len(group.curves) > 1:
            # The corners of step functions.
            across = [xs[0], *(x for x in xs[1:] for _ in range(2))]
            down, up = ([y for y in line for _ in range(2)][:-1] for line in (low, high))
            name = f"{plain(group.name)}: quartiles"
            figure.add_trace(style.band(across, down, up, colour, legendgroup=group.name, name=name))
        name = plain(short(group.name, 60))
        dash = ("solid", "dash", "dot")[place // len(style.PALETTE) % 3]
        rows = [
            (x, m, f"<b>{name}</b><br>median {score(m)}<br>quartiles {score(a)} to {score(b)}")
            for x, a, m, b in zip(xs, low, middle, high, strict=True)
        ]
        line = {"color": colour, "width": 2.2, "shape": "hv", "dash": dash}
        label = f"{name} ({counted(len(group.curves), 'replicate')})"
        mode = "lines" if len(xs) > 1 else "markers"
        figure.add_trace(style.trace(rows, mode=mode, line=line, legendgroup=group.name, name=label))
    figure.add_hline(y=comparison.target, line={"color": style.MUTED, "width": 1.2, "dash": "dot"})
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title_text=unit, rangemode="tozero", tickformat="~s" if comparison.by == "steps" else None)
    scale = style.values_scale(values, maximize=comparison.maximize)
    figure.update_yaxes(title_text=plain(comparison.metric), type=scale)
    return figure
