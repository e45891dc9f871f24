"""What workers tell the machine, and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

from phyla.records import Checkpoint, JsonObject, Report, StudyState, TrialRecord


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A trial was trained to its end.

    Attributes:
        trial: its id.
        token: the lease under which the work was done.
        reached_step: age the weights reached.
        values: reported values of the objective's metric in this attempt, oldest first.
        metrics: last reported value of every metric.
        reports: reports that were not sent yet.
        checkpoint: what it left; None only for a measurement.
        checkpoint_index: place within that checkpoint.
    """

    trial: int
    token: int
    reached_step: int
    values: Sequence[float]
    metrics: JsonObject
    reports: Sequence[Report] = ()
    checkpoint: Checkpoint | None = None
    checkpoint_index: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt failed.

    Attributes:
        trial: id of the trial.
        token: the lease under which it failed.
        error: what happened, for a person.
        retryable: False for errors that another attempt cannot cure.
        parent_gone: name of the parent checkpoint, when its bytes were missing.
    """

    trial: int
    token: int
    error: str
    retryable: bool = True
    parent_gone: str | None = None


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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The study takes no more work."""

    state: StudyState
    message: str | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A completion counts.

    Attributes:
        trial: id of the trial.
        fitness: its fitness.
        repeated: True when this completion had been accepted before.
    """

    trial: int
    fitness: float | None
    repeated: bool = field(default=False, compare=False)


ClaimAnswer: TypeAlias = Claimed | Idle | Ended
