"""How the reports of one trial become its fitness."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

from phyla.errors import ConfigurationError
from phyla.records import Goal, Maximize


class FitnessRule(Protocol):
    """Turns the reported values of one metric of the objective within one trial into one value."""

    def __call__(self, values: Sequence[float], objective: Goal) -> float:
        """Return the value; `values` are in the order of the reports, at least one."""
        ...


def _check_count(k: int, name: str) -> None:
    if k < 1:
        raise ConfigurationError(f"{name}({k!r}): the number of reports must be an integer of at least 1")


@final
@dataclass(frozen=True, slots=True)
class Last:
    """The last report of the trial."""

    def __call__(self, values: Sequence[float], objective: Goal) -> float:
        """Return the last value."""
        return values[-1]


@final
@dataclass(frozen=True, slots=True)
class MeanOfLast:
    """The mean of the last k reports of the trial; nan if one of them is nan.

    Raises:
        ConfigurationError: k is below 1.
    """

    k: int

    def __post_init__(self) -> None:
        _check_count(self.k, "MeanOfLast")

    def __call__(self, values: Sequence[float], objective: Goal) -> float:
        """Return the mean."""
        tail = values[-self.k :]
        return math.fsum(tail) / len(tail) if all(map(math.isfinite, tail)) else math.nan


@final
@dataclass(frozen=True, slots=True)
class BestOfLast:
    """The best of the last k reports: the maximum under `Maximize`, the minimum under `Minimize`.

    Values that are not finite are passed over; nan if none is finite. Only for objectives of one metric: the
    best of each would belong to different weights.

    Raises:
        ConfigurationError: k is below 1.
    """

    k: int

    def __post_init__(self) -> None:
        _check_count(self.k, "BestOfLast")

    def __call__(self, values: Sequence[float], objective: Goal) -> float:
        """Return the best value."""
        finite = [value for value in values[-self.k :] if math.isfinite(value)]
        if not finite:
            return math.nan
        return max(finite) if isinstance(objective, Maximize) else min(finite)
