"""What a trial is worth: its objective's judgement, as trials and scores carry it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from phyla.records import Criteria, Objective, Scored, TrialRecord


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The fields of a trial and of a `Scored` that come from an objective.

    Attributes:
        fitness: the number that tables and figures show; None while there is none.
        order: its sort key; None while there is no fitness.
        criteria: the metrics it was made of; None where the fitness is the metric.
    """

    fitness: float | None = None
    order: float | None = None
    criteria: Criteria | None = None


def worth(values: Mapping[str, float], objective: Objective) -> Worth:
    """Return what an objective makes of the metrics it needs."""
    found = objective.judge(values)
    if len(values) == 1 and not found.orders and found.infeasible is None:
        (value,) = values.values()
        if value == found.fitness or math.isnan(value):
            return Worth(fitness=found.fitness, order=found.order)
    criteria = Criteria(values=dict(values), orders=found.orders, infeasible=found.infeasible)
    return Worth(fitness=found.fitness, order=found.order, criteria=criteria)


def judged_values(scored: Scored | TrialRecord, objective: Objective) -> Mapping[str, float]:
    """Return the metrics that something with a fitness was judged by."""
    if scored.criteria is not None:
        return scored.criteria.values
    assert scored.fitness is not None
    return {objective.goals[0].metric: scored.fitness}


def mean_with(before: Mapping[str, float], values: Mapping[str, float], count: int, objective: Objective) -> Worth:
    """Return what the mean of `count` measurements is worth, from that of all but the last, and the last."""
    means = {name: mean + (values[name] - mean) / count for name, mean in before.items()}
    return worth(means, objective)
