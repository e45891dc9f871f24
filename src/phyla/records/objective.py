"""What a study maximises or minimises."""

import math
from dataclasses import dataclass
from typing import TypeAlias, final

from phyla.errors import ConfigurationError

WORST = -math.inf


def _check(metric: object, kind: str) -> None:
    if not isinstance(metric, str) or not metric:
        raise ConfigurationError(f'{kind}({metric!r}): name a reported metric, as in {kind}("accuracy")')


@final
@dataclass(frozen=True, slots=True)
class Maximize:
    """Select for high values of a reported metric.

    Args:
        metric: the name under which `trial.report()` gives it.

    Raises:
        ConfigurationError: the metric is not a name.
    """

    metric: str

    def __post_init__(self) -> None:
        _check(self.metric, "Maximize")

    def order(self, fitness: float) -> float:
        """Return the sort key of a fitness: higher is better, nan and infinities are worst."""
        return fitness if math.isfinite(fitness) else WORST


@final
@dataclass(frozen=True, slots=True)
class Minimize:
    """Select for low values of a reported metric.

    Args:
        metric: the name under which `trial.report()` gives it.

    Raises:
        ConfigurationError: the metric is not a name.
    """

    metric: str

    def __post_init__(self) -> None:
        _check(self.metric, "Minimize")

    def order(self, fitness: float) -> float:
        """Return the sort key of a fitness: higher is better, nan and infinities are worst."""
        return -fitness if math.isfinite(fitness) else WORST


Objective: TypeAlias = Maximize | Minimize
