"""A fitness to simulate with, where nothing is trained."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np

from phyla.records import JsonObject, Minimize, Objective
from phyla.space import Choice, Ordinal, Parameter, Space

Fitness: TypeAlias = Callable[[Mapping[str, Any], int, np.random.Generator], float]
"""`fitness(params, step, rng)`: what would be measured on weights of this age."""

BEST = 0.7
SATURATES = 3.0


@final
@dataclass(frozen=True, slots=True)
class LearningCurve:
    """A curve that saturates, at a height that hangs on the hyperparameters.

    quality * (1 - exp(-3 step / total_steps)) + N(0, noise^2). The quality is 1 minus the mean squared distance of
    the hyperparameters from 0.7, each measured on the range of its parameter (the logarithm's, where that is the
    prior; the place in the list for choices), and scaled to lie in [0, 1]. For an objective that is minimised, it
    is 1 minus that. It shows how selection moves; it says nothing about how good a model will be.

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
    _places: Mapping[str, Callable[[Any], float]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_places", {name: _place_in(parameter) for name, parameter in self.space.parameters.items()}
        )

    def __call__(self, params: JsonObject, step: int, rng: np.random.Generator) -> float:
        """Return the fitness at an age of the weights, in steps."""
        places = self._places
        distance = sum([(places[name](value) - BEST) ** 2 for name, value in params.items()])
        quality = 1.0 - distance / BEST**2 / max(1, len(params))
        value = (
            quality * (1.0 - math.exp(-SATURATES * step / self.total_steps)) + self.noise * rng.standard_normal()
        )
        return 1.0 - value if isinstance(self.objective, Minimize) else value


def _place_in(parameter: Parameter) -> Callable[[Any], float]:
    """Return what tells where in [0, 1] a value of a parameter lies."""
    if isinstance(parameter, (Choice, Ordinal)):
        values = list(parameter.values)
        return lambda value: values.index(value) / max(1, len(values) - 1)
    low, high = float(parameter.low), float(parameter.high)
    if low == high:
        return lambda value: BEST
    if parameter.log:
        first, width = math.log(low), math.log(high / low)
        return lambda value: (math.log(value) - first) / width
    return lambda value: (value - low) / (high - low)
