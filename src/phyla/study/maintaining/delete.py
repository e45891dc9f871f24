"""Deletes a study or a watched run, for good or to restart it from scratch: only what is provably its own.

First its state in the store says that it is being deleted, so that no worker gets work of it any more; then its
files go, and last its rows. If a file cannot be deleted, the rows stay: without them no command would know that
it is phyla's. Deleting it again finishes an interrupted deletion.
"""

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import queries
from phyla.checkpoints import Checkpoints
from phyla.client import known_checkpoints, open_checkpoints, placed, sort_out
from phyla.controller import records_of
from phyla.errors import (
    CheckpointError,
    CheckpointsAbsent,
    CheckpointsNotOurs,
    CheckpointStorageFailed,
    ConfigurationError,
    StateError,
)
from phyla.formatting import format_count, join_names, size
from phyla.queries import every
from phyla.records import CheckpointState, StudyKind, StudyRecord, StudyState
from phyla.study.declaration import Declared, check_sources
from phyla.study.places import Folder, Places, entries, find_population, find_study, open_if_there
from phyla.system.failpoints import failpoint

if TYPE_CHECKING:
    from phyla.store import Store

LOG = logging.getLogger("phyla")
OF_WORKERS = re.compile(r"worker-\d+(\.log)?")
OUTPUT = re.compile(r"(\d+)\.\d+")
TRACKED = re.compile(r"\w+-[0-9a-f]{16}\.(json|draft|lock)")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """What belongs to one study alone: `paths` are files and directories besides checkpoints."""

    trials: int
    checkpoints: list[str]
    staged: list[str]  # of checkpoints that were never finished
    paths: list[Path]
    size_bytes: int

    @property
    def words(self) -> str:
        """What it is, in words."""
        parts = [format_count(self.trials, "trial")] if self.trials else []
        parts += [format_count(len(self.checkpoints), "checkpoint")] if self.checkpoints else []
        parts.append(format_count(len(self.paths), "other file or directory", "other files and directories"))
        return f"{', '.join(parts)}; {size(self.size_bytes)}"

    def without_checkpoints(self) -> "Belongings":
        """Return the rest, where the checkpoints stay."""
        return replace(
            self, checkpoints=[], staged=[], size_bytes=sum(measure_size(path)[0] for path in self.paths)
        )


def look_at(name: str, places: Places) -> Belongings:
    """Return what `delete` would delete."""
    store, record = find_study(name, places, watched=True, deleting=True)
    try:
        return _belongings(store, record, places)
    finally:
        store.close()


def delete(name: str, places: Places) -> tuple[Belongings, list[str]]:
    """Delete a study or a watched run: rows, checkpoints, snapshots, outputs, working directories and logs.

    Files that are not phyla's stay: the checkpoints of a watched directory, and other files in its directories.
    The texts that are returned say what was left alone, and why.

    Raises:
        CheckpointStorageFailed: files of its own cannot be deleted; if only some were, deleting it again finishes.
    """
    from phyla.watcher import lock
    from phyla.worker import Launch

    store, record = find_study(name, places, watched=True, deleting=True)
    with ExitStack() as stack:
        stack.callback(store.close)
        launch = stack.enter_context(Launch(places.locks, store.url, [name]))
        watching = [study.name for study in store.studies() if study.source == record.id]
        if watching:
            raise StateError(
                f"study {name!r} was not deleted: its checkpoints are watched by "
                f"{', '.join(map(repr, watching))}; delete that first: phyla delete {watching[0]}"
            )
        if record.watched:
            stack.enter_context(lock(places.watch_lock(name), name))
        elif launch.has_company():
            raise StateError(
                f"study {name!r} was not deleted: a process of this machine is running it; stop that first"
            )
        if record.state is not StudyState.DELETING and record.kind is StudyKind.POPULATION:
            _refuse_if_absent(store, record, places)
        deleted = _delete_files(store, record, places)
        if record.kind is StudyKind.POPULATION:
            # As long as the study is there, no other one of this name can claim the directory.
            open_checkpoints(store, record, places.checkpoints(name, record.config)).remove_empty()
        store.delete_study(record.id)
        # Nothing is held in their names any more.
        for predecessor in launch.predecessors():
            launch.forget(predecessor)
        return deleted


def _refuse_if_absent(store: "Store", record: StudyRecord, places: Places) -> None:
    """Raise `CheckpointsAbsent` if checkpoints would stay behind in another place, unknown to any study."""
    if known_checkpoints(store, record):
        with contextlib.suppress(CheckpointsNotOurs):
            open_checkpoints(store, record, places.checkpoints(record.name, record.config)).check_owner()


def overwrite(study: Declared) -> Places:
    """Delete a stored study that starts from scratch; log what was deleted, and return its place."""
    store = None if study.places.storage == "memory://" else open_if_there(study.places)
    if store is None:
        return study.places
    try:
        record = find_population(store, study.name, deleting=True)
        if record is None:
            return study.places
        root = study.places.checkpoints(study.name, record.config)
        check_sources(study)
        for entry in study.start_from:
            own = isinstance(root, Path) and root.resolve()
            if own and Path(entry.path).expanduser().resolve().is_relative_to(own):
                raise ConfigurationError(
                    f"start_from={str(entry.path)!r} is a checkpoint of study {study.name!r} itself, which "
                    "overwriting would delete; copy it to another place, or give the study another name. Nothing "
                    "was deleted"
                )
        if record.state is not StudyState.DELETING:
            _refuse_if_absent(store, record, study.places)
        deleted, leftovers = _delete_files(store, record, study.places)
        store.delete_study(record.id)
    finally:
        store.close()
    trials = format_count(deleted.trials, "stored trial")
    LOG.warning("restarting study %r from scratch: deleted its %s", study.name, trials)
    for leftover in leftovers:
        LOG.warning("not deleted: %s", leftover)
    return study.places.like(record.config)


def _refuse_without_rights(store: "Store", record: StudyRecord, places: Places) -> None:
    """Raise `CheckpointStorageFailed` if this user may not delete the files of a study."""
    folders = _folders(store, record, places)
    changed = [*folders, *(folder.parent for folder in folders if folder.is_dir())]
    if record.kind is StudyKind.POPULATION:
        root = places.checkpoints(record.name, record.config)
        with contextlib.suppress(CheckpointsAbsent):  # then they stay
            open_checkpoints(store, record, root).check_owner()
            changed += [root] if isinstance(root, Path) else []
    locked = {str(folder) for folder in changed if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK)}
    if locked:
        why = f"user {os.geteuid()} lacks the permission. Ask their owner for it, or to delete the study"
        if any(os.statvfs(folder).f_flag & os.ST_RDONLY for folder in locked):
            why = "the file system is read-only. Mount it for writing"
        raise CheckpointStorageFailed(
            f"study {record.name!r} was not deleted: cannot delete files in {join_names(sorted(locked))}: {why}"
        )


def _delete_files(store: "Store", record: StudyRecord, places: Places) -> tuple[Belongings, list[str]]:
    """Delete the files of a study; return what stays because it is not the study's own.

    Raises:
        CheckpointStorageFailed: files of its own cannot be deleted.
    """
    if record.state is not StudyState.DELETING:
        _refuse_without_rights(store, record, places)
    records_of(store, record.id).begin_deleting()
    failpoint("delete.after_mark")
    belongings, leftovers, failed = _belongings(store, record, places), list[str](), list[str]()
    root = places.checkpoints(record.name, record.config)
    if belongings.checkpoints or belongings.staged:
        repository = open_checkpoints(store, record, root)
        try:
            # Only under its own marker is anything deleted.
            repository.check_owner()
        except CheckpointsAbsent as error:
            leftovers.append(str(error))
            belongings = belongings.without_checkpoints()
        else:
            failed += _remove_checkpoints(repository, belongings)
    for path in belongings.paths:
        _remove(path, failed)
    if failed:
        raise CheckpointStorageFailed(
            f"study {record.name!r} was deleted in part only: {'; '.join(failed[:3])}. Then finish with: "
            f"phyla delete {record.name}"
        )
    folders = _folders(store, record, places)
    own = [root] if record.kind is StudyKind.POPULATION and isinstance(root, Path) else []
    for folder in (*own, *folders):
        remaining = sorted(path.name for path in entries(folder) if not path.name.startswith("."))
        if remaining:
            leftovers.append(f"{folder}: {join_names(remaining)}")
        elif folder in folders and folder.is_dir() and not entries(folder):
            folder.rmdir()
    return belongings, leftovers


def _remove_checkpoints(repository: Checkpoints, belongings: Belongings) -> list[str]:
    try:
        repository.delete(*belongings.checkpoints)
        for draft in belongings.staged:
            repository.discard(draft)
    except CheckpointError as error:
        return [str(error)]
    return []


def _folders(store: "Store", record: StudyRecord, places: Places) -> list[Path]:
    """Return the directories of a study that are removed once nothing is left in them."""
    name, config = record.name, dict[str, Any](record.config)
    kinds: tuple[Folder, ...] = ("work", "logs", "outputs", "prepared", "tracking", "best")
    folders = [places.folder(kind, name) for kind in kinds]
    if record.kind is StudyKind.DIRECTORY:
        folders.append(places.snapshots(name, config["snapshots"], store.identity().id))
    return folders


def _belongings(store: "Store", record: StudyRecord, places: Places) -> Belongings:
    """Find out what belongs to a study."""
    name, trials, size_bytes = record.name, 0, 0
    checkpoints: list[str] = []
    staged: list[str] = []
    paths: list[Path] = []
    work, logs, outputs, prepared, tracking, best, *other_folders = _folders(store, record, places)
    if record.kind is StudyKind.POPULATION:
        every_row = store.look(record.id, queries.checkpoints)
        rows = [row for row in placed(every_row) if row.state is not CheckpointState.DELETED]
        repository = open_checkpoints(store, record, places.checkpoints(name, record.config))
        # Unfinished or unlisted files, if their name proves that this store wrote them.
        unfinished = {*repository.staged()}
        names = sorted({*repository.names(), *unfinished})
        known = store.look(record.id, sort_out, names, repository.prefix)
        staged = sorted(unfinished - {*known.unknown})
        checkpoints = [*(row.name for row in rows), *sorted({*known.leftover} - unfinished)]
        size_bytes = sum(row.size_bytes for row in rows)
        ids = [trial.id for trial in every(store, record.id, queries.trials)]
        trials = len(ids)
        paths += [work / f"trial-{trial}" for trial in ids]
    for folder in other_folders:
        paths += _snapshots(store, record, folder)
    jobs = _own_jobs(store, record)
    for folder, prefix in ((work, "eval-"), (outputs, "")):
        for path in entries(folder):
            match = OUTPUT.fullmatch(path.name.removeprefix(prefix)) if path.name.startswith(prefix) else None
            if match and int(match[1]) in jobs:
                paths.append(path)
    paths += _prepared(store, record, prepared)
    paths += [path for path in (*entries(logs), *entries(work)) if OF_WORKERS.fullmatch(path.name)]
    paths += [path for path in entries(tracking) if TRACKED.fullmatch(path.name)]
    paths = [path for path in paths if path.exists()]
    paths += [path for path in entries(best) if path.is_symlink()]
    return Belongings(
        trials=trials,
        checkpoints=checkpoints,
        staged=staged,
        paths=paths,
        size_bytes=size_bytes + sum(measure_size(path)[0] for path in paths),
    )


def _snapshots(store: "Store", record: StudyRecord, folder: Path) -> Iterable[Path]:
    """Return the snapshots of a watched directory's checkpoints that may be below a folder.

    Their names are the store's word, which others may have written: only what has the name of a snapshot is one.
    """
    from phyla.watcher.snapshots import is_snapshot, snapshot_name

    names = {snapshot_name(seen) for seen in every(store, record.id, queries.seen) if seen.snapshot}
    return [folder / name for name in sorted(names) if is_snapshot(name)]


def _prepared(store: "Store", record: StudyRecord, folder: Path) -> list[Path]:
    """Return the files of a study's prepared checkpoints."""
    from phyla.worker.evaluating.prepared import PreparedCheckpoints

    prepared = PreparedCheckpoints(folder)
    own = prepared.belongings(store.identity().id, record.id)
    return [path for entry in own for path in prepared.paths(entry)]


def _own_jobs(store: "Store", record: StudyRecord) -> set[int]:
    """Return the eval jobs of a study whose outputs no other study reads: the ledger is common to all of them."""
    identities_elsewhere: set[str] = set()
    for other in store.studies():
        if other.id != record.id:
            identities_elsewhere |= {seen.identity for seen in every(store, other.id, queries.seen)}
    identities = {seen.id: seen.identity for seen in every(store, record.id, queries.seen)}
    jobs = every(store, record.id, queries.eval_jobs)
    return {job.id for job in jobs if identities.get(job.seen) not in identities_elsewhere}


def _remove(path: Path, failed: list[str]) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        if os.path.lexists(path):  # a worker elsewhere may have removed it
            failed.append(f"cannot delete {path}: {error.strerror or error}")


def measure_size(path: Path) -> tuple[int, int]:
    """Return how many bytes the files at or below a path have, and how many there are; links are not followed."""
    total, count = 0, 0
    pending = [path]
    while pending:
        path = pending.pop()
        try:
            if path.is_dir() and not path.is_symlink():
                pending += path.iterdir()
            else:
                stat = path.lstat()
                total += min(stat.st_size, stat.st_blocks * 512) or stat.st_size  # less where there are holes
                count += 1
        except FileNotFoundError:
            continue
    return total, count
