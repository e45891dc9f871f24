"""Whether a checkpoint is worse than another, eval task by eval task."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

from phyla.evaluation.aggregates import TaskResult
from phyla.evaluation.metric import Metric
from phyla.evaluation.statistics import PerSeed, per_seed
from phyla.significance import holm, paired, welch


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of two checkpoints on one eval task.

    Attributes:
        test: "paired" (t-test seed by seed), "welch", or "finite": the current value is nan or infinite where
            the reference is a number, which needs no test.
        current: the current value; in a paired test, like the reference, the mean over the common seeds.
        p: probability, in [0, 1], of so bad a difference if there were none.
        p_adjusted: the same, adjusted by Holm for the number of eval tasks that were tested.
        regressed: whether the current value is significantly worse.
    """

    task: str
    test: Literal["paired", "welch", "finite"]
    current: float
    reference: float
    p: float
    p_adjusted: float = math.nan
    regressed: bool = False


def compare(
    current: Sequence[TaskResult],
    reference: Sequence[TaskResult],
    *,
    metric: str,
    higher_is_better: bool,
    alpha: float = 0.05,
) -> tuple[Comparison, ...]:
    """Test on each eval task that both have whether the current checkpoint is worse than a reference.

    Where both were recorded with at least 2 common seeds it is a paired t-test over the seeds' means, else
    Welch's t-test. Both are one-sided, and their p is adjusted by Holm over the tasks that were tested: those with
    a finite reference, and with seeds or a known variance. Samples that do not vary decide by their difference
    alone. `alpha` is the probability of at least one false alarm among all tasks.
    """
    now, before = (
        {result.task: result.metrics for result in results if metric in result.metrics}
        for results in (current, reference)
    )
    tested = [
        _compare_task(task, now[task], before[task], metric, higher_is_better) for task in now if task in before
    ]
    comparisons = [comparison for comparison in tested if comparison is not None]
    adjusted = holm([comparison.p for comparison in comparisons])
    return tuple(
        replace(comparison, p_adjusted=p, regressed=p < alpha)
        for comparison, p in zip(comparisons, adjusted, strict=True)
    )


def _compare_task(
    task: str, current: Mapping[str, Metric], reference: Mapping[str, Metric], metric: str, higher_is_better: bool
) -> Comparison | None:
    now, before = current[metric].summary(), reference[metric].summary()
    if not math.isfinite(before[""]) or now.get("n") == 0:
        return None
    if not math.isfinite(now[""]):
        return Comparison(task=task, test="finite", current=now[""], reference=before[""], p=0.0)
    sign = -1 if higher_is_better else 1
    mine, theirs = current.get(per_seed(metric)), reference.get(per_seed(metric))
    if isinstance(mine, PerSeed) and isinstance(theirs, PerSeed):
        common = [seed for seed in mine.seeds if seed in theirs.seeds]
        first, second = ([series.seeds[seed].mean for seed in common] for series in (mine, theirs))
        if len(common) >= 2 and all(map(math.isfinite, (*first, *second))):
            p = paired([sign * mean for mean in first], [sign * mean for mean in second])
            means = math.fsum(first) / len(common), math.fsum(second) / len(common)
            return Comparison(task=task, test="paired", current=means[0], reference=means[1], p=p)
    if any(
        summary.get("n", 0) < 2 or not math.isfinite(summary.get("stderr", math.nan)) for summary in (now, before)
    ):
        return None
    ours, other = ((sign * summary[""], summary["stderr"], int(summary["n"])) for summary in (now, before))
    return Comparison(task=task, test="welch", current=now[""], reference=before[""], p=welch(ours, other))
