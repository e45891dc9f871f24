"""What dead launches left, and whether others are at work: decided by leases and locks, never by host and pid."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from phyla.records import AttemptState, JobState
from phyla.worker import Launch, launch_of

if TYPE_CHECKING:
    from phyla.store import Reader, Store
    from phyla.study.opened import OpenedStudy


def take_back(store: "Store", study: int, lose: Callable[..., int], launch: Launch) -> None:
    """Take back at once what dead launches of this machine held of a study, by `Client.lose_worker`.

    Raises:
        StoreError: the database failed.
    """
    from phyla.launchers.remains import end_marked

    holders = _holders(store, study)
    dead = launch.dead({launch_of(holder) for holder in holders}) | launch.predecessors()
    for each in dead:
        # Its workers are gone; what they started may not be, if everything was killed at once.
        end_marked(f"{each}:")
    for holder in sorted(holders):
        if launch_of(holder) in dead:
            lose(holder, "its process was gone when the work was resumed", counts=False)
    for each in dead:
        launch.forget(each)


def others_at_work(opened: "OpenedStudy", launch: Launch) -> bool:
    """Return whether another launch, here or elsewhere, is at work on a study.

    Raises:
        StoreError: the database failed.
    """
    others = {launch_of(holder) for holder in _holders(opened.store, opened.record.id, unexpired=True)} - {
        launch.id
    }
    return launch.has_company() or bool(others - launch.dead(others))


def _holders(store: "Store", study: int, *, unexpired: bool = False) -> set[str]:
    """Return the workers that hold trials or eval tasks of a study."""
    with store.reader(study) as reader:
        now = reader.now()
        return {attempt.worker for attempt in reader.running() if not unexpired or attempt.expires_at > now}


def remove_outputs(reader: "Reader", outputs: Path) -> int:
    """Remove what attempts saved that did not count and are not running; return how many directories that was.

    Safe while workers are alive: each attempt saves into a directory of its own, named by eval task and token.
    """
    removed = 0
    if not outputs.is_dir():
        return removed
    for folder in outputs.iterdir():
        task, _, token = folder.name.partition(".")
        if not (task.isdecimal() and token.isdecimal()):
            continue
        if not _counts(reader, int(task), int(token)):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _counts(reader: "Reader", task: int, token: int) -> bool:
    """Return whether the result of an attempt counts, or may still come."""
    attempt = reader.attempt(task, token)
    if attempt is None:
        return False
    if attempt.state is AttemptState.LOST:
        # Perhaps only its lease ran out: a late result counts until somebody else claims the eval task.
        record = reader.locked_eval_job(task)
        return record is not None and record.state is JobState.PENDING and record.token == token
    return attempt.state in (AttemptState.RUNNING, AttemptState.COMPLETED)
