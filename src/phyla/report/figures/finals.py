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
        line = {"color": style.MUTED, "width": 1}
        figure.add_trace(
            style.trace(style.pieces(pairs), mode="lines", line=line, hoverinfo="skip", name="same seed")
        )
    for place, group in enumerate(groups):
        colour, median = style.PALETTE[place % len(style.PALETTE)], group.final.median
        bar = [(place - 0.18, median), (place + 0.18, median)]
        line = {"color": colour, "width": 3}
        figure.add_trace(style.trace(bar, mode="lines", line=line, hoverinfo="skip", name="median"))
        rows = [
            (
                place,
                value,
                f"<b>{plain(short(one.name, 60))}</b><br>{plain(comparison.metric)} {score(value)}{seed}",
            )
            for one, value in zip(group.studies, group.final.values, strict=True)
            if (seed := f"<br>seed {one.data.study.seed}")
        ]
        marker = {"color": colour, "size": 9, "line": {"color": "#fff", "width": 1}, "opacity": 0.9}
        figure.add_trace(style.trace(rows, mode="markers", marker=marker, name=plain(group.name)))
    every = [value for group in groups for value in group.final.values]
    labels = [plain(short(group.name, 24 if len(groups) < 7 else 12)) for group in groups]
    figure.update_layout(showlegend=False)
    figure.update_xaxes(tickmode="array", tickvals=list(range(len(groups))), ticktext=labels, showgrid=False)
    figure.update_xaxes(range=[-0.6, len(groups) - 0.4])
    scale = style.values_scale(every, maximize=comparison.maximize)
    figure.update_yaxes(title_text=plain(comparison.metric), type=scale)
    return figure
