"""The lineage tree: trials by generation and member, and where their weights came from."""

from collections import Counter
from itertools import pairwise

from phyla.records import JobState
from phyla.report import style
from phyla.report.data import StudyData, finite_fitness
from phyla.report.words import hover
from phyla.words import counted

GIVEN_UP = (JobState.FAILED, JobState.CANCELLED)
NODES = 6_000
"""Trials that are drawn; beyond, the newest ones and the winner's path."""


def lineage_figure(data: StudyData) -> style.Figure:
    """Return the lineage tree: generations to the right, a row per member, colour for fitness."""
    trials = list(data.lineage)
    if not trials:
        return style.empty("Lineage", "No trial has started yet.")
    notes: list[str] = []
    if len(trials) > NODES:
        path = {trial.id for trial in data.winner_path}
        notes.append(f"The newest {NODES:,} of {counted(len(trials), 'trial')} are drawn, and the winner's path.")
        trials = [trial for trial in trials[:-NODES] if trial.id in path] + trials[-NODES:]
    rows = len(data.by_member)
    row_height = 34 if rows <= 12 else 22 if rows <= 30 else 12 if rows <= 120 else 6
    generations = max(trial.generation for trial in trials) + 1
    size = max(3.0, min(13.0, 0.55 * min(row_height, 1000 / generations)))
    width = 1.4 if size > 6 else 0.9
    subtitle = "Grey edges: weights taken over; dotted: what a member abandoned; bold: the path to the winner"
    figure = style.figure("Lineage", subtitle, height=180 + max(3, rows) * row_height, notes=notes)
    places: dict[int, tuple[float, float]] = {}
    tries: Counter[tuple[int, int]] = Counter()
    for trial in trials:
        back = 0.0
        if trial.state in GIVEN_UP:
            # A failed or stopped one lies a little before its replacement.
            tries[trial.member, trial.generation] += 1
            back = 0.5 - 0.5 / (tries[trial.member, trial.generation] + 1)
        places[trial.id] = (trial.generation - back, float(trial.member))
    shown = [trial for trial in trials if trial.state not in GIVEN_UP]
    for name, pairs, colour, weight, dash in (
        ("weights taken from", [(trial.parent, trial.id) for trial in shown], style.MUTED, width, None),
        ("abandoned", [(trial.jump_from, trial.id) for trial in shown], style.JUMP, width, "dot"),
        ("the winner's path", pairwise(trial.id for trial in data.winner_path), style.WINNER, 3.0, None),
    ):
        edges = [(places[a], places[b]) for a, b in pairs if a in places and b in places]
        figure.add_traces(style.line(style.pieces(edges), name, colour, weight, line_dash=dash))
    scored = [trial for trial in trials if finite_fitness(trial) is not None]
    rest = [trial for trial in trials if finite_fitness(trial) is None]
    values = [trial.fitness or 0.0 for trial in scored]
    every = min(values, default=0), max(values, default=1)
    limits = style.sensible_range(values, maximize=data.aim.maximize) or every
    fitness = {
        "color": values,
        "colorscale": style.SCALE,
        "reversescale": not data.aim.maximize,
        "cmin": limits[0],
        "cmax": limits[1],
        "line": {"color": style.INK, "width": 0.6 if size > 5 else 0},
        "colorbar": style.colorbar(data.aim.name),
    }
    for name, states, marker in (
        ("fitness", None, fitness),
        ("nan or infinite", (JobState.COMPLETED,), {"symbol": "circle-open", "color": style.FAILED}),
        ("failed", (JobState.FAILED,), {"symbol": "x", "color": style.FAILED}),
        ("cancelled", (JobState.CANCELLED,), {"symbol": "x", "color": style.MUTED}),
        ("unfinished", (JobState.RUNNING, JobState.PENDING), {"symbol": "circle-open", "color": style.INK}),
    ):
        group = scored if states is None else [trial for trial in rest if trial.state in states]
        nodes = [(*places[trial.id], hover(trial, data.aim.name)) for trial in group]
        look = {"size": size, **marker}
        figure.add_traces(style.trace(nodes, name, "markers", marker=look, showlegend=states is not None))
    pad = max(0.4, 0.02 * generations)
    figure.update_xaxes(
        title_text="generation (completed trials of the member)",
        showgrid=False,
        tickformat=",d",
        range=[-pad, generations - 1 + pad],
        dtick=1 if generations <= 12 else None,
    )
    ticks = style.kept(range(rows), 34)
    figure.update_yaxes(
        title_text="member", showgrid=False, tickmode="array", tickvals=ticks, range=[rows - 0.5, -0.5]
    )
    return figure
