"""Smallest and largest sample."""

import math
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from phyla.evaluation.metric import check_type
from phyla.evaluation.samples import as_count, as_samples
from phyla.records import JsonObject, json_number, read_number


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """Smallest sample; nan if one is nan.

    Attributes:
        value: that sample; infinity if there are none.
        n: number of samples.

    Raises:
        MetricInvalid: a negative number of samples.
    """

    value: float = math.inf
    n: int = 0

    def __post_init__(self) -> None:
        as_count(self.n, "Minimum: n")

    @classmethod
    def of(cls, values: object) -> Self:
        """Return the minimum of an array-like of numbers, of any shape.

        Raises:
            MetricInvalid: it holds something else than real numbers.
        """
        samples = as_samples(values, "values")
        return cls(value=float(samples.min()), n=samples.size) if samples.size else cls()

    @property
    def count(self) -> int:
        """How many samples it has seen."""
        return self.n

    def merge(self, other: Self) -> Self:
        """Return the minimum of the samples of both.

        Raises:
            MetricMismatch: the other is of another type.
        """
        check_type(self, other)
        # numpy's, unlike Python's, gives nan whichever of the two it is.
        return type(self)(value=float(np.minimum(self.value, other.value)), n=self.n + other.n)

    def summary(self) -> dict[str, float]:
        """Return the minimum, nan of no samples, and "n"."""
        return {"": self.value if self.n else math.nan, "n": float(self.n)}

    def to_json(self) -> JsonObject:
        """Return its state as strict JSON."""
        return {"value": json_number(self.value), "n": self.n}

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Return the minimum that `to_json` wrote."""
        return cls(value=read_number(raw["value"]), n=as_count(raw["n"], "n"))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Maximum:
    """Largest sample; nan if one is nan.

    Attributes:
        value: that sample; minus infinity if there are none.
        n: number of samples.

    Raises:
        MetricInvalid: a negative number of samples.
    """

    value: float = -math.inf
    n: int = 0

    def __post_init__(self) -> None:
        as_count(self.n, "Maximum: n")

    @classmethod
    def of(cls, values: object) -> Self:
        """Return the maximum of an array-like of numbers, of any shape.

        Raises:
            MetricInvalid: it holds something else than real numbers.
        """
        samples = as_samples(values, "values")
        return cls(value=float(samples.max()), n=samples.size) if samples.size else cls()

    @property
    def count(self) -> int:
        """How many samples it has seen."""
        return self.n

    def merge(self, other: Self) -> Self:
        """Return the maximum of the samples of both.

        Raises:
            MetricMismatch: the other is of another type.
        """
        check_type(self, other)
        # numpy's, unlike Python's, gives nan whichever of the two it is.
        return type(self)(value=float(np.maximum(self.value, other.value)), n=self.n + other.n)

    def summary(self) -> dict[str, float]:
        """Return the maximum, nan of no samples, and "n"."""
        return {"": self.value if self.n else math.nan, "n": float(self.n)}

    def to_json(self) -> JsonObject:
        """Return its state as strict JSON."""
        return {"value": json_number(self.value), "n": self.n}

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Return the maximum that `to_json` wrote."""
        return cls(value=read_number(raw["value"]), n=as_count(raw["n"], "n"))
