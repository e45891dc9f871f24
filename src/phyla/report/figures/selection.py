"""Is selection healthy? The diversity of the population, and what its decisions take over."""

import math
from typing import Any

import numpy as np

from phyla.formatting import duration, format_count
from phyla.report import style
from phyla.report.data import Hyperparameter, StudyData
from phyla.report.formatting import time_unit
from phyla.report.measures import founders, grid, newest, quantiles

PLACES = 60
"""Places along progress."""


def selection_figure(data: StudyData) -> style.Figure:
    """Return a panel each for surviving founders, diversity, takeovers, ages of donors and waits, over progress.

    Diversity is the standard deviation of a number (of its logarithm if the space is log), or the entropy of
    choices, relative to the start, averaged over hyperparameters. A wait is the time from the end of a member's
    trial to its next decision, for the quorum or a free worker.
    """
    title, trials = "Is selection healthy?", data.trials
    if trials.jump.max(initial=-1) < 0:
        why = "No member has taken over another's weights." if len(trials) else "No trial has completed yet."
        return style.empty(title, why)
    places = grid(trials, PLACES)
    last, slots = newest(trials, places), np.searchsorted(places, trials.progress)
    founder = np.array(founders(trials.parent.tolist()))
    survivors = [len(np.unique(founder[column[column >= 0]])) for column in last.T]
    varied = [
        diversity for param in data.hyperparameters if (diversity := _diversity(param, data, last)) is not None
    ]
    jumps, decided = trials.jump >= 0, trials.parent >= 0
    decisions = np.bincount(slots, decided, len(places))
    shares = np.bincount(slots, jumps, len(places)) / np.where(decisions > 0, decisions, math.nan)
    ages = np.where(jumps, trials.start - trials.end[trials.jump], math.nan)
    waits = _waits(data)
    unit, size = time_unit(float(np.nanmax(waits, initial=0.0)))
    lower, middle, upper = quantiles([ages[slots == at] for at in range(len(places))], (0.25, 0.5, 0.75))
    median, longest = quantiles([waits[slots == at] / size for at in range(len(places))], (0.5, 0.95))
    panels: dict[str, tuple[tuple[str, Any], ...]] = {
        "founders with living descendants": (("founders left", survivors),),
        "diversity of hyperparameters, relative to the start": (
            ("diversity", np.mean(varied or [0 * places], axis=0)),
        ),
        "share of decisions that took over weights": (("share of decisions", shares),),
        "age of the weights taken over, minus that of the abandoned (steps)": (
            *(("25 %", lower), ("75 %", upper), ("median", middle)),
        ),
        f"wait before a trial ({unit})": (("95 %", longest), ("median", median)),
    }
    figure = style.figure(
        title,
        _answer(data, survivors, places, float(jumps.sum() / max(1, decided.sum())), waits),
        height=820,
        notes=["Blue: the value or median; grey: quartiles of the ages, 95 % quantile of the waits."],
        rows=len(panels),
        shared_xaxes=True,
        vertical_spacing=0.055,
        subplot_titles=[*panels],
    )
    for row, (heading, lines) in enumerate(panels.items(), start=1):
        for name, values in lines:
            rows = [(int(x), float(y)) for x, y in zip(places, values, strict=True) if math.isfinite(y)]
            colour = style.MUTED if name.endswith("%") else style.BEST
            drawn = style.line(rows, name, colour, 1.8, meta=heading, hoverinfo=None)
            figure.add_traces(drawn, rows=row, cols=1)
    figure.update_layout(showlegend=False, hovermode="x unified")
    figure.update_xaxes(tickformat="~s", rangemode="tozero")
    figure.update_xaxes(title_text="progress of the member (steps)", row=len(panels), col=1)
    figure.update_yaxes(rangemode="tozero", nticks=4, hoverformat=".3~g")
    for row in (2, 3):
        figure.update_yaxes(tickformat=".0%", hoverformat=".1%", row=row, col=1)
    return figure


def _diversity(param: Hyperparameter, data: StudyData, last: Any) -> Any:
    """Return the diversity of the members' values at each place, relative to the first; None if it is constant."""
    values = param.values(data.trials.params)
    drawn = np.where(last < 0, math.nan, (np.log(values) if param.log else values)[last])
    variety = np.array([_variety(column[np.isfinite(column)], param.categories is not None) for column in drawn.T])
    first = next((value for value in variety if value > 0), 0.0)
    return variety / first if first else None


def _variety(values: Any, choices: bool) -> float:
    if not choices:
        return float(np.std(values)) if len(values) else 0.0
    shares = np.unique(values, return_counts=True)[1] / max(1, len(values))
    return float(-(shares * np.log(shares)).sum())


def _waits(data: StudyData) -> Any:
    """Return, for each trial, the seconds since its member's previous trial ended; nan for the first."""
    last: dict[int, float] = {}
    waits = []
    columns = (column.tolist() for column in (data.trials.member, data.trials.created, data.trials.ended))
    for member, created, ended in zip(*columns, strict=True):
        waits.append(created - last.get(member, math.nan))
        last[member] = ended
    return np.maximum(waits, 0.0)


def _answer(data: StudyData, survivors: list[int], places: Any, share: float, waits: Any) -> str:
    origin = f"{format_count(survivors[-1], 'founder')} left"
    if survivors[-1] == 1 and data.study.population_size > 1:
        origin = f"All descend from one founder since step {int(places[survivors.index(1)]):,}"
    wait = float(np.nanmedian(waits)) if np.isfinite(waits).any() else 0.0
    return f"{origin}; {share:.0%} of decisions took over weights; median wait {duration(wait)}"
