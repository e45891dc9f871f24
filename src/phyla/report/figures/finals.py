"""Final values of compared studies."""

from itertools import pairwise
from typing import TYPE_CHECKING

from phyla.report import style
from phyla.report.comparison import StudyComparison
from phyla.report.words import plain, score, short

if TYPE_CHECKING:
    import plotly.graph_objects as go


def finals_figure(comparison: StudyComparison) -> "go.Figure":
    """Return the final value of every replicate, one column per group; grey lines join those of one seed."""
    groups = comparison.groups
    title = f"Final values: {comparison.metric}"
    subtitle = "A point is a replicate, a bar the median of a group; grey lines join replicates of one seed"
    figure = style.figure(title, subtitle, height=440)
    if len(groups) > 1:
        pairs = [
            [(place, ours.by_seed[seed]), (place + 1, theirs.by_seed[seed])]
            for place, (ours, theirs) in enumerate(pairwise(groups))
            for seed in ours.by_seed.keys() & theirs.by_seed.keys()
        ]
        xs, ys = style.pieces(pairs)[:2]
        line = {"color": style.MUTED, "width": 1}
        figure.add_scatter(x=xs, y=ys, mode="lines", line=line, hoverinfo="skip", name="same seed")
    for place, group in enumerate(groups):
        colour, final = style.PALETTE[place % len(style.PALETTE)], group.final
        median = {"x": [place - 0.18, place + 0.18], "y": [final.median] * 2, "name": "median"}
        figure.add_scatter(**median, mode="lines", line={"color": colour, "width": 3}, hoverinfo="skip")
        figure.add_scatter(
            x=[place] * len(final.values),
            y=list(final.values),
            mode="markers",
            marker={"color": colour, "size": 9, "line": {"color": "#fff", "width": 1}, "opacity": 0.9},
            text=[
                f"<b>{plain(short(one.name, 60))}</b><br>{plain(comparison.metric)} {score(value)}"
                f"<br>seed {one.data.study.seed}"
                for one, value in zip(group.studies, final.values, strict=True)
            ],
            name=plain(group.name),
        )
    every = [value for group in groups for value in group.final.values]
    figure.update_layout(
        showlegend=False,
        xaxis={
            "tickmode": "array",
            "tickvals": list(range(len(groups))),
            "ticktext": [plain(short(group.name, 24 if len(groups) < 7 else 12)) for group in groups],
            "range": [-0.6, len(groups) - 0.4],
            "showgrid": False,
        },
        yaxis=style.values_axis(comparison.metric, every, maximize=comparison.maximize),
    )
    return figure
