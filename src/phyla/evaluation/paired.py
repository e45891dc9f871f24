"""Differences of two models, task by task: sample by sample where both were measured on the same samples.

Source: Miller 2024, Adding error bars to evals: paired differences (section 4.2), and standard errors clustered by
groups of samples that are not independent (section 2.2).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from phyla.significance import clustered, holm, mean_of, smallest_p, welch


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScore:
    """One metric of one eval task on one model.

    Attributes:
        value: mean over samples, or another statistic.
        stderr: its standard error; None if it is not known.
        n: how many samples; None if that is not known.
        samples: the value on each sample; empty if they are not known.
        groups: the group of each sample that belongs to one.
    """

    value: float
    stderr: float | None = None
    n: int | None = None
    samples: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDifference:
    """The difference of two models in one metric of one eval task.

    Attributes:
        value: of the first model, on the samples that are compared.
        reference: of the second model.
        difference: `value - reference`.
        stderr: its standard error; None if it is not known.
        p: two-sided p of no difference; None if it is not known.
        adjusted: p adjusted for the number of eval tasks (Holm 1979).
        paired: how many samples were compared one by one; 0 where only the means were.
        groups: how many independent groups these are.
    """

    task: str
    metric: str
    value: float
    reference: float
    difference: float
    stderr: float | None = None
    p: float | None = None
    adjusted: float | None = None
    paired: int = 0
    groups: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """The differences of the model `name` from the model `against`."""

    name: str
    against: str
    differences: Sequence[ModelDifference]


def compare_models(scores: Mapping[tuple[str, str], tuple[ModelScore, ModelScore]]) -> list[ModelDifference]:
    """Return the differences by task and metric, adjusted for their number."""
    differences = [_difference(*key, first, second) for key, (first, second) in scores.items()]
    known = [row.p for row in differences if row.p is not None]
    adjusted = iter(holm(known))
    return [row if row.p is None else replace(row, adjusted=next(adjusted)) for row in differences]


def _difference(task: str, metric: str, first: ModelScore, second: ModelScore) -> ModelDifference:
    shared = [key for key in first.samples if key in second.samples]
    pairs = [(first.samples[key], second.samples[key]) for key in shared]
    differences = [value - reference for value, reference in pairs]
    averaged = _is_average(first) and _is_average(second)
    if len(pairs) < 2 or not averaged or not all(map(math.isfinite, differences)):
        return _unpaired(task, metric, first, second)
    # A sample without a group is one by itself.
    groups: list[object] = [first.groups.get(key, (key,)) for key in shared]
    mean, stderr, p = clustered(differences, groups)
    return ModelDifference(
        task=task,
        metric=metric,
        value=mean_of([value for value, _ in pairs]),
        reference=mean_of([reference for _, reference in pairs]),
        difference=mean,
        stderr=stderr,
        p=p,
        paired=len(pairs),
        groups=len(set(groups)),
    )


def _is_average(score: ModelScore) -> bool:
    """Return False if samples do not average to the value, as with perplexity, whose samples are log-likelihoods.

    Samples may be rounded, or only some of those that were measured.
    """
    samples = list(score.samples.values())
    if not samples or len(samples) != score.n or not all(map(math.isfinite, samples)):
        return True
    spread = max(samples) - min(samples)
    return math.isclose(mean_of(samples), score.value, rel_tol=0.01, abs_tol=0.01 * spread)


def _unpaired(task: str, metric: str, first: ModelScore, second: ModelScore) -> ModelDifference:
    summaries: list[tuple[float, float, int]] = [
        (score.value, score.stderr, score.n)
        for score in (first, second)
        if score.stderr is not None and score.n is not None and score.n > 1 and math.isfinite(score.value)
    ]
    stderr = p = None
    if len(summaries) == 2:
        (_, ours, count), (_, theirs, other) = summaries
        stderr = math.hypot(ours, theirs)
        # Where neither sample varies, the t-test gives 0 for any number of them. Then a rank test decides.
        p = welch(*summaries, alternative="two-sided") or smallest_p(count, other, paired=False)
    return ModelDifference(
        task=task,
        metric=metric,
        value=first.value,
        reference=second.value,
        difference=first.value - second.value,
        stderr=stderr,
        p=p,
    )


def metrics_in_both(
    first: Mapping[str, Mapping[str, ModelScore]],
    second: Mapping[str, Mapping[str, ModelScore]],
    metrics: Mapping[str, Sequence[str]],
) -> dict[tuple[str, str], tuple[ModelScore, ModelScore]]:
    """Return the scores, by task and metric, that both models have, of the chosen metrics of each task."""
    return {
        (task, metric): (first[task][metric], second[task][metric])
        for task, chosen in metrics.items()
        for metric in chosen
        if metric in first.get(task, {}) and metric in second.get(task, {})
    }
