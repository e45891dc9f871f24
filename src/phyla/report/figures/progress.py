"""Is it working? The fitness of the population over progress."""

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
        baseline: another study with the same objective; its best and its median are drawn as dashed lines.

    Returns:
        The figure. Its range ignores a few members that diverged.
    """
    title = "Is it working?"
    best = data.best
    if best is None:
        return style.empty(title, "No trial has completed with a finite fitness yet.")
    places, spread, sofar = _population(data)
    traces = style.spread(places, spread)
    traces += style.line(zip(places, sofar, strict=True), "best so far", style.WINNER, 2.4, hoverinfo=None)
    named = f"Best {score(best.fitness)}"
    if data.expected is not None:
        named += f", expected {score(data.expected)}"
    answer = f"{named}, by trial {best.id} of member {best.member}; {_lately(data, places, sofar)}"
    values = data.trials.fitness[np.isfinite(data.trials.fitness)].tolist()
    always: list[float] = []
    if baseline is not None and baseline.best is not None:
        baseline_places, baseline_spread, baseline_best = _population(baseline)
        name = plain(baseline.study.name, 40)
        for label, values, colour in (
            ("best", baseline_best, style.WINNER),
            ("median", baseline_spread[2], style.BEST),
        ):
            rows = zip(baseline_places, values, strict=True)
            traces += style.line(rows, f"{name}: {label}", colour, 1.6, line_dash="dash", hoverinfo=None)
        there = baseline_best[
            min(len(baseline_places), max(1, np.searchsorted(baseline_places, places[-1], side="right"))) - 1
        ]
        answer = f"{named}; {short(baseline.study.name, 30)} had {score(there)} after as many steps"
        always.append(float(baseline_best[-1]))
    limits = style.sensible_range(values, maximize=data.aim.maximize, always=always)
    inside = [value for value in values if limits is None or limits[0] <= value <= limits[1]]
    # A loss that falls by orders of magnitude would look flat on a linear axis.
    log = style.is_wide(inside) and not data.aim.maximize
    members = format_count(data.study.population_size, "member")
    notes = [f"Bands: 5 to 95 % and 25 to 75 % of {members}, each up to its own progress."]
    lacking = {
        "failed": data.trials.counts[JobState.FAILED],
        "cancelled": data.trials.counts[JobState.CANCELLED],
        "without a finite, feasible fitness": len(data.trials) - len(values),
    }
    if any(lacking.values()):
        notes.append(
            f"Trials omitted: {', '.join(f'{count:,} {why}' for why, count in lacking.items() if count)}."
        )
    if limits is not None and not log:
        outside = format_count(len(values) - len(inside), "trial")
        notes.append(f"Outside the visible range: {outside}; double-click to see all.")
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
    """Return the improvement in the last quarter of the progress, as text; among noisy scores it may be luck."""
    if data.expected is not None:
        return "the best so far may be lucky"
    before = sofar[max(0, int(np.searchsorted(places, 0.75 * places[-1], side="right")) - 1)]
    gained = abs(sofar[-1] - before)
    if not math.isfinite(gained) or places[-1] == places[0]:
        return f"after {format_count(int(places[-1]), 'step')}"
    if gained == 0:
        first = int(places[np.argmax(sofar == sofar[-1])])
        return f"nothing better since step {first:,} of {int(places[-1]):,}"
    return f"it improved by {number(float(gained), 3)} in the last quarter of the steps"
