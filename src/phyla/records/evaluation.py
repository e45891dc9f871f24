"""Continuous evaluation: runs, the checkpoints seen in them, evaluation groups, eval tasks, the ledger."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from phyla.records.attempt import AttemptState
from phyla.records.json import JsonObject
from phyla.records.trial import TrialState


class WorkKind(StrEnum):
    """What a worker may be given."""

    TRAIN = "train"
    EVALUATE = "evaluate"


class RunKind(StrEnum):
    """Where the checkpoints of a run come from."""

    STUDY = "study"
    DIRECTORY = "directory"


class RunState(StrEnum):
    """Whether more checkpoints may come."""

    FOLLOWING = "following"
    DRAINING = "draining"
    ENDED = "ended"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A stream of checkpoints that is evaluated: a study's, or those in a directory.

    Attributes:
        id: key in its store.
        name: unique in its store.
        kind: where its checkpoints come from.
        study: id of the study, when it is one.
        location: the watched directory; empty for a study.
        state: following, draining (no more checkpoints come), or ended (everything is accounted for).
        config: the suites and how to follow, as JSON.
        created_at: seconds since the epoch.
        message: why it ended.
    """

    id: int
    name: str
    kind: RunKind
    study: int | None = None
    location: str = ""
    state: RunState = RunState.FOLLOWING
    config: JsonObject = field(default_factory=dict)
    created_at: float
    message: str | None = None


class SeenState(StrEnum):
    """Whether a checkpoint that was seen can be evaluated."""

    READY = "ready"
    QUARANTINED = "quarantined"
    GONE = "gone"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A checkpoint as evaluation sees it: one version of one name in one run.

    A checkpoint that is overwritten in place, or quarantined and then repaired, is seen again: a new row.

    Attributes:
        id: key in its store; 0 before it is inserted.
        run: id of the run.
        number: how many checkpoints of this run were seen before it.
        name: a study's checkpoint name, or the path below the watched directory.
        index: place within the checkpoint, when it holds several models; else 0.
        step: age of the weights; -1 when it is not known.
        branch: 0, and one more each time training was rewound to an earlier step.
        state: ready, quarantined (with `error`), or gone.
        identity: what was evaluated: the content's digest, or a hash of names, sizes and times.
        weak: whether the identity is only such a hash.
        fingerprint: changes whenever anything about its files changes; empty for a study's.
        path: where it is read, original or snapshot; empty for a study's, whose repository knows.
        paths: files and directories that belong to it, below the watched directory; empty for a study's.
        snapshot: whether `path` is a snapshot of ours, which outlives the original.
        size_bytes: sum of its files.
        trial: the trial that wrote it, in a study.
        error: why it is quarantined, or how it went.
        seen_at: seconds since the epoch.
        written_at: time of its newest file, or of its commit.
    """

    id: int = 0
    run: int
    number: int = 0
    name: str
    index: int = 0
    step: int
    branch: int = 0
    state: SeenState = SeenState.READY
    identity: str
    weak: bool = False
    fingerprint: str = ""
    path: str = ""
    paths: tuple[str, ...] = ()
    snapshot: bool = False
    size_bytes: int = 0
    trial: int | None = None
    error: str | None = None
    seen_at: float
    written_at: float


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
        run: id of the run.
        suite: name of the suite.
        seen: id of the checkpoint.
        replicate: 0; above for repeated evaluations of the same checkpoint with other seeds.
        state: queued until its last eval task ended; then complete, partial (some failed for good: never a
            fitness), skipped (with `why`), or gone (the checkpoint went before or during its turn).
        priority: class of urgency, see `Priority`.
        rank: within a class, lower is sooner.
        guaranteed: why no policy may skip it: milestone, final, fitness, best; None when one may.
        started: whether any of its eval tasks was ever claimed.
        best: whether it is the best complete group of its suite so far.
        study: id of the study that waits for it, or None.
        trial: the trial whose fitness it becomes, or None.
        member: that trial's member, or None.
        why: why it was skipped, is partial, or is gone.
        values: aggregates by name: `{"value": float, "stderr": float | None}`, non-finite ones as text.
        created_at: seconds since the epoch.
        not_before: nothing of it starts earlier.
        ended_at: when it ended.
    """

    id: int = 0
    run: int
    suite: str
    seen: int = 0
    replicate: int = 0
    state: GroupState = GroupState.QUEUED
    priority: int = Priority.FRESH
    rank: float = 0.0
    guaranteed: str | None = None
    started: bool = False
    best: bool = False
    study: int | None = None
    trial: int | None = None
    member: int | None = None
    why: str | None = None
    values: JsonObject = field(default_factory=dict)
    created_at: float
    not_before: float = 0.0
    ended_at: float | None = None


class EvalTaskKind(StrEnum):
    """Evaluate one shard of one eval task, or aggregate a whole group."""

    EVALUATE = "evaluate"
    AGGREGATE = "aggregate"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTaskRecord:
    """One shard of one eval task on one checkpoint: what a worker claims.

    It lives the life of a trial (`phyla.leases.TRANSITIONS`), with leases, attempts and fencing tokens.

    Attributes:
        id: key in its store; 0 before it is inserted.
        run: id of the run.
        group: id of its evaluation group.
        seen: id of the checkpoint.
        task: name of the eval task; empty for the aggregation of a group.
        kind: evaluate or aggregate.
        identity: how it is evaluated: the eval task's identity; part of the ledger's key.
        replicate: as its group's.
        shard: index of the shard.
        shards: how many shards the eval task has.
        state: where it is in its life.
        priority: as its group's; aggregations come before everything else.
        rank: as its group's.
        not_before: not claimed earlier.
        token: newest fencing token; the number of claims so far.
        failures: attempts that failed.
        max_attempts: attempts that may fail before it is given up.
        timeout_s: seconds an attempt may take; None for no limit.
        reused: its result was in the ledger already.
        worker: the worker of its newest attempt.
        error: text of its last error.
        created_at: seconds since the epoch.
        started_at: when its newest attempt was claimed.
        ended_at: when it reached a final state.
    """

    id: int = 0
    run: int
    group: int = 0
    seen: int = 0
    task: str
    kind: EvalTaskKind = EvalTaskKind.EVALUATE
    identity: str
    replicate: int = 0
    shard: int = 0
    shards: int = 1
    state: TrialState = TrialState.PENDING
    priority: int = Priority.FRESH
    rank: float = 0.0
    not_before: float = 0.0
    token: int = 0
    failures: int = 0
    max_attempts: int = 3
    timeout_s: float | None = None
    reused: bool = False
    worker: str | None = None
    error: str | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvalAttempt:
    """One try at an eval task, under one lease; fields as in `Attempt`."""

    task: int
    token: int
    run: int
    worker: str
    state: AttemptState
    claimed_at: float
    expires_at: float
    ended_at: float | None = None
    error: str | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """One entry of the results ledger: what one shard of one eval task found on one checkpoint.

    The key is what was evaluated and how: (identity, task identity, replicate, shard, shards).

    Attributes:
        identity: of the checkpoint; see `Seen.identity`.
        task_identity: of the eval task.
        replicate: as its group's.
        shard: index of the shard.
        shards: how many there are.
        run: id of the run for which it was computed.
        statistics: mergeable metrics by name, as JSON.
        files: saved arrays and files: name to path below the directory of outputs.
        source: digest of the function's source, to warn when it changed and the version did not.
        duration_s: seconds that it took, the loading of the checkpoint not counted.
        load_s: seconds that loading took; 0 when the checkpoint was loaded already.
        worker: who computed it.
        created_at: seconds since the epoch.
    """

    identity: str
    task_identity: str
    replicate: int = 0
    shard: int = 0
    shards: int = 1
    run: int
    statistics: JsonObject
    files: JsonObject = field(default_factory=dict)
    source: str = ""
    duration_s: float = 0.0
    load_s: float = 0.0
    worker: str = ""
    created_at: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvalEvent:
    """Something about a run that a person should know: a regression, a repaired or quarantined checkpoint.

    Attributes:
        id: key in its store; 0 before it is inserted.
        run: id of the run.
        kind: regression, quarantined, gone, rewound, changed-source.
        seen: id of the checkpoint, or None.
        suite: name of the suite, or None.
        message: for a person.
        data: the same as data.
        created_at: seconds since the epoch.
    """

    id: int = 0
    run: int
    kind: str
    seen: int | None = None
    suite: str | None = None
    message: str
    data: JsonObject = field(default_factory=dict)
    created_at: float
