"""How numbers, times and trials read in figures and reports."""

import html
import math
import textwrap
from datetime import UTC, datetime

from phyla.records import JobState, Json, TrialRecord
from phyla.strategies import describe

PARAMS_SHOWN = 12
"""Hyperparameters that appear under the pointer."""


def number(value: Json) -> str:
    """Return a value as a person reads it: four digits of a float, thousands separated."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "none" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def score(value: float | None) -> str:
    """Return a fitness with four digits, trailing zeros kept, so that a column of them lines up."""
    if value is None or not math.isfinite(value) or not 1e-4 <= abs(value) < 1e4:
        return number(value)
    return f"{value:#.4g}".rstrip(".")


def duration(seconds: float | None) -> str:
    """Return a span of time in its two largest units."""
    if seconds is None:
        return "none yet"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours < 1:
        return f"{minutes} min {int(seconds % 60)} s"
    if hours < 24:
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit in which to draw seconds up to the longest, and the seconds in it."""
    return ("s", 1.0) if longest < 300 else ("min", 60.0) if longest < 3 * 3600 else ("h", 3600.0)


def moment(seconds: float) -> datetime:
    """Return a time of the records as an aware datetime in UTC."""
    return datetime.fromtimestamp(seconds, tz=UTC)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short(text: str, limit: int = 90) -> str:
    """Return a text cut to a length."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def p_words(p: float | None) -> str:
    """Return a probability with two digits; `too few` for None."""
    if p is None:
        return "too few"
    return f"{p:.2g}" if p >= 0.001 else f"{p:.0e}"


def plain(text: str) -> str:
    """Return a text so that Plotly, which reads some HTML in labels, shows it as it is."""
    return html.escape(text, quote=False)


def last_line(text: str) -> str:
    """Return the last line of an error that says something."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def outcome(trial: TrialRecord, metric: str) -> str:
    """Return how a trial ended."""
    if trial.state is JobState.COMPLETED:
        found = f"{metric} {score(trial.fitness)}"
        if trial.criteria is None:
            return found
        others = [f"{name} {score(value)}" for name, value in trial.criteria.values.items() if name != metric]
        why = [] if trial.criteria.infeasible is None else [f"infeasible: {trial.criteria.infeasible}"]
        return ", ".join([found, *others, *why])
    if trial.stop_reason is not None:
        return describe(trial.stop_reason)
    error = last_line(trial.error or "")
    return f"{trial.state.value}: {error}" if error else trial.state.value


def hover(trial: TrialRecord, metric: str) -> str:
    """Return what appears under the pointer over a trial, as Plotly's HTML."""
    end = trial.end_step if trial.reached_step is None else trial.reached_step
    params = list(trial.params.items())
    lines = [
        f"<b>trial {trial.id}</b>, member {trial.member}, generation {trial.generation}",
        plain(short(outcome(trial, metric), 160)),
        f"weights trained from step {trial.start_step:,} to {end:,}",
        *map(plain, textwrap.wrap(short(describe(trial.reason), 210), 70)),
        *(
            f"{plain(short(name, 40))} = {plain(short(number(value), 40))}"
            for name, value in params[:PARAMS_SHOWN]
        ),
    ]
    if len(params) > PARAMS_SHOWN:
        lines.append(f"and {len(params) - PARAMS_SHOWN} more")
    return "<br>".join(lines)
