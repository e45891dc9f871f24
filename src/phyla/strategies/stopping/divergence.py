"""Stopping trials that diverged."""

import math
from dataclasses import dataclass
from typing import final

from phyla.records import JsonObject, json_number
from phyla.strategies.stopping import Others, Reported, StoppingRule
from phyla.validation import check, setting_error


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence(StoppingRule):
    """Stop a trial as soon as a metric is nan or infinite, or beyond a bound.

    Args:
        metric: the metric to watch; by default those of the study's objective, and the bounds are for the first.
        above: stop when it is above this; None sets no such bound.
        below: stop when it is below this; None sets no such bound.
    """

    metric: str | None = None
    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        if self.metric is not None and (not isinstance(self.metric, str) or not self.metric):
            raise setting_error(self, "metric", "name a reported metric, or leave it out")
        check(self, above="(-inf, inf)", below="(-inf, inf)")
        if self.above is not None and self.below is not None and self.above <= self.below:
            raise setting_error(self, "above below", "every value is beyond one of them")

    def judge(self, reported: Reported, others: Others) -> JsonObject | None:
        watched = [self.metric] if self.metric else [goal.metric for goal in reported.objective.goals]
        for place, metric in enumerate(watched):
            value = reported.report.metrics.get(metric)
            if value is None:
                continue
            reason: JsonObject = {"rule": "divergence", "metric": metric, "step": reported.step}
            reason = {**reason, "value": json_number(value)}
            if not math.isfinite(value):
                return reason
            # Bounds are for the first metric.
            if place == 0 and self.above is not None and value > self.above:
                return {**reason, "above": self.above}
            if place == 0 and self.below is not None and value < self.below:
                return {**reason, "below": self.below}
        return None
