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
"""Lineages that are drawn; beyond, the winner's relatives before others, and the longest of each."""
POINTS = 1_200
"""Trials that get a point; beyond, an even selection of each lineage."""
WORDY = 400
"""Trials up to which all is said of a trial under the pointer."""
COLOURS = 8
"""Hyperparameters that points can be coloured by."""

Branch: TypeAlias = list[int]
"""Places of trials that continue one another, oldest first."""


def phylogeny_figure(data: StudyData) -> style.Figure:
    """Return the tree of lineages over the steps of the weights: the winner's strong, abandoned ones faint."""
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
    notes = ["A line to the right is training; one down leads to a member that took over these weights."]
    if len(rows) < len(branches):
        notes.append(
            f"{len(rows)} of {len(branches):,} lineages are drawn: the winner's, its relatives, the longest."
        )
    if share > 1:
        notes.append(f"{len(points):,} of {format_count(len(trials), 'trial')} have a point.")
    height = 250 + min(420, max(90, 22 * len(rows)))
    alive = {place[at] for at in dict(zip(trials.member.tolist(), range(len(trials)), strict=True)).values()}
    told = f"{format_count(len({founder[at] for at in alive}), 'founder')} of {len({*founder}):,} left"
    if path:
        members = format_count(len({*trials.member[path].tolist()}), "member")
        taken = format_count(int((trials.jump[path] >= 0).sum()), "takeover")
        told = f"From member {trials.member[path[0]]}, through {members} and {taken}; {told}"
    figure = style.figure(title, told, height=height, notes=notes)
    for name, these, colour, width in (
        ("abandoned", [at for at in rows if at not in alive], style.MUTED, 0.8),
        ("with a member at its end", [at for at in rows if at in alive], style.INK, 1.6),
    ):
        lines = []
        for at in these:
            start, row = starts[at], rows[at]
            lines.append([(start, rows.get(roots[at], row)), (start, row), (ends[branches[at][-1]], row)])
        figure.add_traces(style.line(style.pieces(lines), f"{len(these):,} {name}", colour, width))
    line = [(step, rows[place[at]]) for at in path for step in (int(trials.start[at]), ends[at])]
    name = f"the winner: {plain(data.aim.name, 30)} {score(data.best and data.best.fitness)}"
    figure.add_traces(style.line(line, name, style.WINNER, 3.2))
    words = hover if len(points) <= WORDY else brief
    told_of = [words(trial, data.aim.name) for trial in whole]
    nodes = [(ends[at], rows[place[at]], said) for at, said in zip(points, told_of, strict=True)]
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


def _branches(data: StudyData) -> tuple[list[Branch], list[int]]:
    """Return all lineages, and which one each trial is on; a trial goes on where it leads furthest."""
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


def _rows(starts: list[int], roots: list[int], shown: list[int]) -> dict[int, int]:
    """Return a row for each lineage, so that no line crosses another: what branches off last is nearest."""
    children: dict[int, list[int]] = defaultdict(list)
    # The first one shown, the winner's, is to be at the top: what is added last comes first.
    for at in sorted(shown, key=lambda at: (starts[at], at == shown[0])):
        children[roots[at] if roots[at] in shown else -1].append(at)
    rows: dict[int, int] = {}
    waiting = children[-1]
    while waiting:
        at = waiting.pop()
        rows[at] = len(rows)
        waiting += children[at]
    return rows


def _looks(data: StudyData, points: list[int]) -> dict[str, dict[str, Any]]:
    """Return how points look by what they can be coloured by: fitness first, then hyperparameters."""
    values = data.trials.fitness[points]
    limits = style.sensible_range(values[np.isfinite(values)].tolist(), maximize=data.aim.maximize)
    found = {data.aim.name: _look(values, data.aim.name, limits, reversescale=not data.aim.maximize)}
    params = [data.trials.params[at] for at in points]
    for param in data.hyperparameters[:COLOURS]:
        values, names = param.values(params), [plain(number(value), 20) for value in param.categories or ()]
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
