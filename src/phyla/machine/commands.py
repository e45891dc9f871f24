"""Commands: the changes that the machine asks for; a store applies them in order, in one transaction."""

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

    A checkpoint of this study's that is there under the same name stays as it is, since a request may be sent
    again; so does a result that is in the ledger. The index of a new member is the number of members before. A
    checkpoint, an event and a start get their id.
    """

    record: TrialRecord | Attempt | Member | Checkpoint | EvalResult | EvalEvent | RunStart


@final
@dataclass(frozen=True, slots=True)
class Update:
    """Replace a record's row, found by its key. A group has to be locked."""

    record: TrialRecord | EvalJob | Member | Checkpoint | Group


@final
@dataclass(frozen=True, slots=True)
class InsertJobs:
    """Add jobs of groups that exist; ids are given by the store."""

    jobs: Sequence[EvalJob]


@final
@dataclass(frozen=True, slots=True)
class InsertGroup:
    """Add a group whose checkpoint is known, with its eval tasks; ids are given by the store."""

    group: Group
    tasks: Sequence[EvalJob]


@final
@dataclass(frozen=True, slots=True)
class InsertCheckpoint:
    """Add a checkpoint with its groups and their eval tasks; ids are given by the store, links filled in."""

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
    """Replace the study's configuration; members that are done, and not retired, are ready to be asked again."""

    config: JsonObject


@final
@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Count one more trial that starts from a checkpoint; raises `ParentGone` unless it is live."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class MarkDeleting:
    """Mark a live checkpoint for deletion, unless a trial took it since `taken` was read.

    Rows that changed are left alone; the store returns which were marked.
    """

    name: str
    taken: int


@final
@dataclass(frozen=True, slots=True)
class SetCheckpointState:
    """Set the state of a checkpoint of this study's; `error` says what is wrong with a damaged one."""

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


@final
@dataclass(frozen=True, slots=True)
class StartGroup:
    """Note that an eval task of a group was claimed; needs no lock."""

    group: int


@final
@dataclass(frozen=True, slots=True)
class Reprioritise:
    """Give a queued group, and its pending eval tasks, another class of urgency."""

    group: int
    priority: int


@final
@dataclass(frozen=True, slots=True)
class LimitNotBefore:
    """Let pending eval tasks that could only start later start at this time."""

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
    """A checkpoint that a decision wanted to start from is not live any more."""

    def __init__(self, name: str) -> None:
        super().__init__(f"checkpoint {name} is not live")
        self.name = name
