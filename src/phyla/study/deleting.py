"""Deletes a study or a watched run, for good or to start it anew: only what is provably its own.

First a note in the home says what is to be deleted, then the store forgets the study in one transaction, then the
files go. Whoever deletes it again finishes what was interrupted.
"""

import contextlib
import json
import logging
import re
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla.checkpoints.ownership import OWNER_NAME
from phyla.client import open_checkpoints, sort_out
from phyla.errors import CheckpointError, ConfigurationError, StateError
from phyla.failpoints import failpoint
from phyla.records import CheckpointState, StudyKind, StudyRecord
from phyla.store import pages
from phyla.study.places import Places, find_population, find_study, open_existing, open_if_there
from phyla.words import counted, size

if TYPE_CHECKING:
    from phyla.store import Reader, Store
    from phyla.study.study import Study

LOG = logging.getLogger("phyla")
OF_WORKERS = re.compile(r"worker-\d+(\.log)?")
OUTPUT = re.compile(r"(\d+)\.\d+")
TRACKED = re.compile(r"\w+-[0-9a-f]{16}\.(json|draft|lock)")


@final
@dataclass(slots=True, kw_only=True)
class Doomed:
    """What is to be deleted of one study.

    Attributes:
        id: of the study, which the store never gives again.
        root: directory of its checkpoints, of which it deletes `checkpoints`, and what was only `staged`.
        paths: files and directories whose names no other study ever has.
        shared: those that a later study of the same name may have, too.
        folders: directories that are removed if nothing is left in them.
    """

    id: int
    name: str
    trials: int = 0
    root: str = ""
    checkpoints: list[str] = field(default_factory=list)
    staged: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def words(self) -> str:
        """What it is, in words."""
        parts = [counted(self.trials, "trial")] if self.trials else []
        parts += [counted(len(self.checkpoints), "checkpoint")] if self.root else []
        others = len(self.paths) + len(self.shared)
        return ", ".join([*parts, counted(others, "other file or directory", "other files and directories")])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """What was deleted of a study."""

    name: str
    trials: int
    checkpoints: int
    paths: int  # other files and directories
    freed_bytes: int
    left: tuple[str, ...]  # what was left alone, or could not be deleted, with the reason

    @property
    def words(self) -> str:
        """What was deleted, in words."""
        parts = [counted(self.trials, "trial")] if self.trials else []
        parts += [counted(self.checkpoints, "checkpoint")] if self.checkpoints else []
        parts += [counted(self.paths, "other file or directory", "other files and directories")]
        return f"deleted {self.name}: {', '.join(parts)}; {size(self.freed_bytes)} freed"


def look_at(name: str, places: Places) -> Doomed:
    """Return what `delete` would delete.

    Raises:
        StudyNotFound: there is no such study, and none whose deletion was interrupted.
        StateError: another study watches it.
    """
    store = open_existing(f"study or run {name!r}", places)
    try:
        record = store.find_study(name)
        begun = None if record is not None else _begun(store, name, places)
        if begun is not None:
            return begun
    finally:
        store.close()
    store, record = find_study(name, places, watched=True)
    try:
        return _doomed(store, record, places)
    finally:
        store.close()


def delete(name: str, places: Places) -> Deleted:
    """Delete a study or a watched run: rows, checkpoints, snapshots, outputs, working directories and logs.

    What is not phyla's stays: the checkpoints of a watched directory, and whatever else lies in its directories.
    A study whose deletion was interrupted is deleted to the end.

    Raises:
        StudyNotFound: there is no such study, and none whose deletion was interrupted.
        StateError: it is being worked on, or another study watches it; nothing was deleted.
        RunFollowed: another process follows the watched run; nothing was deleted.
        StoreError: the database failed.
    """
    from phyla.watcher import Lock
    from phyla.worker import Launch

    store = open_existing(f"study or run {name!r}", places)
    with ExitStack() as stack:
        stack.callback(store.close)
        launch = stack.enter_context(Launch(places.locks, store.url, [name]))
        doomed = _begun(store, name, places)
        if doomed is None:
            again, record = find_study(name, places, watched=True)
            again.close()
            watching = [each.name for each in store.studies() if each.source == record.id]
            if watching:
                raise StateError(
                    f"study {name!r} was not deleted: its checkpoints are watched by "
                    f"{', '.join(map(repr, watching))}; delete that first: phyla delete {watching[0]}"
                )
            if record.watched:
                stack.enter_context(Lock(places.watch_lock(name), name))
            elif launch.has_company():
                raise StateError(
                    f"study {name!r} was not deleted: a process of this machine is running it; stop that first"
                )
            doomed = _doomed(store, record, places)
            _forget(store, record, doomed, places)
        found = _finish(doomed, store, places)
        # Nothing is held in their names any more.
        for each in launch.predecessors():
            launch.forget(each)
        if doomed.root:
            _remove_empty(Path(doomed.root))
        return found


def overwrite(study: "Study") -> None:
    """Delete what is stored of a study that is started anew, and say what was deleted and what is left."""
    store = None if study.places.storage == "memory://" else open_if_there(study.places)
    if store is None:
        return
    try:
        record = find_population(store, study.name)
        finish_deletion(store, study.name, study.places)
        if record is None:
            return
        root = study.places.checkpoints(study.name)
        for entry in study.start_from:
            if Path(entry.path).expanduser().resolve().is_relative_to(root.resolve()):
                raise ConfigurationError(
                    f"start_from={str(entry.path)!r} is a checkpoint of study {study.name!r} itself, which "
                    "overwriting would delete; copy it to another place, or give the study another name. Nothing "
                    "was deleted"
                )
        doomed = _doomed(store, record, study.places)
        _forget(store, record, doomed, study.places)
        found = _finish(doomed, store, study.places)
    finally:
        store.close()
    LOG.warning("study %r is started anew: its %d stored trials were deleted", study.name, found.trials)
    for each in found.left:
        LOG.warning("left alone: %s", each)


def finish_deletion(store: "Store", name: str, places: Places) -> None:
    """Finish the deletion of a study that was interrupted, before another one gets its name."""
    begun = _begun(store, name, places)
    if begun is not None:
        _finish(begun, store, places)


def _doomed(store: "Store", record: StudyRecord, places: Places) -> Doomed:
    """Find out what belongs to a study; what is not there is listed too."""
    name, doomed = record.name, Doomed(id=record.id, name=record.name)
    work, logs, outputs = places.work(name), places.logs(name), places.outputs(name)
    doomed.folders = list(map(str, (work, logs, outputs, places.tracking(name), places.best(name))))
    with store.reader(record.id) as reader:
        if record.kind is StudyKind.POPULATION:
            doomed.root = str(places.checkpoints(name))
            rows = [row for row in reader.checkpoints() if row.state is not CheckpointState.DELETED]
            doomed.checkpoints = [row.name for row in rows]
            repository = open_checkpoints(store, name, places.checkpoints(name))
            # What was never finished, or is in no row any more, if its name proves that this store made it.
            staged = {*repository.staged()}
            known = sort_out(reader, {*repository.names(), *staged}, repository.prefix)
            doomed.staged = sorted(staged - {*known.unknown})
            doomed.checkpoints += sorted({*known.leftover} - staged)
            doomed.size_bytes = sum(row.size_bytes for row in rows)
            trials = [trial.id for trial in pages(reader)]
            doomed.trials = len(trials)
            doomed.paths += [str(work / f"trial-{trial}") for trial in trials]
        elif record.kind is StudyKind.DIRECTORY:
            config: Any = record.config
            kept = Path(config["snapshots"])
            doomed.paths += [str(path) for path in _snapshots(reader, kept)]
            doomed.folders.append(str(kept))
        jobs = _own_jobs(store, record, reader)
    for folder, prefix in ((work, "eval-"), (outputs, "")):
        for path in _entries(folder):
            found = OUTPUT.fullmatch(path.name.removeprefix(prefix)) if path.name.startswith(prefix) else None
            if found and int(found[1]) in jobs:
                doomed.paths.append(str(path))
    doomed.shared += [str(path) for path in (*_entries(logs), *_entries(work)) if OF_WORKERS.fullmatch(path.name)]
    doomed.shared += [str(path) for path in _entries(places.tracking(name)) if TRACKED.fullmatch(path.name)]
    doomed.shared += [str(path) for path in _entries(places.best(name)) if path.is_symlink()]
    doomed.paths = [path for path in doomed.paths if Path(path).exists()]
    doomed.size_bytes += sum(taken(Path(path))[0] for path in (*doomed.paths, *doomed.shared))
    return doomed


def _snapshots(reader: "Reader", folder: Path) -> Iterable[Path]:
    """Return the snapshots of a watched directory's checkpoints that are below a folder."""
    found = {Path(seen.path) for seen in reader.all_seen() if seen.snapshot and seen.path}
    inside = {folder / path.relative_to(folder).parts[0] for path in found if path.is_relative_to(folder)}
    return sorted(inside - {folder})


def _own_jobs(store: "Store", record: StudyRecord, reader: "Reader") -> set[int]:
    """Return the eval jobs of a study whose outputs no other study reads: the ledger is common to all of them."""
    others: set[str] = set()
    for other in store.studies():
        if other.id != record.id:
            with store.reader(other.id) as its:
                others |= {seen.identity for seen in its.all_seen()}
    identities = {seen.id: seen.identity for seen in reader.all_seen()}
    return {job.id for job in reader.eval_jobs() if identities.get(job.seen) not in others}


def _note(name: str, places: Places) -> Path:
    return places.home / "deleting" / f"{name}.json"


def _begun(store: "Store", name: str, places: Places) -> Doomed | None:
    """Return what an interrupted deletion of a study still has to delete; the store has forgotten that study."""
    note = _note(name, places)
    if not note.exists():
        return None
    told: Any = json.loads(note.read_text())
    # A note on a study that is still there was written in vain.
    known = {study.id for study in store.studies()}
    if told["store"] != store.identity().id or told["doomed"]["id"] in known:
        return None
    return Doomed(**told["doomed"])


def _forget(store: "Store", record: StudyRecord, doomed: Doomed, places: Places) -> None:
    """Write down what is to be deleted, then let the store forget the study."""
    note = _note(doomed.name, places)
    note.parent.mkdir(parents=True, exist_ok=True)
    draft = note.with_suffix(".draft")
    draft.write_text(json.dumps({"store": store.identity().id, "doomed": asdict(doomed)}))
    draft.replace(note)
    failpoint("delete.before_commit")
    try:
        store.delete_study(record.id)
    except StateError:
        note.unlink()
        raise


def _finish(doomed: Doomed, store: "Store", places: Places) -> Deleted:
    """Delete files of a study that the store has forgotten; what cannot be deleted is told, and harms nobody."""
    left: list[str] = []
    freed = 0
    name = doomed.name
    # Of a study that was made under its name since, these are.
    shared = doomed.shared if store.find_study(name) is None else []
    if doomed.checkpoints or doomed.staged:
        try:
            repository = open_checkpoints(store, name, Path(doomed.root))
            # Only under its own marker is anything deleted.
            repository.check_owner()
            freed += repository.delete(*doomed.checkpoints)
            for each in doomed.staged:
                repository.discard(each)
        except CheckpointError as error:
            left.append(str(error))
    paths = [Path(path) for path in (*doomed.paths, *shared)]
    gone = 0
    for path in paths:
        found = _remove(path, left)
        gone += found is not None
        freed += found or 0
    folders = list(map(Path, doomed.folders))
    for folder in (*([Path(doomed.root)] if doomed.root else []), *folders):
        others = sorted(path.name for path in _entries(folder) if not path.name.startswith("."))
        if others and store.find_study(name) is None:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            left.append(f"{folder}: {', '.join(others[:3])}{more}")
        elif folder in folders and folder.is_dir() and not _entries(folder):
            folder.rmdir()
    _note(name, places).unlink(missing_ok=True)
    return Deleted(
        name=name,
        trials=doomed.trials,
        checkpoints=len(doomed.checkpoints),
        paths=gone,
        freed_bytes=freed,
        left=tuple(left),
    )


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _remove(path: Path, left: list[str]) -> int | None:
    """Remove a file or a directory, and return how many bytes it had; None if there is nothing, or it stays."""
    try:
        freed = taken(path)[0]
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        left.append(f"{path}: {error.strerror or error}")
        return None
    return freed


def _remove_empty(root: Path) -> None:
    """Remove a directory of checkpoints in which only phyla's marker and empty directories are left."""
    if {path.name for path in _entries(root)} <= {OWNER_NAME, ".staging", ".deleting"}:
        with contextlib.suppress(OSError):
            for folder in (root / ".staging", root / ".deleting"):
                if folder.is_dir():
                    folder.rmdir()
            (root / OWNER_NAME).unlink(missing_ok=True)
            root.rmdir()


def taken(path: Path) -> tuple[int, int]:
    """Return how many bytes the files at or below a path have, and how many there are; links are not followed."""
    total, count = 0, 0
    pending = [path]
    while pending:
        one = pending.pop()
        try:
            if one.is_dir() and not one.is_symlink():
                pending += one.iterdir()
            else:
                total += one.lstat().st_size
                count += 1
        except FileNotFoundError:
            continue
    return total, count
