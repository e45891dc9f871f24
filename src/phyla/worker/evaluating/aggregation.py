"""Aggregation of a group: merges the results of its shards, and tells whether it is the best group so far."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from phyla import plugins
from phyla.client import Client
from phyla.errors import ConfigurationError, EvaluationError
from phyla.evaluation import Estimate, Suite, TaskResult
from phyla.evaluation.aggregates import aggregate
from phyla.evaluation.recorder import decode, merge_shards
from phyla.machine import ClaimedEvaluation, Evaluated
from phyla.queries import GroupResults
from phyla.records import EvalEvent, EvalResult, Group, JsonObject, json_number
from phyla.validation import suggestion
from phyla.worker.evaluating.evaluated_study import EvaluatedStudy


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """The aggregation of one group, at the time `now`.

    Attributes:
        first: whether it is the first one of the suite in this process, which may have imported an edited file.
    """

    client: Client
    work: ClaimedEvaluation
    study: EvaluatedStudy
    suite: Suite
    now: float
    first: bool = False

    def run(self) -> Evaluated:
        """Merge the shards, run the suite's aggregates, and find out whether the group is the best one so far."""
        work, suite = self.work, self.suite
        group_results = self.client.group_results(work.group.id, study=work.job.study)
        results, failed = self._merge_shards(group_results)
        complete = len(results) == len(suite.tasks)
        try:
            values = aggregate(suite.aggregates, results) if results else {}
        except Exception:
            if complete:
                raise
            # A partial group: aggregates of the missing eval tasks are unknown, and a user's function fails in
            # whatever way, such as with a KeyError.
            values = {}
        events = self._find_changed_sources(group_results)
        best, former = False, None
        if suite.objective is not None:
            former = self.client.best_group(suite.name, study=work.job.study)
            if complete and work.group.replicate == 0:
                best = self._is_better(values, former)
        return Evaluated(
            job=work.job.id,
            group=work.job.group,
            token=work.job.token,
            values={
                name: {"value": json_number(estimate.value), "stderr": json_number(estimate.stderr)}
                for name, estimate in values.items()
            },
            failed=failed,
            best=best,
            former=None if former is None else former.id,
            events=events,
        )

    def _merge_shards(self, group_results: GroupResults) -> tuple[list[TaskResult], dict[str, str]]:
        """Merge the shards of every completed eval task, in order; return the reasons for the others."""
        shards = {task.identity: task.shards for task in group_results.jobs}
        done: list[TaskResult] = []
        failed: dict[str, str] = {}
        for task in self.suite.tasks:
            entries = group_results.results.get(task.identity, ())
            if not entries or len(entries) < shards.get(task.identity, 1):
                continue
            try:
                statistics = [
                    {name: decode(raw, plugins.loaded_class) for name, raw in entry.statistics.items()}
                    for entry in entries
                ]
                metrics = merge_shards(statistics, expected=task.samples)
            except EvaluationError as error:
                failed[task.name] = f"{type(error).__name__}: {error}"
                continue
            done.append(
                TaskResult(
                    task=task.name,
                    config=task.config,
                    tags=task.tags,
                    weight=task.weight,
                    metrics=metrics,
                    arrays=_Arrays(self.study.outputs.parent, entries),
                )
            )
        return done, failed

    def _is_better(self, values: Mapping[str, Estimate], former: Group | None) -> bool:
        objective = self.suite.objective
        assert objective is not None
        name = objective.metric
        if name not in values:
            raise ConfigurationError(
                f"suite {self.suite.name!r} has no aggregate {name!r}, which its objective names; "
                f"{suggestion(name, sorted(values))}"
            )
        order = objective.order(values[name].value)
        if former is None:
            return order > float("-inf")
        best: Any = former.values.get(name)
        return best is None or order > objective.order(float(best["value"]))

    def _find_changed_sources(self, group_results: GroupResults) -> list[EvalEvent]:
        study = self.work.job.study
        earlier = self.client.newest_complete(self.suite.name, study=study) if self.first else ()
        edited: dict[str, str] = {}
        for results in (*earlier, group_results):
            edited |= self.study.describe_edits(self.suite, results.results)
        return [self._event("changed-source", message, {"task": task}) for task, message in edited.items()]

    def _event(self, kind: str, message: str, data: JsonObject) -> EvalEvent:
        return EvalEvent(
            study=self.work.job.study,
            kind=kind,
            seen=self.work.seen.id,
            suite=self.suite.name,
            message=message,
            data=data,
            created_at=self.now,
        )


@final
class _Arrays(Mapping[str, Sequence[NDArray[Any]]]):
    """Saved arrays by name, one per shard, read when they are accessed."""

    def __init__(self, outputs: Path, entries: Sequence[EvalResult]) -> None:
        self._outputs = outputs
        self._files: dict[str, list[str]] = {}
        for name, file in (pair for entry in entries for pair in entry.files.items()):
            if str(file).endswith(".npy"):
                self._files.setdefault(name, []).append(str(file))

    def __getitem__(self, name: str) -> list[NDArray[Any]]:
        return [np.load(self._outputs / file, allow_pickle=False) for file in self._files[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
