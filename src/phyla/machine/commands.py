"""Commands: the changes that the machine requests; a store applies them in order, in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from phyla.records import (
    Attempt,
    AttemptState,
    Checkpoint,
    CheckpointState,
    EvalEvent,
    EvalJob,
    EvalResult,
    FileName,
    Group,
    Json,
    JsonObject,
    Mark,
    Member,
    Report,
    RunStart,
    StudyState,
    Tally,
    TrialRecord,
)


@final
@dataclass(frozen=True, slots=True)
class Insert:
    """Add a record.

    An existing checkpoint of the study with the same name is not changed, because requests may be repeated; nor is
    a result in the ledger. The index of a new member is the previous number of members. The store assigns the ids
    of checkpoints, events and starts.
    """

    record: TrialRecord | Attempt | Member | Checkpoint | EvalResult | EvalEvent | RunStart


@final
@dataclass(frozen=True, slots=True)
class Update:
    """Replace a record's row, found by its key. A group must be locked."""

    record: TrialRecord | EvalJob | Member | Checkpoint | Group


@final
@dataclass(frozen=True, slots=True)
class InsertJobs:
    """Add jobs of existing groups; the store assigns ids."""

    jobs: Sequence[EvalJob]


@final
@dataclass(frozen=True, slots=True)
class InsertGroup:
    """Add a group on a registered checkpoint, with its eval tasks; the store assigns ids."""

    group: Group
    tasks: Sequence[EvalJob]


@final
@dataclass(frozen=True, slots=True)
class InsertCheckpoint:
    """Add a checkpoint with its groups and their eval tasks; the store assigns ids and references."""

    checkpoint: Checkpoint
    groups: Sequence[tuple[Group, Sequence[EvalJob]]] = ()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EndAttempt:
    """Set how an attempt ended."""

    job: int
    token: int
    state: AttemptState
    ended_at: float
    outcome: JsonObject | None = None
    error: str | None = None
    timings: Mapping[str, float] | None = None


@final
@dataclass(frozen=True, slots=True)
class RenewAttempts:
    """Move the expiry of running attempts of one worker."""

    worker: str
    expires_at: float


@final
@dataclass(frozen=True, slots=True)
class SetConfig:
    """Replace the study's configuration; done members that are not retired become ready again."""

    config: JsonObject


@final
@dataclass(frozen=True, slots=True)
class SetLocation:
    """Set which directory the checkpoints of a population are in."""

    location: FileName


@final
@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Count one more trial that starts from a checkpoint; raises `ParentGone` unless it is live."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class MarkDeleting:
    """Mark a live checkpoint for deletion, unless a trial took it since `taken` was read.

    Changed rows are skipped; the store returns the marked names.
    """

    name: str
    taken: int


@final
@dataclass(frozen=True, slots=True)
class SetCheckpointState:
    """Set the state of a checkpoint of this study; `error` describes the damage, if any."""

    name: str
    state: CheckpointState
    error: str | None = None


@final
@dataclass(frozen=True, slots=True)
class AddReports:
    """Append reports of training."""

    trial: int
    token: int
    reports: Sequence[Report]


@final
@dataclass(frozen=True, slots=True)
class SetTally:
    """Set the tally of an attempt's reports of the objective, and add the marks that its trial has reached.

    A mark that an earlier attempt of the trial reached is replaced.
    """

    trial: int
    token: int
    tally: Tally
    marks: Sequence[Mark] = ()


@final
@dataclass(frozen=True, slots=True)
class SetStudyState:
    """Set the state of the study and why."""

    state: StudyState
    message: str | None = None


@final
@dataclass(frozen=True, slots=True)
class SetStrategyState:
    """Store the strategy's JSON state and increment its version."""

    state: Json


@final
@dataclass(frozen=True, slots=True)
class StartGroup:
    """Record that an eval task of a group was claimed; needs no lock."""

    group: int


@final
@dataclass(frozen=True, slots=True)
class Reprioritise:
    """Set the priority class of a queued group and its pending eval tasks."""

    group: int
    priority: int


@final
@dataclass(frozen=True, slots=True)
class LimitNotBefore:
    """Set the latest start time of pending eval tasks that would start later."""

    latest: float


Command: TypeAlias = (
    Insert
    | Update
    | InsertJobs
    | InsertGroup
    | InsertCheckpoint
    | EndAttempt
    | RenewAttempts
    | SetConfig
    | SetLocation
    | TakeCheckpoint
    | MarkDeleting
    | SetCheckpointState
    | AddReports
    | SetTally
    | SetStudyState
    | SetStrategyState
    | StartGroup
    | Reprioritise
    | LimitNotBefore
)


class ParentGone(Exception):
    """The checkpoint that a decision starts from is no longer live."""

    def __init__(self, name: str) -> None:
        super().__init__(f"checkpoint {name} is not live")
        self.name = name
