"""Conditions of a simulation: workers, durations and failures."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from phyla.errors import ConfigurationError
from phyla.records import EvalJob, JsonObject, Minimize, Objective, TrialRecord, WorkKind
from phyla.space import Choice, Space
from phyla.validation import check

Fitness: TypeAlias = Callable[[Mapping[str, Any], int, np.random.Generator], float]
"""`fitness(params, step, rng)`: what would be measured on weights of this age."""

AMOUNT = "[0, inf)"
BEST = 0.7
SATURATES = 3.0
DEFAULT_STEPS = 100
"""Age at which the learning curve saturates, for a strategy that does not say how long members train."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The arguments of `phyla.testing.simulate` of the same names.

    With a spread, each duration is multiplied by a draw of its own from the log-normal distribution
    exp(N(-spread^2 / 2, spread^2)), whose mean is 1.

    Raises:
        ConfigurationError: a number is out of range, no worker trains, or not just one of `step_s` and `trial_s`
            says how long training takes.
    """

    workers: int = 1
    evaluators: int = 0
    kinds: frozenset[WorkKind] = frozenset({WorkKind.TRAIN, WorkKind.EVALUATE})
    step_s: float | None = None
    trial_s: float | None = None
    load_s: float = 0.0
    save_s: float = 0.0
    eval_s: float = 0.0
    spread: float = 0.0
    preempt_per_hour: float = 0.0
    crash_per_hour: float = 0.0
    restart_s: float = 60.0
    fail: float = 0.0

    def __post_init__(self) -> None:
        check(self, workers=1, evaluators=0, fail="[0, 1]", preempt_per_hour=AMOUNT, crash_per_hour=AMOUNT)
        check(self, step_s=AMOUNT, trial_s=AMOUNT, load_s=AMOUNT, save_s=AMOUNT, eval_s=AMOUNT)
        check(self, spread=AMOUNT, restart_s=AMOUNT)
        if WorkKind.TRAIN not in self.kinds:
            raise ConfigurationError("kinds: at least one worker has to train")
        if (self.step_s is None) == (self.trial_s is None):
            raise ConfigurationError("give the duration of training as either step_s or trial_s")

    def train_s(self, trial: TrialRecord, rng: np.random.Generator) -> float:
        """Draw how long the steps of a trial take."""
        steps = trial.end_step - trial.start_step
        if self.trial_s is not None:
            return self.draw(self.trial_s, rng) if steps else 0.0
        assert self.step_s is not None
        return self.draw(steps * self.step_s, rng)

    def evaluate_s(self, task: EvalJob, rng: np.random.Generator, *, loaded: bool) -> tuple[float, float]:
        """Draw how long loading and one shard of an eval task take."""
        load_s = 0.0 if loaded else self.draw(self.load_s, rng)
        return load_s, self.draw(self.eval_s / task.shards, rng)

    def draw(self, mean_s: float, rng: np.random.Generator) -> float:
        """Draw a duration from its mean."""
        return mean_s * rng.lognormal(-(self.spread**2) / 2, self.spread) if self.spread else mean_s


@final
@dataclass(frozen=True, slots=True)
class LearningCurve:
    """A curve that saturates, at a height that depends on the hyperparameters.

    quality * (1 - exp(-3 step / total_steps)) + N(0, noise^2). The quality is 1 minus the mean squared distance of
    the hyperparameters from 0.7, each placed in [0, 1] as `Parameter.unit` does (choices by their place in the
    list), and scaled to lie in [0, 1]. For an objective that is minimized, it is 1 minus that. It shows how
    selection moves; it says nothing about how good a model will be.
    """

    space: Space
    objective: Objective
    total_steps: int
    noise: float = 0.02

    def __call__(self, params: JsonObject, step: int, rng: np.random.Generator) -> float:
        """Return the fitness at an age of the weights, in steps."""
        distance = sum([(self._place(name, value) - BEST) ** 2 for name, value in params.items()])
        quality = 1.0 - distance / BEST**2 / max(1, len(params))
        grown = 1.0 - math.exp(-SATURATES * step / self.total_steps)
        value = quality * grown + self.noise * rng.standard_normal()
        return 1.0 - value if isinstance(self.objective, Minimize) else value

    def _place(self, name: str, value: Any) -> float:
        parameter = self.space.parameters[name]
        if isinstance(parameter, Choice):
            return parameter.values.index(value) / max(1, len(parameter.values) - 1)
        return parameter.unit(value)
