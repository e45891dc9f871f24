"""A fitness to simulate with, where nothing is trained."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from phyla.records import JsonObject, Minimize, Objective
from phyla.space import Choice, Parameter, Space

Fitness: TypeAlias = Callable[[Mapping[str, Any], int, np.random.Generator], float]
"""`fitness(params, step, rng)`: what would be measured on weights of this age."""

BEST = 0.7
SATURATES = 3.0


@final
@dataclass(frozen=True, slots=True)
class LearningCurve:
    """A curve that saturates, at a height that hangs on the hyperparameters.

    quality * (1 - exp(-3 step / total_steps)) + N(0, noise^2). The quality is 1 minus the mean squared distance of
    the hyperparameters from 0.7, each placed in [0, 1] as `Parameter.unit` does (choices by their place in the
    list), and scaled to lie in [0, 1]. For an objective that is minimised, it is 1 minus that. It shows how
    selection moves; it says nothing about how good a model will be.

    Args:
        space: the search space.
        objective: what is maximised or minimised.
        total_steps: the age at which 95 % of the height is reached.
        noise: standard deviation of a measurement.
    """

    space: Space
    objective: Objective
    total_steps: int
    noise: float = 0.02

    def __call__(self, params: JsonObject, step: int, rng: np.random.Generator) -> float:
        """Return the fitness at an age of the weights, in steps."""
        parameters = self.space.parameters
        distance = sum([(_place(parameters[name], value) - BEST) ** 2 for name, value in params.items()])
        quality = 1.0 - distance / BEST**2 / max(1, len(params))
        grown = 1.0 - math.exp(-SATURATES * step / self.total_steps)
        value = quality * grown + self.noise * rng.standard_normal()
        return 1.0 - value if isinstance(self.objective, Minimize) else value


def _place(parameter: Parameter, value: Any) -> float:
    if isinstance(parameter, Choice):
        return parameter.values.index(value) / max(1, len(parameter.values) - 1)
    return parameter.unit(value)
