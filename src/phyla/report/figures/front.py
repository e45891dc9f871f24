"""The Pareto front among all trials."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from phyla.formatting import format_count, short
from phyla.records import Goal, TrialRecord
from phyla.report import style
from phyla.report.data import StudyData
from phyla.report.formatting import brief, hover, plain

POINTS = 1_500
"""Trials behind the front; of more, an even selection is drawn."""


def front_figure(data: StudyData) -> style.Figure:
    """Return all trials by their first two goals, with the front on top, coloured by a third goal if any."""
    goals = data.aim.tradeoffs
    title = "What are the trade-offs?"
    if not goals:
        return style.empty(title, "The objective has one goal.")
    trials = data.trials
    judged = ~np.isnan(trials.orders).any(axis=1)
    drawn = judged & np.isfinite(trials.values[:, :2]).all(axis=1)
    if not drawn.any():
        return style.empty(title, "No trial has completed with finite goals yet.")
    on_front = np.isin(trials.id, [trial.id for trial in data.front])
    groups = {"infeasible": drawn & trials.infeasible, "behind the front": drawn & ~trials.infeasible & ~on_front}
    limits = [
        style.sensible_range(
            trials.values[drawn, at].tolist(),
            maximize=goal.maximize,
            always=[_value(trial, goal) for trial in data.front],
        )
        for at, goal in enumerate(goals[:2])
    ]
    notes = []
    if drawn.sum() < judged.sum():
        missing = format_count(int(judged.sum() - drawn.sum()), "trial")
        notes.append(f"Omitted: {missing} with a goal that is not a finite number.")
    apart: dict[str, Sequence[TrialRecord]] = {}
    for label, which in groups.items():
        places = np.flatnonzero(which).tolist()
        if len(places) > POINTS:
            notes.append(f"{POINTS:,} of {len(places):,} trials {label} are drawn: an even selection.")
        apart[label] = trials.records(style.pick_evenly(places, POINTS))
    if len(goals) > 3:
        notes.append(f"Not drawn: {', '.join(goal.metric for goal in goals[3:])}; hover over a trial to see them.")
    if any(limits):
        notes.append("A few trials lie outside the visible range; double-click to see all.")
    names = " and ".join(short(goal.metric, 24) for goal in goals[:3])
    subtitle = f"{format_count(len(data.front), 'trial')} that no other beats in {names}"
    figure = style.figure(title, subtitle, height=520, notes=notes)
    if len(goals) == 2 and len(data.front) > 1:
        # The edge of the dominated area: its corners are worse than the two nearest trials of the front.
        corners = sorted((_value(trial, goals[0]), _value(trial, goals[1])) for trial in data.front)
        shape = "vh" if goals[0].maximize else "hv"
        figure.add_traces(style.line(corners, "edge", style.WINNER, 1.2, line_shape=shape, showlegend=False))
    top: dict[str, Any] = {"color": style.WINNER}
    if len(goals) > 2:
        top = {
            "color": [_value(trial, goals[2]) for trial in data.front],
            "colorscale": style.SCALE,
            "reversescale": not goals[2].maximize,
            "colorbar": style.colorbar(goals[2].metric),
        }
    for group, label, marker in (
        (apart["behind the front"], "behind", {"color": style.MUTED, "size": 5}),
        (apart["infeasible"], "infeasible", {"color": style.FAILED, "size": 6, "symbol": "x-thin-open"}),
        (data.front, "on the front", {"size": 9, "line": {"color": "#fff", "width": 1}, **top}),
    ):
        describe_trial = hover if group is data.front else brief
        rows = [(_value(t, goals[0]), _value(t, goals[1]), describe_trial(t, data.aim.name)) for t in group]
        name = f"{format_count(len(group), 'trial')} {label}"
        figure.add_traces(style.trace(rows, name, "markers", marker=marker))
    for update, goal, known in zip((figure.update_xaxes, figure.update_yaxes), goals, limits, strict=False):
        better = "higher" if goal.maximize else "lower"
        update(title_text=f"{plain(goal.metric)}, {better} is better", range=known)
    return figure


def _value(trial: TrialRecord, goal: Goal) -> float:
    assert trial.criteria is not None
    return trial.criteria.values[goal.metric]
