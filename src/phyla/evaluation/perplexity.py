"""Perplexity of a language model."""

import math
from dataclasses import dataclass
from typing import Self, final

from phyla.evaluation import double_double
from phyla.evaluation.metric import check_type
from phyla.evaluation.samples import as_count, as_samples
from phyla.records import JsonObject, json_number, read_number


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """Exponential of the mean negative log-likelihood of tokens.

    Tokens weigh alike, whatever text or batch they are in. It counts tokens, not samples.

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
            MetricInvalid: it holds something else than real numbers.
        """
        samples = as_samples(nll, "nll").ravel()
        total, low = double_double.total(samples)
        return cls(nll=total, tokens=samples.size, low=low)

    @property
    def count(self) -> None:
        """None: it counts tokens."""
        return None

    def merge(self, other: Self) -> Self:
        """Return the perplexity of the tokens of both.

        Raises:
            MetricMismatch: the other is of another type.
        """
        check_type(self, other)
        nll, low = double_double.add((self.nll, self.low), (other.nll, other.low))
        return type(self)(nll=nll, tokens=self.tokens + other.tokens, low=low)

    def summary(self) -> dict[str, float]:
        """Return the perplexity, "nll" (nats per token) and "tokens"; nan of no tokens, inf beyond a float."""
        per_token = self.nll / self.tokens if self.tokens else math.nan
        try:
            value = math.exp(per_token)
        except OverflowError:
            value = math.inf
        return {"": value, "nll": per_token, "tokens": float(self.tokens)}

    def to_json(self) -> JsonObject:
        """Return its state as strict JSON."""
        low = {"low": self.low} if self.low else {}
        return {"nll": json_number(self.nll), "tokens": self.tokens, **low}

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Return the perplexity that `to_json` wrote."""
        low = read_number(raw.get("low", 0.0))
        return cls(nll=read_number(raw["nll"]), tokens=as_count(raw["tokens"], "tokens"), low=low)
