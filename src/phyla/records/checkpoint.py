"""Checkpoints: immutable ones that phyla commits, and foreign ones."""

from dataclasses import dataclass
from enum import StrEnum
from typing import final

from phyla.records.names import FileName

GROWS = ("path", "snapshot", "fingerprint", "size_bytes", "written_at")
"""Fields of a foreign checkpoint that change when its files move, or when files without weights are added."""


class CheckpointState(StrEnum):
    """Whether a checkpoint's bytes can be used.

    The first five are of checkpoints that phyla keeps: a lost one has no directory any more; a damaged one has,
    but its files have changed since the commit. The others are of checkpoints that were only seen.
    """

    LIVE = "live"
    DELETING = "deleting"
    DELETED = "deleted"
    LOST = "lost"
    DAMAGED = "damaged"
    READY = "ready"
    QUARANTINED = "quarantined"
    GONE = "gone"


class CheckpointKind(StrEnum):
    """The result of a trial, the progress of one that has not ended, or one that was only seen.

    phyla never deletes a checkpoint that was only seen: it was found in a directory, belongs to the study that is
    watched, or is another model inside another trial's result.
    """

    RESULT = "result"
    PROGRESS = "progress"
    SEEN = "seen"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint, as one study knows it.

    A foreign one that is overwritten in place, or quarantined and then repaired, is seen again: a new row.

    Attributes:
        id: key in its store; 0 before it is inserted.
        study: id of the study.
        name: its directory's name, `<trial>.<token>.<store and claim>` and, for progress, `.p<number>`; of a
            foreign one its path below the watched directory.
        index: place within the checkpoint, when it holds several models; else 0.
        number: how many checkpoints this study came to evaluate before it; -1 if it is not evaluated.
        kind: result, progress, or only seen.
        trial: id of the trial whose result or progress it is; None of a foreign one.
        state: whether its bytes can be used.
        step: age of the weights; -1 when it is not known.
        branch: 0, and one more each time training was rewound to an earlier step.
        identity: what results are kept under: the content's digest, or a hash of names, sizes and times; of models
            inside a checkpoint with `#<index>` after it.
        weak: whether the identity is only such a hash.
        fingerprint: changes whenever anything about a foreign one's files changes.
        path: where a foreign one is read: the original or a snapshot.
        paths: files and directories that belong to a foreign one, below the watched directory.
        snapshot: whether `path` is a snapshot of ours, which outlives the original.
        size_bytes: sum of its files.
        taken: how many trials started from it; collection refuses when this changed under it.
        error: why it is damaged or quarantined, or how it went.
        created_at: when it was committed or seen, in seconds since the epoch.
        written_at: time of its newest file, or of its commit.
    """

    id: int = 0
    study: int
    name: FileName
    index: int = 0
    number: int = -1
    kind: CheckpointKind = CheckpointKind.RESULT
    trial: int | None = None
    state: CheckpointState = CheckpointState.LIVE
    step: int
    branch: int = 0
    identity: str
    weak: bool = False
    fingerprint: str = ""
    path: FileName = ""
    paths: tuple[FileName, ...] = ()
    snapshot: bool = False
    size_bytes: int = 0
    taken: int = 0
    error: str | None = None
    created_at: float = 0.0
    written_at: float = 0.0

    @property
    def usable(self) -> bool:
        """Whether it can be read."""
        return self.state in (CheckpointState.LIVE, CheckpointState.READY)

    @property
    def digest(self) -> str:
        """Digest of the content of the whole checkpoint."""
        return self.identity.partition("#")[0]
