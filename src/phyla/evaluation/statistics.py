"""Statistics of samples: moments, also by the seed of the samples, totals and extremes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar, Self, final

import numpy as np

from phyla.errors import MetricInvalid
from phyla.evaluation.metric import Stored, as_count, as_samples, exact_sum
from phyla.records import Json, JsonObject, json_number, read_list

SUFFIX = "@seed"
_OF_ONE_SAMPLE: Mapping[str, float] = {"n": 1, "m2": 0.0, "low": 0.0}
"""What moments of one sample are, besides its value."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Moments(Stored):
    """Number, mean and sum of squared deviations of samples.

    Merging is that of Chan, Golub and LeVeque 1979 (Updating formulae and a pairwise algorithm for computing
    sample variances, equations 2.1a and b), with the mean kept to twice the precision of a float: then the
    variance is right to rounding even where the mean is 1e6 times the standard deviation and samples come
    one by one.

    Attributes:
        n: number of samples.
        mean: their mean; 0 if there are none.
        m2: sum of squared deviations from the mean; None if it is unknown, since only means were given.
        low: rounding error of `mean`: the mean is `mean + low`.
    """

    n: int = 0
    mean: float = 0.0
    m2: float | None = 0.0
    low: float = 0.0

    def __post_init__(self) -> None:
        Stored.__post_init__(self)
        if self.m2 is not None and self.m2 < 0:
            raise MetricInvalid(f"Moments: m2 is a sum of squares and cannot be {self.m2!r}")
        if self.n == 0 and (self.mean, self.m2, self.low) != (0, 0, 0):
            raise MetricInvalid(f"{self!r}: no samples have no mean; leave mean and m2 out")

    @classmethod
    def of(cls, values: object) -> Self:
        """Return the moments of an array-like of real numbers, of any shape."""
        samples = as_samples(values, "values").ravel()
        n = samples.size
        if n == 0:
            return cls()
        with np.errstate(all="ignore"):
            # An approximate mean, without overflow; the deviations give its correction.
            center = float((samples / n).sum())
            deviations = samples - center
            shift = float(deviations.sum()) / n
            if not math.isfinite(shift):
                return cls(n=n, mean=center, m2=_overflown(center))
            mean, low = exact_sum([center, shift])
            return cls(n=n, mean=mean, m2=float(np.square(deviations - shift).sum()), low=low)

    @classmethod
    def of_mean(cls, mean: float, n: int, stderr: float | None = None) -> Self:
        """Return the moments of n samples by their mean and its standard error.

        Without a standard error the variance is unknown; that of one sample is 0.
        """
        if n <= 1:
            return cls() if n == 0 else cls(n=1, mean=mean, m2=0.0 if math.isfinite(mean) else math.nan)
        return cls(n=n, mean=mean, m2=None if stderr is None else stderr * stderr * n * (n - 1))

    @property
    def variance(self) -> float | None:
        """Unbiased variance of the samples; None below 2 samples or if it is unknown."""
        return None if self.m2 is None or self.n < 2 else self.m2 / (self.n - 1)

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean; None below 2 samples or if it is unknown."""
        return None if (variance := self.variance) is None else math.sqrt(variance / self.n)

    def _merge_fields(self, other: Self) -> Self:
        if self.n == 0 or other.n == 0:
            return other if self.n == 0 else self
        n = self.n + other.n
        share = other.n / n
        delta, rest = exact_sum([other.mean, -self.mean])
        if not math.isfinite(delta):
            mean = self.mean * (self.n / n) + other.mean * share
            unknown = self.m2 is None or other.m2 is None
            return type(self)(n=n, mean=mean, m2=None if unknown else _overflown(mean))
        delta += rest + (other.low - self.low)
        mean, low = exact_sum([self.mean, self.low, delta * share])
        m2 = None
        if self.m2 is not None and other.m2 is not None:
            m2 = self.m2 + other.m2 + delta * delta * (self.n * share)
        return type(self)(n=n, mean=mean, m2=m2, low=low)

    def summary(self) -> dict[str, float]:
        """Return the mean, "stderr" if it is known, and "n"; the mean of no samples is nan."""
        known = {} if (stderr := self.stderr) is None else {"stderr": stderr}
        return {"": self.mean if self.n else math.nan, **known, "n": float(self.n)}


def _overflown(mean: float) -> float:
    """Return the sum of squares where floats do not hold it: nan around a mean that is not finite."""
    return math.inf if math.isfinite(mean) else math.nan


def per_seed(name: str) -> str:
    """Return the name under which a recorder keeps a metric by seed, as `return@seed`."""
    return name + SUFFIX


def is_per_seed(name: str) -> bool:
    """Return whether a name is one that `per_seed` gives."""
    return name.endswith(SUFFIX)


@final
@dataclass(frozen=True, slots=True)
class PerSeed(Stored):
    """Moments of samples by seed, so that two evaluations can be compared seed by seed.

    It counts no samples: the metric that it stands beside does. `seeds` is in the order of the seeds, which are
    integers of at least 0.
    """

    seeds: Mapping[int, Moments] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seeds = {as_count(seed, "a seed"): moments for seed, moments in self.seeds.items()}
        for wrong in (moments for moments in seeds.values() if not isinstance(moments, Moments)):
            raise MetricInvalid(f"PerSeed: give Moments for each seed, such as Moments.of([0.3]), not {wrong!r}")
        object.__setattr__(self, "seeds", dict(sorted(seeds.items())))

    def _merge_fields(self, other: Self) -> Self:
        both = {**self.seeds, **other.seeds}
        for seed in self.seeds.keys() & other.seeds.keys():
            both[seed] = self.seeds[seed].merge(other.seeds[seed])
        return type(self)(both)

    def summary(self) -> dict[str, float]:
        """Return the mean over the seeds of their means, "stderr" if it is known, and "n", the number of seeds."""
        known = (moments for moments in self.seeds.values() if moments.n)
        means = (Moments(n=1, mean=moments.mean, low=moments.low) for moments in known)
        return reduce(Moments.merge, means, Moments()).summary()

    def to_json(self) -> JsonObject:
        """Return its state as strict JSON: one list per field, without those that are as for single samples."""
        all_moments = list(self.seeds.values())
        columns: dict[str, Json] = {
            "seed": list(self.seeds),
            "mean": [json_number(moments.mean) for moments in all_moments],
        }
        for name, usual in _OF_ONE_SAMPLE.items():
            if any(getattr(moments, name) != usual for moments in all_moments):
                columns[name] = [json_number(getattr(moments, name)) for moments in all_moments]
        return columns

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Return the moments by seed that `to_json` wrote."""
        seeds = [as_count(seed, "a seed") for seed in read_list(raw["seed"])]
        columns = {
            "mean": raw["mean"],
            **{name: raw.get(name, [usual] * len(seeds)) for name, usual in _OF_ONE_SAMPLE.items()},
        }
        rows = zip(*map(read_list, columns.values()), strict=True)
        all_moments = (Moments.from_json(dict(zip(columns, row, strict=True))) for row in rows)
        return cls(dict(zip(seeds, all_moments, strict=True)))


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

    def _merge_fields(self, other: Self) -> Self:
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

    def _merge_fields(self, other: Self) -> Self:
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

    def _merge_fields(self, other: Self) -> Self:
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
