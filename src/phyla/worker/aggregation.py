"""Aggregating a group: what its shards measured is merged, and compared with the best group before it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from phyla import plugins
from phyla.api import Client, GroupResults
from phyla.arguments import suggestion
from phyla.errors import ConfigurationError, PhylaError
from phyla.evaluation import Estimate, Suite, TaskResult, aggregate, compare, decode, merged
from phyla.machine import ClaimedEvaluation, Evaluated
from phyla.records import EvalEvent, EvalResult, Group, JsonObject, json_number
from phyla.settings import Clock
from phyla.worker.evaluated_study import EvaluatedStudy


def aggregate_group(
    client: Client, work: ClaimedEvaluation, study: EvaluatedStudy, suite: Suite, clock: Clock
) -> Evaluated:
    """Merge the shards of a group, run the suite's aggregates, and compare it with the best group so far.

    Args:
        client: gives access to the ledger.
        work: the aggregation.
        study: the study that it belongs to.
        suite: its suite.
        clock: tells the time.

    Raises:
        PhylaError: the results are complete, and an aggregate cannot be made of them.
        StoreError: the database failed.
    """
    found = client.group_results(work.group.id, study=work.job.study)
    results = task_results(suite, found, study.outputs.parent)
    complete = len(results) == len(suite.tasks)
    try:
        values = aggregate(suite.aggregates, results)
    except PhylaError:
        if complete:
            raise
        # A partial group: what needs the missing eval tasks cannot be said.
        values = {}
    events = _changed_sources(work, study, suite, found, clock())
    former = None if suite.objective is None else client.best_group(suite.name, study=work.job.study)
    best = False
    if suite.objective is not None and complete and work.group.replicate == 0:
        best = _is_better(suite, values, former)
        # Newest come first: one that is worse than what came after it in training has not regressed. Nor has a
        # member of a population: most are worse than the best.
        if former is not None and former.seen < work.seen.id and not work.population:
            before = client.group_results(former.id, study=work.job.study)
            reference = task_results(suite, before, study.outputs.parent)
            events += _regressions(work, suite, results, reference, former, clock())
    json = {
        name: {"value": json_number(estimate.value), "stderr": json_number(estimate.stderr)}
        for name, estimate in values.items()
    }
    return Evaluated(
        job=work.job.id,
        group=work.job.group,
        token=work.job.token,
        values=json,
        best=best,
        former=None if former is None else former.id,
        events=events,
    )


def _regressions(
    work: ClaimedEvaluation,
    suite: Suite,
    results: Sequence[TaskResult],
    reference: Sequence[TaskResult],
    former: Group,
    now: float,
) -> list[EvalEvent]:
    metric = suite.compared_metric
    if metric is None or suite.objective is None:
        return []
    compared = compare(
        [result for result in results if result.has(metric)],
        [result for result in reference if result.has(metric)],
        metric=metric,
        higher_is_better=suite.objective.maximize,
    )
    events: list[EvalEvent] = []
    for one in compared:
        if one.regressed:
            message = (
                f"regression: {suite.name}/{one.task} {metric} {one.current:.4g} at step {work.seen.step}, "
                f"against {one.reference:.4g} of the best checkpoint before it ({one.test} test, "
                f"p = {one.p_adjusted:.2g})"
            )
            data: JsonObject = {
                "task": one.task,
                "metric": metric,
                "current": json_number(one.current),
                "reference": json_number(one.reference),
                "reference_group": former.id,
                "test": one.test,
                "p": one.p,
                "p_adjusted": one.p_adjusted,
                "step": work.seen.step,
                "name": work.seen.name,
            }
            events.append(_event(work, "regression", message, data, now))
    return events


def _changed_sources(
    work: ClaimedEvaluation, study: EvaluatedStudy, suite: Suite, found: GroupResults, now: float
) -> list[EvalEvent]:
    events: list[EvalEvent] = []
    for task in suite.tasks:
        source = study.source(suite, task)
        before = {result.source for result in found.results.get(task.identity, ()) if result.source}
        if source and before - {source}:
            message = (
                f"the function of eval task {task.name!r}, or a file of gin bindings, changed since some of "
                f"its results were computed, and its version is still {task.version!r}: raise the version to "
                "compute them again"
            )
            events.append(_event(work, "changed-source", message, {"task": task.name}, now))
    return events


def task_results(suite: Suite, found: GroupResults, outputs: Path) -> list[TaskResult]:
    """Merge the shards of every eval task of a group that is done, in the order of the suite.

    Args:
        suite: the suite.
        found: what the ledger has.
        outputs: directory of the outputs of all studies.

    Raises:
        EvaluationError: shards do not fit each other, or count another number of samples than expected.
    """
    shards = {task.identity: task.shards for task in found.jobs}
    done: list[TaskResult] = []
    for task in suite.tasks:
        entries = found.results.get(task.identity, ())
        if not entries or len(entries) < shards.get(task.identity, 1):
            continue
        statistics = [
            {name: decode(raw, plugins.loaded_class) for name, raw in entry.statistics.items()}
            for entry in entries
        ]
        done.append(
            TaskResult(
                task=task.name,
                config=task.config,
                tags=task.tags,
                weight=task.weight,
                metrics=merged(statistics, expected=task.samples),
                arrays=_Arrays(outputs, entries),
            )
        )
    return done


@final
class _Arrays(Mapping[str, Sequence[NDArray[Any]]]):
    """Saved arrays by name, one per shard, read when they are looked at."""

    def __init__(self, outputs: Path, entries: Sequence[EvalResult]) -> None:
        self._outputs = outputs
        self._entries = entries
        files = [pair for entry in entries for pair in entry.files.items()]
        self._names = tuple(dict.fromkeys(name for name, file in files if str(file).endswith(".npy")))

    def __getitem__(self, name: str) -> list[NDArray[Any]]:
        if name not in self._names:
            raise KeyError(name)
        files = [entry.files[name] for entry in self._entries if name in entry.files]
        return [np.load(self._outputs / str(file), allow_pickle=False) for file in files]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _is_better(suite: Suite, values: Mapping[str, Estimate], former: Group | None) -> bool:
    assert suite.objective is not None
    mine = values.get(suite.objective.metric)
    if mine is None:
        name = suite.objective.metric
        raise ConfigurationError(
            f"suite {suite.name!r} has no aggregate {name!r}, which its objective names; "
            f"{suggestion(name, sorted(values))}"
        )
    order = suite.objective.order(mine.value)
    if former is None:
        return order > float("-inf")
    best: Any = former.values.get(suite.objective.metric)
    return best is None or order > suite.objective.order(float(best["value"]))


def _event(work: ClaimedEvaluation, kind: str, message: str, data: JsonObject, now: float) -> EvalEvent:
    return EvalEvent(
        study=work.job.study,
        kind=kind,
        seen=work.seen.id,
        suite=work.group.suite,
        message=message,
        data=data,
        created_at=now,
    )
