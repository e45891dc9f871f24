"""The values of the harness's groups of tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from phyla.evaluation import Estimate, TaskResult
from phyla.evaluation.aggregates import aggregate
from phyla.integrations.harness_results import metric_name
from phyla.records import JsonObject

Groups: TypeAlias = Mapping[str, JsonObject]
"""By name: the tasks of a group of the harness, and the metrics that it aggregates."""


@final
@dataclass(frozen=True, slots=True)
class GroupMeans:
    """The usual means over eval tasks, and the values of the harness's groups, as `<group>/<metric>`."""

    groups: Groups

    def __call__(self, results: Sequence[TaskResult], /) -> dict[str, Estimate]:
        """Return the numbers; a group lacks a metric that one of its tasks lacks."""
        numbers: dict[str, Estimate] = aggregate((), results)
        by_task: dict[Any, TaskResult] = {result.config["task"]: result for result in results}
        for group, described in self.groups.items():
            tasks: Any = described["tasks"]
            members = [by_task[task] for task in tasks if task in by_task]
            metrics: Any = described["metrics"]
            for metric in metrics:
                for name in _names_of(metric, members):
                    having = [member for member in members if name in member.metrics]
                    numbers[f"{group}/{name}"] = _group_estimate(name, having, metric["weight_by_size"])
        return numbers


def _names_of(metric: Mapping[str, Any], members: Sequence[TaskResult]) -> list[str]:
    filters = metric["filters"]
    if filters is not None:
        names = [metric_name(metric["metric"], chosen) for chosen in filters]
    else:
        names = list(dict.fromkeys(name for member in members for name in member.metrics))
        names = [name for name in names if name.partition(",")[0] == metric["metric"]]
    return [name for name in names if any(name in member.metrics for member in members)]


def _group_estimate(name: str, members: Sequence[TaskResult], by_size: bool) -> Estimate:
    """Return the value of a group and its standard error, by the harness's own formulas."""
    from lm_eval.api.metrics import aggregate_subtask_metrics, pooled_sample_stderr, unweighted_mean_stderr

    estimates = [member.estimate(name) for member in members]
    sizes = [member.metrics[name].count or 0 for member in members]
    value = float(aggregate_subtask_metrics([estimate.value for estimate in estimates], sizes, by_size))
    errors = [estimate.stderr for estimate in estimates if estimate.stderr is not None]
    if len(errors) < len(estimates):
        return Estimate(value)
    return Estimate(
        value, float(pooled_sample_stderr(errors, sizes) if by_size else unweighted_mean_stderr(errors))
    )
