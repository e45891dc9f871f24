"""What the machine wants changed about the evaluation of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from phyla.machine.commands import Command
from phyla.records import (
    AttemptState,
    EvalAttempt,
    EvalEvent,
    EvalResult,
    EvalTaskRecord,
    Group,
    RunState,
    Seen,
)


@final
@dataclass(frozen=True, slots=True)
class InsertSeen:
    """Add a checkpoint with its groups and their eval tasks; ids are given by the store, links filled in."""

    seen: Seen
    groups: Sequence[tuple[Group, Sequence[EvalTaskRecord]]] = ()


@final
@dataclass(frozen=True, slots=True)
class UpdateSeen:
    """Replace the row of a checkpoint that was seen, found by id."""

    seen: Seen


@final
@dataclass(frozen=True, slots=True)
class InsertGroup:
    """Add a group whose checkpoint is known, with its eval tasks."""

    group: Group
    tasks: Sequence[EvalTaskRecord]


@final
@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Replace the row of a group that is locked, found by id."""

    group: Group


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
class InsertEvalTasks:
    """Add eval tasks to groups that exist."""

    tasks: Sequence[EvalTaskRecord]


@final
@dataclass(frozen=True, slots=True)
class UpdateEvalTask:
    """Replace the row of an eval task, found by id."""

    task: EvalTaskRecord


@final
@dataclass(frozen=True, slots=True)
class InsertEvalAttempt:
    """Add an attempt."""

    attempt: EvalAttempt


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvalAttempt:
    """Set how an attempt ended."""

    task: int
    token: int
    state: AttemptState
    ended_at: float
    error: str | None = None


@final
@dataclass(frozen=True, slots=True)
class RenewEvalAttempts:
    """Set the expiry of all running attempts of a worker."""

    worker: str
    expires_at: float


@final
@dataclass(frozen=True, slots=True)
class LimitNotBefore:
    """Let pending eval tasks that could only start later start at this time."""

    latest: float


@final
@dataclass(frozen=True, slots=True)
class InsertResult:
    """Add a result to the ledger; one that is there under the same key stays as it is."""

    result: EvalResult


@final
@dataclass(frozen=True, slots=True)
class InsertEvent:
    """Add an event."""

    event: EvalEvent


@final
@dataclass(frozen=True, slots=True)
class SetRunState:
    """Set the state of the run."""

    state: RunState
    message: str | None = None


EvalCommand: TypeAlias = (
    InsertSeen
    | UpdateSeen
    | InsertGroup
    | UpdateGroup
    | StartGroup
    | Reprioritise
    | InsertEvalTasks
    | UpdateEvalTask
    | InsertEvalAttempt
    | EndEvalAttempt
    | RenewEvalAttempts
    | LimitNotBefore
    | InsertResult
    | InsertEvent
    | SetRunState
)

AnyCommand: TypeAlias = Command | EvalCommand
