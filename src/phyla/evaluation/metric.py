"""The contract of a metric: a statistic of samples that can be merged."""

from collections.abc import Mapping
from typing import Protocol, Self, runtime_checkable

from phyla.errors import MetricMismatch
from phyla.records import JsonObject


@runtime_checkable
class Metric(Protocol):
    """A statistic of some samples; the one of all samples follows from those of the parts.

    A plug-in is a frozen dataclass with these members. Merging is associative, up to rounding; the statistic of
    no samples is neutral. nan and infinite samples count and show in the result.
    """

    @property
    def count(self) -> int | None:
        """How many samples it has seen; None if it does not count samples."""
        ...

    def merge(self, other: Self) -> Self:
        """Return the metric of the samples of both.

        Raises:
            MetricMismatch: the other is of another type, or of other edges or labels.
        """
        ...

    def summary(self) -> Mapping[str, float]:
        """Return what it says in numbers: the metric itself under "", others under a suffix.

        What is not known is left out. If "stderr" (standard error of the value under "") and "n" are among them,
        two evaluations can be compared by Welch's test.
        """
        ...

    def to_json(self) -> JsonObject:
        """Return its state as strict JSON; see `phyla.records.json_number` for nan."""
        ...

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Return the metric that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError, MetricInvalid: it is not what `to_json` writes.
        """
        ...


def check_type(mine: object, other: object) -> None:
    """Refuse to merge metrics of two types.

    Raises:
        MetricMismatch: the types differ.
    """
    if type(mine) is not type(other):
        raise MetricMismatch(
            f"a {type(mine).__name__} cannot be merged with a {type(other).__name__}; "
            "use one name for one type of metric"
        )


def combine(name: str, first: Metric, second: Metric) -> Metric:
    """Merge two metrics of one name.

    Raises:
        MetricMismatch: they cannot be merged; the message has the name.
    """
    try:
        check_type(first, second)
        return first.merge(second)
    except MetricMismatch as error:
        raise MetricMismatch(f"{name!r}: {error}") from None
