"""Stopping trials that diverged."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, Objective, json_number
from phyla.strategies.stopping import Others, Reported


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Stop a trial as soon as a metric is nan or infinite, or beyond a bound.

    Args:
        metric: the metric to watch; by default those of the study's objective, and the bounds are for the first.
        above: stop when it is above this; None sets no such bound.
        below: stop when it is below this; None sets no such bound.

    Raises:
        ConfigurationError: the metric is no name, or a bound no finite number.
    """

    metric: str | None = None
    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        if self.metric is not None and (not isinstance(self.metric, str) or not self.metric):
            raise ConfigurationError(
                f"Divergence(metric={self.metric!r}): name a reported metric, or leave it out"
            )
        for name in ("above", "below"):
            bound = getattr(self, name)
            if bound is None:
                continue
            if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
                raise ConfigurationError(
                    f"Divergence({name}={bound!r}): must be a finite number; nan and infinities always stop"
                )
        if self.above is not None and self.below is not None and self.above <= self.below:
            raise ConfigurationError(
                f"Divergence(above={self.above!r}, below={self.below!r}): every value is beyond one of them"
            )

    @property
    def marks_every(self) -> None:
        """It compares with no other trial."""
        return

    @property
    def history(self) -> int:
        """It needs no earlier reports."""
        return 0

    def watches(self, objective: Objective) -> Sequence[str]:
        """Return the metric, or those of the objective."""
        return [self.metric] if self.metric else [goal.metric for goal in objective.goals]

    def judge(self, reported: Reported, others: Others) -> JsonObject | None:
        """Look at one report."""
        for place, metric in enumerate(self.watches(reported.objective)):
            value = reported.report.metrics.get(metric)
            found = None if value is None else self._beyond(metric, value, reported.step, bounded=place == 0)
            if found is not None:
                return found
        return None

    def _beyond(self, metric: str, value: float, step: int, *, bounded: bool) -> JsonObject | None:
        facts: JsonObject = {
            "rule": "divergence",
            "metric": metric,
            "step": step,
            "value": json_number(value),
        }
        if not math.isfinite(value):
            return facts
        if bounded and self.above is not None and value > self.above:
            return {**facts, "above": self.above}
        if bounded and self.below is not None and value < self.below:
            return {**facts, "below": self.below}
        return None
