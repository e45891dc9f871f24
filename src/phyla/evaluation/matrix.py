"""The matrix of checkpoints and eval tasks: what became of each pair, and how far behind each suite is."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, final

from phyla.errors import EvaluationError, PhylaError
from phyla.evaluation.aggregates import Estimate, numbers
from phyla.evaluation.metric import Metric
from phyla.evaluation.recorder import decode, merge_shards
from phyla.evaluation.suite import SuiteOutline
from phyla.records import (
    Backlog,
    Checkpoint,
    CheckpointState,
    EvalJob,
    EvalResult,
    Group,
    GroupState,
    JobKind,
    JobState,
    Json,
    read_number,
    read_object,
    summarize_error,
)

_NUMBER = re.compile(r"\d+(\.\d+)?")


class CellStatus(StrEnum):
    """The status of one eval task on one checkpoint."""

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
        group: the evaluation group; None if the suite was never run, or skipped, on this checkpoint.
        why: why it was skipped, failed, is gone, quarantined or missing; None otherwise.
        values: every number that was measured, by name.
        metrics: what they were read from, merged over shards; empty if it was not asked for.
        metric: name of the value that stands for all of them; None without any.
        n: samples behind that value; None if it does not count them.
        duration_s: seconds that all shards took together; None before they are done.
        running_s: seconds since the first of its running shards was claimed; None where none is running.
        attempts: claims of all shards together.
        worker: who worked on it last.
        evaluated_at: when its last shard was done, in seconds since the epoch.
        files: saved arrays and files: name to one path per shard, below the outputs of all runs.
        identity: how it was evaluated: the eval task's identity; empty without shards.
        unread: what is stored of metrics whose class this process has not loaded, by name, one entry per shard.
    """

    seen: Checkpoint
    suite: str
    task: str
    group: Group | None
    status: CellStatus
    why: str | None = None
    values: Mapping[str, Estimate] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict, repr=False)
    metric: str | None = None
    n: int | None = None
    shards: int = 1
    shards_done: int = 0
    duration_s: float | None = None
    running_s: float | None = None
    attempts: int = 0
    worker: str | None = None
    evaluated_at: float | None = None
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    identity: str = ""
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
    """The newest aggregates of one suite on one checkpoint, by name.

    They stay where the suite gains an eval task, until that is evaluated, or for good if the checkpoint is gone.
    """

    seen: Checkpoint
    group: Group
    values: Mapping[str, Estimate]

    @property
    def partial(self) -> bool:
        """Whether it is not over all eval tasks: some failed for good, wait, or cannot be evaluated any more."""
        return self.group.state is not GroupState.COMPLETE

    @property
    def best(self) -> bool:
        """Whether it is the best complete group of its suite so far."""
        return self.group.best


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CellCause:
    """Why some cells have no value: of failed eval tasks, or of whole groups; `why` is the newest's."""

    status: CellStatus
    suite: str
    tasks: tuple[str, ...]
    why: str
    checkpoints: tuple[Checkpoint, ...]


_URGENT = (CellStatus.FAILED, CellStatus.QUARANTINED, CellStatus.GONE, CellStatus.MISSING, CellStatus.SKIPPED)
"""Statuses that have a reason, in the order in which a person wants to hear of them."""


def causes(cells: Iterable[Cell]) -> list[CellCause]:
    """Return why values are missing, most urgent first; cells whose reasons differ only in numbers are one cause.

    Eval tasks that failed with the same reason on the same checkpoints are one cause, too. A partial group
    of which no cell failed has lost its aggregation: then its own reason is the cause.
    """
    cells = [*cells]
    failed = {cell.group.id for cell in cells if cell.group is not None and cell.status is CellStatus.FAILED}
    groups: dict[tuple[CellStatus, str, str | None, str], dict[int, tuple[Checkpoint, str]]] = {}
    for cell in cells:
        status, task, why = cell.status, cell.task if cell.status is CellStatus.FAILED else None, cell.why
        if why is None and cell.partial and cell.group is not None and cell.group.id not in failed:
            status, why = CellStatus.FAILED, cell.group.why
        if why is not None:
            key = (status, cell.suite, task, _NUMBER.sub("#", summarize_error(why)))
            groups.setdefault(key, {})[cell.seen.id] = cell.seen, summarize_error(why)
    alike: dict[tuple[object, ...], CellCause] = {}
    for (status, suite, task, reason), by_checkpoint in groups.items():
        seen, whys = zip(*by_checkpoint.values(), strict=True)
        tasks = () if task is None else (task,)
        same = (status, suite, reason, bool(tasks), *by_checkpoint)
        if same in alike:
            tasks = (*alike[same].tasks, *tasks)
        alike[same] = CellCause(status=status, suite=suite, tasks=tasks, why=whys[-1], checkpoints=seen)
    return sorted(alike.values(), key=lambda cause: _URGENT.index(cause.status))


def group_values(seen: Checkpoint, group: Group) -> GroupValues:
    """Read the aggregates that a group has stored."""
    values = {}
    for name, raw in group.values.items():
        stored = read_object(raw)
        stderr = stored.get("stderr")
        values[name] = Estimate(read_number(stored["value"]), None if stderr is None else read_number(stderr))
    return GroupValues(seen=seen, group=group, values=values)


def current_tasks(tasks: Sequence[EvalJob]) -> dict[str, list[EvalJob]]:
    """Return the newest version of every eval task of a group; cancelled shards where nothing else is."""
    shards = sorted((task for task in tasks if task.kind is JobKind.EVALUATE), key=lambda task: task.id)
    wanted = {task.task for task in shards if task.state is not JobState.CANCELLED}
    shards = [task for task in shards if task.task not in wanted or task.state is not JobState.CANCELLED]
    newest = {task.task: task.identity for task in shards}
    by_name: dict[str, list[EvalJob]] = {name: [] for name in newest}
    for task in shards:
        if newest[task.task] == task.identity:
            by_name[task.task].append(task)
    return by_name


def cell(
    seen: Checkpoint,
    group: Group | None,
    suite: SuiteOutline,
    name: str,
    tasks: Sequence[EvalJob],
    results: Sequence[EvalResult] = (),
    type_of: Callable[[str], type[Any]] | None = None,
) -> Cell:
    """Return the state of one eval task on one checkpoint, by its shards (`current_tasks`) and their results.

    `type_of` finds metrics that are not built in; those that it cannot find are left out. None decodes nothing.
    """
    status, why = _status(seen, group, tasks)
    whole = bool(tasks) and len(results) == tasks[0].shards
    metrics: Mapping[str, Metric] = {}
    measured: list[tuple[str, str, Estimate]] = []
    unread: dict[str, list[Json]] = {}
    if status.has_value and type_of is not None:
        try:
            if not whole:
                raise EvaluationError("its results are not in the ledger")
            metrics, unread = _merge_metrics(results, suite.task(name).samples, type_of)
            measured = [*numbers(metrics)]
        except EvaluationError as error:
            status, why = CellStatus.FAILED, str(error)
    files: dict[str, list[str]] = {}
    for result in results if status.has_value else ():
        for saved, path in result.files.items():
            files.setdefault(saved, []).append(str(path))
    values: dict[str, Estimate] = {}
    for saved, suffix, number in measured:
        if not suffix:
            values[saved] = number
        elif suffix not in ("stderr", "n"):
            values.setdefault(f"{saved}_{suffix}", number)
    metric = suite.metric if suite.metric in values else next(iter(values), None)
    return Cell(
        seen=seen,
        suite=suite.name,
        task=name,
        group=group,
        status=status,
        why=why,
        values=values,
        metrics=metrics,
        metric=metric,
        n=metrics[metric].count if metric is not None and metric in metrics else None,
        shards=tasks[0].shards if tasks else 1,
        shards_done=sum(shard.state is JobState.COMPLETED for shard in tasks),
        duration_s=sum(result.duration_s for result in results) if whole and status.has_value else None,
        attempts=sum(shard.token for shard in tasks),
        worker=results[-1].worker if results else next((shard.worker for shard in tasks if shard.worker), None),
        evaluated_at=max(result.created_at for result in results) if whole else None,
        files=files,
        identity=tasks[0].identity if tasks else "",
        unread=unread,
    )


def _status(seen: Checkpoint, group: Group | None, tasks: Sequence[EvalJob]) -> tuple[CellStatus, str | None]:
    states = {task.state for task in tasks}
    failed = [task for task in tasks if task.state is JobState.FAILED]
    if states == {JobState.COMPLETED}:
        return (CellStatus.REUSED if all(task.reused for task in tasks) else CellStatus.DONE), None
    if failed:
        return CellStatus.FAILED, summarize_error(failed[-1].error)
    if seen.state is CheckpointState.QUARANTINED:
        return CellStatus.QUARANTINED, seen.error
    if group is not None and group.state in (GroupState.SKIPPED, GroupState.GONE):
        return CellStatus(group.state.value), group.why
    if JobState.RUNNING in states:
        return CellStatus.RUNNING, None
    if JobState.PENDING in states:
        return CellStatus.QUEUED, None
    if tasks:
        return CellStatus.SKIPPED, summarize_error(tasks[-1].error)
    if seen.state is CheckpointState.GONE:
        return CellStatus.GONE, seen.error
    return CellStatus.MISSING, "the suite got it after this checkpoint was seen, and it was not queued since"


def _merge_metrics(
    results: Sequence[EvalResult], samples: int | None, type_of: Callable[[str], type[Any]]
) -> tuple[dict[str, Metric], dict[str, list[Json]]]:
    """Return metrics merged over shards, and the stored form of those whose class is not loaded here."""
    shards: list[dict[str, Metric]] = [{} for _ in results]
    unread: dict[str, list[Json]] = {}
    for shard, result in zip(shards, results, strict=True):
        for name, raw in result.statistics.items():
            try:
                shard[name] = decode(raw, type_of)
            except EvaluationError:
                raise
            except PhylaError:
                unread.setdefault(name, []).append(raw)
    return merge_shards(shards, expected=None if unread else samples), unread


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far one suite is behind. Evaluations that were skipped, failed or are gone do not count.

    Attributes:
        newest: step of the newest checkpoint that is evaluated or still can be; None without any.
        complete: step of the newest checkpoint whose group is complete; None without any.
        checkpoints: checkpoints newer than that one that wait for their evaluation or are being evaluated.
        steps: how many steps the newest of them is ahead; 0 without any, None if a step is not known or training
            was rewound in between.
        oldest_s: seconds that the oldest of them has waited; 0 without any.
        waiting: all groups that wait or are being evaluated, including older checkpoints and repetitions.
    """

    suite: str
    newest: int | None
    complete: int | None
    checkpoints: int
    steps: int | None
    oldest_s: float
    waiting: int


def lag(suite: str, backlog: Backlog, seen: Callable[[int], Checkpoint], now: float) -> Lag:
    """Return how far a suite is behind; `seen` finds a checkpoint by id, and is called at most three times."""
    last = None if backlog.complete is None else seen(backlog.complete)
    newest = last if backlog.newest is None else seen(backlog.newest)
    steps: int | None = 0
    if backlog.behind and newest is not None:
        known = newest.step >= 0 and (last is None or (last.step >= 0 and last.branch == newest.branch))
        steps = max(0, newest.step - (last.step if last else 0)) if known else None
    return Lag(
        suite=suite,
        newest=None if newest is None else newest.step,
        complete=None if last is None else last.step,
        checkpoints=backlog.behind,
        steps=steps,
        oldest_s=0.0 if backlog.oldest is None else max(0.0, now - seen(backlog.oldest).created_at),
        waiting=backlog.waiting,
    )
