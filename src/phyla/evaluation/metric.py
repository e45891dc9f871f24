"""The contract of a metric: a statistic of samples that can be merged."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol, Self, get_args, get_origin, runtime_checkable

from phyla.errors import MetricMismatch, SamplesDiffer
from phyla.evaluation.samples import as_count
from phyla.records import Json, JsonObject, json_number, read_list, read_number, read_object


@runtime_checkable
class Metric(Protocol):
    """A statistic of some samples; the one of all samples follows from those of the parts.

    A plug-in is a frozen dataclass with these members. Merging is associative, up to rounding, and merging with
    the statistic of no samples changes nothing. nan and infinite samples count, and show in the result.

    Built-in metrics raise `MetricInvalid` for samples or fields that make no sense.
    """

    @property
    def count(self) -> int | None:
        """How many samples it has seen; None if it does not count samples."""
        ...

    def merge(self, other: Self) -> Self:
        """Return the metric of the samples of both.

        Raises:
            MetricMismatch: the other is of another type, or has other edges or labels.
        """
        ...

    def summary(self) -> Mapping[str, float]:
        """Return what it says in numbers: the metric itself under "", others under a suffix.

        Unknown numbers are left out. If "stderr" (standard error of the value under "") and "n" are among them,
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


class Stored:
    """The JSON of a metric whose fields are numbers, lists of numbers, or such metrics.

    The field `low` is the rounding error of another one. It is left out if it is 0.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        metric: Any = self
        for one in fields(metric):
            if one.type is int:
                as_count(getattr(self, one.name), f"{type(self).__name__}: {one.name}")

    def to_json(self) -> JsonObject:
        """Return its state as strict JSON."""
        metric: Any = self
        state = {one.name: _written(getattr(self, one.name)) for one in fields(metric)}
        return {name: value for name, value in state.items() if name != "low" or value}

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Return the metric that `to_json` wrote."""
        metric: Any = cls
        state = {"low": 0.0, **raw}
        made: Self = metric(**{one.name: _read(state[one.name], one.name, one.type) for one in fields(metric)})
        return made


def _written(value: Any) -> Json:
    if isinstance(value, Stored):
        return value.to_json()
    return [_written(item) for item in value] if isinstance(value, tuple) else json_number(value)


def _read(raw: Json, name: str, kind: Any) -> object:
    if kind is int:
        return as_count(raw, name)
    if get_origin(kind) is Sequence:
        return [_read(item, name, get_args(kind)[0]) for item in read_list(raw)]
    if isinstance(kind, type) and issubclass(kind, Stored):
        return kind.from_json(read_object(raw))
    return None if raw is None and kind is not float else read_number(raw)


def check_type(mine: object, other: object) -> None:
    """Raise `MetricMismatch` for metrics of two types."""
    if type(mine) is not type(other):
        raise MetricMismatch(
            f"a {type(mine).__name__} cannot be merged with a {type(other).__name__}; give each type its own name"
        )


def combine(name: str, first: Metric | None, second: Metric) -> Metric:
    """Merge two metrics of one name; None counts as a metric of no samples. `MetricMismatch` names the metric."""
    if first is None:
        return second
    try:
        check_type(first, second)
        return first.merge(second)
    except MetricMismatch as error:
        raise MetricMismatch(f"{name!r}: {error}") from None


def merged(shards: Sequence[Mapping[str, Metric]], *, expected: int | None) -> dict[str, Metric]:
    """Merge the statistics of shards, in their order.

    Args:
        shards: name to metric, per shard. All have the same names; only a shard without samples may lack some.
        expected: number of samples in all; each metric that counts samples must have seen as many. None if it
            is not known.

    Raises:
        MetricMismatch: the shards have different names, or types, edges or labels under one name.
        SamplesDiffer: a metric has seen another number of samples.
    """
    whole: dict[str, Metric] = {}
    for shard in shards:
        for name, metric in shard.items():
            whole[name] = combine(name, whole.get(name), metric)
    for index, shard in enumerate(shards):
        missing = [name for name in whole if name not in shard]
        if missing and any(metric.count != 0 for metric in shard.values()):
            raise MetricMismatch(
                f"shard {index} of {len(shards)} has no {', '.join(map(repr, missing))}, which other shards have, "
                f"but has {', '.join(map(repr, shard))}; record the same names in every shard"
            )
    if expected and not whole:
        raise SamplesDiffer(f"{expected} samples were expected, and nothing was recorded in {len(shards)} shards")
    for name, metric in whole.items():
        if expected is not None and metric.count not in (None, expected):
            counts = [str(shard[name].count if name in shard else "none") for shard in shards]
            listed = ", ".join(f"{index}: {count}" for index, count in enumerate(counts))
            few = metric.count is not None and metric.count < expected
            what = "were left out" if few else "were counted twice, or padding was counted"
            raise SamplesDiffer(
                f"{name!r} has counted {metric.count} samples of {expected} (by shard {listed}): some {what}"
            )
    return whole
