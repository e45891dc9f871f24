"""How numbers, times, counts and hyperparameters read, on a terminal and in reports."""

import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from phyla.records import Json, Scored, TimeSpent, TrialRecord, on_one_line, significant

if TYPE_CHECKING:
    from phyla.evaluation import Lag
    from phyla.strategies import Expected


def format_count(count: int, singular: str, several: str | None = None) -> str:
    """Return a count with its noun, as in "1 trial" and "3,000 trials"."""
    return f"{count:,} {singular if count == 1 else several or singular + 's'}"


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Return names with commas; of more than `most` the first ones, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def short(text: str, limit: int = 90) -> str:
    """Return a text cut to a length."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def moment(seconds: float) -> str:
    """Return a time of the records, in seconds since the epoch, as text in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def number(value: Json, digits: int = 4) -> str:
    """Return a value as a person reads it: some digits of a float, thousands separated."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "none" if value is None else on_one_line(str(value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 10**digits <= abs(value) < 1e9 else significant(value, digits)


def score(value: float | None) -> str:
    """Return a fitness with four digits, trailing zeros kept, so that a column of them lines up."""
    if value is None or not math.isfinite(value) or not 1e-4 <= abs(value) < 1e4:
        return number(value)
    return f"{value:#.4g}".rstrip(".")


def format_estimate(value: float, stderr: float | None) -> str:
    """Return a number with its standard error, if known: `0.9312 ±0.0021`."""
    if stderr is None or not (math.isfinite(value) and math.isfinite(stderr)) or stderr == 0:
        return number(value)
    # Two digits of the error, and as many decimals of the value.
    decimals = 1 - math.floor(math.log10(stderr))
    if not 0 <= decimals <= 6 or abs(value) >= 1e6:
        return f"{number(value)} ±{stderr:.2g}"
    return f"{value:.{decimals}f} ±{stderr:.{decimals}f}"


def format_expected(expected: "Expected") -> str:
    """Return an expected score with its interval: `0.931 (0.925 to 0.937)`."""
    low, high = expected.low, expected.high
    if not math.isfinite(high - low) or high == low:
        return number(expected.value)
    # Two digits of half the width, and as many decimals of all three.
    decimals = 1 - math.floor(math.log10((high - low) / 2))
    if not 0 <= decimals <= 6 or abs(expected.value) >= 1e6:
        return f"{number(expected.value)} ({number(low)} to {number(high)})"
    return f"{expected.value:.{decimals}f} ({low:.{decimals}f} to {high:.{decimals}f})"


def fitness(scored: Scored | TrialRecord | None) -> str:
    """Return a fitness: one number, or that of each goal that is traded off; infeasible ones are marked."""
    if scored is None or scored.fitness is None:
        return "-"
    criteria = scored.criteria
    goals = [] if criteria is None else list(criteria.values.values())[: len(criteria.orders)]
    text = ", ".join(number(goal, 6) for goal in goals or [scored.fitness])
    return f"{text} (infeasible)" if criteria is not None and criteria.infeasible else text


def infeasible(scored: Scored | TrialRecord | None) -> str:
    """Return why a trial is infeasible, as in "infeasible: latency_ms 35 > 20"; nothing if it is not."""
    why = scored and scored.criteria and scored.criteria.infeasible
    return f"infeasible: {why}" if why else ""


def params(values: Mapping[str, Any]) -> str:
    """Return hyperparameters on one line."""
    return " ".join(
        f"{name}={significant(value, 3) if isinstance(value, float) else on_one_line(str(value))}"
        for name, value in values.items()
    )


def step(age: int) -> str:
    """Return a step, where it is known."""
    return str(age) if age >= 0 else "unknown"


def duration(seconds: float | None) -> str:
    """Return a span of time as `7.2 s`, `3:07`, `1:02:03` or `2 d 3:04:05`."""
    if seconds is None or not math.isfinite(seconds):
        return "none yet" if seconds is None else "?"
    if seconds < 59.95:
        return f"{max(0.0, round(seconds, 3)):.3g} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if not hours:
        return f"{minute}:{second:02}"
    days = f"{hours // 24} d " if hours >= 24 else ""
    return f"{days}{hours % 24}:{minute:02}:{second:02}"


def mask_password(url: str) -> str:
    """Return a URL without its password, which has no place on a screen or in a log."""
    if url.startswith("sqlite:"):
        return url
    # A user may have an @ in its name, as on some managed servers.
    url = re.sub(r"(^[^/@:]*:(?!/)|:/+[^/:\s]*:)\S*@", r"\1***@", url)
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1***", url)


def quote_command(words: Iterable[str]) -> str:
    """Return a command line that can be pasted into any shell, also with names that are not valid text."""
    return " ".join(map(_quote_word, words))


def _quote_word(word: str) -> str:
    raw = os.fsencode(word)
    try:
        raw.decode()
    except UnicodeDecodeError:
        # Terminals cannot show these bytes, so the shell has to make them.
        written = "".join(chr(b) if (chr(b).isalnum() and b < 128) or b in b" /._-" else f"\\{b:03o}" for b in raw)
        return f"\"$(printf '{written}')\"".replace("\\045", "%%")
    return shlex.quote(word)


def size(size_bytes: int) -> str:
    """Return a number of bytes with a unit."""
    value, units = float(size_bytes), ["TiB", "GiB", "MiB", "KiB", "B"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop()
    return f"{value:.{0 if units[-1] == 'B' else 1}f} {units[-1]}"


def time_words(spent: TimeSpent) -> str:
    """Return the shares of the phases, largest first: `training 91 %, saving 6 %, loading 3 %`."""
    if not spent.total_s:
        return "not known"
    shares = sorted(((100 * s / spent.total_s, p) for p, s in spent.seconds.items() if s), reverse=True)
    text = ", ".join(f"{phase} {share:.0f} %" if share >= 0.5 else f"{phase} < 1 %" for share, phase in shares)
    return f"{text} of {duration(spent.total_s)}"


def lag_words(lag: "Lag") -> str:
    """Return how far a suite is behind, on one line."""
    at = "" if lag.complete is None else f"step {lag.complete:,}" if lag.complete >= 0 else "an unknown step"
    older = lag.waiting - lag.checkpoints
    more = f"; {older:,} older or repeated evaluations wait" if older else ""
    if not lag.checkpoints:
        return f"{lag.suite}: {f'up to date at {at}' if at else 'no checkpoint is completely evaluated'}{more}"
    steps = f" and {format_count(lag.steps, 'step')}" if at and lag.steps is not None else ""
    behind = (
        f"{format_count(lag.checkpoints, 'checkpoint')}{steps} behind, the oldest for {duration(lag.oldest_s)}"
    )
    return f"{lag.suite}: {behind}; {f'complete up to {at}' if at else 'none is complete'}{more}"
