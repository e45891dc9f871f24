"""How numbers, times, hyperparameters and command lines are written for a person."""

import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyla.cli.output import NOTHING
from phyla.records import Checkpoint, JobState, Scored, TrialRecord

if TYPE_CHECKING:
    from phyla.study import Places, Progress, Results

DAMAGED_SHOWN = 5


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, as in "1 trial" and "3 trials"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def number(value: float | None) -> str:
    """Return a number with six digits, or a dash for none."""
    if value is None:
        return NOTHING
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def fitness(scored: Scored | TrialRecord | None) -> str:
    """Return a fitness: one number, or that of each goal that is traded off; infeasible ones are marked."""
    if scored is None or scored.criteria is None:
        return number(scored and scored.fitness)
    criteria = scored.criteria
    goals = list(criteria.values.values())[: len(criteria.orders)]
    text = ", ".join(map(number, goals)) or number(scored.fitness)
    return f"{text} (infeasible)" if criteria.infeasible else text


def infeasible(scored: Scored | TrialRecord | None) -> str:
    """Return why a trial is infeasible, as in "infeasible: latency_ms 35 > 20"; nothing if it is not."""
    why = scored and scored.criteria and scored.criteria.infeasible
    return f"infeasible: {why}" if why else ""


def value(value: float, stderr: float | None) -> str:
    """Return a measured number with what is known of its error: `0.9312 ±0.0021`."""
    if stderr is None or not (math.isfinite(value) and math.isfinite(stderr)) or stderr == 0:
        return f"{value:.4g}"
    # Two digits of the error, and as many decimals of the value.
    decimals = 1 - math.floor(math.log10(stderr))
    if not 0 <= decimals <= 6 or abs(value) >= 1e6:
        return f"{value:.4g} ±{stderr:.2g}"
    return f"{value:.{decimals}f} ±{stderr:.{decimals}f}"


def step(number: int) -> str:
    """Return a step, where it is known."""
    return str(number) if number >= 0 else "unknown"


def duration(seconds: float) -> str:
    """Return seconds as `0:07`, `1:02:03` or `2 d 3:04:05`."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
    return f"{hours // 24} d {hours % 24}:{minute:02}:{second:02}"


def size(size_bytes: int) -> str:
    """Return a number of bytes with a unit."""
    value, units = float(size_bytes), ["TiB", "GiB", "MiB", "KiB", "B"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop()
    return f"{value:.{0 if units[-1] == 'B' else 1}f} {units[-1]}"


def params(values: Mapping[str, Any]) -> str:
    """Return hyperparameters on one line."""
    return " ".join(
        f"{name}={f'{value:.3g}' if isinstance(value, float) else value}" for name, value in values.items()
    )


def damage_lines(damaged: Sequence[Checkpoint]) -> list[str]:
    """Return how many checkpoints are damaged, and what is wrong with them; nothing if none is."""
    if not damaged:
        return []
    said = [f"{counted(len(damaged), 'damaged checkpoint')}, not used any more; the files are kept:"]
    said += [f"  {row.error}" for row in damaged[:DAMAGED_SHOWN]]
    if len(damaged) > DAMAGED_SHOWN:
        said.append(f"  and {len(damaged) - DAMAGED_SHOWN} more")
    return said


def progress_line(progress: "Progress", left_s: float | None = None) -> str:
    """Return how far a study is on one line."""
    parts = [f"{progress.completed}/{progress.planned_trials or '?'} trials"]
    parts += [f"{progress.failed} failed"] if progress.failed else []
    parts += [f"{progress.cancelled} cancelled"] if progress.cancelled else []
    best = progress.best
    if best is not None:
        parts += [f"front {len(progress.front)}"] if progress.aim.tradeoffs else []
        parts.append(f"best {fitness(best)} (member {best.member}, step {best.reached_step})")
    parts += [] if left_s is None else [f"{duration(left_s)} left"]
    return "  ".join(parts)


def requeued(results: "Results") -> str:
    """Return what an interrupted run leaves: the trials that are queued again, and what they repeat."""
    queued = [trial for trial in results.trials() if trial.state is JobState.PENDING]
    if not queued:
        return "Interrupted; no trial has to train anything again"
    saved = sum(trial.progress is not None for trial in queued)
    back = f"Interrupted; {counted(len(queued), 'trial')} {'goes' if len(queued) == 1 else 'go'} back to the queue"
    if not saved:
        return f"{back} and will start over: nothing was saved"
    over = f", {len(queued) - saved} will start over" if saved < len(queued) else ""
    return f"{back}: {saved} will go on from the last save{over}. What was trained since then is repeated"


def masked(url: str) -> str:
    """Return a URL without its password, which has no place on a screen or in a log."""
    if url.startswith("sqlite:"):
        return url
    url = re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", url)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", url)


def command(name: str, study: str, places: "Places") -> str:
    """Return the command line that runs a command on a study, wherever it is."""
    from phyla.study import Places

    words = ["phyla", name, study]
    usual = Places.of()
    if places.home != usual.home:
        words += ["--home", _relative(places.home)]
    if places.storage != Places.of(places.home if places.home != usual.home else None).storage:
        words += ["--storage", masked(places.storage)]
    if places.checkpoint_root != Places.of(places.home).checkpoint_root:
        words += ["--checkpoints", _relative(places.checkpoint_root)]
    return _pasted(words)


def again() -> str:
    """Return the command line of this process, to be given once more; it does not overwrite again."""
    words = [masked(word) for word in sys.argv[1:]]
    for at, word in enumerate(words):
        if word.partition("=")[0] == "--overwrite":
            del words[at : at + (1 if "=" in word else 2)]
            break
    return _pasted(["phyla", *words])


def _pasted(words: Iterable[str]) -> str:
    """Return a command line that can be pasted into any shell, also with names that are not valid text."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    raw = os.fsencode(word)
    try:
        raw.decode()
    except UnicodeDecodeError:
        # Terminals cannot show these bytes, so the shell has to make them.
        written = "".join(chr(b) if (chr(b).isalnum() and b < 128) or b in b" /._-" else f"\\{b:03o}" for b in raw)
        return f"\"$(printf '{written}')\"".replace("\\045", "%%")
    return shlex.quote(word)


def _relative(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
