"""Continuous evaluation: evaluation groups, their jobs, the ledger."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from phyla.records.job import JobKind, JobState
from phyla.records.json import JsonObject


class GroupState(StrEnum):
    """Status of one suite on one checkpoint."""

    QUEUED = "queued"
    COMPLETE = "complete"
    PARTIAL = "partial"
    SKIPPED = "skipped"
    GONE = "gone"


class Priority:
    """Classes of urgency; lower is sooner."""

    FRESH = 1
    GUARANTEED = 2
    BACKFILL = 3


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """An evaluation group: one suite on one checkpoint, complete as a whole or not at all.

    Attributes:
        id: key in its store; 0 before it is inserted.
        seen: id of the checkpoint.
        replicate: 0; above for repeated evaluations of the same checkpoint with other seeds.
        state: queued until its last eval task ended; then complete, partial (some failed for good: never a
            fitness), skipped (with `why`), or gone (the checkpoint went before or during its turn).
        priority: class of urgency, see `Priority`.
        rank: within a class, lower is sooner.
        guaranteed: why no policy may skip it: milestone, final, fitness, best; None when one may.
        started: whether any of its eval tasks was ever claimed.
        best: whether it is the best complete group of its suite so far.
        trial: the trial whose fitness it becomes, or None.
        member: that trial's member, or None.
        why: why it was skipped, is partial, or is gone.
        values: aggregates by name: `{"value": float, "stderr": float | None}`, non-finite ones as text.
        not_before: nothing of it starts earlier.
    """

    id: int = 0
    study: int
    suite: str
    seen: int = 0
    replicate: int = 0
    state: GroupState = GroupState.QUEUED
    priority: int = Priority.FRESH
    rank: float = 0.0
    guaranteed: str | None = None
    started: bool = False
    best: bool = False
    trial: int | None = None
    member: int | None = None
    why: str | None = None
    values: JsonObject = field(default_factory=dict)
    created_at: float
    not_before: float = 0.0
    ended_at: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Queued and running groups of one suite.

    Attributes:
        complete: id of the newest checkpoint with a complete group, of a directory's the one with the highest
            step; None without any.
        waiting: how many groups are queued, repetitions too.
        behind: how many checkpoints are newer than `complete` and queued; repetitions do not count.
        oldest: id of the oldest of these; None without any.
        newest: id of the newest of these; None without any.
    """

    complete: int | None
    waiting: int
    behind: int
    oldest: int | None
    newest: int | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvalJob:
    """One shard of one eval task on one checkpoint, or the aggregation of a whole group.

    Attributes:
        seen: id of the checkpoint.
        task: name of the eval task; empty for the aggregation of a group.
        kind: evaluate or aggregate.
        identity: how it is evaluated: the eval task's identity; part of the ledger's key.
        shard: index of the shard, of `shards`.
        priority: as its group's, like `replicate` and `rank`; aggregations come before everything else.
        token: newest fencing token; the number of claims so far.
        failures: attempts that failed; `max_attempts` may before it is given up.
        timeout_s: seconds an attempt may take; None for no limit.
        gpus: how many GPUs the worker that runs it must have, at least.
        label: what that worker must be labelled with; empty for nothing.
        reused: its result was in the ledger already.
        worker: the worker of its newest attempt, which was claimed at `started_at`.
    """

    id: int = 0
    study: int
    group: int = 0
    seen: int = 0
    task: str
    kind: JobKind = JobKind.EVALUATE
    identity: str
    replicate: int = 0
    shard: int = 0
    shards: int = 1
    state: JobState = JobState.PENDING
    priority: int = Priority.FRESH
    rank: float = 0.0
    not_before: float = 0.0
    token: int = 0
    failures: int = 0
    max_attempts: int = 3
    timeout_s: float | None = None
    gpus: int = 0
    label: str = ""
    reused: bool = False
    worker: str | None = None
    error: str | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How many eval tasks that may start wait for a worker with this number of GPUs and this label."""

    gpus: int
    label: str
    count: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """One entry of the results ledger: what one shard of one eval task found on one checkpoint.

    The key is what was evaluated and how: (identity, task identity, replicate, shard, shards).

    Attributes:
        identity: of the checkpoint; see `Checkpoint.identity`.
        study: id of the study for which it was computed.
        statistics: mergeable metrics by name, as JSON.
        files: saved arrays and files: name to path below the directory of outputs.
        source: digest of the function's source, to warn when it changed and the version did not.
        duration_s: seconds that it took, the loading of the checkpoint not counted.
    """

    identity: str
    task_identity: str
    replicate: int = 0
    shard: int = 0
    shards: int = 1
    study: int
    statistics: JsonObject
    files: JsonObject = field(default_factory=dict)
    source: str = ""
    duration_s: float = 0.0
    worker: str = ""
    created_at: float


ACTION = "action"
"""Kind of the events that record what a person did."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvalEvent:
    """An event for the user: a regression, a repaired or quarantined checkpoint.

    Attributes:
        kind: quarantined, gone, rewound, changed-source, same-samples, resting, `ACTION`; or regression, or
            withdrawn for one that does not hold any more, which are computed and never stored.
        seen: id of the checkpoint, or None.
        suite: name of the suite, or None.
        message: for a person; `data` says the same as data.
    """

    id: int = 0
    study: int
    kind: str
    seen: int | None = None
    suite: str | None = None
    message: str
    data: JsonObject = field(default_factory=dict)
    created_at: float
