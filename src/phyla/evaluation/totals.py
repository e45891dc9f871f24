"""Sum of samples, and perplexity: totals that are kept to twice the precision of a float."""

import math
from dataclasses import dataclass
from typing import Self, final

from phyla.evaluation.metric import Stored, check_type
from phyla.evaluation.samples import as_count, as_samples, exact_sum


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sum(Stored):
    """Sum of samples.

    Attributes:
        total: their sum; 0 if there are none.
        n: number of samples.
        low: rounding error of `total`: the sum is `total + low`.

    Raises:
        MetricInvalid: a negative number of samples.
    """

    total: float = 0.0
    n: int = 0
    low: float = 0.0

    def __post_init__(self) -> None:
        as_count(self.n, "Sum: n")

    @classmethod
    def of(cls, values: object) -> Self:
        """Return the sum of an array-like of numbers, of any shape.

        Raises:
            MetricInvalid: it holds something other than real numbers.
        """
        samples = as_samples(values, "values").ravel()
        total, low = exact_sum(samples.tolist())
        return cls(total=total, n=samples.size, low=low)

    @property
    def count(self) -> int:
        """How many samples it has seen."""
        return self.n

    def merge(self, other: Self) -> Self:
        """Return the sum of the samples of both."""
        check_type(self, other)
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

    Raises:
        MetricInvalid: a negative number of tokens.
    """

    nll: float = 0.0
    tokens: int = 0
    low: float = 0.0

    def __post_init__(self) -> None:
        as_count(self.tokens, "Perplexity: tokens")

    @classmethod
    def of(cls, nll: object) -> Self:
        """Return the perplexity of an array-like of negative log-likelihoods, one per token, in nats.

        Raises:
            MetricInvalid: it holds something other than real numbers.
        """
        samples = as_samples(nll, "nll").ravel()
        total, low = exact_sum(samples.tolist())
        return cls(nll=total, tokens=samples.size, low=low)

    @property
    def count(self) -> None:
        """None: it counts tokens."""
        return None

    def merge(self, other: Self) -> Self:
        """Return the perplexity of the tokens of both."""
        check_type(self, other)
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
