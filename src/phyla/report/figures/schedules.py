"""Hyperparameters over the age of the weights, a panel each."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phyla.records import Json, TrialRecord
from phyla.report import style
from phyla.report.data import Hyperparameter, StudyData, same
from phyla.report.words import counted, number, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

PANELS = 24
"""Hyperparameters that get a panel."""
PIECES = 24_000
"""Trials of all panels together; beyond, fewer members are drawn."""
CATEGORIES = 40
"""Categories that get a label."""


def schedules_figure(data: StudyData) -> "go.Figure":
    """Return one panel per hyperparameter: every member's values, with the winner's schedule on top.

    The axis is the age of the weights, so a member's line breaks where it takes over other weights.
    """
    title = "Hyperparameters of every member"
    params = data.hyperparameters[:PANELS]
    if not params:
        return style.empty(
            title, "The search space has no hyperparameters." if len(data.lineage) else "No trial has started yet."
        )
    from plotly.subplots import make_subplots

    notes: list[str] = []
    if len(params) < len(data.hyperparameters):
        notes.append(f"The first {PANELS} of {len(data.hyperparameters)} hyperparameters are shown.")
    members, total = list(data.by_member), len(data.by_member)
    if len(data.lineage) * len(params) > PIECES:
        limit = max(8, total * PIECES // (len(data.lineage) * len(params)))
        members = [members[index] for index in style.kept(total, limit)]
    if len(members) < total:
        notes.append(f"{len(members)} of {counted(total, 'member')} are drawn in grey: an even selection.")
    columns = min(len(params), 2 if len(params) <= 4 else 3)
    rows = math.ceil(len(params) / columns)
    height = 130 + rows * (340 if rows == 1 else 250)
    grid = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[plain(short(param.name, 40)) for param in params],
        horizontal_spacing=0.08,
        vertical_spacing=min(0.2, 78 / (height - 160)) if rows > 1 else 0.0,
    )
    grid.update_annotations(font={"size": 13})
    subtitle = "Grey: every member; orange: the schedule that made the winner"
    style.figure(title, subtitle, height=height, notes=notes, grid=grid)
    for index, param in enumerate(params):
        where = {"row": index // columns + 1, "col": index % columns + 1}
        runs = {member: _runs(data.by_member[member], param.name)[: PIECES // len(members)] for member in members}
        lines = [
            line
            for member in members
            for line in _lines(runs[member], param, member, total, f"member {member}, from trial {{2}}")
        ]
        grid.add_trace(_trace(lines, "members", style.MUTED, 1.1), **where)
        if data.best is not None:
            label = "the winner, steps {0:,} to {1:,}, from trial {2}"
            winner = _lines(_runs(data.winner_path, param.name), param, data.best.member, total, label)
            grid.add_trace(_trace(winner, "the winner's schedule", style.WINNER, 2.6), **where)
        label = "age of the weights (steps)" if index + columns >= len(params) else ""
        grid.update_xaxes(title_text=label, rangemode="tozero", tickformat="~s", nticks=6, **where)
        grid.update_yaxes(_value_axis(data, param), **where)
    grid.update_layout(showlegend=False)
    return grid


def _runs(trials: Sequence[TrialRecord], name: str) -> list[tuple[int, int, int, Json]]:
    """Return (start, end, first trial, value) of every stretch in which a hyperparameter did not change."""
    runs: list[tuple[int, int, int, Json]] = []
    for trial in trials:
        if name not in trial.params or trial.reached_step is None:
            continue
        value = trial.params[name]
        if runs and runs[-1][1] == trial.start_step and same(runs[-1][3], value):
            runs[-1] = (runs[-1][0], trial.reached_step, *runs[-1][2:])
        else:
            runs.append((trial.start_step, trial.reached_step, trial.id, value))
    return runs


def _lines(
    runs: Sequence[tuple[int, int, int, Json]], param: Hyperparameter, member: int, members: int, label: str
) -> list[list[tuple[Any, ...]]]:
    """Return the lines of one member: runs that follow each other are one line."""
    lines: list[list[tuple[Any, ...]]] = []
    for start, end, trial, value in runs:
        height = _height(param, value, member, members)
        told = f"{label.format(start, end, trial)}<br>{plain(short(number(value), 60))}"
        if not lines or lines[-1][-1][0] != start:
            lines.append([])
        lines[-1] += [(start, height, told), (end, height, told)]
    return lines


def _height(param: Hyperparameter, value: Json, member: int, members: int) -> float | None:
    """Return where a value lies on the axis; members of one category lie beside each other."""
    if param.categories is None:
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
    return (param.place(value) or 0) + (0.5 * (member / (members - 1) - 0.5) if members > 1 else 0.0)


def _trace(lines: list[list[tuple[Any, ...]]], name: str, colour: str, width: float) -> dict[str, Any]:
    return style.trace(style.pieces(lines)[:-1], mode="lines", line={"color": colour, "width": width}, name=name)


def _value_axis(data: StudyData, param: Hyperparameter) -> dict[str, Any]:
    if param.categories is not None:
        places = style.kept(len(param.categories), CATEGORIES)
        return {
            "tickmode": "array",
            "tickvals": places,
            "ticktext": [plain(short(number(param.categories[place]), 24)) for place in places],
            "range": [-0.5, len(param.categories) - 0.5],
        }
    if not param.log:
        return {"exponentformat": "SI", "nticks": 6}
    values = [float(v) for trial in data.lineage if isinstance(v := trial.params.get(param.name), (int, float))]
    decades = math.log10(max(values) / min(values))
    ticks: dict[str, Any] = {"dtick": math.ceil(decades / 5)} if decades > 1.5 else {"nticks": 4}
    return {"type": "log", "tickformat": ".3~g", **ticks}
