"""What a run takes up from those before it, and makes sure of at its end."""

import logging
import shutil
from pathlib import Path

from phyla.client import (
    Client,
)
from phyla.errors import (
    CheckpointCorrupt,
    CheckpointMissing,
    ConnectionLost,
)
from phyla.records import (
    Aim,
    AttemptState,
    Checkpoint,
    JobState,
    StudyRecord,
    StudyState,
)
from phyla.store import Reader, Store
from phyla.store.retry import again
from phyla.study.places import entries
from phyla.study.results.given_up import gave_up
from phyla.study.results.progress import best_of
from phyla.worker import Launch, launch_of
from phyla.worker.containment.keeper import end_marked

LOG = logging.getLogger("phyla")


@again(ConnectionLost)
def let_go_on(store: Store, study: StudyRecord) -> bool:
    """Let a study go on that was stopped, has failed, or gave members up, which try again; return whether."""
    with store.reader(study.id) as reader:
        ended = reader.study().state in (StudyState.STOPPED, StudyState.FAILED)
    if ended or gave_up(store, study):
        store.set_state(study.id, StudyState.RUNNING)
        return True
    return False


@again(ConnectionLost)
def take_back(client: Client, launch: Launch) -> None:
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


def others_at_work(client: Client, launch: Launch) -> bool:
    """Return whether another launch, here or elsewhere, is at work on a study."""
    others = {launch_of(holder) for holder in _holders(client, unexpired=True)} - {launch.id}
    return launch.has_company() or bool(others - launch.dead(others))


def _holders(client: Client, *, unexpired: bool = False) -> set[str]:
    """Return the workers that hold trials or eval tasks of studies."""
    found: set[str] = set()
    for study in client.controllers:
        with client.store.reader(study) as reader:
            now = reader.now()
            found |= {row.worker for row in reader.running() if not unexpired or row.expires_at > now}
    return found


def remove_outputs(reader: Reader, outputs: Path) -> None:
    """Remove what attempts saved that did not count and are not running.

    Safe while workers are alive: each attempt saves into a directory of its own, named by eval task and token.
    """
    for folder in entries(outputs):
        task, _, token = folder.name.partition(".")
        if task.isdecimal() and token.isdecimal() and not _counts(reader, int(task), int(token)):
            shutil.rmtree(folder, ignore_errors=True)


def _counts(reader: Reader, task: int, token: int) -> bool:
    """Return whether the result of an attempt counts, or may still come."""
    attempt = reader.attempt(task, token)
    if attempt is not None and attempt.state is AttemptState.LOST:
        # Perhaps only its lease ran out: a late result counts until another worker claims the eval task.
        record = reader.job(task)
        # Through a service each read has its own time, so the late result may have come since the last one.
        may = (JobState.PENDING, JobState.COMPLETED)
        return record is not None and record.state in may and record.token == token
    return attempt is not None and attempt.state in (AttemptState.RUNNING, AttemptState.COMPLETED)


@again(ConnectionLost)
def verify_best(client: Client) -> None:
    """Make sure that the best checkpoint, or all on the front, can be used; else the next best takes its place."""
    aim = Aim.from_config(client.record.config)
    while True:
        with client.store.reader(client.record.id) as reader:
            found = [reader.checkpoint(trial.checkpoint or "") for trial in best_of(reader, aim)]
        if all(_verify(row, client) for row in found if row is not None):
            return


def _verify(checkpoint: Checkpoint, client: Client) -> bool:
    """Read a checkpoint again; return False, and mark it lost or damaged, if it is not what was committed."""
    damage = None
    try:
        client.repository.use(checkpoint.name, checkpoint.digest, again=True)
    except CheckpointMissing as error:
        LOG.warning("%s", error)
    except CheckpointCorrupt as error:
        damage = str(error)
        LOG.warning("%s; it is not used any more", error)
    else:
        return True
    client.controller.set_unusable(checkpoint.name, damage)
    return False
