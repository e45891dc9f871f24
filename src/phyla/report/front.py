"""The Pareto front among all trials."""

from functools import partial
from typing import TYPE_CHECKING, Any

from phyla.records import Goal, TrialRecord
from phyla.report import style
from phyla.report.data import StudyData
from phyla.report.words import counted, hover, plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

POINTS = 6_000
"""Trials behind the front that are drawn; beyond, an even choice of them."""

CROWDED = 50
"""Trials on the front up to which their points are large."""


def front_figure(data: StudyData) -> "go.Figure":
    """Return all trials by their first two goals, with the front on top.

    A third goal is the colour of the front's trials; more are told under the pointer. Infeasible trials are
    crosses. Trials with a goal that is no finite number are left out.
    """
    goals = data.tradeoffs
    names = " and ".join(goal.metric for goal in goals)
    title = f"Pareto front: {names}"
    judged = [trial for trial in data.completed if trial.criteria is not None and trial.criteria.orders]
    infeasible = [trial for trial in judged if trial.criteria is not None and trial.criteria.infeasible]
    places = {trial.id: _place(trial, goals) for trial in judged}
    drawn = [trial for trial in judged if places[trial.id] is not None]
    if not drawn:
        return style.empty(title, "No trial has completed with finite goals yet.")
    import plotly.graph_objects as go

    front = {trial.id for trial in data.front}
    behind = [trial for trial in drawn if trial.id not in front and trial not in infeasible]
    notes = []
    if len(drawn) < len(judged):
        missing = counted(len(judged) - len(drawn), "trial")
        notes.append(f"Left out: {missing} with a goal that is no finite number.")
    if len(behind) > POINTS:
        notes.append(f"{POINTS:,} of {len(behind):,} trials behind the front are drawn: an even choice.")
        behind = [behind[index] for index in style.kept(len(behind), POINTS)]
    if len(goals) > 3:
        notes.append(f"Not drawn: {', '.join(goal.metric for goal in goals[3:])}; point at a trial to see it.")
    limits = [_limits(drawn, data.front, goal) for goal in goals[:2]]
    if outside := sum(not _inside(trial, goals, limits) for trial in drawn):
        notes.append(f"Outside of the range shown: {counted(outside, 'trial')}; double-click to see all.")
    figure = style.figure(
        title,
        "A point is a trial; no other trial beats one on the front in everything",
        height=520,
        notes=notes,
    )
    points = partial(_points, go, data, places)
    if behind:
        figure.add_trace(points(behind, f"{counted(len(behind), 'trial')} behind", color=style.MUTED, size=5))
    crosses = [trial for trial in drawn if trial in infeasible]
    if crosses:
        name = f"{counted(len(crosses), 'trial')} infeasible"
        figure.add_trace(points(crosses, name, color=style.FAILED, size=6, symbol="x-thin-open"))
    if len(goals) == 2 and len(data.front) > 1:
        figure.add_trace(_line(go, goals, places, data.front))
    if data.front:
        marker: dict[str, Any] = {"color": style.WINNER}
        if len(goals) > 2:
            marker = {
                "color": [_value(trial, goals[2]) for trial in data.front],
                "colorscale": style.SCALE,
                "reversescale": not goals[2].maximize,
                "showscale": True,
                "colorbar": {
                    "title": {"text": plain(goals[2].metric), "side": "right"},
                    "thickness": 12,
                    "outlinewidth": 0,
                },
            }
        name = f"{counted(len(data.front), 'trial')} on the front"
        size = 10 if len(data.front) <= CROWDED else 7
        figure.add_trace(points(data.front, name, size=size, line={"color": "#fff", "width": 1}, **marker))
    figure.update_layout(
        xaxis=style.axis(_title(goals[0]), range=limits[0]), yaxis=style.axis(_title(goals[1]), range=limits[1])
    )
    return figure


def _limits(trials: list[TrialRecord], front: list[TrialRecord], goal: Goal) -> tuple[float, float] | None:
    """Return the range that shows the front and nearly all trials, if a few bad ones would flatten the rest."""
    limits = style.sensible_range([_value(trial, goal) for trial in trials], maximize=goal.maximize)
    if limits is None:
        return None
    ends = [_value(trial, goal) for trial in front]
    margin = 0.04 * (limits[1] - limits[0])
    return min([limits[0], *(end - margin for end in ends)]), max([limits[1], *(end + margin for end in ends)])


def _inside(trial: TrialRecord, goals: tuple[Goal, ...], limits: list[tuple[float, float] | None]) -> bool:
    pairs = zip(goals, limits, strict=False)
    return all(known is None or known[0] <= _value(trial, goal) <= known[1] for goal, known in pairs)


def _title(goal: Goal) -> str:
    return f"{goal.metric}, {'higher' if goal.maximize else 'lower'} is better"


def _value(trial: TrialRecord, goal: Goal) -> float:
    assert trial.criteria is not None
    return trial.criteria.values[goal.metric]


def _place(trial: TrialRecord, goals: tuple[Goal, ...]) -> tuple[float, float] | None:
    x, y = (_value(trial, goal) for goal in goals[:2])
    return (x, y) if abs(x) < float("inf") and abs(y) < float("inf") else None


def _points(
    go: Any,
    data: StudyData,
    places: dict[int, tuple[float, float] | None],
    trials: list[TrialRecord],
    name: str,
    **marker: Any,
) -> Any:
    return go.Scatter(
        x=[(places[trial.id] or (None, None))[0] for trial in trials],
        y=[(places[trial.id] or (None, None))[1] for trial in trials],
        mode="markers",
        marker=marker,
        text=[hover(trial, data.metric) for trial in trials],
        hoverinfo="text",
        name=name,
    )


def _line(
    go: Any,
    goals: tuple[Goal, ...],
    places: dict[int, tuple[float, float] | None],
    front: list[TrialRecord],
) -> Any:
    """Return the edge of what is dominated: steps between the trials of a front, which lie worse than both."""
    placed = sorted(place for trial in front if (place := places[trial.id]) is not None)
    # Seen from the left, a step is taken where the new trial is worse in the second goal.
    shape = "vh" if goals[0].maximize else "hv"
    return go.Scatter(
        x=[x for x, _ in placed],
        y=[y for _, y in placed],
        mode="lines",
        line={"color": style.WINNER, "width": 1.2, "shape": shape},
        hoverinfo="skip",
        showlegend=False,
        name="front",
    )
