"""Hyperparameters over the age of the weights, a panel each."""

import math
from collections.abc import Sequence
from typing import Any

from phyla.records import TrialRecord
from phyla.report import style
from phyla.report.data import Hyperparameter, StudyData
from phyla.report.words import plain
from phyla.space.params import is_same
from phyla.words import counted, number

PANELS = 24
"""Hyperparameters that get a panel."""
PIECES = 24_000
"""Trials of all panels together; beyond, fewer members are drawn."""
CATEGORIES = 40
"""Categories that get a label."""


def schedules_figure(data: StudyData) -> style.Figure:
    """Return one panel per hyperparameter over the age of the weights, with the winner's schedule on top."""
    title = "Hyperparameters of every member"
    params = data.hyperparameters[:PANELS]
    if not params:
        why = "The search space has no hyperparameters." if len(data.lineage) else "No trial has started yet."
        return style.empty(title, why)
    notes: list[str] = []
    if len(params) < len(data.hyperparameters):
        notes.append(f"The first {PANELS} of {len(data.hyperparameters)} hyperparameters are shown.")
    total = len(data.by_member)
    limit = max(8, total * PIECES // (len(data.lineage) * len(params)))
    members = {member: data.by_member[member] for member in style.kept([*data.by_member], limit)}
    if len(members) < total:
        notes.append(f"{len(members)} of {counted(total, 'member')} are drawn in grey: an even selection.")
    columns = min(len(params), 2 if len(params) <= 4 else 3)
    depth = math.ceil(len(params) / columns)
    height = 130 + depth * (340 if depth == 1 else 250)
    figure = style.figure(
        title,
        "Grey: every member; orange: the schedule that made the winner",
        height=height,
        notes=notes,
        rows=depth,
        cols=columns,
        subplot_titles=[plain(param.name, 40) for param in params],
        horizontal_spacing=0.08,
        vertical_spacing=min(0.2, 78 / (height - 160)) if depth > 1 else 0.0,
    )
    for index, param in enumerate(params):
        where = {"row": index // columns + 1, "col": index % columns + 1}
        panel = {"rows": where["row"], "cols": where["col"]}
        lines = [
            line
            for member, trials in members.items()
            for line in _lines(trials, param, member, total, f"member {member}, from trial {{trial}}")
        ]
        figure.add_traces(style.line(style.pieces(lines)[:-1], "members", style.MUTED, 1.1), **panel)
        if data.best is not None:
            label = "the winner, steps {start:,} to {end:,}, from trial {trial}"
            winner = _lines(data.winner_path, param, data.best.member, total, label)
            rows = style.pieces(winner)[:-1]
            figure.add_traces(style.line(rows, "the winner's schedule", style.WINNER, 2.6), **panel)
        label = "age of the weights (steps)" if index + columns >= len(params) else ""
        figure.update_xaxes(title_text=label, rangemode="tozero", tickformat="~s", nticks=6, **where)
        figure.update_yaxes(_value_axis(data, param), **where)
    figure.update_layout(showlegend=False)
    return figure


def _lines(
    trials: Sequence[TrialRecord], param: Hyperparameter, member: int, members: int, label: str
) -> list[list[style.Row]]:
    """Return the lines of one member; a line ends where it takes over other weights."""
    runs: list[tuple[int, int, int, Any]] = []
    for trial in trials:
        if param.name not in trial.params or trial.reached_step is None:
            continue
        value: Any = trial.params[param.name]
        if runs and runs[-1][1] == trial.start_step and is_same(runs[-1][3], value):
            runs[-1] = (runs[-1][0], trial.reached_step, *runs[-1][2:])
        else:
            runs.append((trial.start_step, trial.reached_step, trial.id, value))
    lines: list[list[style.Row]] = []
    for start, end, trial_id, value in runs:
        if param.categories is not None:
            # Members of one category lie beside each other.
            beside = 0.5 * (member / (members - 1) - 0.5) if members > 1 else 0.0
            height: float | None = (param.place(value) or 0) + beside
        else:
            height = float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
        told = f"{label.format(start=start, end=end, trial=trial_id)}<br>{plain(number(value), 60)}"
        if not lines or lines[-1][-1][0] != start:
            lines.append([])
        lines[-1] += [(start, height, told), (end, height, told)]
    return lines


def _value_axis(data: StudyData, param: Hyperparameter) -> dict[str, Any]:
    if param.categories is not None:
        places = style.kept(range(len(param.categories)), CATEGORIES)
        return {
            "tickmode": "array",
            "tickvals": places,
            "ticktext": [plain(number(param.categories[place]), 24) for place in places],
            "range": [-0.5, len(param.categories) - 0.5],
        }
    if not param.log:
        return {"exponentformat": "SI", "nticks": 6}
    values = [float(v) for trial in data.lineage if isinstance(v := trial.params.get(param.name), (int, float))]
    decades = math.log10(max(values) / min(values))
    ticks: dict[str, Any] = {"dtick": math.ceil(decades / 5)} if decades > 1.5 else {"nticks": 4}
    return {"type": "log", "tickformat": ".3~g", **ticks}
