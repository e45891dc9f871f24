"""Requests of workers to the machine, and its answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

from phyla.errors import LeaseLost
from phyla.records import (
    Cause,
    Checkpoint,
    EvalEvent,
    EvalJob,
    EvalResult,
    Group,
    JsonObject,
    Report,
    StudyState,
    TrialRecord,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A completed trial.

    Attributes:
        trial: its id.
        token: the lease under which the work was done.
        reached_step: age of the weights at the end.
        values: reported values in this attempt, oldest first, of each metric that the objective needs; empty where
            fitness comes from a suite.
        metrics: last reported value of every metric.
        reports: unsent reports.
        checkpoint: the committed checkpoint; None only for a measurement.
        checkpoint_index: place within that checkpoint.
        timings: seconds of the attempt by `Phase`, if they are known.
        noticed: the worker's observations of the training function; stored with the attempt.
    """

    trial: int
    token: int
    reached_step: int
    values: Mapping[str, Sequence[float]]
    metrics: JsonObject
    reports: Sequence[Report] = ()
    checkpoint: Checkpoint | None = None
    checkpoint_index: int = 0
    timings: Mapping[str, float] | None = None
    noticed: JsonObject | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed attempt.

    Attributes:
        job: id of the trial or eval job.
        token: the lease under which it failed.
        error: the message for the user.
        retryable: False for errors that another attempt cannot fix.
        gone: name of an unusable checkpoint that the job needs; not an error of the user's code.
        damage: the damage of that checkpoint's files, if they differ from the committed ones.
        timings: seconds of the attempt by `Phase`, if they are known.
        cause: the exception of training, and its place; None for other failures.
    """

    job: int
    token: int
    error: str
    retryable: bool = True
    gone: str | None = None
    damage: str | None = None
    timings: Mapping[str, float] | None = None
    cause: Cause | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Work: a running trial under a new lease."""

    trial: TrialRecord
    expires_at: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """No work now; ask again after `seconds`, or sooner."""

    seconds: float | None
    why: str
    kind: Literal["idle"] = "idle"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The study hands out no more work."""

    state: StudyState
    message: str | None = None
    kind: Literal["ended"] = "ended"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """The settings of the study were changed: a process with the new settings must continue.

    Attributes:
        why: the changed settings, and what to do.
    """

    why: str
    kind: Literal["outdated"] = "outdated"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NoTime:
    """No job is expected to end in the worker's remaining time."""

    why: str
    kind: Literal["no time"] = "no time"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A completion counts.

    Attributes:
        job: id of the trial or eval job.
        fitness: a trial's fitness, if it has one.
        repeated: True when this completion had been accepted before.
    """

    job: int
    fitness: float | None = None
    repeated: bool = field(default=False, compare=False)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A completion does not count: a rule stopped the trial early.

    Attributes:
        trial: id of the trial.
        reason: why, as data.
        repeated: True when that was known before this completion.
    """

    trial: int
    reason: JsonObject
    repeated: bool = field(default=False, compare=False)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAnswer:
    """The answer to a report: the state of its attempt.

    Attributes:
        cancelled: whether the lease is lost, so that results under it do not count.
        stop_reason: why a rule stopped the trial, as data; None if no rule did.
    """

    cancelled: bool = False
    stop_reason: JsonObject | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedEvaluation:
    """Work: a running eval job under a new lease, and its checkpoint."""

    job: EvalJob
    group: Group
    seen: Checkpoint


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A completed shard of an eval task, or a completed aggregation.

    Attributes:
        job: id of the eval job.
        group: id of its group.
        token: the lease under which the work was done.
        result: for the ledger; None for an aggregation.
        values: the group's aggregates; None unless it is an aggregation.
        failed: eval tasks whose shards cannot be merged, as with a wrong number of samples, with the reason.
        best: whether they are better than those of the best group of the suite.
        former: id of that best group when they were compared; None if there was none.
        events: events that users should see.
    """

    job: int
    group: int
    token: int
    result: EvalResult | None = None
    values: JsonObject | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    best: bool = False
    former: int | None = None
    events: Sequence[EvalEvent] = ()


@final
class NotJudged(Exception):
    """The fitness rule or the objective raised the error that is the cause of this one."""


Answer: TypeAlias = Accepted | Stopped | LeaseLost
Work: TypeAlias = Claimed | ClaimedEvaluation
ClaimAnswer: TypeAlias = Claimed | Idle | Ended
NoWork: TypeAlias = Idle | Ended | Outdated | NoTime
