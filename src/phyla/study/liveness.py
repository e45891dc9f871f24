"""Whether other launches are at work, and what dead ones left: told by leases and locks, never by host and pid."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from phyla.records import RunRecord
from phyla.worker import Launch, launch_of

if TYPE_CHECKING:
    from phyla.store import Store
    from phyla.study.opened import OpenedStudy


def take_back(opened: "OpenedStudy", launch: Launch) -> None:
    """Take back at once what dead launches of this machine held of a study.

    Raises:
        StoreError: the database failed.
    """
    _take_back(launch, _holders(opened), opened.client.lose_worker)


def take_back_run(store: "Store", run: RunRecord, lose: Callable[..., int], launch: Launch) -> None:
    """Take back at once what dead launches of this machine held of a run.

    Args:
        store: where the run is.
        run: the run.
        lose: takes everything from one worker, as `WorkClient.lose_worker` does.
        launch: this one.

    Raises:
        StoreError: the database failed.
    """
    with store.evaluations(run) as reader:
        holders = {attempt.worker for attempt in reader.running_evaluations()}
    _take_back(launch, holders, lose)


def _take_back(launch: Launch, holders: Collection[str], lose: Callable[..., int]) -> None:
    from phyla.launchers.remains import end_marked

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
    others = {launch_of(holder) for holder in _holders(opened, unexpired=True)} - {launch.id}
    return launch.has_company() or bool(others - launch.dead(others))


def _holders(opened: "OpenedStudy", *, unexpired: bool = False) -> set[str]:
    """Return the workers that hold trials or eval tasks of a study."""
    with opened.store.reader(opened.record.id) as reader:
        now = reader.now()
        leases = [(attempt.worker, attempt.expires_at) for attempt in reader.running()]
    if opened.run is not None:
        with opened.store.evaluations(opened.run) as evaluations:
            leases += [(attempt.worker, attempt.expires_at) for attempt in evaluations.running_evaluations()]
    return {worker for worker, expires_at in leases if not unexpired or expires_at > now}
