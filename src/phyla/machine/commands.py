"""What the machine wants changed; a store applies these, in order, in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from phyla.machine.evaluation_commands import (
    InsertEvent,
    InsertGroup,
    InsertResult,
    InsertSeen,
    LimitNotBefore,
    Reprioritise,
    StartGroup,
    UpdateGroup,
    UpdateSeen,
)
from phyla.records import (
    Attempt,
    AttemptState,
    Checkpoint,
    CheckpointState,
    EvalJob,
    Json,
    JsonObject,
    Mark,
    Member,
    Report,
    StudyState,
    Tally,
    TrialRecord,
)


@final
@dataclass(frozen=True, slots=True)
class InsertJob:
    """Add a job whose id is known: a trial."""

    job: TrialRecord


@final
@dataclass(frozen=True, slots=True)
class InsertJobs:
    """Add jobs of groups that exist; ids are given by the store."""

    jobs: Sequence[EvalJob]


@final
@dataclass(frozen=True, slots=True)
class UpdateJob:
    """Replace a job's row, found by id."""

    job: TrialRecord | EvalJob


@final
@dataclass(frozen=True, slots=True)
class InsertAttempt:
    """Add an attempt."""

    attempt: Attempt


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
class UpdateMember:
    """Replace a member's row, found by study and index."""

    member: Member


@final
@dataclass(frozen=True, slots=True)
class InsertMember:
    """Add a member; its index is the number of members before."""

    member: Member


@final
@dataclass(frozen=True, slots=True)
class SetConfig:
    """Replace the study's configuration; members that are done, and not retired, are ready to be asked again."""

    config: JsonObject


@final
@dataclass(frozen=True, slots=True)
class InsertCheckpoint:
    """Add a checkpoint."""

    checkpoint: Checkpoint


@final
@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Count one more trial that starts from a checkpoint.

    Applying it raises `phyla.machine.ParentGone` unless the checkpoint is live.
    """

    name: str


@final
@dataclass(frozen=True, slots=True)
class MarkDeleting:
    """Mark a live checkpoint for deletion, unless a trial took it since `taken` was read.

    Rows that changed are left alone; the store tells which were marked.
    """

    name: str
    taken: int


@final
@dataclass(frozen=True, slots=True)
class SetCheckpointState:
    """Set a checkpoint's state; `damage` says what is wrong with a damaged one."""

    name: str
    state: CheckpointState
    damage: str | None = None


@final
@dataclass(frozen=True, slots=True)
class AddReports:
    """Append what training reported."""

    trial: int
    token: int
    reports: Sequence[Report]


@final
@dataclass(frozen=True, slots=True)
class SetTally:
    """Set what an attempt reported of the objective so far, and add the marks its trial came to since.

    A mark that an earlier attempt of the trial came to is replaced.
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
    """Store the strategy's JSON state and count its version up."""

    state: Json


Command: TypeAlias = (
    InsertJob
    | InsertJobs
    | UpdateJob
    | InsertAttempt
    | EndAttempt
    | RenewAttempts
    | UpdateMember
    | InsertMember
    | SetConfig
    | InsertCheckpoint
    | TakeCheckpoint
    | MarkDeleting
    | SetCheckpointState
    | AddReports
    | SetTally
    | SetStudyState
    | SetStrategyState
    | InsertSeen
    | UpdateSeen
    | InsertGroup
    | UpdateGroup
    | StartGroup
    | Reprioritise
    | LimitNotBefore
    | InsertResult
    | InsertEvent
)


class ParentGone(Exception):
    """A checkpoint that a decision wanted to start from is not live any more."""

    def __init__(self, name: str) -> None:
        super().__init__(f"checkpoint {name} is not live")
        self.name = name
