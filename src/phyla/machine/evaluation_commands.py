"""What the machine wants changed about evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from phyla.records import EvalEvent, EvalJob, EvalResult, Group, Seen


@final
@dataclass(frozen=True, slots=True)
class InsertSeen:
    """Add a checkpoint with its groups and their eval tasks; ids are given by the store, links filled in."""

    seen: Seen
    groups: Sequence[tuple[Group, Sequence[EvalJob]]] = ()


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
    tasks: Sequence[EvalJob]


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
