"""Whether a checkpoint is worse than another, task by task."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

from phyla.errors import ConfigurationError
from phyla.evaluation.metric import Metric
from phyla.evaluation.moments import PerSeed, per_seed
from phyla.evaluation.result import TaskResult
from phyla.significance import holm, paired, welch

Test: TypeAlias = Literal["paired", "welch", "finite"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What comparing two checkpoints on one task gave.

    Attributes:
        test: "paired" (t-test seed by seed), "welch", or "finite": the current value is nan or infinite where
            the reference is a number, which needs no test. None if it could not be tested.
        current: the current value; None if there is none. In a paired test the mean over the common seeds.
        reference: the reference, likewise.
        p: probability, in [0, 1], of so bad a difference if there were none; None if it could not be tested.
        p_adjusted: the same, adjusted by Holm for the number of tasks tested.
        regressed: whether the current value is significantly worse.
        untested: why it could not be tested; None if it was.
    """

    task: str
    test: Test | None = None
    current: float | None = None
    reference: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    regressed: bool = False
    untested: str | None = None

    @property
    def difference(self) -> float | None:
        """Current - reference; None if one of them is."""
        return None if self.current is None or self.reference is None else self.current - self.reference


def compare(
    current: Sequence[TaskResult],
    reference: Sequence[TaskResult],
    *,
    metric: str,
    higher_is_better: bool,
    alpha: float = 0.05,
) -> tuple[Comparison, ...]:
    """Test on each task whether the current checkpoint is worse than a reference.

    Where both were recorded with at least 2 common seeds it is a paired t-test over the seeds' means, else
    Welch's t-test. Both are one-sided, and their p is adjusted by Holm over the tasks that were tested. Samples
    that do not vary decide by their difference alone: p is 0 if it is bad, else 1.

    Args:
        current: results of the checkpoint in question.
        reference: results of the one it is compared with.
        metric: name of the metric to compare.
        higher_is_better: whether high values of it are good.
        alpha: probability, in (0, 1), of at least one false alarm among all tasks.

    Returns:
        One comparison per task: those of `current` in their order, then those that only the reference has.
    """
    if not 0 < alpha < 1:
        raise ConfigurationError(
            f"compare(alpha={alpha!r}): a level of significance lies between 0 and 1, as in 0.05"
        )
    now, before = _by_task(current, "current"), _by_task(reference, "reference")
    compared = [
        _compared(task, now.get(task), before.get(task), metric, higher_is_better) for task in {**now, **before}
    ]
    adjusted = iter(holm([one.p for one in compared if one.p is not None]))
    return tuple(
        one if one.p is None else replace(one, p_adjusted=(p := next(adjusted)), regressed=p < alpha)
        for one in compared
    )


def _by_task(results: Sequence[TaskResult], which: str) -> Mapping[str, TaskResult]:
    tasks = {result.task: result for result in results}
    if len(tasks) != len(results):
        names = [result.task for result in results]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"compare(): task {twice!r} appears twice in {which}; give one result per task")
    return tasks


def _compared(
    task: str, current: TaskResult | None, reference: TaskResult | None, metric: str, higher_is_better: bool
) -> Comparison:
    if current is None or reference is None:
        which = "current" if current is None else "reference"
        return Comparison(task=task, untested=f"the {which} results do not have this task")
    for result, which in ((current, "current"), (reference, "reference")):
        if metric not in result.metrics:
            return Comparison(task=task, untested=f"the {which} result has no metric {metric!r}")
    sign = -1 if higher_is_better else 1
    now, before = current.metrics[metric].summary(), reference.metrics[metric].summary()
    one = Comparison(task=task, current=now[""], reference=before[""])
    if not math.isfinite(before[""]):
        return replace(one, untested=f"the reference is {before['']!r}")
    if not math.isfinite(now[""]):
        if now.get("n") == 0:
            return replace(one, untested="the current result has no samples")
        return replace(one, test="finite", p=0.0)
    name = per_seed(metric)
    pairs = _pairs(current.metrics.get(name), reference.metrics.get(name))
    if len(pairs) >= 2:
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        p = paired([sign * a for a in first], [sign * b for b in second])
        means = math.fsum(first) / len(pairs), math.fsum(second) / len(pairs)
        return Comparison(task=task, test="paired", current=means[0], reference=means[1], p=p)
    for summary, which in ((now, "current"), (before, "reference")):
        why = _lacks(summary)
        if why is not None:
            return replace(one, untested=f"the {which} result {why}")
    p = welch(sign * now[""], now["stderr"], int(now["n"]), sign * before[""], before["stderr"], int(before["n"]))
    return replace(one, test="welch", p=p)


def _pairs(current: Metric | None, reference: Metric | None) -> list[tuple[float, float]]:
    if not isinstance(current, PerSeed) or not isinstance(reference, PerSeed):
        return []
    common = [seed for seed in current.seeds if seed in reference.seeds]
    pairs = [(current.seeds[seed].mean, reference.seeds[seed].mean) for seed in common]
    return pairs if all(math.isfinite(a) and math.isfinite(b) for a, b in pairs) else []


def _lacks(summary: Mapping[str, float]) -> str | None:
    if "n" in summary and summary["n"] < 2:
        return "has one sample, and two are needed"
    if "n" not in summary or "stderr" not in summary:
        return "has no variance: only means of several samples were recorded, or a metric without standard error"
    if not math.isfinite(summary["stderr"]):
        return f"has the standard error {summary['stderr']!r}"
    return None
