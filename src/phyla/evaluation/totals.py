"""Sum of samples."""

from dataclasses import dataclass
from typing import Self, final

from phyla.evaluation import double_double
from phyla.evaluation.metric import check_type
from phyla.evaluation.samples import as_count, as_samples
from phyla.records import JsonObject, json_number, read_number


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Sum of samples, kept to twice the precision of a float.

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
            MetricInvalid: it holds something else than real numbers.
        """
        samples = as_samples(values, "values").ravel()
        total, low = double_double.total(samples)
        return cls(total=total, n=samples.size, low=low)

    @property
    def count(self) -> int:
        """How many samples it has seen."""
        return self.n

    def merge(self, other: Self) -> Self:
        """Return the sum of the samples of both.

        Raises:
            MetricMismatch: the other is of another type.
        """
        check_type(self, other)
        total, low = double_double.add((self.total, self.low), (other.total, other.low))
        return type(self)(total=total, n=self.n + other.n, low=low)

    def summary(self) -> dict[str, float]:
        """Return the sum, and "n"."""
        return {"": self.total, "n": float(self.n)}

    def to_json(self) -> JsonObject:
        """Return its state as strict JSON."""
        low = {"low": self.low} if self.low else {}
        return {"total": json_number(self.total), "n": self.n, **low}

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Return the sum that `to_json` wrote."""
        low = read_number(raw.get("low", 0.0))
        return cls(total=read_number(raw["total"]), n=as_count(raw["n"], "n"), low=low)
