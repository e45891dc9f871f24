"""What schedule did it find? A panel per hyperparameter, for the winner and the population."""

import math
from typing import Any

import numpy as np

from phyla.formatting import number, short
from phyla.report import style
from phyla.report.data import Hyperparameter, StudyData
from phyla.report.formatting import plain
from phyla.report.measures import grid, newest, quantiles

PANELS = 24
"""Hyperparameters that get a panel."""
PLACES = 100
"""Places along progress at which the population is drawn."""
CHANGES = 400
"""Changes of the winner's schedule; of more, the outline is drawn."""
CATEGORIES = 40
"""Categories that get a label."""


def schedules_figure(data: StudyData) -> style.Figure:
    """Return a panel per hyperparameter: the population's spread over progress, the winner's schedule on top."""
    title = "What schedule did it find?"
    params = data.hyperparameters[:PANELS]
    if not params or not len(data.trials):
        why = "The search space has no hyperparameters." if len(data.trials) else "No trial has completed yet."
        return style.empty(title, why)
    notes = [
        "Bands: 5 to 95 % and 25 to 75 % of members at that progress; choices: colour is the share.",
        "The winner's schedule is over the steps that trained its weights.",
    ]
    if len(params) < len(data.hyperparameters):
        notes.append(f"The first {PANELS} of {len(data.hyperparameters)} hyperparameters are shown.")
    figure, wheres = style.panels(title, _answer(data), [param.name for param in params], notes)
    places = grid(data.trials, PLACES)
    last = newest(data.trials, places)
    for param, where in zip(params, wheres, strict=True):
        values, name = param.values(data.trials.params), plain(param.name, 40)
        drawn = np.where(last < 0, math.nan, values[last])
        if param.categories is None:
            population = style.spread(places, quantiles(drawn.T), meta=name)
        else:
            population = [_shares(places, drawn, param, name)]
        winner = style.line(_changes(data, param), "the winner", style.WINNER, 2.6, meta=name)
        figure.add_traces([*population, *winner], rows=where["row"], cols=where["col"])
        figure.update_xaxes(title_text="steps", rangemode="tozero", tickformat="~s", nticks=6, **where)
        figure.update_yaxes(_value_axis(values, param), **where)
    figure.update_layout(showlegend=False)
    return figure


def _answer(data: StudyData) -> str:
    """Return how hyperparameters changed along the winner's path, as many as fit on a line."""
    if data.schedule is None:
        return "No winner yet"
    first, last = data.schedule.segments[0].params, data.schedule.segments[-1].params
    changes = [
        f"{short(name, 24)} {number(first[name], 2)} to {number(last[name], 2)}"
        for name in last
        if name in first and first[name] != last[name]
    ]
    more = f" and {len(changes) - 4} more" if len(changes) > 4 else ""
    return f"The winner: {', '.join(changes[:4])}{more}" if changes else "The winner kept its hyperparameters"


def _shares(places: Any, drawn: Any, param: Hyperparameter, name: str) -> dict[str, Any]:
    """Return a matrix with a row per category: the share of members that have it."""
    count = np.maximum(1, np.isfinite(drawn).sum(axis=0))
    shares = np.array([(drawn == at).sum(axis=0) / count for at in range(len(param.categories or ()))])
    cells = np.round(np.where(np.isfinite(drawn).any(axis=0), shares, math.nan), 3).tolist()
    look = {"meta": name, "hovertemplate": "step %{x:,d}<br>%{y}: %{z:.0%}<extra></extra>"}
    scale = [(0, "rgba(37,137,201,0.02)"), (1, "rgba(37,137,201,0.75)")]
    return style.heat("share of members", places, cells, scale, (0, 1), **look)


def _changes(data: StudyData, param: Hyperparameter) -> list[style.Row]:
    """Return the winner's schedule as a line with tooltips, and gaps where it has no value."""
    rows: list[style.Row] = []
    segments = data.schedule.segments if data.schedule else ()
    values = param.values([segment.params for segment in segments])
    for segment, value in zip(segments, values.tolist(), strict=True):
        start, end = segment.start_step, segment.end_step
        words = plain(number(segment.params.get(param.name)), 60)
        description = f"steps {start:,} to {end:,}, trial {segment.trial}<br>{words}"
        if rows and rows[-1][1] == value:
            rows[-1] = (end, value, description)
        else:
            rows += [(start, value, description), (end, value, description)]
    return style.outline(rows, 2 * CHANGES)


def _value_axis(values: Any, param: Hyperparameter) -> dict[str, Any]:
    if param.categories is not None:
        places = style.pick_evenly(range(len(param.categories)), CATEGORIES)
        names = [plain(number(param.categories[place]), 24) for place in places]
        return {
            "tickvals": places,
            "ticktext": names,
            "range": [-0.5, len(param.categories) - 0.5],
            "showgrid": False,
        }
    known = values[np.isfinite(values)]
    if not param.log or not len(known):
        return {"exponentformat": "SI", "nticks": 6, "hoverformat": ".4~g"}
    decades = math.log10(known.max() / known.min())
    ticks: dict[str, Any] = {"dtick": math.ceil(decades / 5)} if decades > 1.5 else {"nticks": 4}
    return {"type": "log", "tickformat": ".3~g", "hoverformat": ".4~g", **ticks}
