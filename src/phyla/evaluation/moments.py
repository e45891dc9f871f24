"""Mean and variance of samples."""

import math
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from phyla.errors import ConfigurationError, MetricInvalid
from phyla.evaluation.double_double import two_sum
from phyla.evaluation.metric import check_type
from phyla.evaluation.samples import as_count, as_samples
from phyla.records import JsonObject, json_number, read_number


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
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

    Raises:
        MetricInvalid: a negative number of samples or sum of squares, or a mean of no samples.
    """

    n: int = 0
    mean: float = 0.0
    m2: float | None = 0.0
    low: float = 0.0

    def __post_init__(self) -> None:
        as_count(self.n, "Moments: n")
        if self.m2 is not None and self.m2 < 0:
            raise MetricInvalid(f"Moments: m2 is a sum of squares and cannot be {self.m2!r}")
        if self.n == 0 and (self.mean, self.m2, self.low) != (0, 0, 0):
            raise MetricInvalid(f"{self!r}: no samples have no mean; leave mean and m2 out")

    @classmethod
    def of(cls, values: object) -> Self:
        """Return the moments of an array-like of numbers, of any shape.

        Raises:
            MetricInvalid: it holds something else than real numbers.
        """
        samples = as_samples(values, "values").ravel()
        n = samples.size
        if n == 0:
            return cls()
        with np.errstate(all="ignore"):
            # About the mean, without overflow; what it lacks is found from the deviations.
            center = float((samples / n).sum())
            deviations = samples - center
            shift = float(deviations.sum()) / n
            if not math.isfinite(shift):
                return cls(n=n, mean=center, m2=_beyond(center))
            mean, low = two_sum(center, shift)
            return cls(n=n, mean=mean, m2=float(np.square(deviations - shift).sum()), low=low)

    @classmethod
    def of_mean(cls, mean: float, n: int) -> Self:
        """Return the moments of n samples of which only the mean is known; the variance is unknown if n > 1."""
        return cls() if n == 0 else cls(n=n, mean=mean, m2=_beyond(mean, 0.0) if n == 1 else None)

    @property
    def count(self) -> int:
        """How many samples it has seen."""
        return self.n

    @property
    def variance(self) -> float | None:
        """Unbiased variance of the samples; None below 2 samples or if it is unknown."""
        return None if self.m2 is None or self.n < 2 else self.m2 / (self.n - 1)

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean; None below 2 samples or if it is unknown."""
        return None if (variance := self.variance) is None else math.sqrt(variance / self.n)

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Return a confidence interval of the mean by Student's t, for independent samples.

        Args:
            level: probability, in (0, 1), with which such an interval covers the true mean.

        Returns:
            Lower and upper end; None below 2 samples or if the variance is unknown.

        Raises:
            ConfigurationError: the level is out of range.
        """
        if not 0 < level < 1:
            raise ConfigurationError(f"interval({level!r}): the level lies between 0 and 1, as in 0.95")
        if (stderr := self.stderr) is None:
            return None
        from scipy.special import stdtrit

        margin = float(stdtrit(self.n - 1, 0.5 + level / 2)) * stderr
        return self.mean - margin, self.mean + margin

    def merge(self, other: Self) -> Self:
        """Return the moments of the samples of both.

        Raises:
            MetricMismatch: the other is of another type.
        """
        check_type(self, other)
        if self.n == 0 or other.n == 0:
            return other if self.n == 0 else self
        n = self.n + other.n
        share = other.n / n
        delta, rest = two_sum(other.mean, -self.mean)
        if not math.isfinite(delta):
            mean = self.mean * (self.n / n) + other.mean * share
            unknown = self.m2 is None or other.m2 is None
            return type(self)(n=n, mean=mean, m2=None if unknown else _beyond(mean))
        delta += rest + (other.low - self.low)
        mean, low = two_sum(self.mean, delta * share)
        mean, low = two_sum(mean, low + self.low)
        if self.m2 is None or other.m2 is None:
            return type(self)(n=n, mean=mean, m2=None, low=low)
        m2 = self.m2 + other.m2 + delta * delta * (self.n * share)
        return type(self)(n=n, mean=mean, m2=m2, low=low)

    def summary(self) -> dict[str, float]:
        """Return the mean, "stderr" if it is known, and "n"; the mean of no samples is nan."""
        known = {} if (stderr := self.stderr) is None else {"stderr": stderr}
        return {"": self.mean if self.n else math.nan, **known, "n": float(self.n)}

    def to_json(self) -> JsonObject:
        """Return its state as strict JSON."""
        low = {"low": self.low} if self.low else {}
        return {"n": self.n, "mean": json_number(self.mean), "m2": json_number(self.m2), **low}

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Return the moments that `to_json` wrote."""
        return cls(
            n=as_count(raw["n"], "n"),
            mean=read_number(raw["mean"]),
            m2=None if raw["m2"] is None else read_number(raw["m2"]),
            low=read_number(raw.get("low", 0.0)),
        )


def _beyond(mean: float, finite: float = math.inf) -> float:
    """Return the sum of squares where floats do not hold it: nan around a mean that is not finite."""
    return finite if math.isfinite(mean) else math.nan
