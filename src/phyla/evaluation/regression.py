"""Whether a checkpoint is worse than another, eval task by eval task."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

from phyla.errors import ConfigurationError
from phyla.evaluation.aggregates import TaskResult
from phyla.evaluation.metric import Metric
from phyla.evaluation.moments import PerSeed, per_seed
from phyla.significance import holm, paired, welch


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What comparing two checkpoints on one eval task gave.

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
    if not 0 < alpha < 1:
        raise ConfigurationError(
            f"compare(alpha={alpha!r}): a level of significance lies between 0 and 1, as in 0.05"
        )
    now, before = _metrics(current, metric), _metrics(reference, metric)
    tested = [_compared(task, now[task], before[task], metric, higher_is_better) for task in now if task in before]
    found = [one for one in tested if one is not None]
    adjusted = holm([one.p for one in found])
    return tuple(replace(one, p_adjusted=p, regressed=p < alpha) for one, p in zip(found, adjusted, strict=True))


def _metrics(results: Sequence[TaskResult], metric: str) -> dict[str, Mapping[str, Metric]]:
    """Return the metrics of every eval task that has the one in question."""
    found: dict[str, Mapping[str, Metric]] = {}
    for result in results:
        if result.task in found:
            raise ConfigurationError(f"compare(): task {result.task!r} appears twice; give one result per task")
        if metric in result.metrics:
            found[result.task] = result.metrics
    return found


def _compared(
    task: str, current: Mapping[str, Metric], reference: Mapping[str, Metric], metric: str, higher_is_better: bool
) -> Comparison | None:
    now, before = current[metric].summary(), reference[metric].summary()
    if not math.isfinite(before[""]) or now.get("n") == 0:
        return None
    if not math.isfinite(now[""]):
        return Comparison(task=task, test="finite", current=now[""], reference=before[""], p=0.0)
    sign = -1 if higher_is_better else 1
    pairs = _pairs(current.get(per_seed(metric)), reference.get(per_seed(metric)))
    if len(pairs) >= 2:
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        p = paired([sign * a for a in first], [sign * b for b in second])
        means = math.fsum(first) / len(pairs), math.fsum(second) / len(pairs)
        return Comparison(task=task, test="paired", current=means[0], reference=means[1], p=p)
    for summary in (now, before):
        if summary.get("n", 0) < 2 or not math.isfinite(summary.get("stderr", math.nan)):
            return None
    p = welch(
        (sign * now[""], now["stderr"], int(now["n"])), (sign * before[""], before["stderr"], int(before["n"]))
    )
    return Comparison(task=task, test="welch", current=now[""], reference=before[""], p=p)


def _pairs(current: Metric | None, reference: Metric | None) -> list[tuple[float, float]]:
    if not isinstance(current, PerSeed) or not isinstance(reference, PerSeed):
        return []
    common = [seed for seed in current.seeds if seed in reference.seeds]
    pairs = [(current.seeds[seed].mean, reference.seeds[seed].mean) for seed in common]
    return pairs if all(math.isfinite(a) and math.isfinite(b) for a, b in pairs) else []
