"""What earlier launches and studies left: taken back, removed, or deleted to start anew.

Whether others are at work is decided by leases and locks, never by host and pid.
"""

import logging
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from phyla.client import LocalClient, open_checkpoints
from phyla.errors import CheckpointError, ConfigurationError
from phyla.launchers.remains import end_marked
from phyla.records import AttemptState, CheckpointState, JobState, StudyRecord
from phyla.store import Reader, Store, pages
from phyla.study.places import find_population, open_if_there
from phyla.worker import Launch, launch_of

if TYPE_CHECKING:
    from phyla.study.study import Study

LOG = logging.getLogger("phyla")
LOG_FILE = re.compile(r"worker-\d+\.log")


def take_back(client: LocalClient, launch: Launch) -> None:
    """Take back at once what dead launches of this machine held of studies."""
    holders = _holders(client)
    dead = launch.dead({launch_of(holder) for holder in holders}) | launch.predecessors()
    for each in dead:
        # Its workers are gone; what they started may not be, if everything was killed at once.
        end_marked(f"{each}:")
    for holder in sorted(holders):
        if launch_of(holder) in dead:
            client.lose_worker(holder, "its process was gone when the work was resumed", counts=False)
    for each in dead:
        launch.forget(each)


def others_at_work(client: LocalClient, launch: Launch) -> bool:
    """Return whether another launch, here or elsewhere, is at work on a study."""
    others = {launch_of(holder) for holder in _holders(client, unexpired=True)} - {launch.id}
    return launch.has_company() or bool(others - launch.dead(others))


def _holders(client: LocalClient, *, unexpired: bool = False) -> set[str]:
    """Return the workers that hold trials or eval tasks of studies."""
    found: set[str] = set()
    for study in client.studies:
        with client.store.reader(study) as reader:
            now = reader.now()
            found |= {row.worker for row in reader.running() if not unexpired or row.expires_at > now}
    return found


def remove_outputs(reader: Reader, outputs: Path) -> None:
    """Remove what attempts saved that did not count and are not running.

    Safe while workers are alive: each attempt saves into a directory of its own, named by eval task and token.
    """
    for folder in _entries(outputs):
        task, _, token = folder.name.partition(".")
        if task.isdecimal() and token.isdecimal() and not _counts(reader, int(task), int(token)):
            shutil.rmtree(folder, ignore_errors=True)


def _counts(reader: Reader, task: int, token: int) -> bool:
    """Return whether the result of an attempt counts, or may still come."""
    attempt = reader.attempt(task, token)
    if attempt is not None and attempt.state is AttemptState.LOST:
        # Perhaps only its lease ran out: a late result counts until somebody else claims the eval task.
        record = reader.locked_eval_job(task)
        return record is not None and record.state is JobState.PENDING and record.token == token
    return attempt is not None and attempt.state in (AttemptState.RUNNING, AttemptState.COMPLETED)


def overwrite(study: "Study") -> None:
    """Delete what is stored of a study, and say what was deleted and what is left.

    Deletes its rows in the store, the checkpoints that these name, and in the home the working directories of its
    trials and the logs of its workers. Everything else is left alone.
    """
    store = None if study.places.storage == "memory://" else open_if_there(study.places)
    if store is None:
        return
    try:
        record = find_population(store, study.name)
        if record is not None:
            _overwrite(study, store, record)
    finally:
        store.close()


def _overwrite(study: "Study", store: Store, record: StudyRecord) -> None:
    root = study.places.checkpoints(study.name)
    for entry in study.start_from:
        if Path(entry.path).expanduser().resolve().is_relative_to(root.resolve()):
            raise ConfigurationError(
                f"start_from={str(entry.path)!r} is a checkpoint of study {study.name!r} itself, which "
                "overwriting would delete; copy it to another place, or give the study another name. Nothing was "
                "deleted"
            )
    with store.reader(record.id) as reader:
        trials = [trial.id for trial in pages(reader)]
        names = [row.name for row in reader.checkpoints() if row.state is not CheckpointState.DELETED]
    repository = open_checkpoints(store, study.name, root)
    store.delete_study(record.id)
    # From here on nothing refers to the files; what cannot be deleted is told, and harms nobody.
    left: list[str] = []
    try:
        if names:
            # Only under its own marker is anything deleted.
            repository.check_owner()
            repository.delete(*names)
    except CheckpointError as error:
        left.append(str(error))
    work, logs = study.places.work(study.name), study.places.logs(study.name)
    _remove((work / f"trial-{trial}" for trial in trials), left)
    _remove((path for path in _entries(logs) if LOG_FILE.fullmatch(path.name)), left)
    for folder in (root, work, logs, study.places.outputs(study.name)):
        others = sorted(path.name for path in _entries(folder) if not path.name.startswith("."))
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            left.append(f"{folder}: {', '.join(others[:3])}{more}")
        elif folder in (work, logs) and folder.is_dir() and not _entries(folder):
            folder.rmdir()
    LOG.warning("study %r is started anew: its %d stored trials were deleted", study.name, len(trials))
    for each in left:
        LOG.warning("left alone: %s", each)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _remove(paths: Iterable[Path], left: list[str]) -> None:
    for path in paths:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"{path}: {error.strerror or error}")
