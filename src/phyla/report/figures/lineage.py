"""The lineage tree: trials by generation and member, and where their weights came from."""

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from phyla.records import JobState, TrialRecord
from phyla.report import style
from phyla.report.data import StudyData, finite_fitness
from phyla.report.words import counted, hover

if TYPE_CHECKING:
    import plotly.graph_objects as go

GIVEN_UP = (JobState.FAILED, JobState.CANCELLED)
NODES = 20_000
"""Trials that are drawn; beyond, the newest ones and the winner's path."""
TOLD = 5_000
"""Trials up to which pointing at one shows everything about it; beyond, only its place and fitness."""
SVG = 3_000
"""Trials up to which they are drawn as SVG; beyond, by WebGL."""

Place = tuple[float, float]


def lineage_figure(data: StudyData) -> "go.Figure":
    """Return the lineage tree: generations to the right, a row per member, colour for fitness.

    Grey edges lead from the trial whose weights were taken; dotted ones from the trial that was abandoned;
    the bold path is the winner's ancestry; crosses are trials that failed, grey ones were cancelled.
    """
    trials = list(data.lineage)
    if not trials:
        return style.empty("Lineage", "No trial has started yet.")
    notes: list[str] = []
    if len(trials) > NODES:
        path = {trial.id for trial in data.winner_path}
        trials = [t for index, t in enumerate(trials) if index >= len(trials) - NODES or t.id in path]
        notes.append(
            f"The newest {NODES:,} of {counted(len(data.lineage), 'trial')} are drawn, and the winner's path."
        )
    rows = len(data.by_member)
    row_height = 34 if rows <= 12 else 22 if rows <= 30 else 12 if rows <= 120 else 6
    generations = max(trial.generation for trial in trials) + 1
    size = max(3.0, min(13.0, 0.55 * min(row_height, 1000 / generations)))
    subtitle = "Grey edges: weights taken over; dotted: what a member abandoned; bold: the path to the winner"
    figure = style.figure("Lineage", subtitle, height=180 + max(3, rows) * row_height, notes=notes)
    places = _places(trials)
    shown = [trial for trial in trials if trial.state not in GIVEN_UP]
    width = 1.4 if size > 6 else 0.9
    traces = [
        _edges("weights taken from", ((t.parent, t.id) for t in shown), places, color=style.MUTED, width=width),
        _edges(
            "abandoned", ((t.jump_from, t.id) for t in shown), places, color=style.JUMP, width=width, dash="dot"
        ),
        _edges("the winner's path", pairwise(t.id for t in data.winner_path), places, color=style.WINNER, width=3),
        *_nodes(data, trials, places, size),
    ]
    kind = "scatter" if len(trials) <= SVG else "scattergl"
    figure.add_traces([{**one, "type": kind} for one in traces if one["x"]])
    pad = max(0.4, 0.02 * generations)
    label = "generation (completed trials of the member)"
    figure.update_xaxes(title_text=label, showgrid=False, tickformat=",d", range=[-pad, generations - 1 + pad])
    figure.update_xaxes(dtick=1 if generations <= 12 else None)
    ticks = style.kept(rows, 34)
    figure.update_yaxes(title_text="member", showgrid=False, tickmode="array", tickvals=ticks)
    figure.update_yaxes(range=[rows - 0.5, -0.5])
    return figure


def _places(trials: list[TrialRecord]) -> dict[int, Place]:
    """Return where each trial is drawn; a failed or stopped one lies a little before its replacement."""
    tries: dict[tuple[int, int], int] = {}
    places: dict[int, Place] = {}
    for trial in trials:
        back = 0.0
        if trial.state in GIVEN_UP:
            slot = (trial.member, trial.generation)
            tries[slot] = tries.get(slot, 0) + 1
            back = 0.5 - 0.5 / (tries[slot] + 1)
        places[trial.id] = (trial.generation - back, float(trial.member))
    return places


def _edges(
    name: str, pairs: Iterable[tuple[int | None, int]], places: dict[int, Place], **line: Any
) -> dict[str, Any]:
    """Return edges as one trace."""
    drawn = [(places[a], places[b]) for a, b in pairs if a is not None and a in places and b in places]
    return style.trace(style.pieces(drawn), mode="lines", line=line, name=name, hoverinfo="skip")


def _nodes(
    data: StudyData, trials: list[TrialRecord], places: dict[int, Place], size: float
) -> list[dict[str, Any]]:
    """Return one trace for each kind of trial."""
    scored = [trial for trial in trials if finite_fitness(trial) is not None]
    rest = [trial for trial in trials if finite_fitness(trial) is None]
    values = [trial.fitness or 0.0 for trial in scored]
    low, high = style.sensible_range(values, maximize=data.aim.maximize) or (
        min(values, default=0),
        max(values, default=1),
    )
    ramp = {"colorscale": style.SCALE, "reversescale": not data.aim.maximize, "cmin": low, "cmax": high}
    border = {"color": style.INK, "width": 0.6 if size > 5 else 0}
    nodes = []
    for name, states, marker in (
        ("fitness", None, {"color": values, **ramp, "line": border, "colorbar": style.colorbar(data.aim.name)}),
        ("nan or infinite", (JobState.COMPLETED,), {"symbol": "circle-open", "color": style.FAILED}),
        ("failed", (JobState.FAILED,), {"symbol": "x", "color": style.FAILED}),
        ("cancelled", (JobState.CANCELLED,), {"symbol": "x", "color": style.MUTED}),
        ("unfinished", (JobState.RUNNING, JobState.PENDING), {"symbol": "circle-open", "color": style.INK}),
    ):
        group = scored if states is None else [trial for trial in rest if trial.state in states]
        told: dict[str, Any] = {"text": [hover(trial, data.aim.name) for trial in group]}
        if len(trials) > TOLD:
            fitness = "<br>%{marker.color}" if states is None else ""
            words = f"trial %{{customdata}}, member %{{y}}, generation %{{x}}{fitness}<extra></extra>"
            told = {"customdata": [trial.id for trial in group], "hovertemplate": words}
        rows = [places[trial.id] for trial in group]
        look = {"mode": "markers", "name": name, "showlegend": states is not None, "hoverinfo": "text", **told}
        nodes.append(style.trace(rows, marker={"size": size, **marker}, **look))
    return nodes
