"""How far evaluation was behind, over time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phyla.records import Group, GroupState
from phyla.report import style
from phyla.report.evaluation import EvaluationData
from phyla.report.words import counted, duration, moment, plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 4_000
"""Points of one line; beyond, it keeps its outline only."""


def lag_figure(data: EvaluationData) -> "go.Figure":
    """Return how many checkpoints waited for each suite, and how long each took, over time."""
    title = "Lag: checkpoints that wait for their evaluation"
    # What was skipped never waited for anything.
    groups = [group for group in data.groups if group.state is not GroupState.SKIPPED]
    if not groups:
        return style.empty(title, "Nothing was queued yet.")
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = style.figure(
        title,
        "Above: queued or being evaluated. Below: from being queued until complete",
        height=520,
    )
    grid = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08, figure=figure)
    suites = list(dict.fromkeys(group.suite for group in groups))
    most = 0.0
    for order, suite in enumerate(suites):
        own = [group for group in groups if group.suite == suite]
        colour = style.PALETTE[order % len(style.PALETTE)]
        times, waiting = _waiting(own, data.now)
        most = max(most, *waiting)
        picked = style.outline(waiting, POINTS, {})
        grid.add_trace(
            go.Scatter(
                x=[moment(times[index]) for index in picked],
                y=[waiting[index] for index in picked],
                mode="lines",
                line={"shape": "hv", "color": colour, "width": 1.6},
                name=plain(suite),
                legendgroup=suite,
                hovertemplate="%{y} waiting<br>%{x}<extra></extra>",
            ),
            row=1,
            col=1,
        )
        done = [group for group in own if group.state is GroupState.COMPLETE and group.ended_at is not None]
        took = [(group.ended_at or 0.0) - group.created_at for group in done]
        kept = style.outline(took, POINTS, {})
        grid.add_trace(
            go.Scatter(
                x=[moment(done[index].ended_at or 0.0) for index in kept],
                y=[took[index] for index in kept],
                text=[duration(took[index]) for index in kept],
                hovertemplate="complete after %{text}<br>%{x}<extra></extra>",
                mode="markers",
                marker={"color": colour, "size": 4, "opacity": 0.7},
                name=plain(suite),
                legendgroup=suite,
                showlegend=False,
            ),
            row=2,
            col=1,
        )
    grid.update_xaxes(style.axis())
    grid.update_yaxes(
        style.axis("checkpoints", rangemode="tozero", tickformat=",d", dtick=1 if most <= 8 else None),
        row=1,
        col=1,
    )
    grid.update_yaxes(style.axis("seconds", rangemode="tozero"), row=2, col=1)
    grid.update_xaxes(title=style.axis("time (UTC)")["title"], row=2, col=1)
    return figure


def _waiting(groups: Sequence[Group], now: float) -> tuple[list[float], list[float]]:
    changes = sorted(
        [(group.created_at, 1) for group in groups]
        + [(group.ended_at, -1) for group in groups if group.ended_at is not None]
    )
    times, counts, count = [changes[0][0]], [0.0], 0
    for at, change in changes:
        count += change
        if at == times[-1]:
            counts[-1] = float(count)
        else:
            times.append(at)
            counts.append(float(count))
    if not count:
        return times, counts
    return [*times, max(now, times[-1])], [*counts, float(count)]


def lag_words(data: EvaluationData) -> list[str]:
    """Return how far each suite is behind now."""
    lines = []
    for lag in data.lag:
        if not lag.checkpoints:
            done = "nothing is evaluated yet" if lag.complete is None else f"up to date at step {lag.complete:,}"
            lines.append(f"{lag.suite}: {done}")
        else:
            steps = "" if lag.steps is None or lag.complete is None else f" and {lag.steps:,} steps"
            lines.append(
                f"{lag.suite}: {counted(lag.checkpoints, 'checkpoint')}{steps} behind, the oldest for "
                f"{duration(lag.oldest_s)}"
            )
    return lines
