"""What the directories are that lie where a study keeps its checkpoints."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from phyla.checkpoints import LocalCheckpoints, Owner, claim_digest, made_by
from phyla.records import Attempt, AttemptState, Checkpoint, CheckpointState, JobState, StudyRecord
from phyla.store import Reader, Store

MEMORY = "memory"
"""What a marker says in place of the id of a store in memory, which ends with its process."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Directories by what the store knows about them.

    Attributes:
        rows: those that are checkpoints of the study, by name.
        leftover: those of attempts of this store that failed or were superseded: nobody needs them.
        forgotten: those that this store made for attempts that it does not know.
        unknown: those that this store did not make.
    """

    rows: Mapping[str, Checkpoint]
    leftover: Sequence[str]
    forgotten: Sequence[str]
    unknown: Sequence[str]


def sort_out(reader: Reader, names: Collection[str], prefix: str) -> Sorted:
    """Say what directories are; a reader that was opened after they were listed misses no row.

    Args:
        reader: the study.
        names: names of directories.
        prefix: what the names contain that this store gives.
    """
    rows: dict[str, Checkpoint] = {}
    leftover: list[str] = []
    forgotten: list[str] = []
    unknown: list[str] = []
    for name in sorted(names):
        row = reader.checkpoint(name)
        if row is not None:
            rows[name] = row
            continue
        made = made_by(name)
        if made is None or made.prefix != prefix:
            unknown.append(name)
        elif made.claim is None:
            leftover.append(name)
        else:
            trial, token, claim = made.claim
            attempt = reader.attempt(trial, token)
            if attempt is None or claim_digest(attempt.worker, attempt.claimed_at) != claim:
                forgotten.append(name)
            elif not _may_complete(reader, attempt):
                leftover.append(name)
    return Sorted(rows=rows, leftover=leftover, forgotten=forgotten, unknown=unknown)


def _may_complete(reader: Reader, attempt: Attempt) -> bool:
    """Return whether an attempt is running, or only let its lease run out, and may still complete."""
    if attempt.state is AttemptState.RUNNING or attempt.ended_at is None:
        return True
    if attempt.ended_at < attempt.expires_at:
        return False
    newest = reader.trial(attempt.job)
    return newest.state is JobState.PENDING and newest.token == attempt.token


def open_checkpoints(store: Store, study: str, root: Path) -> LocalCheckpoints:
    """Return the checkpoints of a study; touches no file.

    Args:
        store: the store that the directory belongs to.
        study: name of the study.
        root: the directory.

    Raises:
        StoreError: the database failed.
    """
    identity = store.identity()
    owner = Owner(
        store=identity.id if identity.lasting else MEMORY,
        study=study,
        prefix=identity.id[:6],
        copied_from=identity.copied_from,
    )
    return LocalCheckpoints(root, owner=owner)


def claim_checkpoints(store: Store, study: StudyRecord | None, repository: LocalCheckpoints) -> Sequence[str]:
    """Make sure that a checkpoint directory is the study's, before anything is decided.

    It is made and marked if the study never had a checkpoint.

    Args:
        store: where the study is.
        study: the study; None if there is none yet.
        repository: its checkpoints.

    Returns:
        Names of directories in it that this store did not make; they are left alone.

    Raises:
        CheckpointsAbsent: the store knows checkpoints, and the directory is not there.
        CheckpointsNotOurs: something else is in its place, or it has checkpoints that the store has forgotten.
        CheckpointStorageFailed: it cannot be made.
        StoreError: the database failed.
    """
    ownership = repository.ownership
    if ownership is None:
        return ()
    ownership.claim(None if study is None else known_checkpoints(store, study))
    names = sorted({*repository.names(), *repository.staged(), *repository.deleting()})
    if study is None:
        made = {name: made_by(name) for name in names}
        forgotten: Sequence[str] = [
            name for name in names if (who := made[name]) and who.prefix == repository.prefix
        ]
        unknown: Sequence[str] = [name for name in names if name not in forgotten]
    else:
        with store.reader(study.id) as reader:
            found = sort_out(reader, names, repository.prefix)
        forgotten, unknown = found.forgotten, found.unknown
    if forgotten:
        raise ownership.restored([*forgotten])
    return unknown


def known_checkpoints(store: Store, study: StudyRecord) -> int:
    """Return how many checkpoints of a study should be where it keeps them, lost ones included."""
    with store.reader(study.id) as reader:
        present = len(reader.live_checkpoints()) + len(reader.deleting_checkpoints())
        # Lost ones have no index; they only matter when there is nothing else.
        return present or sum(row.state is CheckpointState.LOST for row in reader.checkpoints())
