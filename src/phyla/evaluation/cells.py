"""The matrix of checkpoints and eval tasks: what became of each pair, from the records."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, final

from phyla.errors import EvaluationError, PhylaError
from phyla.evaluation.metric import Metric, merged
from phyla.evaluation.moments import is_per_seed
from phyla.evaluation.result import Estimate
from phyla.evaluation.stored import decode
from phyla.evaluation.suite import SuiteOutline
from phyla.records import (
    EvalResult,
    EvalTaskKind,
    EvalTaskRecord,
    Group,
    GroupState,
    Json,
    Seen,
    SeenState,
    TrialState,
    read_number,
    read_object,
)

NUMBER = re.compile(r"\d+(\.\d+)?")


class CellStatus(StrEnum):
    """What became of one eval task on one checkpoint."""

    DONE = "done"
    REUSED = "reused"
    RUNNING = "running"
    QUEUED = "queued"
    SKIPPED = "skipped"
    FAILED = "failed"
    GONE = "gone"
    QUARANTINED = "quarantined"
    MISSING = "missing"

    @property
    def has_value(self) -> bool:
        """Whether there is a result."""
        return self in (CellStatus.DONE, CellStatus.REUSED)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One eval task on one checkpoint.

    Attributes:
        seen: the checkpoint.
        suite: name of the suite.
        task: name of the eval task.
        group: the evaluation group; None if the suite was never run, or skipped, on this checkpoint.
        tags: of the eval task.
        status: what became of it.
        why: why it was skipped, failed, is gone, quarantined or missing; None otherwise.
        values: every number that was measured, by name; with standard errors where they are known.
        metrics: what they were read from, merged over shards; empty if it was not asked for.
        metric: name of the value that stands for all of them; None without any.
        n: samples behind that value; None if it does not count them.
        shards: into how many parts it is split.
        shards_done: how many of them are done.
        duration_s: seconds that all shards took together; None before they are done.
        attempts: claims of all shards together.
        worker: who worked on it last.
        evaluated_at: when its last shard was done, in seconds since the epoch.
        files: saved arrays and files: name to one path per shard, below the outputs of all runs.
        unread: what is stored of metrics whose class this process has not loaded, by name, one entry per shard.
    """

    seen: Seen
    suite: str
    task: str
    group: Group | None
    tags: tuple[str, ...] = ()
    status: CellStatus
    why: str | None = None
    values: Mapping[str, Estimate] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict, repr=False)
    metric: str | None = None
    n: int | None = None
    shards: int = 1
    shards_done: int = 0
    duration_s: float | None = None
    attempts: int = 0
    worker: str | None = None
    evaluated_at: float | None = None
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unread: Mapping[str, Sequence[Json]] = field(default_factory=dict, repr=False)

    @property
    def partial(self) -> bool:
        """Whether its group ended without all of its eval tasks."""
        return self.group is not None and self.group.state is GroupState.PARTIAL

    @property
    def replicate(self) -> int:
        """0; above for repeated evaluations of the same checkpoint with other seeds."""
        return 0 if self.group is None else self.group.replicate

    @property
    def estimate(self) -> Estimate | None:
        """The value that stands for all of them; None without a result."""
        return None if self.metric is None else self.values[self.metric]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupValues:
    """The aggregates of one suite on one checkpoint.

    Attributes:
        seen: the checkpoint.
        group: the evaluation group, complete or partial.
        values: aggregates by name, with standard errors where they are known.
    """

    seen: Seen
    group: Group
    values: Mapping[str, Estimate]

    @property
    def partial(self) -> bool:
        """Whether some eval tasks failed for good: then it is over the others only, and never a fitness."""
        return self.group.state is GroupState.PARTIAL

    @property
    def best(self) -> bool:
        """Whether it is the best complete group of its suite so far."""
        return self.group.best


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why some cells have no value.

    Attributes:
        status: what became of them.
        suite: name of the suite.
        task: name of the eval task that failed; None if it happened to whole groups.
        why: in words, of the newest of them; others may differ in numbers.
        checkpoints: whose cells they are, in order.
    """

    status: CellStatus
    suite: str
    task: str | None
    why: str
    checkpoints: tuple[Seen, ...]


URGENT = (CellStatus.FAILED, CellStatus.QUARANTINED, CellStatus.GONE, CellStatus.MISSING, CellStatus.SKIPPED)
"""Statuses that have a reason, in the order in which a person wants to hear of them."""


def causes(cells: Iterable[Cell]) -> list[Cause]:
    """Say why values are missing, most urgent first; cells whose reasons differ only in numbers are one cause."""
    found: dict[object, dict[int, Cell]] = {}
    for one in cells:
        if one.why is not None:
            key = (one.status, one.suite, _task(one), NUMBER.sub("#", last_line(one.why)))
            found.setdefault(key, {})[one.seen.id] = one
    made = []
    for alike in found.values():
        *_, one = alike.values()
        seen = tuple(each.seen for each in alike.values())
        why = last_line(one.why)
        made.append(Cause(status=one.status, suite=one.suite, task=_task(one), why=why, checkpoints=seen))
    return sorted(made, key=lambda cause: URGENT.index(cause.status))


def _task(one: Cell) -> str | None:
    return one.task if one.status is CellStatus.FAILED else None


TypeOf = Callable[[str], type[Any]]
"""Finds the type of a metric that is not built in, by its stored name."""


def group_values(seen: Seen, group: Group) -> GroupValues:
    """Read the aggregates that a group has stored."""
    return GroupValues(seen=seen, group=group, values={name: _estimate(raw) for name, raw in group.values.items()})


def _estimate(raw: Json) -> Estimate:
    stored = read_object(raw)
    stderr = stored.get("stderr")
    return Estimate(read_number(stored["value"]), None if stderr is None else read_number(stderr))


def current_tasks(tasks: Sequence[EvalTaskRecord]) -> dict[str, list[EvalTaskRecord]]:
    """Return the shards of every eval task of a group by name; of one that changed, the newest version only."""
    newest: dict[str, str] = {}
    for task in sorted(tasks, key=lambda task: task.id):
        if task.kind is EvalTaskKind.EVALUATE:
            newest[task.task] = task.identity
    return {
        name: [task for task in tasks if (task.task, task.identity) == (name, identity)]
        for name, identity in newest.items()
    }


def cell(
    seen: Seen,
    group: Group | None,
    suite: SuiteOutline,
    name: str,
    tasks: Sequence[EvalTaskRecord],
    results: Sequence[EvalResult] = (),
    type_of: TypeOf | None = None,
) -> Cell:
    """Say what became of one eval task on one checkpoint.

    Args:
        seen: the checkpoint.
        group: its group of the suite; None if there is none.
        suite: the suite.
        name: name of the eval task.
        tasks: its shards; see `current_tasks`.
        results: the ledger's entries of its shards.
        type_of: finds metrics that are not built in; those that it cannot find are left out. None decodes nothing.
    """
    task = suite.task(name)
    status, why = _status(seen, group, tasks)
    whole = bool(tasks) and len(results) == tasks[0].shards
    metrics: Mapping[str, Metric] = {}
    if status.has_value and type_of is not None:
        try:
            if not whole:
                raise EvaluationError("its results are not in the ledger")
            metrics = _merged(results, task.samples, type_of)
        except EvaluationError as error:
            status, why = CellStatus.FAILED, str(error)
    unread: dict[str, list[Json]] = {}
    files: dict[str, list[str]] = {}
    for result in results if status.has_value else ():
        for saved, path in result.files.items():
            files.setdefault(saved, []).append(str(path))
        for saved, raw in result.statistics.items() if type_of is not None else ():
            if saved not in metrics:
                unread.setdefault(saved, []).append(raw)
    values = numbers(metrics)
    metric = suite.metric if suite.metric in values else next(iter(values), None)
    return Cell(
        seen=seen,
        suite=suite.name,
        task=name,
        group=group,
        tags=task.tags,
        status=status,
        why=why,
        values=values,
        metrics=metrics,
        metric=metric,
        n=metrics[metric].count if metric is not None and metric in metrics else None,
        shards=tasks[0].shards if tasks else 1,
        shards_done=sum(one.state is TrialState.COMPLETED for one in tasks),
        duration_s=sum(result.duration_s for result in results) if whole and status.has_value else None,
        attempts=sum(one.token for one in tasks),
        worker=results[-1].worker if results else next((one.worker for one in tasks if one.worker), None),
        evaluated_at=max(result.created_at for result in results) if whole else None,
        files=files,
        unread=unread,
    )


def numbers(metrics: Mapping[str, Metric]) -> dict[str, Estimate]:
    """Return every number that metrics say, by name: `loss`, `length_p50`; standard errors go with their value.

    What is kept by seed, and the numbers of samples, are left out.
    """
    found: dict[str, Estimate] = {}
    for name, metric in metrics.items():
        if is_per_seed(name):
            continue
        summary = metric.summary()
        for suffix, value in summary.items():
            if not suffix:
                found[name] = Estimate(value, summary.get("stderr"))
            elif suffix not in ("stderr", "n"):
                found.setdefault(f"{name}_{suffix}", Estimate(value))
    return found


def _status(seen: Seen, group: Group | None, tasks: Sequence[EvalTaskRecord]) -> tuple[CellStatus, str | None]:
    if tasks and all(task.state is TrialState.COMPLETED for task in tasks):
        return (CellStatus.REUSED if all(task.reused for task in tasks) else CellStatus.DONE), None
    failed = [task for task in tasks if task.state is TrialState.FAILED]
    if failed:
        return CellStatus.FAILED, last_line(failed[-1].error)
    if seen.state is SeenState.QUARANTINED:
        return CellStatus.QUARANTINED, seen.error
    if group is not None and group.state is GroupState.SKIPPED:
        return CellStatus.SKIPPED, group.why
    if group is not None and group.state is GroupState.GONE:
        return CellStatus.GONE, group.why
    if any(task.state is TrialState.RUNNING for task in tasks):
        return CellStatus.RUNNING, None
    if any(task.state is TrialState.PENDING for task in tasks):
        return CellStatus.QUEUED, None
    if tasks:
        return CellStatus.SKIPPED, last_line(tasks[-1].error)
    if seen.state is SeenState.GONE:
        return CellStatus.GONE, seen.error
    return CellStatus.MISSING, "the suite got it after this checkpoint was seen, and it was not queued since"


def last_line(text: str | None) -> str:
    """Return the last line of an error, which says what happened."""
    lines = (text or "").strip().splitlines()
    return lines[-1] if lines else "no error was recorded"


def _merged(results: Sequence[EvalResult], samples: int | None, type_of: TypeOf) -> dict[str, Metric]:
    shards: list[dict[str, Metric]] = [{} for _ in results]
    every = True
    for shard, result in zip(shards, results, strict=True):
        for name, raw in result.statistics.items():
            try:
                shard[name] = decode(raw, type_of)
            except EvaluationError:
                raise
            except PhylaError:
                # Its class is not loaded here. The other metrics may still be read.
                every = False
    return merged(shards, expected=samples if every else None)
