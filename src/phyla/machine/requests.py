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
    """A trial was trained to its end.

    Attributes:
        trial: its id.
        token: the lease under which the work was done.
        reached_step: age the weights reached.
        values: reported values in this attempt, oldest first, of each metric that the objective needs; empty where
            fitness comes from a suite.
        metrics: last reported value of every metric.
        reports: reports that were not sent yet.
        checkpoint: the committed checkpoint; None only for a measurement.
        checkpoint_index: place within that checkpoint.
        timings: seconds of the attempt by `Phase`, if they are known.
        noticed: what the worker noticed about the training function; stored with the attempt.
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
    """An attempt failed.

    Attributes:
        job: id of the trial or eval job.
        token: the lease under which it failed.
        error: the message for the user.
        retryable: False for errors that another attempt cannot cure.
        gone: name of a checkpoint that the job needs and that cannot be used; not the fault of the user's code.
        damage: what is wrong with the files of that checkpoint, if they are not what was committed; else None.
        timings: seconds of the attempt by `Phase`, if they are known.
        cause: what training raised, and where; None if something else went wrong.
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
    """Nothing to do now; ask again after `seconds`, or sooner."""

    seconds: float | None
    why: str
    kind: Literal["idle"] = "idle"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The study takes no more work."""

    state: StudyState
    message: str | None = None
    kind: Literal["ended"] = "ended"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """The settings of the study were changed: a process with the new settings has to continue.

    Attributes:
        why: which settings, and what to do.
    """

    why: str
    kind: Literal["outdated"] = "outdated"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NoTime:
    """No job is expected to end in the time that the worker has left."""

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
        cancelled: the lease is lost; results under it do not count.
        stop_reason: why a rule stopped the trial, as data; None unless one did.
    """

    cancelled: bool = False
    stop_reason: JsonObject | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedEvaluation:
    """Work: a running eval job under a new lease, what it is about, and whether a population of phyla wrote it."""

    job: EvalJob
    group: Group
    seen: Checkpoint
    population: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A shard of an eval task was run to its end, or a group was aggregated.

    Attributes:
        job: id of the eval job.
        group: id of its group.
        token: the lease under which the work was done.
        result: for the ledger; None for an aggregation.
        values: the group's aggregates; None unless it is an aggregation.
        failed: eval tasks whose shards cannot be merged, as with a wrong number of samples, with the reason.
        best: whether they are better than those of the best group of the suite.
        former: id of that best group when they were compared; None if there was none.
        events: what a person should know.
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


Answer: TypeAlias = Accepted | Stopped | LeaseLost
Work: TypeAlias = Claimed | ClaimedEvaluation
ClaimAnswer: TypeAlias = Claimed | Idle | Ended
NoWork: TypeAlias = Idle | Ended | Outdated | NoTime
