"""How long things take, and how often they go wrong."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from phyla.errors import ConfigurationError
from phyla.records import EvalTaskRecord, TrialRecord

BLOCK = 1024


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long things take, in seconds; all numbers are means.

    With a spread, each duration is multiplied by a draw of its own from the log-normal distribution
    exp(N(-spread^2 / 2, spread^2)), whose mean is 1.

    Args:
        step_s: one training step. Training needs this, `trial_s` or measurements.
        trial_s: the training of one trial, however many steps it has.
        load_s: loading a checkpoint: the parent of a trial, or what is evaluated.
        save_s: writing a checkpoint.
        eval_s: one eval task on one checkpoint, all its shards together.
        spread: standard deviation of the logarithm of a duration.
        measured_step_s: seconds per step of trials that were measured from claim to completion, from which each
            trial's is drawn. They include loading and saving.
        measured_eval_s: seconds of measured shards by name of the eval task; they include loading.

    Raises:
        ConfigurationError: a number is out of range, or none of the three says how long training takes.
    """

    step_s: float | None = None
    trial_s: float | None = None
    load_s: float = 0.0
    save_s: float = 0.0
    eval_s: float = 0.0
    spread: float = 0.0
    measured_step_s: Sequence[float] = ()
    measured_eval_s: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("step_s", "trial_s", "load_s", "save_s", "eval_s", "spread"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(f"{name}={value!r}: must be a finite number of at least 0")
        given = [self.step_s is not None, self.trial_s is not None, bool(self.measured_step_s)]
        if sum(given) != 1:
            raise ConfigurationError(
                "say how long training takes, in one way: step_s, trial_s, or like= a study that was run (on the "
                "command line: --seconds step=S, --seconds trial=S, --like STUDY)"
            )

    def train_s(self, trial: TrialRecord, draws: "Draws") -> float:
        """Draw how long the steps of a trial take."""
        steps = trial.end_step - trial.start_step
        if self.measured_step_s:
            return steps * draws.one_of(self.measured_step_s)
        if self.trial_s is not None:
            return self.trial_s * self.factor(draws) if steps else 0.0
        assert self.step_s is not None
        return steps * self.step_s * self.factor(draws)

    def evaluate_s(self, task: EvalTaskRecord, draws: "Draws", *, loaded: bool) -> tuple[float, float]:
        """Draw how long loading and one shard of an eval task take."""
        measured = self.measured_eval_s.get(task.task)
        if measured:
            return 0.0, draws.one_of(measured)
        load_s = 0.0 if loaded else self.load_s * self.factor(draws)
        return load_s, self.eval_s / task.shards * self.factor(draws)

    def factor(self, draws: "Draws") -> float:
        """Draw what a mean is multiplied by."""
        if not self.spread:
            return 1.0
        return math.exp(self.spread * next(draws.normals) - self.spread**2 / 2)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Hazards:
    """How often things go wrong.

    Args:
        preempt_per_hour: how often each worker is told to leave, per hour that it is there; times between are
            exponential. It returns its work to the queue.
        crash_per_hour: how often each worker vanishes with its machine, likewise; its lease has to run out.
        restart_s: seconds until a worker that left, or another in its place, is back.
        fail: probability that an attempt at a trial fails, at a uniform moment of its training.

    Raises:
        ConfigurationError: a number is out of range.
    """

    preempt_per_hour: float = 0.0
    crash_per_hour: float = 0.0
    restart_s: float = 60.0
    fail: float = 0.0

    def __post_init__(self) -> None:
        for name in ("preempt_per_hour", "crash_per_hour", "restart_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(f"{name}={value!r}: must be a finite number of at least 0")
        if not 0 <= self.fail <= 1:
            raise ConfigurationError(f"fail={self.fail!r}: a probability lies between 0 and 1")


@final
class Draws:
    """Random numbers, drawn in blocks.

    Args:
        rng: where they come from.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.normals = _stream(rng.standard_normal)
        self.uniforms = _stream(rng.random)

    def one_of(self, values: Sequence[float]) -> float:
        """Draw one of several values."""
        return values[int(next(self.uniforms) * len(values))]

    def hours_until(self, per_hour: float) -> float:
        """Draw the hours until something happens that happens so often; infinite for never."""
        return -math.log(1.0 - next(self.uniforms)) / per_hour if per_hour else math.inf


def _stream(draw: Callable[[int], Any]) -> Iterator[float]:
    while True:
        yield from draw(BLOCK).tolist()
