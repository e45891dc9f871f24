"""Where the time of workers went."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from phyla.records import Phase
from phyla.report import style
from phyla.report.times import TimeSpent
from phyla.report.words import counted, duration, short, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLORS = {
    Phase.TRAINING: style.BEST,
    Phase.LOADING: "#56B4E9",
    Phase.SAVING: style.JUMP,
    Phase.EVALUATING: "#E69F00",
    Phase.CONTROL: style.FAILED,
    Phase.WAITING: "#9AA1AB",
}


def time_figure(spent: Mapping[str, TimeSpent], subtitle: str = "") -> "go.Figure":
    """Return a bar for each name, stacked by phase.

    Args:
        spent: by name.
        subtitle: how to read it.
    """
    title = "Where the time went"
    if not any(one.total_s for one in spent.values()):
        return style.empty(title, "No attempt recorded where its time went.")
    notes = [
        f"{name}: known of {one.timed:,} of {counted(one.ended, 'attempt')}."
        for name, one in spent.items()
        if one.timed < one.ended
    ]
    figure = style.figure(title, subtitle, height=170 + 34 * len(spent), notes=notes)
    unit, size = time_unit(max(one.total_s for one in spent.values()))
    for phase, colour in COLORS.items():
        if any(one.seconds[phase] for one in spent.values()):
            figure.add_bar(
                orientation="h",
                y=list(range(len(spent))),
                x=[one.seconds[phase] / size for one in spent.values()],
                text=[
                    f"{phase}: {duration(one.seconds[phase])}, {one.seconds[phase] / (one.total_s or 1):.1%}"
                    for one in spent.values()
                ],
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
