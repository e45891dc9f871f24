"""Numbers, times, trials and checkpoints as text for figures and reports."""

import html
import re
import textwrap
from datetime import UTC, datetime

from phyla.formatting import number, score, short
from phyla.records import Checkpoint, JobState, TrialRecord, escape_name, summarize_error
from phyla.strategies import describe
from phyla.terminal import visible

PARAMS_SHOWN = 12
"""Hyperparameters that a tooltip shows."""


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit for an axis of seconds that ends at `longest`, and its length in seconds."""
    return ("s", 1.0) if longest < 300 else ("min", 60.0) if longest < 3 * 3600 else ("h", 3600.0)


def moment(seconds: float) -> datetime:
    """Return a time of the records as an aware datetime in UTC."""
    return datetime.fromtimestamp(seconds, tz=UTC)


def plain(text: str, limit: int | None = None) -> str:
    """Return a text, cut to a length, with the HTML escaped that Plotly interprets in labels."""
    return escape(text if limit is None else short(text, limit), quote=False)


def escape(text: str, *, quote: bool = True) -> str:
    """Return text as HTML, with what would turn around the text that follows it written out, as on a terminal."""
    return html.escape(visible(text), quote=quote)


def text(markup: str) -> str:
    """Return the plain text of a Plotly label or tooltip, on one line."""
    return html.unescape(re.sub("<[^>]*>", "", markup.replace("<br>", "; ")))


def p_words(p: float | None) -> str:
    """Return a probability with two digits; `too few` for None."""
    if p is None:
        return "too few"
    return f"{p:.2g}" if p >= 0.001 else f"{p:.0e}"


def outcome(trial: TrialRecord, metric: str) -> str:
    """Return how a trial ended."""
    if trial.state is JobState.COMPLETED:
        facts = [f"{metric} {score(trial.fitness)}"]
        if trial.criteria is not None:
            values = trial.criteria.values
            facts += [f"{name} {score(value)}" for name, value in values.items() if name != metric]
            facts += [f"infeasible: {trial.criteria.infeasible}"] if trial.criteria.infeasible else []
        return ", ".join(facts)
    if trial.stop_reason is not None:
        return describe(trial.stop_reason)
    return f"{trial.state.value}: {summarize_error(trial.error)}" if trial.error else trial.state.value


def hover(trial: TrialRecord, metric: str) -> str:
    """Return the tooltip of a trial, as Plotly's HTML."""
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


def brief(trial: TrialRecord, metric: str) -> str:
    """Return the short tooltip of a trial, for figures of many trials."""
    return f"trial {trial.id}, member {trial.member}: {plain(outcome(trial, metric), 110)}"


def step_of(seen: Checkpoint) -> str:
    """Return the step of a checkpoint in words."""
    return f"step {seen.step:,}" if seen.step >= 0 else "unknown step"


def checkpoint_words(seen: Checkpoint) -> str:
    """Return a checkpoint in words, as Plotly's HTML."""
    index = f"[{seen.index}]" if seen.index else ""
    branch = f", branch {seen.branch}" if seen.branch else ""
    return f"{plain(escape_name(seen.name) + index, 60)}, {step_of(seen)}{branch}"
