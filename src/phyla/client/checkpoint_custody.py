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
    parse_name,
)
from phyla.checkpoints.local import is_name
from phyla.controller import claimed_attempt, records_of
from phyla.errors import CheckpointError
from phyla.records import Attempt, AttemptState, Checkpoint, CheckpointState, JobState, StudyRecord
from phyla.store import Reader, Store

MEMORY = "memory"
"""Owner in markers of a store in memory, in place of an id, because it ends with its process."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """Names of the checkpoints that a collection deleted, and how many bytes that freed."""

    deleted: tuple[str, ...] = ()
    freed_bytes: int = 0


def placed(rows: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints in the study's directory; black-box clients name and store their own."""
    return [row for row in rows if not row.weak and is_name(row.name)]


def collect(store: Store, study: int, repository: Checkpoints, candidates: Sequence[Checkpoint]) -> CollectResult:
    """Delete the candidates that no trial has taken in the meantime."""
    return delete_marked(store, study, repository, records_of(store, study).mark_deleting(placed(candidates)))


def delete_marked(store: Store, study: int, repository: Checkpoints, names: Sequence[str]) -> CollectResult:
    """Delete marked checkpoints, as far as possible now."""
    if not names:
        return CollectResult()
    freed = 0
    deleted: list[str] = []
    try:
        freed = repository.delete(*names)
        deleted = list(names)
    except CheckpointError:
        # At least one cannot be deleted now.
        for name in names:
            with suppress(CheckpointError):
                freed += repository.delete(name)
                deleted.append(name)
    # If the whole directory is unreachable by now, what is missing was not deleted.
    repository.check_owner()
    records_of(store, study).set_checkpoints(deleted, CheckpointState.DELETED)
    return CollectResult(deleted=tuple(deleted), freed_bytes=freed)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Directories classified by their records in the store."""

    rows: dict[str, Checkpoint] = field(default_factory=dict)  # checkpoints of the study, by name
    leftover: list[str] = field(default_factory=list)  # of ended attempts of this store
    forgotten: list[str] = field(default_factory=list)  # made by this store for attempts that it has no record of
    unknown: list[str] = field(default_factory=list)  # not made by this store


def sort_out(reader: Reader, names: Sequence[str], prefix: str) -> Sorted:
    """Classify directories; call it after listing them, so that no record is missed."""
    directories = Sorted()
    for name in sorted(names):
        row, parsed = reader.checkpoint(name), parse_name(name)
        if row is not None:
            directories.rows[name] = row
        elif parsed is None or parsed.prefix != prefix:
            directories.unknown.append(name)
        elif parsed.claim is None:
            directories.leftover.append(name)
        else:
            attempt = claimed_attempt(reader, parsed.claim)
            if attempt is None:
                directories.forgotten.append(name)
            elif not _may_complete(reader, attempt):
                directories.leftover.append(name)
    return directories


def _may_complete(reader: Reader, attempt: Attempt) -> bool:
    """Return whether an attempt is running, or may still complete although its lease expired."""
    if attempt.state is AttemptState.RUNNING or attempt.ended_at is None:
        return True
    if attempt.ended_at < attempt.expires_at:
        return False
    newest = reader.trial(attempt.job)
    return newest.state is JobState.PENDING and newest.token == attempt.token


def open_checkpoints(store: Store, study: StudyRecord | str, root: Path | RemotePlace) -> Checkpoints:
    """Return the checkpoints of a study in the directory `root`, or below a URL, without accessing files.

    Of a study that the store does not have yet, pass the name.
    """
    identity = store.identity()
    name, directory = (study, "") if isinstance(study, str) else (study.name, study.location)
    owner = Owner(
        store=identity.id if identity.lasting else MEMORY,
        study=name,
        directory=directory,
        prefix=identity.id[:6],
        copied_from=identity.copied_from,
    )
    return LocalCheckpoints(root, owner=owner) if isinstance(root, Path) else RemoteCheckpoints(root, owner=owner)


def claim_checkpoints(store: Store, study: StudyRecord | None, repository: Checkpoints) -> Sequence[str]:
    """Check that a checkpoint directory belongs to the study, before any decision.

    Of several processes that claim a directory for a study that has none, one makes its own the study's, and the
    others are refused. The names of directories in it that this store did not make are returned and not touched.
    `CheckpointsNotOurs` if the store lost records of some.
    """
    ownership = repository.ownership
    if ownership is None:
        return ()
    recorded = None if study is None else store.look(study.id, queries.study).location
    directory = ownership.claim(recorded)
    names = sorted({*repository.names(), *repository.staged(), *repository.deleting()})
    if study is None:
        forgotten = [name for name in names if (parsed := parse_name(name)) and parsed.prefix == repository.prefix]
        unknown = [name for name in names if name not in forgotten]
    else:
        directories = store.look(study.id, sort_out, names, repository.prefix)
        forgotten, unknown = directories.forgotten, directories.unknown
    if forgotten:
        raise ownership.make_restored_error(forgotten)
    if study is not None and not recorded:
        ownership.claim(records_of(store, study.id).set_directory(directory, ""))
    return unknown


def known_checkpoints(store: Store, study: StudyRecord) -> int:
    """Return how many checkpoints a study's directory should have, including lost ones."""
    live, deleting = (
        placed(store.look(study.id, queries.checkpoints, state=state))
        for state in (CheckpointState.LIVE, CheckpointState.DELETING)
    )
    # Lost checkpoints have no index; they matter only if there are no others.
    every = () if live or deleting else placed(store.look(study.id, queries.checkpoints))
    return len(live) + len(deleting) + sum(row.state is CheckpointState.LOST for row in every)
