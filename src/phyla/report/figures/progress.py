"""Is it working? How good the population is over progress."""

import math
from typing import Any

import numpy as np

from phyla.formatting import format_count, number, score, short
from phyla.records import JobState
from phyla.report import style
from phyla.report.data import StudyData
from phyla.report.formatting import plain
from phyla.report.measures import grid, newest, quantiles


def progress_figure(data: StudyData, baseline: StudyData | None = None) -> style.Figure:
    """Return the best fitness so far and the population's quantiles over progress.

    Args:
        data: the study.
        baseline: another study with the same objective; its best and its median are drawn as broken lines.

    Returns:
        The figure. Its range leaves out what a few members that diverged would stretch it to.
    """
    title = "Is it working?"
    best = data.best
    if best is None:
        return style.empty(title, "No trial has completed with a finite fitness yet.")
    places, found, sofar = _population(data)
    traces = style.spread(places, found)
    traces += style.line(zip(places, sofar, strict=True), "best so far", style.WINNER, 2.4, hoverinfo=None)
    answer = (
        f"Best {score(best.fitness)}, by trial {best.id} of member {best.member}; {_lately(data, places, sofar)}"
    )
    values = data.trials.fitness[np.isfinite(data.trials.fitness)].tolist()
    always: list[float] = []
    if baseline is not None and baseline.best is not None:
        others, theirs, its_best = _population(baseline)
        name = plain(baseline.study.name, 40)
        for what, its, colour in (("best", its_best, style.WINNER), ("median", theirs[2], style.BEST)):
            rows = zip(others, its, strict=True)
            traces += style.line(rows, f"{name}: {what}", colour, 1.6, line_dash="dash", hoverinfo=None)
        there = its_best[min(len(others), max(1, np.searchsorted(others, places[-1], side="right"))) - 1]
        answer = (
            f"Best {score(best.fitness)}; {short(baseline.study.name, 30)} had {score(there)} after as many steps"
        )
        always.append(float(its_best[-1]))
    limits = style.sensible_range(values, maximize=data.aim.maximize, always=always)
    inside = [value for value in values if limits is None or limits[0] <= value <= limits[1]]
    # On a linear axis a loss that falls by orders of magnitude is a flat line after the first trials.
    log = style.is_wide(inside) and not data.aim.maximize
    members = format_count(data.study.population_size, "member")
    notes = [f"Bands: 5 to 95 % and 25 to 75 % of {members}, each where it has come."]
    lacking = {
        "failed": data.trials.counts[JobState.FAILED],
        "cancelled": data.trials.counts[JobState.CANCELLED],
        "without a finite fitness that is feasible": len(data.trials) - len(values),
    }
    if any(lacking.values()):
        notes.append(
            f"Trials left out: {', '.join(f'{count:,} {why}' for why, count in lacking.items() if count)}."
        )
    if limits is not None and not log:
        outside = format_count(len(values) - len(inside), "trial")
        notes.append(f"Outside of the range shown: {outside}; double-click to see all.")
    figure = style.figure(title, answer, height=480, notes=notes)
    figure.add_traces(traces)
    better = "higher" if data.aim.maximize else "lower"
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(title_text="progress of the member (steps)", rangemode="tozero", tickformat="~s")
    axis: dict[str, Any] = {"type": "log"} if log else {"range": limits}
    figure.update_yaxes(title_text=f"{plain(data.aim.name, 60)}, {better} is better", hoverformat=".5~g", **axis)
    return figure


def _population(data: StudyData) -> tuple[Any, Any, Any]:
    """Return places along progress, the quantiles of the members' fitness there, and the best so far."""
    trials, sign = data.trials, 1 if data.aim.maximize else -1
    places = grid(trials)
    last = newest(trials, places)
    values = np.where(last < 0, math.nan, trials.fitness[last])
    slots, good = np.searchsorted(places, trials.progress), np.isfinite(trials.fitness)
    sofar = np.full(len(places), -math.inf)
    np.maximum.at(sofar, slots[good], sign * trials.fitness[good])
    sofar = sign * np.maximum.accumulate(sofar)
    return places, quantiles(values.T), np.where(np.isfinite(sofar), sofar, math.nan)


def _lately(data: StudyData, places: Any, sofar: Any) -> str:
    """Return what the last quarter of the progress brought."""
    before = sofar[max(0, int(np.searchsorted(places, 0.75 * places[-1], side="right")) - 1)]
    gained = abs(sofar[-1] - before)
    if not math.isfinite(gained) or places[-1] == places[0]:
        return f"after {format_count(int(places[-1]), 'step')}"
    if gained == 0:
        first = int(places[np.argmax(sofar == sofar[-1])])
        return f"nothing better since step {first:,} of {int(places[-1]):,}"
    return f"it improved by {number(float(gained), 3)} in the last quarter of the steps"
