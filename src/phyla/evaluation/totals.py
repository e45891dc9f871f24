"""Totals and extremes: sum, perplexity, smallest and largest sample. Totals have twice a float's precision."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self, final

import numpy as np

from phyla.evaluation.metric import Stored, as_samples, exact_sum


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sum(Stored):
    """Sum of samples.

    Attributes:
        total: their sum; 0 if there are none.
        n: number of samples.
        low: rounding error of `total`: the sum is `total + low`.
    """

    total: float = 0.0
    n: int = 0
    low: float = 0.0

    @classmethod
    def of(cls, values: object) -> Self:
        """Return the sum of an array-like of real numbers, of any shape."""
        samples = as_samples(values, "values").ravel()
        total, low = exact_sum(samples.tolist())
        return cls(total=total, n=samples.size, low=low)

    def _merged(self, other: Self) -> Self:
        total, low = exact_sum([self.total, self.low, other.total, other.low])
        return type(self)(total=total, n=self.n + other.n, low=low)

    def summary(self) -> dict[str, float]:
        """Return the sum, and "n"."""
        return {"": self.total, "n": float(self.n)}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity(Stored):
    """Exponential of the mean negative log-likelihood of tokens.

    Every token has the same weight, whatever text or batch it is in. It counts tokens, not samples.

    Attributes:
        nll: total negative log-likelihood of the tokens, in nats.
        tokens: number of tokens.
        low: rounding error of `nll`: the total is `nll + low`.
    """

    nll: float = 0.0
    tokens: int = 0
    low: float = 0.0

    @classmethod
    def of(cls, nll: object) -> Self:
        """Return the perplexity of an array-like of negative log-likelihoods, one per token, in nats."""
        total = Sum.of(nll)
        return cls(nll=total.total, tokens=total.n, low=total.low)

    def _merged(self, other: Self) -> Self:
        nll, low = exact_sum([self.nll, self.low, other.nll, other.low])
        return type(self)(nll=nll, tokens=self.tokens + other.tokens, low=low)

    def summary(self) -> dict[str, float]:
        """Return the perplexity, "nll" (nats per token) and "tokens"; nan of no tokens, inf beyond a float."""
        per_token = self.nll / self.tokens if self.tokens else math.nan
        try:
            value = math.exp(per_token)
        except OverflowError:
            value = math.inf
        return {"": value, "nll": per_token, "tokens": float(self.tokens)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extreme(Stored):
    value: float = math.nan
    n: int = 0

    # numpy's, unlike Python's, gives nan wherever it stands.
    _pick: ClassVar[np.ufunc]

    @classmethod
    def of(cls, values: object) -> Self:
        """Return the extreme of an array-like of real numbers, of any shape."""
        samples = as_samples(values, "values").ravel()
        return cls(value=float(cls._pick.reduce(samples)), n=samples.size) if samples.size else cls()

    def _merged(self, other: Self) -> Self:
        return type(self)(value=float(self._pick(self.value, other.value)), n=self.n + other.n)

    def summary(self) -> dict[str, float]:
        """Return the extreme, nan of no samples, and "n"."""
        return {"": self.value if self.n else math.nan, "n": float(self.n)}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum(_Extreme):
    """Smallest sample, infinity if there are none, nan if one is nan; and the number `n` of samples."""

    value: float = math.inf
    _pick: ClassVar[np.ufunc] = np.minimum


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Maximum(_Extreme):
    """Largest sample, minus infinity if there are none, nan if one is nan; and the number `n` of samples."""

    value: float = -math.inf
    _pick: ClassVar[np.ufunc] = np.maximum
