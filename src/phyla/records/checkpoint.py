"""A checkpoint: an immutable, committed directory."""

from dataclasses import dataclass
from enum import StrEnum
from typing import final


class CheckpointState(StrEnum):
    """Whether a checkpoint's bytes can be used.

    A lost one has no directory any more. A damaged one has, but its files are not what was committed.
    """

    LIVE = "live"
    DELETING = "deleting"
    DELETED = "deleted"
    LOST = "lost"
    DAMAGED = "damaged"


class CheckpointKind(StrEnum):
    """The result of a trial, or the progress of one that has not ended."""

    RESULT = "result"
    PROGRESS = "progress"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        name: key: `<trial>.<token>.<store and claim>`, with `.p<number>` after it for progress; its directory's
            name.
        study: id of the study.
        trial: id of the trial that wrote it.
        kind: result or progress.
        state: whether its bytes can be used.
        step: age of the weights.
        digest: content digest over all its files.
        size_bytes: sum of its files.
        created_at: seconds since the epoch.
        taken: how many trials started from it; collection refuses when this changed under it.
        damage: what is wrong with its files; None unless it is damaged.
    """

    name: str
    study: int
    trial: int
    kind: CheckpointKind = CheckpointKind.RESULT
    state: CheckpointState = CheckpointState.LIVE
    step: int
    digest: str
    size_bytes: int
    created_at: float
    taken: int = 0
    damage: str | None = None
