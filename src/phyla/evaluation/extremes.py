"""Smallest and largest sample."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self, final

import numpy as np

from phyla.evaluation.metric import Stored, check_type
from phyla.evaluation.samples import as_count, as_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extreme(Stored):
    value: float = math.nan
    n: int = 0

    # numpy's, unlike Python's, gives nan wherever it stands.
    _pick: ClassVar[np.ufunc]

    def __post_init__(self) -> None:
        as_count(self.n, f"{type(self).__name__}: n")

    @classmethod
    def of(cls, values: object) -> Self:
        """Return the extreme of an array-like of numbers, of any shape.

        Raises:
            MetricInvalid: it holds something other than real numbers.
        """
        samples = as_samples(values, "values").ravel()
        return cls(value=float(cls._pick.reduce(samples)), n=samples.size) if samples.size else cls()

    @property
    def count(self) -> int:
        """How many samples it has seen."""
        return self.n

    def merge(self, other: Self) -> Self:
        """Return the extreme of the samples of both."""
        check_type(self, other)
        return type(self)(value=float(self._pick(self.value, other.value)), n=self.n + other.n)

    def summary(self) -> dict[str, float]:
        """Return the extreme, nan of no samples, and "n"."""
        return {"": self.value if self.n else math.nan, "n": float(self.n)}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum(_Extreme):
    """Smallest sample; nan if one is nan.

    Attributes:
        value: that sample; infinity if there are none.
        n: number of samples.

    Raises:
        MetricInvalid: a negative number of samples.
    """

    value: float = math.inf

    _pick: ClassVar[np.ufunc] = np.minimum


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Maximum(_Extreme):
    """Largest sample; nan if one is nan.

    Attributes:
        value: that sample; minus infinity if there are none.
        n: number of samples.

    Raises:
        MetricInvalid: a negative number of samples.
    """

    value: float = -math.inf

    _pick: ClassVar[np.ufunc] = np.maximum
