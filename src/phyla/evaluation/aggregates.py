"""Aggregates: from the results of the eval tasks of a suite to the numbers of the suite."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray

from phyla.errors import ConfigurationError, MetricInvalid, MetricMissing
from phyla.evaluation.metric import Metric, as_number, exact_sum
from phyla.evaluation.statistics import is_per_seed
from phyla.records import JsonObject
from phyla.validation import check


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, nan if something it is made of is, and its standard error; None if that is not known."""

    value: float
    stderr: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of one eval task of a suite: what aggregates and comparisons see.

    Attributes:
        task: its name, unique in the suite.
        tags: names of the groups it belongs to.
        weight: how much it weighs in weighted means; finite, at least 0.
        metrics: merged statistics by name.
        arrays: by name, one array per shard; read only when it is looked at, where it is stored.
    """

    task: str
    config: JsonObject = field(default_factory=dict)
    tags: Sequence[str] = ()
    weight: float = 1.0
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    arrays: Mapping[str, Sequence[NDArray[Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", tuple(self.tags))
        check(self, weight="[0, inf)")

    @property
    def values(self) -> dict[str, float]:
        """All numbers that the metrics say, by flat name: `loss`, `loss_stderr`, `loss_n`."""
        values: dict[str, float] = {}
        origin: dict[str, str] = {}
        for name, suffix, number in numbers(self.metrics):
            flat = f"{name}_{suffix}" if suffix else name
            if flat in values:
                raise MetricInvalid(
                    f"{flat!r} is a value of both the metrics {origin[flat]!r} and {name!r}; rename one"
                )
            values[flat], origin[flat] = number.value, name
        return values

    def estimate(self, name: str) -> Estimate:
        """Return a metric, or another of the values, of which no standard error is known.

        Raises:
            MetricMissing: the task has no value of that name.
        """
        if name in self.metrics:
            summary = self.metrics[name].summary()
            return _estimate(f"metric {name!r}", summary[""], summary.get("stderr"))
        values = self.values
        if name not in values:
            raise MetricMissing(f"task {self.task!r} has no metric {name!r}; it has {_join_names(values)}")
        return Estimate(values[name])

    def has(self, name: str) -> bool:
        """Return whether `estimate` knows that name."""
        return name in self.metrics or name in self.values


def numbers(metrics: Mapping[str, Metric]) -> Iterator[tuple[str, str, Estimate]]:
    """Yield metric, suffix and number of all metrics; those by seed repeat the ones beside them."""
    for name, metric in metrics.items():
        if not is_per_seed(name):
            summary = metric.summary()
            for suffix, value in summary.items():
                label = f"{suffix!r} of metric {name!r}" if suffix else f"metric {name!r}"
                yield name, suffix, _estimate(label, value, None if suffix else summary.get("stderr"))


class Aggregator(Protocol):
    """Turns the results of eval tasks into numbers by name.

    A plug-in is a frozen dataclass, or a function. If it has a property `aggregate_names`, the names of its
    numbers, an objective that names another number is rejected before anything runs. Those built in raise
    `ConfigurationError` for arguments that make no sense, or that do not fit the tasks.
    """

    def __call__(self, results: Sequence[TaskResult], /) -> Mapping[str, float | Estimate]:
        """Return the numbers; the results are in the order of the suite."""
        ...


class _OverTasks(ABC):
    """An aggregate of one metric over all tasks, or over those with a tag."""

    __slots__ = ()

    metric: str
    tag: str | None

    @property
    def aggregate_names(self) -> tuple[str, ...]:
        where = self.metric if self.tag is None else f"{self.tag}/{self.metric}"
        return (f"{where}_{self._suffix}",)

    def __call__(self, results: Sequence[TaskResult], /) -> dict[str, Estimate]:
        selected = [result for result in results if self.tag is None or self.tag in result.tags]
        if not selected:
            tags = _join_names(dict.fromkeys(tag for result in results for tag in result.tags))
            why = f"no task has the tag {self.tag!r}; the tags are {tags}" if results else "there are no tasks"
            raise ConfigurationError(f"{self!r}: {why}")
        missing = [result.task for result in selected if not result.has(self.metric)]
        if missing:
            names = _join_names(dict.fromkeys(name for result in selected for name in result.values))
            raise MetricMissing(
                f"{self!r} needs {self.metric!r}, which {_join_names(missing)} did not record; there are {names}"
            )
        number = self._number(selected, [result.estimate(self.metric) for result in selected])
        return dict.fromkeys(self.aggregate_names, number)

    @property
    @abstractmethod
    def _suffix(self) -> str: ...

    @abstractmethod
    def _number(self, tasks: Sequence[TaskResult], estimates: Sequence[Estimate]) -> Estimate: ...


@final
@dataclass(frozen=True, slots=True)
class Mean(_OverTasks):
    """Mean of a metric over tasks, as `<metric>_mean`.

    Its standard error is known if those of all tasks are. It assumes that the errors of tasks are independent:
    if they share samples or seeds, the true error may be larger.

    Args:
        metric: its name, or that of another of the tasks' values.
        tag: only over the tasks with this tag, as `<tag>/<metric>_mean`.
    """

    metric: str
    tag: str | None = None
    _suffix = "mean"

    def _number(self, tasks: Sequence[TaskResult], estimates: Sequence[Estimate]) -> Estimate:
        return _mean(estimates)


@final
@dataclass(frozen=True, slots=True)
class WeightedMean(_OverTasks):
    """Mean of a metric over tasks by their weights, as `<metric>_weighted`; see `Mean`."""

    metric: str
    tag: str | None = None
    _suffix = "weighted"

    def _number(self, tasks: Sequence[TaskResult], estimates: Sequence[Estimate]) -> Estimate:
        weights = [task.weight for task in tasks]
        if sum(weights) == 0:
            raise ConfigurationError(f"{self!r}: all tasks have weight 0; give at least one a weight")
        return _mean(estimates, weights)


@final
@dataclass(frozen=True, slots=True)
class Worst(_OverTasks):
    """The worst value of a metric among tasks, as `<metric>_min` or `<metric>_max`; nan if one is nan.

    It has no standard error: that of its task would understate it.

    Args:
        metric: its name, or that of another of the tasks' values.
        of: "min" where higher values are better, "max" where lower ones are.
        tag: only among the tasks with this tag, as `<tag>/<metric>_min`.
    """

    metric: str
    of: Literal["min", "max"] = "min"
    tag: str | None = None

    def __post_init__(self) -> None:
        check(self, of=("min", "max"))

    @property
    def _suffix(self) -> str:
        return self.of

    def _number(self, tasks: Sequence[TaskResult], estimates: Sequence[Estimate]) -> Estimate:
        values = [estimate.value for estimate in estimates]
        # numpy's, unlike Python's, give nan wherever it stands.
        return Estimate(float(np.min(values) if self.of == "min" else np.max(values)))


def aggregate(aggregators: Sequence[Aggregator], results: Sequence[TaskResult]) -> dict[str, Estimate]:
    """Return the numbers of a suite, from one result per task; no two may have one name.

    Without aggregators: the mean of every metric over all tasks that have it, and over those with each tag.
    """
    numbers: dict[str, Estimate] = {}
    origin: dict[str, Aggregator] = {}
    for aggregator, seen in [(aggregator, results) for aggregator in aggregators] or _means(results):
        given = aggregator(seen)
        if not hasattr(given, "items") or not all(isinstance(name, str) for name, _ in given.items()):
            raise MetricInvalid(
                f"the aggregate {_name(aggregator)} returned {given!r}; it must return its numbers by name"
            )
        for name, value in given.items():
            if name in numbers:
                raise ConfigurationError(
                    f"{name!r} is given by both {_name(origin[name])} and {_name(aggregator)}; "
                    "leave one out, or rename one"
                )
            pair = (value.value, value.stderr) if isinstance(value, Estimate) else (value, None)
            numbers[name] = _estimate(f"aggregate {name!r}", *pair)
            origin[name] = aggregator
    return numbers


def percentiles(values: Sequence[float], which: Sequence[float]) -> list[float]:
    """Return percentiles, interpolated linearly; nan if a value is nan."""
    with np.errstate(all="ignore"):
        return [float(percentile) for percentile in np.percentile(values, which)]


def _means(results: Sequence[TaskResult]) -> list[tuple[Aggregator, Sequence[TaskResult]]]:
    names = dict.fromkeys(name for result in results for name in result.metrics if not is_per_seed(name))
    means: list[tuple[Aggregator, Sequence[TaskResult]]] = []
    for name in names:
        having = [result for result in results if name in result.metrics]
        tags = dict.fromkeys(tag for result in having for tag in result.tags)
        means += [(Mean(name, tag), having) for tag in (None, *tags)]
    return means


def _mean(estimates: Sequence[Estimate], weights: Sequence[float] | None = None) -> Estimate:
    weights = weights or [1.0] * len(estimates)
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    value, _ = exact_sum([share * estimate.value for share, estimate in zip(shares, estimates, strict=True)])
    errors = [estimate.stderr for estimate in estimates]
    known = [share * error for share, error in zip(shares, errors, strict=True) if error is not None]
    return Estimate(value, math.hypot(*known) if len(known) == len(errors) else None)


def _name(aggregator: Aggregator) -> str:
    """Return the name of a function, which is the same in all processes, or what a plug-in prints."""
    return str(getattr(aggregator, "__qualname__", repr(aggregator)))


def _estimate(label: str, value: object, stderr: object) -> Estimate:
    """Return what a user's code gave, as floats: stored results must be readable."""
    number, error = as_number(value, label), None if stderr is None else as_number(stderr, label)
    if number is None or (error is None and stderr is not None):
        wrong = f"{label} is {value!r}" if number is None else f"the standard error of {label} is {stderr!r}"
        raise MetricInvalid(f"{wrong}; give a number")
    return Estimate(number, error)


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
