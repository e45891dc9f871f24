"""Where did the winner come from? The tree of lineages, by the steps that trained the weights."""

import math
from collections import defaultdict
from typing import Any, TypeAlias

import numpy as np

from phyla.records import TrialRecord
from phyla.report import style
from phyla.report.data import StudyData, finite_fitness
from phyla.report.words import brief, hover, plain
from phyla.words import counted, number, score

LINES = 100
"""Lineages that are drawn; beyond, the winner's relatives before others, and the longest of each."""
POINTS = 1_200
"""Trials that get a point; beyond, an even selection of each lineage."""
WORDY = 400
"""Trials up to which all is said of a trial under the pointer."""
COLOURS = 8
"""Hyperparameters that points can be coloured by."""

Branch: TypeAlias = list[TrialRecord]
"""Trials that continue one another, oldest first."""


def phylogeny_figure(data: StudyData) -> style.Figure:
    """Return the tree of lineages over the steps of the weights: the winner's strong, abandoned ones faint."""
    title, path = "Where did the winner come from?", data.winner_path
    if not data.completed:
        return style.empty(title, "No trial has completed yet.")
    branches, place = _branches(data)
    founders = _founders(branches, place)
    winner = place[path[0].id] if path else 0
    order = sorted(
        range(len(branches)),
        key=lambda at: (at != winner, founders[at] != founders[winner], -_length(branches[at])),
    )
    rows = _rows(branches, place, order[:LINES])
    share = math.ceil(sum(len(branches[at]) for at in rows) / POINTS)
    points = [trial for at in rows for trial in branches[at][::share]]
    notes = ["A line to the right is training; one down leads to a member that took over these weights."]
    if len(rows) < len(branches):
        notes.append(
            f"{len(rows)} of {len(branches):,} lineages are drawn: the winner's, its relatives, the longest."
        )
    if share > 1:
        notes.append(f"{len(points):,} of {counted(len(data.completed), 'trial')} have a point.")
    height = 250 + min(420, max(90, 22 * len(rows)))
    alive = {place[one.id] for one in {trial.member: trial for trial in data.completed}.values()}
    told = f"{counted(len({founders[at] for at in alive}), 'founder')} of {len({*founders}):,} left"
    if path:
        members = counted(len({trial.member for trial in path}), "member")
        taken = counted(sum(trial.jump_from is not None for trial in path), "takeover")
        told = f"From member {path[0].member}, through {members} and {taken}; {told}"
    figure = style.figure(title, told, height=height, notes=notes)
    for name, these, colour, width in (
        ("abandoned", [at for at in rows if at not in alive], style.MUTED, 0.8),
        ("with a member at its end", [at for at in rows if at in alive], style.INK, 1.6),
    ):
        lines = []
        for at in these:
            root, row = branches[at][0], rows[at]
            above = rows.get(place.get(root.parent or 0, -1), row)
            lines.append([(root.start_step, above), (root.start_step, row), (_end(branches[at][-1]), row)])
        figure.add_traces(style.line(style.pieces(lines), f"{len(these):,} {name}", colour, width))
    line = [(step, rows[place[trial.id]]) for trial in path for step in (trial.start_step, _end(trial))]
    name = f"the winner: {plain(data.aim.name, 30)} {score(data.best and data.best.fitness)}"
    figure.add_traces(style.line(line, name, style.WINNER, 3.2))
    words = hover if len(points) <= WORDY else brief
    nodes = [(_end(trial), rows[place[trial.id]], words(trial, data.aim.name)) for trial in points]
    looks = _looks(data, points)
    marker = {"size": 7 if len(points) <= 300 else 4, "line": {"width": 0.5, "color": style.INK}}
    first = {**marker, **next(iter(looks.values()))}
    figure.add_traces(style.trace(nodes, "trials", "markers", marker=first, showlegend=False))
    last = len(figure.data) - 1
    buttons = []
    for name, look in looks.items():
        # Plotly finds the active item of one property by its value, and mistakes it where that is an object.
        changes = {f"marker.{key}": [value] for key, value in look.items()}
        buttons.append({"label": plain(name, 30), "method": "restyle", "args": [changes, [last]]})
    figure.update_layout(showlegend=True, updatemenus=[style.menu(buttons)] if len(buttons) > 1 else [])
    figure.update_xaxes(title_text="steps that trained the weights", tickformat="~s")
    axis = {"title_text": "lineages", "showticklabels": False, "showgrid": False}
    figure.update_yaxes(axis, range=[len(rows) - 0.3, -0.7])
    return figure


def _branches(data: StudyData) -> tuple[list[Branch], dict[int, int]]:
    """Return all lineages, and which one each trial is on; a trial goes on where it leads furthest."""
    on_path = {trial.id for trial in data.winner_path}
    reach: dict[int, tuple[bool, int]] = {}
    main: dict[int, int] = {}
    for trial in reversed(data.completed):
        far = reach[trial.id] = max(reach.get(trial.id, (False, 0)), (trial.id in on_path, _end(trial)))
        if trial.parent is not None and far >= reach.get(trial.parent, (False, 0)):
            reach[trial.parent], main[trial.parent] = far, trial.id
    branches: list[Branch] = []
    place: dict[int, int] = {}
    for trial in data.completed:
        if main.get(trial.parent or 0) == trial.id and trial.parent in place:
            place[trial.id] = place[trial.parent]
        else:
            place[trial.id] = len(branches)
            branches.append([])
        branches[place[trial.id]].append(trial)
    return branches, place


def _rows(branches: list[Branch], place: dict[int, int], shown: list[int]) -> dict[int, int]:
    """Return a row for each lineage, so that no line crosses another: what branches off last is nearest."""
    children: dict[int, list[int]] = defaultdict(list)
    # The first one shown, the winner's, is to be at the top: what is added last comes first.
    for at in sorted(shown, key=lambda at: (branches[at][0].start_step, at == shown[0])):
        origin = place.get(branches[at][0].parent or 0, -1)
        children[origin if origin in shown else -1].append(at)
    rows: dict[int, int] = {}
    waiting = children[-1]
    while waiting:
        at = waiting.pop()
        rows[at] = len(rows)
        waiting += children[at]
    return rows


def _founders(branches: list[Branch], place: dict[int, int]) -> list[int]:
    """Return the root of each lineage."""
    found: list[int] = []
    for at, branch in enumerate(branches):
        origin = place.get(branch[0].parent or 0)
        found.append(at if origin is None else found[origin])
    return found


def _end(trial: TrialRecord) -> int:
    return trial.start_step if trial.reached_step is None else trial.reached_step


def _length(branch: Branch) -> int:
    return _end(branch[-1]) - branch[0].start_step


def _looks(data: StudyData, trials: list[TrialRecord]) -> dict[str, dict[str, Any]]:
    """Return how points look by what they can be coloured by: fitness first, then hyperparameters."""
    values = np.array([finite_fitness(trial) for trial in trials], dtype=float)
    limits = style.sensible_range(values[np.isfinite(values)].tolist(), maximize=data.aim.maximize)
    found = {data.aim.name: _look(values, data.aim.name, limits, reversescale=not data.aim.maximize)}
    for param in data.hyperparameters[:COLOURS]:
        values, names = param.values(trials), [plain(number(value), 20) for value in param.categories or ()]
        ticks = {"tickvals": [*range(len(names))], "ticktext": names} if names else {}
        limits = (0, max(1, len(names) - 1)) if names else None
        values, title = (np.log10(values), f"log10 {param.name}") if param.log else (values, param.name)
        found.setdefault(param.name, _look(values, title, limits, colorbar=style.colorbar(title, **ticks)))
    return found


def _look(values: Any, title: str, limits: tuple[float, float] | None = None, **look: Any) -> dict[str, Any]:
    known = values[np.isfinite(values)]
    low, high = limits or (np.quantile(known, [0.02, 0.98]) if len(known) else (0, 1))
    colours = {
        "color": [float(f"{value:.4g}") for value in values],
        "colorscale": style.SCALE,
        "reversescale": False,
    }
    return {**colours, "cmin": float(low), "cmax": float(high), "colorbar": style.colorbar(title), **look}
