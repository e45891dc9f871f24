"""Which hyperparameters went with progress in compared studies."""

from typing import TYPE_CHECKING

from phyla.report import style
from phyla.report.comparison import StudyComparison
from phyla.report.sensitivity import Sensitivity
from phyla.report.words import counted, number, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

PARAMS = 30
"""Hyperparameters that get a bar."""


def sensitivity_figure(comparison: StudyComparison) -> "go.Figure":
    """Return a bar per hyperparameter and group: how much the gain of a trial went with it."""
    title = "What progress went with"
    found = [[one for one in group.sensitivity if one.strength is not None] for group in comparison.groups]
    known = {one.name: None for group in comparison.groups for one in group.sensitivity}
    names = [name for name in known if any(one.name == name for its in found for one in its)]
    if not names:
        return style.empty(title, "Too few trials continued another one with other hyperparameters than the rest.")
    notes = [f"The first {PARAMS} of {len(names)} hyperparameters are shown."] if len(names) > PARAMS else []
    names = names[:PARAMS]
    bars = sum(map(bool, found))
    subtitle = "To the right: higher values went with larger gains; where a whisker reaches 0, it may be chance"
    figure = style.figure(title, subtitle, height=170 + len(names) * (22 + 16 * bars), notes=notes)
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
                text=[_words(one) for one in its],
                marker={"color": style.PALETTE[place % len(style.PALETTE)]},
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


def _words(one: Sensitivity) -> str:
    lines = [
        f"<b>{plain(short(one.name, 60))}</b>: {one.strength:.2f}, by chance up to {one.noise:.2f}",
        f"from {counted(one.trials, 'trial')}",
    ]
    gains = list(one.gains.items())[:12]
    return "<br>".join(
        [*lines, *(f"{plain(short(value, 40))}: median gain {number(gain)}" for value, gain in gains)]
    )
