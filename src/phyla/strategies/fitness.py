"""Sources of a trial's fitness: its reports, or a suite."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from phyla.errors import ConfigurationError
from phyla.records import Goal, Maximize
from phyla.significance import mean_of
from phyla.validation import check, plain


class FitnessRule(Protocol):
    """Turns the reported values of one metric of the objective within one trial into one value."""

    def __call__(self, values: Sequence[float], objective: Goal) -> float:
        """Return the value; `values` are in the order of the reports, at least one."""
        ...


def apply_rule(rule: FitnessRule, values: Sequence[float], objective: Goal) -> float:
    """Return the value of a rule as a float; `ConfigurationError` if it is not a number."""
    value = plain(rule(values, objective))
    if not isinstance(value, int | float):
        name = getattr(rule, "__name__", repr(rule))
        raise ConfigurationError(f"the fitness rule {name} returned {value!r}; it must return a number")
    return float(value)


@final
@dataclass(frozen=True, slots=True)
class Last:
    """The last report of the trial."""

    def __call__(self, values: Sequence[float], objective: Goal) -> float:
        return values[-1]


LAST: Final = Last()


@final
@dataclass(frozen=True, slots=True)
class MeanOfLast:
    """The mean of the last k reports of the trial; nan if one of them is nan."""

    k: int

    def __post_init__(self) -> None:
        check(self, k=1)

    def __call__(self, values: Sequence[float], objective: Goal) -> float:
        tail = values[-self.k :]
        return mean_of(tail) if all(map(math.isfinite, tail)) else math.nan


@final
@dataclass(frozen=True, slots=True)
class Estimated:
    """The last report; but members are compared by how good they are by estimate, not by these scores.

    The estimate is that of `phyla.strategies.estimate`, from the scores of all trials of earlier generations, so
    that a lucky score does not spread. While there are too few trials, or scores are exact, scores are compared.
    Rules that look at earlier scores of a lineage themselves, such as `TTest`, still see scores there.
    """

    def __call__(self, values: Sequence[float], objective: Goal) -> float:
        return values[-1]


@final
@dataclass(frozen=True, slots=True)
class BestOfLast:
    """The best finite one of the last k reports, nan if there is none. Only for objectives of one metric."""

    k: int

    def __post_init__(self) -> None:
        check(self, k=1)

    def __call__(self, values: Sequence[float], objective: Goal) -> float:
        finite = [value for value in values[-self.k :] if math.isfinite(value)]
        best = max if isinstance(objective, Maximize) else min
        return best(finite, default=math.nan)


@final
@dataclass(frozen=True, slots=True)
class FromSuite:
    """The fitness of a trial is an aggregate of a suite on its checkpoint; members continue training meanwhile.

    Args:
        suite: name of one of the study's suites.
        metric: name of the aggregate, of which the study's objective gives only the direction, the same as in the
            suite's own objective; None takes those that the objective names, one or several.
        max_lag: checkpoints of one member that may wait for their evaluation before the member waits, too.
        remeasure: how many more times, each with another `evaluation.seed`, a donor's checkpoint is evaluated
            before it is copied; its fitness is then the mean. A repetition that gives exactly the same results, as
            code does that draws with seeds of its own, does not count. Above 0, a study depends on the number of
            workers: members decide before or after a donor is evaluated again.
        max_partial: groups in a row that end partial before the study stops with an error.
    """

    suite: str
    metric: str | None = None
    max_lag: int = 2
    remeasure: int = 0
    max_partial: int = 5

    def __post_init__(self) -> None:
        check(self, max_lag=0, remeasure=0, max_partial=1)
