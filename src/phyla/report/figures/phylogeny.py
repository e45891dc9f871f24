"""Where did the winner come from? The tree of lineages, by the steps that trained the weights."""

import math
from collections import defaultdict
from typing import Any, TypeAlias

import numpy as np

from phyla.formatting import format_count, number, score
from phyla.report import style
from phyla.report.data import StudyData
from phyla.report.formatting import brief, hover, plain
from phyla.report.measures import founders

LINES = 100
"""Lineages; of more, the winner's relatives are drawn first, and the longest before shorter ones."""
POINTS = 1_200
"""Points; of more trials, an even selection of each lineage is drawn."""
WORDY = 400
"""Largest number of trials for which tooltips have all details."""
COLOURS = 8
"""Hyperparameters that can colour the points."""

Branch: TypeAlias = list[int]
"""Indices of trials, each the parent of the next."""


def phylogeny_figure(data: StudyData) -> style.Figure:
    """Return the tree of lineages over the steps of the weights: the winner's bold, abandoned ones faint."""
    title, path, trials = "Where did the winner come from?", data.winner_path, data.trials
    if not len(trials):
        return style.empty(title, "No trial has completed yet.")
    branches, place = _branches(data)
    roots = [place[at] if at >= 0 else -1 for at in trials.parent[[branch[0] for branch in branches]].tolist()]
    founder = founders(roots)
    winner = place[path[0]] if path else 0
    ends = trials.end.tolist()
    starts = trials.start[[branch[0] for branch in branches]].tolist()
    length = [ends[branch[-1]] - start for branch, start in zip(branches, starts, strict=True)]
    order = sorted(
        range(len(branches)),
        key=lambda at: (at != winner, founder[at] != founder[winner], -length[at]),
    )
    rows = _rows(starts, roots, order[:LINES])
    share = math.ceil(sum(len(branches[at]) for at in rows) / POINTS)
    points = [trial for at in rows for trial in branches[at][::share]]
    whole = trials.records(points)
    notes = ["A line to the right is training; a line down leads to a member that took over these weights."]
    if len(rows) < len(branches):
        notes.append(
            f"{len(rows)} of {len(branches):,} lineages are drawn: the winner's, its relatives, the longest."
        )
    if share > 1:
        notes.append(f"{len(points):,} of {format_count(len(trials), 'trial')} are drawn as points.")
    height = 250 + min(420, max(90, 22 * len(rows)))
    alive = {place[at] for at in dict(zip(trials.member.tolist(), range(len(trials)), strict=True)).values()}
    answer = f"{format_count(len({founder[at] for at in alive}), 'founder')} of {len({*founder}):,} left"
    if path:
        members = format_count(len({*trials.member[path].tolist()}), "member")
        takeovers = format_count(int((trials.jump[path] >= 0).sum()), "takeover")
        answer = f"From member {trials.member[path[0]]}, through {members} and {takeovers}; {answer}"
    figure = style.figure(title, answer, height=height, notes=notes)
    for name, lineages, colour, width in (
        ("abandoned", [at for at in rows if at not in alive], style.MUTED, 0.8),
        ("with a member at its end", [at for at in rows if at in alive], style.INK, 1.6),
    ):
        lines = []
        for at in lineages:
            start, row = starts[at], rows[at]
            lines.append([(start, rows.get(roots[at], row)), (start, row), (ends[branches[at][-1]], row)])
        figure.add_traces(style.line(style.pieces(lines), f"{len(lineages):,} {name}", colour, width))
    line = [(step, rows[place[at]]) for at in path for step in (int(trials.start[at]), ends[at])]
    name = f"the winner: {plain(data.aim.name, 30)} {score(data.best and data.best.fitness)}"
    figure.add_traces(style.line(line, name, style.WINNER, 3.2))
    words = hover if len(points) <= WORDY else brief
    descriptions = [words(trial, data.aim.name) for trial in whole]
    nodes = [
        (ends[at], rows[place[at]], description) for at, description in zip(points, descriptions, strict=True)
    ]
    looks = _looks(data, points)
    marker = {"size": 7 if len(points) <= 300 else 4, "line": {"width": 0.5, "color": style.INK}}
    first = {**marker, **next(iter(looks.values()))}
    figure.add_traces(style.trace(nodes, "trials", "markers", marker=first, showlegend=False))
    last = len(figure.data) - 1
    buttons = []
    for name, look in looks.items():
        # Plotly finds the active item by the value of one property, and fails if that value is an object.
        changes = {f"marker.{key}": [value] for key, value in look.items()}
        buttons.append({"label": plain(name, 30), "method": "restyle", "args": [changes, [last]]})
    figure.update_layout(showlegend=True, updatemenus=[style.menu(buttons)] if len(buttons) > 1 else [])
    figure.update_xaxes(title_text="steps that trained the weights", tickformat="~s")
    axis = {"title_text": "lineages", "showticklabels": False, "showgrid": False}
    figure.update_yaxes(axis, range=[len(rows) - 0.3, -0.7])
    return figure


def _branches(data: StudyData) -> tuple[list[Branch], list[int]]:
    """Return all lineages, and the lineage of each trial; it continues with the child that leads furthest."""
    parents, ends, on_path = data.trials.parent.tolist(), data.trials.end.tolist(), {*data.winner_path}
    reach, main = [(False, 0)] * len(ends), [-1] * len(ends)
    for at in range(len(ends) - 1, -1, -1):
        far, parent = max(reach[at], (at in on_path, ends[at])), parents[at]
        if parent >= 0 and far >= reach[parent]:
            reach[parent], main[parent] = far, at
    branches: list[Branch] = []
    place: list[int] = []
    for at, parent in enumerate(parents):
        if parent >= 0 and main[parent] == at:
            place.append(place[parent])
        else:
            place.append(len(branches))
            branches.append([])
        branches[place[at]].append(at)
    return branches, place


def _rows(starts: list[int], roots: list[int], order: list[int]) -> dict[int, int]:
    """Return a row for each lineage such that no lines cross: the latest branch is nearest."""
    children: dict[int, list[int]] = defaultdict(list)
    # The winner's lineage, first in `order`, is pushed last, so that it gets the top row.
    for at in sorted(order, key=lambda at: (starts[at], at == order[0])):
        children[roots[at] if roots[at] in order else -1].append(at)
    rows: dict[int, int] = {}
    waiting = children[-1]
    while waiting:
        at = waiting.pop()
        rows[at] = len(rows)
        waiting += children[at]
    return rows


def _looks(data: StudyData, points: list[int]) -> dict[str, dict[str, Any]]:
    """Return the marker settings for each value that can colour the points: fitness, then hyperparameters."""
    values = data.trials.fitness[points]
    limits = style.sensible_range(values[np.isfinite(values)].tolist(), maximize=data.aim.maximize)
    looks = {data.aim.name: _look(values, data.aim.name, limits, reversescale=not data.aim.maximize)}
    params = [data.trials.params[at] for at in points]
    for param in data.hyperparameters[:COLOURS]:
        values, names = param.values(params), [plain(number(value), 20) for value in param.categories or ()]
        ticks = {"tickvals": [*range(len(names))], "ticktext": names} if names else {}
        limits = (0, max(1, len(names) - 1)) if names else None
        values, title = (np.log10(values), f"log10 {param.name}") if param.log else (values, param.name)
        looks.setdefault(param.name, _look(values, title, limits, colorbar=style.colorbar(title, **ticks)))
    return looks


def _look(values: Any, title: str, limits: tuple[float, float] | None = None, **look: Any) -> dict[str, Any]:
    known = values[np.isfinite(values)]
    low, high = limits or (np.quantile(known, [0.02, 0.98]) if len(known) else (0, 1))
    colours = {
        "color": [float(f"{value:.4g}") for value in values],
        "colorscale": style.SCALE,
        "reversescale": False,
    }
    return {**colours, "cmin": float(low), "cmax": float(high), "colorbar": style.colorbar(title), **look}
