"""Several metrics as one number."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from phyla.errors import ConfigurationError
from phyla.records.objective import WORST, Goal, Judgement, Maximize, Minimize, check_metric, exact

NAME_LENGTH = 48
"""Characters up to which the fitness is called by its formula."""


@final
@dataclass(frozen=True, slots=True)
class WeightedSum:
    """Select for a high weighted sum of reported metrics.

    A weight is the exchange rate between metrics, in units of the sum per unit of the metric: with
    `{"accuracy": 1.0, "latency_ms": -0.01}` ten milliseconds are worth 0.1 of accuracy. Weights below 0 are
    for metrics of which less is better. If any metric is nan or infinite, so is the sum.

    Source: Li et al. 2019, arXiv 1902.01894, section 3 (fitness from several criteria by weighting).

    Args:
        weights: weight by name of the metric; finite and not 0.

    Raises:
        ConfigurationError: there is no weight, or one is 0 or not finite.
    """

    weights: Mapping[str, float]

    maximize: ClassVar[bool] = True
    tradeoffs: ClassVar[tuple[Goal, ...]] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise ConfigurationError(
                f"WeightedSum({self.weights!r}): give weights by metric, as in "
                '{"accuracy": 1.0, "latency_ms": -0.01}'
            )
        for metric, weight in self.weights.items():
            check_metric(metric, "WeightedSum")
            number = isinstance(weight, int | float) and not isinstance(weight, bool) and math.isfinite(weight)
            if not number or weight == 0:
                raise ConfigurationError(
                    f"WeightedSum({metric}={weight!r}): a weight is a finite number and not 0; above 0 where more "
                    "is better, below 0 where less is; leave out a metric that does not count"
                )
        object.__setattr__(self, "weights", {name: float(weight) for name, weight in self.weights.items()})

    @property
    def goals(self) -> tuple[Goal, ...]:
        """The metrics; those with a weight below 0 are better when they are low."""
        return tuple(Maximize(name) if weight > 0 else Minimize(name) for name, weight in self.weights.items())

    @property
    def name(self) -> str:
        """The formula, or "weighted sum" where that is long."""
        formula = self._formula()
        return formula if len(formula) <= NAME_LENGTH else "weighted sum"

    @property
    def description(self) -> str:
        """What is selected for, in words."""
        return f"maximize {self._formula()}"

    def judge(self, values: Mapping[str, float]) -> Judgement:
        """Judge one trial by the sum."""
        terms = [weight * values[name] for name, weight in self.weights.items()]
        total = sum(terms) if all(map(math.isfinite, terms)) else math.nan
        return Judgement(fitness=total, order=total if math.isfinite(total) else WORST)

    def _formula(self) -> str:
        text = ""
        for name, weight in self.weights.items():
            sign = ("-" if weight < 0 else "") if not text else (" - " if weight < 0 else " + ")
            text += sign + (name if abs(weight) == 1 else f"{exact(abs(weight))} {name}")
        return text
