"""Figures of compared studies: how good they were after how much work, and at the end."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from phyla.records import Phase
from phyla.report import style
from phyla.report.comparison import StudyComparison
from phyla.report.data import StudyData, TimeSpent
from phyla.report.words import plain, time_unit
from phyla.words import counted, duration, score

POINTS = 2_000
"""Places where a band is drawn; beyond, an even selection of them."""
COLORS = {
    Phase.TRAINING: style.BEST,
    Phase.LOADING: "#56B4E9",
    Phase.SAVING: style.JUMP,
    Phase.EVALUATING: "#E69F00",
    Phase.CONTROL: style.FAILED,
    Phase.WAITING: "#9AA1AB",
}


def curves_figure(comparison: StudyComparison) -> style.Figure:
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
        band, colour, name = group.band, style.series_colour(place), plain(group.name, 60)
        picked = style.kept([*zip(*band, strict=True)], POINTS)
        xs, low, middle, high = ([one[at] for one in picked] for at in range(4))
        xs = [x / size for x in xs]
        values += [*low, *high]
        if len(group.curves) > 1 and xs:
            # The corners of step functions.
            across = np.repeat(xs, 2)[1:].tolist()
            down, up = (np.repeat(line, 2)[:-1].tolist() for line in (low, high))
            figure.add_traces(style.band(across, down, up, colour, legendgroup=group.name))
        rows = [
            (x, m, f"<b>{name}</b><br>median {score(m)}<br>quartiles {score(a)} to {score(b)}")
            for x, a, m, b in zip(xs, low, middle, high, strict=True)
        ]
        dash = ("solid", "dash", "dot")[place // len(style.PALETTE) % 3]
        label = f"{name} ({counted(len(group.curves), 'replicate')})"
        mode = "lines" if len(xs) > 1 else "markers"
        drawn = style.line(
            rows, label, colour, 2.2, mode=mode, line_shape="hv", line_dash=dash, legendgroup=group.name
        )
        figure.add_traces(drawn)
    figure.add_hline(y=comparison.target, line={"color": style.MUTED, "width": 1.2, "dash": "dot"})
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title_text=unit, rangemode="tozero", tickformat="~s" if comparison.by == "steps" else None)
    style.values_axis(figure, comparison.metric, values, maximize=comparison.maximize)
    return figure


def finals_figure(comparison: StudyComparison) -> style.Figure:
    """Return the final value of every replicate, one column per group; grey lines join those of one seed."""
    groups = comparison.groups
    subtitle = "A point is a replicate, a bar the median of a group; grey lines join replicates of one seed"
    figure = style.figure(f"Final values: {comparison.metric}", subtitle, height=440)
    if len(groups) > 1:
        pairs = [
            [(place, ours.by_seed[seed]), (place + 1, theirs.by_seed[seed])]
            for place, (ours, theirs) in enumerate(pairwise(groups))
            for seed in ours.by_seed.keys() & theirs.by_seed.keys()
        ]
        figure.add_traces(style.line(style.pieces(pairs), "same seed", style.MUTED, 1))
    metric, edge = plain(comparison.metric), {"color": "#fff", "width": 1}
    for place, group in enumerate(groups):
        colour, median = style.series_colour(place), group.final.median
        bar = [(place - 0.18, median), (place + 0.18, median)]
        figure.add_traces(style.line(bar, "median", colour, 3))
        rows = [
            (
                place,
                value,
                f"<b>{plain(one.name, 60)}</b><br>{metric} {score(value)}<br>seed {one.data.study.seed}",
            )
            for one, value in zip(group.studies, group.final.values, strict=True)
        ]
        figure.add_traces(style.marks(rows, plain(group.name), colour, 9, marker_line=edge, opacity=0.9))
    figure.update_layout(showlegend=False)
    figure.update_xaxes(
        tickmode="array",
        tickvals=list(range(len(groups))),
        ticktext=[plain(group.name, 24 if len(groups) < 7 else 12) for group in groups],
        range=[-0.6, len(groups) - 0.4],
        showgrid=False,
    )
    every = [value for group in groups for value in group.final.values]
    style.values_axis(figure, comparison.metric, every, maximize=comparison.maximize)
    return figure


def time_figure(data: StudyData) -> style.Figure:
    """Return a bar, stacked by phase: where the time of a study's workers went."""
    return _time({data.study.name: data.time}, data.time.words().capitalize())


def spent_figure(comparison: StudyComparison) -> style.Figure:
    """Return a bar for each group, stacked by phase: where the time of its workers went."""
    spent = {group.name: group.time for group in comparison.groups}
    return _time(spent, "Seconds of all workers and replicates, failed attempts too")


def _time(spent: Mapping[str, TimeSpent], subtitle: str) -> style.Figure:
    title = "Where did the time go?"
    longest = max((one.total_s for one in spent.values()), default=0.0)
    if not longest:
        return style.empty(title, "No attempt recorded where its time went.")
    notes = [
        f"{name}: known of {one.timed:,} of {counted(one.ended, 'attempt')}."
        for name, one in spent.items()
        if one.timed < one.ended
    ]
    figure = style.figure(title, subtitle, height=170 + 34 * len(spent), notes=notes)
    unit, size = time_unit(longest)
    for phase, colour in COLORS.items():
        seconds = [(one.seconds[phase], one.total_s or 1) for one in spent.values()]
        if any(its for its, _ in seconds):
            figure.add_bar(
                orientation="h",
                y=list(range(len(spent))),
                x=[its / size for its, _ in seconds],
                text=[f"{phase}: {duration(its)}, {its / total:.1%}" for its, total in seconds],
                marker={"color": colour},
                name=phase.value,
            )
    figure.update_layout(barmode="stack", bargap=0.35, showlegend=True, legend={"traceorder": "normal"})
    figure.update_xaxes(title_text=f"time of workers ({unit})")
    figure.update_yaxes(style.categories(list(spent)))
    return figure
