"""Classify the directories in a study's checkpoint root by owner."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from phyla import queries
from phyla.checkpoints import (
    Checkpoints,
    LocalCheckpoints,
    Owner,
    RemoteCheckpoints,
    RemotePlace,
    claim_digest,
    parse_name,
)
from phyla.checkpoints.local import is_name
from phyla.controller import records_of
from phyla.errors import CheckpointError
from phyla.records import Attempt, AttemptState, Checkpoint, CheckpointState, JobState, StudyRecord
from phyla.store import Reader, Store

MEMORY = "memory"
"""What a marker says in place of the id of a store in memory, which ends with its process."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """Names of the checkpoints that a collection deleted, and how many bytes that freed."""

    deleted: tuple[str, ...] = ()
    freed_bytes: int = 0


def placed(rows: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints that are in the study's place; black-box clients name and keep their own."""
    return [row for row in rows if not row.weak and is_name(row.name)]


def collect(store: Store, study: int, repository: Checkpoints, candidates: Sequence[Checkpoint]) -> CollectResult:
    """Delete those candidates that no trial took meanwhile; needs nothing of the study's rules."""
    return delete_marked(store, study, repository, records_of(store, study).mark_deleting(placed(candidates)))


def delete_marked(store: Store, study: int, repository: Checkpoints, names: Sequence[str]) -> CollectResult:
    """Delete checkpoints that were marked, as far as they can be deleted now."""
    freed = 0
    deleted: list[str] = []
    try:
        freed = repository.delete(*names)
        deleted = list(names)
    except CheckpointError:
        # One of them cannot be deleted now; the others can.
        for name in names:
            with suppress(CheckpointError):
                freed += repository.delete(name)
                deleted.append(name)
    records_of(store, study).set_checkpoints(deleted, CheckpointState.DELETED)
    return CollectResult(deleted=tuple(deleted), freed_bytes=freed)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Directories by what the store knows about them."""

    rows: dict[str, Checkpoint] = field(default_factory=dict)  # Checkpoints of the study, by name.
    leftover: list[str] = field(default_factory=list)  # Of attempts of this store that are over.
    forgotten: list[str] = field(default_factory=list)  # Made by this store for attempts that it does not know.
    unknown: list[str] = field(default_factory=list)  # Not made by this store.


def sort_out(reader: Reader, names: Sequence[str], prefix: str) -> Sorted:
    """Say what directories are; a look after they were listed misses no row."""
    found = Sorted()
    for name in sorted(names):
        row, made = reader.checkpoint(name), parse_name(name)
        if row is not None:
            found.rows[name] = row
        elif made is None or made.prefix != prefix:
            found.unknown.append(name)
        elif made.claim is None:
            found.leftover.append(name)
        else:
            trial, token, claim = made.claim
            attempt = reader.attempt(trial, token)
            if attempt is None or claim_digest(attempt.worker, attempt.claimed_at) != claim:
                found.forgotten.append(name)
            elif not _may_complete(reader, attempt):
                found.leftover.append(name)
    return found


def _may_complete(reader: Reader, attempt: Attempt) -> bool:
    """Return whether an attempt is running, or only let its lease run out, and may still complete."""
    if attempt.state is AttemptState.RUNNING or attempt.ended_at is None:
        return True
    if attempt.ended_at < attempt.expires_at:
        return False
    newest = reader.trial(attempt.job)
    return newest.state is JobState.PENDING and newest.token == attempt.token


def open_checkpoints(store: Store, study: str, root: Path | RemotePlace) -> Checkpoints:
    """Return the checkpoints of a study, which are in the directory `root`, or below a URL; touches no file."""
    identity = store.identity()
    owner = Owner(
        store=identity.id if identity.lasting else MEMORY,
        study=study,
        prefix=identity.id[:6],
        copied_from=identity.copied_from,
    )
    return LocalCheckpoints(root, owner=owner) if isinstance(root, Path) else RemoteCheckpoints(root, owner=owner)


def claim_checkpoints(store: Store, study: StudyRecord | None, repository: Checkpoints) -> Sequence[str]:
    """Make sure that a checkpoint directory is the study's, before anything is decided.

    It is made and marked if the study never had a checkpoint. The names of directories in it that this store did
    not make are returned; they are left alone. `CheckpointsNotOurs` if it has some that the store has forgotten.
    """
    ownership = repository.ownership
    if ownership is None:
        return ()
    ownership.claim(None if study is None else known_checkpoints(store, study))
    names = sorted({*repository.names(), *repository.staged(), *repository.deleting()})
    if study is None:
        forgotten = [name for name in names if (made := parse_name(name)) and made.prefix == repository.prefix]
        unknown = [name for name in names if name not in forgotten]
    else:
        found = store.look(study.id, sort_out, names, repository.prefix)
        forgotten, unknown = found.forgotten, found.unknown
    if forgotten:
        raise ownership.make_restored_error(forgotten)
    return unknown


def known_checkpoints(store: Store, study: StudyRecord) -> int:
    """Return how many checkpoints of a study should be where it keeps them, lost ones included."""
    live, deleting = (
        placed(store.look(study.id, queries.checkpoints, state=state))
        for state in (CheckpointState.LIVE, CheckpointState.DELETING)
    )
    # Lost ones have no index; they only matter when there is nothing else.
    every = () if live or deleting else placed(store.look(study.id, queries.checkpoints))
    return len(live) + len(deleting) + sum(row.state is CheckpointState.LOST for row in every)
