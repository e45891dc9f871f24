"""How far evaluation was behind, over time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phyla.records import Group, GroupState
from phyla.report import style
from phyla.report.evaluation import EvaluationData
from phyla.report.words import duration, moment, plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 4_000
"""Points of one line; beyond, it keeps only its outline."""
TIME = "%Y-%m-%d %H:%M:%S"
DONE = GroupState.COMPLETE


def lag_figure(data: EvaluationData) -> "go.Figure":
    """Return how many checkpoints waited for each suite, and how long each took, over time."""
    title = "Lag: checkpoints that wait for their evaluation"
    groups = [group for group in data.groups if group.state is not GroupState.SKIPPED]
    if not groups:
        return style.empty(title, "Nothing was queued yet.")
    from plotly.subplots import make_subplots

    grid = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    subtitle = "Above: queued or being evaluated. Below: from being queued until complete"
    style.figure(title, subtitle, height=520, grid=grid)
    most = 0
    for order, suite in enumerate(dict.fromkeys(group.suite for group in groups)):
        own = [group for group in groups if group.suite == suite]
        look = {"name": plain(suite), "legendgroup": suite}
        colour = style.PALETTE[order % len(style.PALETTE)]
        line = _waiting(own, data.now)
        most = max(most, *(count for _, count in line))
        picked = [line[index] for index in style.outline([count for _, count in line], POINTS)]
        rows = [(moment(at), count, f"{count} waiting<br>{moment(at):{TIME}}") for at, count in picked]
        shape = {"shape": "hv", "color": colour, "width": 1.6}
        grid.add_trace(style.trace(rows, mode="lines", line=shape, **look), row=1, col=1)
        ends = [(one.ended_at, one.ended_at - one.created_at) for one in own if one.ended_at and one.state is DONE]
        ends = [ends[index] for index in style.outline([took for _, took in ends], POINTS)]
        points = [
            (moment(at), took, f"complete after {duration(took)}<br>{moment(at):{TIME}}") for at, took in ends
        ]
        marker = {"color": colour, "size": 4, "opacity": 0.7}
        grid.add_trace(style.trace(points, mode="markers", marker=marker, showlegend=False, **look), row=2, col=1)
    step = 1 if most <= 8 else None
    grid.update_yaxes(title_text="checkpoints", rangemode="tozero", tickformat=",d", dtick=step, row=1, col=1)
    grid.update_yaxes(title_text="seconds", rangemode="tozero", row=2, col=1)
    grid.update_xaxes(title_text="time (UTC)", row=2, col=1)
    return grid


def _waiting(groups: Sequence[Group], now: float) -> list[tuple[float, int]]:
    """Return how many groups were open from which moment on."""
    begun = [(group.created_at, 1) for group in groups]
    ended = [(group.ended_at, -1) for group in groups if group.ended_at is not None]
    counts: dict[float, int] = {}
    count = 0
    for at, change in sorted([*begun, *ended]):
        count += change
        counts[at] = count
    line = list(counts.items())
    return [*line, (max(now, line[-1][0]), count)] if count else line
