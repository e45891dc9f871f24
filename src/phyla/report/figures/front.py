"""The Pareto front among all trials."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phyla.records import Goal, TrialRecord
from phyla.report import style
from phyla.report.data import StudyData
from phyla.report.words import counted, hover, plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 6_000
"""Trials behind the front that are drawn; beyond, an even selection."""
CROWDED = 50
"""Trials on the front up to which their points are large."""


def front_figure(data: StudyData) -> "go.Figure":
    """Return all trials by their first two goals, with the front on top.

    A third goal is the colour of the front's trials; further ones appear under the pointer. Infeasible trials are
    crosses. Trials with a goal that is not a finite number are left out.
    """
    goals = data.aim.tradeoffs
    title = f"Pareto front: {' and '.join(goal.metric for goal in goals)}"
    judged = [trial for trial in data.completed if trial.criteria is not None and trial.criteria.orders]
    drawn = [trial for trial in judged if all(math.isfinite(_value(trial, goal)) for goal in goals[:2])]
    if not drawn:
        return style.empty(title, "No trial has completed with finite goals yet.")
    infeasible = [trial for trial in drawn if trial.criteria is not None and trial.criteria.infeasible]
    apart = {trial.id for trial in (*data.front, *infeasible)}
    behind = [trial for trial in drawn if trial.id not in apart]
    limits = [_limits(drawn, data.front, goal) for goal in goals[:2]]
    notes = []
    if len(drawn) < len(judged):
        missing = counted(len(judged) - len(drawn), "trial")
        notes.append(f"Left out: {missing} with a goal that is not a finite number.")
    if len(behind) > POINTS:
        notes.append(f"{POINTS:,} of {len(behind):,} trials behind the front are drawn: an even selection.")
        behind = [behind[index] for index in style.kept(len(behind), POINTS)]
    if len(goals) > 3:
        notes.append(f"Not drawn: {', '.join(goal.metric for goal in goals[3:])}; point at a trial to see them.")
    if outside := sum(not _is_inside(trial, goals, limits) for trial in drawn):
        notes.append(f"Outside of the range shown: {counted(outside, 'trial')}; double-click to see all.")
    subtitle = "A point is a trial; no other trial is better than one on the front in every goal"
    figure = style.figure(title, subtitle, height=520, notes=notes)
    if len(goals) == 2 and len(data.front) > 1:
        # The edge of what is dominated: steps between the trials of the front, worse than both.
        corners = sorted((_value(trial, goals[0]), _value(trial, goals[1])) for trial in data.front)
        line = {"color": style.WINNER, "width": 1.2, "shape": "vh" if goals[0].maximize else "hv"}
        figure.add_trace(style.trace(corners, mode="lines", line=line, hoverinfo="skip", showlegend=False))
    top: dict[str, Any] = {"color": style.WINNER}
    if len(goals) > 2:
        top = {
            "color": [_value(trial, goals[2]) for trial in data.front],
            "colorscale": style.SCALE,
            "reversescale": not goals[2].maximize,
            "colorbar": style.colorbar(goals[2].metric),
        }
    size = 10 if len(data.front) <= CROWDED else 7
    for trials, what, marker in (
        (behind, "behind", {"color": style.MUTED, "size": 5}),
        (infeasible, "infeasible", {"color": style.FAILED, "size": 6, "symbol": "x-thin-open"}),
        (data.front, "on the front", {"size": size, "line": {"color": "#fff", "width": 1}, **top}),
    ):
        rows = [(_value(t, goals[0]), _value(t, goals[1]), hover(t, data.aim.name)) for t in trials]
        name = f"{counted(len(trials), 'trial')} {what}"
        figure.add_traces([style.trace(rows, mode="markers", marker=marker, name=name)] if rows else [])
    for update, goal, known in zip((figure.update_xaxes, figure.update_yaxes), goals, limits, strict=False):
        better = "higher" if goal.maximize else "lower"
        update(title_text=f"{plain(goal.metric)}, {better} is better", range=known)
    return figure


def _value(trial: TrialRecord, goal: Goal) -> float:
    assert trial.criteria is not None
    return trial.criteria.values[goal.metric]


def _limits(trials: list[TrialRecord], front: list[TrialRecord], goal: Goal) -> tuple[float, float] | None:
    """Return the range that shows the front and nearly all trials, if a few bad ones would flatten the rest."""
    limits = style.sensible_range([_value(trial, goal) for trial in trials], maximize=goal.maximize)
    if limits is None:
        return None
    ends = [_value(trial, goal) for trial in front]
    margin = 0.04 * (limits[1] - limits[0])
    return min([limits[0], *(end - margin for end in ends)]), max([limits[1], *(end + margin for end in ends)])


def _is_inside(trial: TrialRecord, goals: Sequence[Goal], limits: Sequence[tuple[float, float] | None]) -> bool:
    pairs = zip(goals, limits, strict=False)
    return all(known is None or known[0] <= _value(trial, goal) <= known[1] for goal, known in pairs)
