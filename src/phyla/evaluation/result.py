"""What the evaluation of one task gave."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from numpy.typing import NDArray

from phyla.errors import ConfigurationError, MetricInvalid, MetricMissing
from phyla.evaluation.metric import Metric
from phyla.evaluation.moments import is_per_seed
from phyla.records import JsonObject


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, nan if something it is made of is, and its standard error; None if that is not known."""

    value: float
    stderr: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of one task of a suite: what aggregators and comparisons see.

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
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ConfigurationError(
                f"task {self.task!r}: the weight must be finite and at least 0, got {self.weight!r}"
            )

    @property
    def values(self) -> dict[str, float]:
        """All numbers that the metrics say, by flat name; see `flat_values`."""
        return flat_values(self.metrics)

    def estimate(self, name: str) -> Estimate:
        """Return a metric, or another of the values, of which no standard error is known.

        Raises:
            MetricMissing: the task has no value of that name.
        """
        if name in self.metrics:
            summary = self.metrics[name].summary()
            return Estimate(summary[""], summary.get("stderr"))
        values = self.values
        if name not in values:
            raise MetricMissing(
                f"task {self.task!r} has no metric {name!r}; it has {', '.join(map(repr, values)) or 'none'}"
            )
        return Estimate(values[name])

    def has(self, name: str) -> bool:
        """Return whether `estimate` knows that name."""
        return name in self.metrics or name in self.values


def flat_values(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return all numbers that metrics say: `loss`, `loss_stderr`, `loss_n`.

    What is kept by seed is left out: the metric that it stands beside says the same.
    """
    values: dict[str, float] = {}
    origin: dict[str, str] = {}
    for name, metric in metrics.items():
        if is_per_seed(name):
            continue
        for suffix, value in metric.summary().items():
            flat = f"{name}_{suffix}" if suffix else name
            if flat in values:
                raise MetricInvalid(
                    f"{flat!r} is a value of both the metrics {origin[flat]!r} and {name!r}; rename one"
                )
            values[flat], origin[flat] = value, name
    return values
