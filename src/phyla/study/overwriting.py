"""Starting a study anew: say that its training function was edited, and delete what is stored."""

import logging
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla.errors import CheckpointError, ConfigurationError
from phyla.local_client import open_checkpoints
from phyla.records import CheckpointState, StudyRecord, StudyState
from phyla.store import Store, open_store, pages
from phyla.study.opening import sqlite_file
from phyla.study.source_digest import code_digest

if TYPE_CHECKING:
    from phyla.study.study import Study

LOG = logging.getLogger("phyla")
LOG_FILE = re.compile(r"worker-\d+\.log")


def say_if_edited(store: Store, record: StudyRecord, study: "Study") -> None:
    """Say that a study is complete and was trained with another training function, if that is so.

    Args:
        store: where it is.
        record: the study, as it was before this process opened it.
        study: the study that is opened.
    """
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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Overwritten:
    """What was deleted of a study.

    Attributes:
        trials: number of its trials.
        freed_bytes: size of the checkpoints that were deleted.
        left: what is still there, with the reason.
    """

    trials: int
    freed_bytes: int
    left: tuple[str, ...]


def overwrite(study: "Study") -> Overwritten | None:
    """Delete what is stored of a study; return None if nothing is.

    Deletes its rows in the store, the checkpoints that these name, and in the home the working directories of its
    trials and the logs of its workers. Everything else is left alone.

    Raises:
        ConfigurationError: the study would start from one of the checkpoints that are deleted.
        StateError: other workers are at work on it.
        StoreError: the database failed.
    """
    file = sqlite_file(study.places.storage)
    if study.places.storage == "memory://" or (file is not None and not file.exists()):
        return None
    store = open_store(study.places.storage)
    try:
        record = store.find_study(study.name)
        return None if record is None else _overwrite(study, store, record)
    finally:
        store.close()


def _overwrite(study: "Study", store: Store, record: StudyRecord) -> Overwritten:
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
    freed = 0
    try:
        if names:
            # Only under its own marker is anything deleted.
            repository.check_owner()
            freed = repository.delete(*names)
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
    return Overwritten(trials=len(trials), freed_bytes=freed, left=tuple(left))


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


def say_overwritten(study: str, done: Overwritten) -> None:
    """Say what was deleted, and what is left."""
    LOG.warning("study %r is started anew: its %d stored trials were deleted", study, done.trials)
    for left in done.left:
        LOG.warning("left alone: %s", left)
