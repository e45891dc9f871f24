"""Starting a study anew: say that its training function was edited, and delete what is stored."""

import logging
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyla.errors import CheckpointError, ConfigurationError
from phyla.local_client import open_checkpoints
from phyla.records import CheckpointState, StudyRecord, StudyState
from phyla.store import Store, pages
from phyla.study.opening import find_population, open_if_there
from phyla.study.source_digest import code_digest

if TYPE_CHECKING:
    from phyla.study.study import Study

LOG = logging.getLogger("phyla")
LOG_FILE = re.compile(r"worker-\d+\.log")


def say_if_edited(record: StudyRecord, study: "Study") -> None:
    """Say that a study, as it was before it was opened, is complete and was trained with another function."""
    known: Any = record.config.get("code")
    if record.state is not StudyState.COMPLETED or study.train is None or not known:
        # Where training goes on, the change is a finding of the study.
        return
    if known["began"] == code_digest(study.train):
        return
    name = getattr(study.train, "__name__", "train")
    LOG.warning(
        "warning: %s() was edited since study %r was trained. The study is complete, so this is the stored "
        "result of the earlier %s(). To start anew, which deletes what is stored: study.run(overwrite=True), on "
        "the command line --overwrite %s. To keep it, give the study another name",
        *(name, study.name, name, study.name),
    )


def overwrite(study: "Study") -> None:
    """Delete what is stored of a study, and say what was deleted and what is left.

    Deletes its rows in the store, the checkpoints that these name, and in the home the working directories of its
    trials and the logs of its workers. Everything else is left alone.

    Raises:
        ConfigurationError: the study would start from one of the checkpoints that are deleted, or what has its
            name is watched.
        StateError: other workers are at work on it.
        StoreError: the database failed.
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
        others = [path.name for path in _entries(folder) if not path.name.startswith(".")]
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            left.append(f"{folder}: {', '.join(sorted(others)[:3])}{more}")
        elif folder in (work, logs) and folder.is_dir() and not any(folder.iterdir()):
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
