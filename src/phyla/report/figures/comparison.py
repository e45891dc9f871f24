"""Figures of compared studies: how good they were after how much work, and at the end, and what went with it."""

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from phyla.records import Phase
from phyla.report import style
from phyla.report.comparison import StudyComparison
from phyla.report.sensitivity import Sensitivity
from phyla.report.times import TimeSpent
from phyla.report.words import counted, duration, number, plain, score, short, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 2_000
"""Places where a band is drawn; beyond, an even selection of them."""
PARAMS = 30
"""Hyperparameters that get a bar."""
COLORS = {
    Phase.TRAINING: style.BEST,
    Phase.LOADING: "#56B4E9",
    Phase.SAVING: style.JUMP,
    Phase.EVALUATING: "#E69F00",
    Phase.CONTROL: style.FAILED,
    Phase.WAITING: "#9AA1AB",
}


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
        colour = style.series_colour(place)
        picked = style.kept(len(band.xs), POINTS)
        xs = [band.xs[at] / size for at in picked]
        low, middle, high = ([line[at] for at in picked] for line in (band.low, band.middle, band.high))
        values += [*low, *high]
        name = plain(short(group.name, 60))
        if len(group.curves) > 1:
            # The corners of step functions.
            across = [xs[0], *(x for x in xs[1:] for _ in range(2))]
            down, up = ([y for y in line for _ in range(2)][:-1] for line in (low, high))
            figure.add_trace(
                style.band(across, down, up, colour, legendgroup=group.name, name=f"{name}: quartiles")
            )
        rows = [
            (x, m, f"<b>{name}</b><br>median {score(m)}<br>quartiles {score(a)} to {score(b)}")
            for x, a, m, b in zip(xs, low, middle, high, strict=True)
        ]
        dash = ("solid", "dash", "dot")[place // len(style.PALETTE) % 3]
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


def finals_figure(comparison: StudyComparison) -> "go.Figure":
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
        look = {"line": {"color": style.MUTED, "width": 1}, "hoverinfo": "skip"}
        figure.add_trace(style.trace(style.pieces(pairs), mode="lines", name="same seed", **look))
    for place, group in enumerate(groups):
        colour, median = style.series_colour(place), group.final.median
        bar = [(place - 0.18, median), (place + 0.18, median)]
        line = {"color": colour, "width": 3}
        figure.add_trace(style.trace(bar, mode="lines", line=line, hoverinfo="skip", name="median"))
        rows = []
        for one, value in zip(group.studies, group.final.values, strict=True):
            told = f"{plain(comparison.metric)} {score(value)}<br>seed {one.data.study.seed}"
            rows.append((place, value, f"<b>{plain(short(one.name, 60))}</b><br>{told}"))
        marker = {"color": colour, "size": 9, "line": {"color": "#fff", "width": 1}, "opacity": 0.9}
        figure.add_trace(style.trace(rows, mode="markers", marker=marker, name=plain(group.name)))
    labels = [plain(short(group.name, 24 if len(groups) < 7 else 12)) for group in groups]
    figure.update_layout(showlegend=False)
    figure.update_xaxes(tickmode="array", tickvals=list(range(len(groups))), ticktext=labels, showgrid=False)
    figure.update_xaxes(range=[-0.6, len(groups) - 0.4])
    every = [value for group in groups for value in group.final.values]
    scale = style.values_scale(every, maximize=comparison.maximize)
    figure.update_yaxes(title_text=plain(comparison.metric), type=scale)
    return figure


def sensitivity_figure(comparison: StudyComparison) -> "go.Figure":
    """Return a bar per hyperparameter and group: how much the gain of a trial went with it."""
    title = "What progress went with"
    found = [[one for one in group.sensitivity if one.strength is not None] for group in comparison.groups]
    known = dict.fromkeys(one.name for group in comparison.groups for one in group.sensitivity)
    told = {one.name for its in found for one in its}
    names = [name for name in known if name in told]
    if not names:
        return style.empty(title, "Too few trials continued another one with other hyperparameters than the rest.")
    notes = [f"The first {PARAMS} of {len(names)} hyperparameters are shown."] if len(names) > PARAMS else []
    names = names[:PARAMS]
    height = 170 + len(names) * (22 + 16 * sum(map(bool, found)))
    subtitle = "To the right: higher values went with larger gains; where a whisker reaches 0, it may be chance"
    figure = style.figure(title, subtitle, height=height, notes=notes)
    for place, group in enumerate(comparison.groups):
        its = sorted((one for one in found[place] if one.name in names), key=lambda one: names.index(one.name))
        if its:
            figure.add_bar(
                orientation="h",
                y=[plain(short(one.name, 40)) + ("" if one.ordered else " (choice)") for one in its],
                x=[one.strength for one in its],
                error_x={
                    "type": "data",
                    "array": [one.noise for one in its],
                    # What has no direction is not below 0.
                    "arrayminus": [one.noise if one.ordered else min(one.noise, one.strength or 0) for one in its],
                    "color": style.INK,
                    "thickness": 1,
                    "width": 3,
                },
                text=[_sensitivity_words(one) for one in its],
                marker={"color": style.series_colour(place)},
                name=plain(short(group.name, 60)),
            )
    label = "rank correlation within generations; for choices, its counterpart without a sign"
    figure.update_layout(
        barmode="group",
        bargap=0.3,
        showlegend=True,
        legend={"traceorder": "normal"},
        xaxis={"title": {"text": label}, "zeroline": True, "zerolinecolor": style.MUTED},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
    )
    return figure


def _sensitivity_words(one: Sensitivity) -> str:
    lines = [
        f"<b>{plain(short(one.name, 60))}</b>: {one.strength:.2f}, by chance up to {one.noise:.2f}",
        f"from {counted(one.trials, 'trial')}",
    ]
    gains = list(one.gains.items())[:12]
    lines += [f"{plain(short(value, 40))}: median gain {number(gain)}" for value, gain in gains]
    return "<br>".join(lines)


def time_figure(spent: Mapping[str, TimeSpent], subtitle: str = "") -> "go.Figure":
    """Return a bar for each name, stacked by phase: where the time of workers went."""
    title = "Where the time went"
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
        seconds = [one.seconds[phase] for one in spent.values()]
        if any(seconds):
            shares = [its / (one.total_s or 1) for its, one in zip(seconds, spent.values(), strict=True)]
            figure.add_bar(
                orientation="h",
                y=list(range(len(spent))),
                x=[its / size for its in seconds],
                text=[f"{phase}: {duration(s)}, {share:.1%}" for s, share in zip(seconds, shares, strict=True)],
                marker={"color": colour},
                name=phase.value,
            )
    figure.update_layout(
        barmode="stack",
        bargap=0.35,
        showlegend=True,
        legend={"traceorder": "normal"},
        xaxis={"title": {"text": f"time of workers ({unit})"}},
        yaxis=style.categories([short(name, 40) for name in spent]),
    )
    return figure
