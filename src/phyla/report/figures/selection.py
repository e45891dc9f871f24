"""Is selection healthy? How much the population still varies, and what its decisions take over."""

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
    """Return founders left, diversity, takeovers, the age of donors and waits over progress, a panel each.

    Diversity is the standard deviation of a number, of its logarithm where the space is log, or the entropy of
    choices, as a share of that at the start; the mean over hyperparameters. A wait is from the end of a member's
    trial to its next decision: for the quorum, or for a free worker.
    """
    title, trials = "Is selection healthy?", data.trials
    if trials.jump.max(initial=-1) < 0:
        why = "No member has taken over another's weights." if len(trials) else "No trial has completed yet."
        return style.empty(title, why)
    places = grid(trials, PLACES)
    last, slots = newest(trials, places), np.searchsorted(places, trials.progress)
    founder = np.array(founders(trials.parent.tolist()))
    left = [len(np.unique(founder[column[column >= 0]])) for column in last.T]
    varied = [one for param in data.hyperparameters if (one := _diversity(param, data, last)) is not None]
    jumps, decided = trials.jump >= 0, trials.parent >= 0
    decisions = np.bincount(slots, decided, len(places))
    shares = np.bincount(slots, jumps, len(places)) / np.where(decisions > 0, decisions, math.nan)
    ages = np.where(jumps, trials.start - trials.end[trials.jump], math.nan)
    waits = _waits(data)
    unit, size = time_unit(float(np.nanmax(waits, initial=0.0)))
    lower, middle, upper = quantiles([ages[slots == at] for at in range(len(places))], (0.25, 0.5, 0.75))
    median, longest = quantiles([waits[slots == at] / size for at in range(len(places))], (0.5, 0.95))
    panels: dict[str, tuple[tuple[str, Any], ...]] = {
        "founders with living descendants": (("founders left", left),),
        "diversity of hyperparameters, of that at the start": (
            ("diversity", np.mean(varied or [0 * places], axis=0)),
        ),
        "share of decisions that took over weights": (("share of decisions", shares),),
        "age of the weights taken over, against one's own (steps)": (
            *(("25 %", lower), ("75 %", upper), ("median", middle)),
        ),
        f"wait before a trial ({unit})": (("95 %", longest), ("median", median)),
    }
    figure = style.figure(
        title,
        _answer(data, left, places, float(jumps.sum() / max(1, decided.sum())), waits),
        height=820,
        notes=[
            "Blue: the median, where there is grey; grey: quartiles of the ages, the 95 % quantile of the waits."
        ],
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
    """Return how much the members' values vary at each place, against the first; None if not at all."""
    values = param.values(data.trials.params)
    drawn = np.where(last < 0, math.nan, (np.log(values) if param.log else values)[last])
    found = np.array([_variety(column[np.isfinite(column)], param.categories is not None) for column in drawn.T])
    first = next((one for one in found if one > 0), 0.0)
    return found / first if first else None


def _variety(values: Any, choices: bool) -> float:
    if not choices:
        return float(np.std(values)) if len(values) else 0.0
    shares = np.unique(values, return_counts=True)[1] / max(1, len(values))
    return float(-(shares * np.log(shares)).sum())


def _waits(data: StudyData) -> Any:
    """Return the seconds from the end of the member's last trial to the decision on each; nan for the first."""
    last: dict[int, float] = {}
    found = []
    columns = (one.tolist() for one in (data.trials.member, data.trials.created, data.trials.ended))
    for member, created, ended in zip(*columns, strict=True):
        found.append(created - last.get(member, math.nan))
        last[member] = ended
    return np.maximum(found, 0.0)


def _answer(data: StudyData, left: list[int], places: Any, share: float, waits: Any) -> str:
    told = f"{format_count(left[-1], 'founder')} left"
    if left[-1] == 1 and data.study.population_size > 1:
        told = f"All descend from one founder since step {int(places[left.index(1)]):,}"
    wait = float(np.nanmedian(waits)) if np.isfinite(waits).any() else 0.0
    return f"{told}; {share:.0%} of decisions took over weights; median wait {duration(wait)}"
