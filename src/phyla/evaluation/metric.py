"""The contract of a metric: a statistic of samples that can be merged; and what samples may be."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from types import NoneType
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from phyla.errors import MetricInvalid, MetricMismatch
from phyla.records import Json, JsonObject, json_number, read_number


@runtime_checkable
class Metric(Protocol):
    """A statistic of some samples; the one of all samples follows from those of the parts.

    A plug-in is a frozen dataclass with these members. Merging is associative, up to rounding, and merging with
    the statistic of no samples changes nothing. nan and infinite samples count, and show in the result.

    Built-in metrics raise `MetricInvalid` for invalid samples or fields.
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
    """A metric whose fields are numbers: what built-in ones share.

    The field `n`, if there is one, counts the samples. The field `low` is the rounding error of another one; it is
    not stored if it is 0.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        metric: Any = self
        for field in fields(metric):
            value = getattr(self, field.name)
            if field.type is int:
                as_count(value, f"{type(self).__name__}: {field.name}")
            elif not isinstance(value, (float, Real) if field.type is float else (float, Real, NoneType)):
                raise MetricInvalid(f"{type(self).__name__}: {field.name} must be a number, got {value!r}")

    @property
    def count(self) -> int | None:
        """How many samples it has seen; None if it does not count samples."""
        count: int | None = getattr(self, "n", None)
        return count

    def merge(self, other: Self) -> Self:
        """Return the metric of the samples of both, which must be of one type."""
        check_type(self, other)
        return self._merge_fields(other)

    def _merge_fields(self, other: Self) -> Self:
        raise NotImplementedError

    def to_json(self) -> JsonObject:
        """Return its state as strict JSON."""
        metric: Any = self
        state = {field.name: json_number(getattr(self, field.name)) for field in fields(metric)}
        return {name: value for name, value in state.items() if name != "low" or value}

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Return the metric that `to_json` wrote."""
        metric: Any = cls
        state = {"low": 0.0, **raw}
        instance: Self = metric(
            **{field.name: _read(state[field.name], field.name, field.type) for field in fields(metric)}
        )
        return instance


def _read(raw: Json, name: str, kind: Any) -> object:
    if kind is int:
        return as_count(raw, name)
    return None if raw is None and kind is not float else read_number(raw)


def check_type(mine: object, other: object) -> None:
    """Raise `MetricMismatch` for metrics of two types."""
    if type(mine) is not type(other):
        raise MetricMismatch(
            f"a {type(mine).__name__} cannot be merged with a {type(other).__name__}; give each type its own name"
        )


def as_count(value: object, label: str) -> int:
    """Return a count as an int."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 0:
        raise MetricInvalid(f"{label} must be an integer of at least 0, got {value!r}")
    return int(value)


def as_number(value: object, label: str) -> float | None:
    """Return a number of any library, or an array without dimensions, as a float; None if it may be an array."""
    if not isinstance(value, Real | np.bool_):
        item = getattr(value, "item", None)
        if not callable(item) or getattr(value, "ndim", 0) != 0:
            return None
        inner = item()
        if not isinstance(inner, Real | np.bool_):
            raise MetricInvalid(
                f"{label} is {value!r}, which is not a number; give a number, an array of numbers or a metric"
            )
        value = inner
    try:
        return float(value)
    except OverflowError:
        raise MetricInvalid(f"{label} must fit in a float, got {value!r}") from None


def as_samples(values: object, label: str) -> NDArray[np.float64]:
    """Return an array-like of real numbers as an array of floats of the same shape."""
    array = as_array(values, label)
    # Low-precision floats of some libraries are foreign types to numpy, which convert.
    foreign = array.dtype.kind == "V" and array.dtype.names is None
    if array.dtype.kind not in "biuf" and not foreign:
        kind = type(values).__name__
        raise MetricInvalid(f"{label} is {values!r}, a {kind}; give a number, an array of numbers or a metric")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise MetricInvalid(f"{label} holds {array.dtype} values, which are not real numbers: {error}") from None


def as_array(values: object, label: str) -> NDArray[Any]:
    """Return an array-like as a numpy array."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MetricInvalid(
            f"{label} is a {type(values).__name__} that numpy cannot read: {error}; give numbers of equal shape, "
            "for a tensor tensor.detach().float().cpu()"
        ) from None


def exact_sum(values: Sequence[float]) -> tuple[float, float]:
    """Return a sum and its rounding error, 0 if it is not finite: sums do not depend on how they are split."""
    try:
        total = math.fsum(values)
        return total, math.fsum([*values, -total]) if math.isfinite(total) else 0.0
    except (OverflowError, ValueError):
        # A partial sum is too large for a float, or infinities of both signs make it nan.
        with np.errstate(all="ignore"):
            return float(np.sum(values)), 0.0
