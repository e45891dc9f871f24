"""How numbers, times, trials and checkpoints read in figures and reports."""

import html
import math
import textwrap
from datetime import UTC, datetime

from phyla.evaluation import Lag
from phyla.records import Checkpoint, JobState, Json, TrialRecord, said_by, shown
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


def measured(value: float, stderr: float | None) -> str:
    """Return a number and its standard error."""
    return number(value) if stderr is None else f"{number(value)} ± {number(float(f'{stderr:.2g}'))}"


def duration(seconds: float | None) -> str:
    """Return a span of time in its two largest units."""
    if seconds is None:
        return "none yet"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours < 1:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


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


def plain(text: str, limit: int | None = None) -> str:
    """Return a text, cut to a length, so that Plotly, which reads some HTML in labels, shows it as it is."""
    return html.escape(text if limit is None else short(text, limit), quote=False)


def p_words(p: float | None) -> str:
    """Return a probability with two digits; `too few` for None."""
    if p is None:
        return "too few"
    return f"{p:.2g}" if p >= 0.001 else f"{p:.0e}"


def lag_words(lag: Lag) -> str:
    """Return how far a suite is behind, on one line."""
    at = "" if lag.complete is None else f"step {lag.complete:,}" if lag.complete >= 0 else "an unknown step"
    older = lag.waiting - lag.checkpoints
    more = f"; {older:,} older or repeated evaluations wait" if older else ""
    if not lag.checkpoints:
        return f"{lag.suite}: {f'up to date at {at}' if at else 'nothing is evaluated yet'}{more}"
    steps = f" and {counted(lag.steps, 'step')}" if at and lag.steps is not None else ""
    behind = f"{counted(lag.checkpoints, 'checkpoint')}{steps} behind, the oldest for {duration(lag.oldest_s)}"
    return f"{lag.suite}: {behind}; {f'complete up to {at}' if at else 'none is complete'}{more}"


def outcome(trial: TrialRecord, metric: str) -> str:
    """Return how a trial ended."""
    if trial.state is JobState.COMPLETED:
        told = [f"{metric} {score(trial.fitness)}"]
        if trial.criteria is not None:
            values = trial.criteria.values
            told += [f"{name} {score(value)}" for name, value in values.items() if name != metric]
            told += [f"infeasible: {trial.criteria.infeasible}"] if trial.criteria.infeasible else []
        return ", ".join(told)
    if trial.stop_reason is not None:
        return describe(trial.stop_reason)
    return f"{trial.state.value}: {said_by(trial.error)}" if trial.error else trial.state.value


def hover(trial: TrialRecord, metric: str) -> str:
    """Return what appears under the pointer over a trial, as Plotly's HTML."""
    end = trial.end_step if trial.reached_step is None else trial.reached_step
    params = [f"{plain(name, 40)} = {plain(number(value), 40)}" for name, value in trial.params.items()]
    more = [f"and {len(params) - PARAMS_SHOWN} more"] if len(params) > PARAMS_SHOWN else []
    lines = [
        f"<b>trial {trial.id}</b>, member {trial.member}, generation {trial.generation}",
        plain(outcome(trial, metric), 160),
        f"weights trained from step {trial.start_step:,} to {end:,}",
        *map(plain, textwrap.wrap(short(describe(trial.reason), 210), 70)),
        *params[:PARAMS_SHOWN],
        *more,
    ]
    return "<br>".join(lines)


def step_of(seen: Checkpoint) -> str:
    """Return the step of a checkpoint in words."""
    return f"step {seen.step:,}" if seen.step >= 0 else "unknown step"


def checkpoint_words(seen: Checkpoint) -> str:
    """Return a checkpoint in words, as Plotly's HTML."""
    index = f"[{seen.index}]" if seen.index else ""
    branch = f", branch {seen.branch}" if seen.branch else ""
    return f"{plain(shown(seen.name) + index, 60)}, {step_of(seen)}{branch}"
