"""Recovery of the work of earlier runs, and checks at the end of a run."""

import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from phyla import queries
from phyla.client import Client
from phyla.controller import records_of
from phyla.errors import (
    CheckpointCorrupt,
    CheckpointMissing,
)
from phyla.records import (
    AttemptState,
    Checkpoint,
    JobState,
    StudyRecord,
    StudyState,
)
from phyla.store import Reader, Store
from phyla.study.places import entries
from phyla.study.results.given_up import list_given_up
from phyla.worker import Launch, launch_of
from phyla.worker.containment.keeper import end_marked

LOG = logging.getLogger("phyla")
OUTPUT = re.compile("([0-9]+)[.]([0-9]+)")
"""The name of what an attempt at an eval task saves: its job and its token."""


def resume_study(store: Store, study: StudyRecord) -> bool:
    """Resume a study that stopped, failed, or gave members up, which are retried; return whether it did."""
    state = store.look(study.id, queries.study).state
    if state in (StudyState.STOPPED, StudyState.FAILED) or list_given_up(store, study):
        store.set_state(study.id, StudyState.RUNNING)
        return True
    return False


def take_back(client: Client, launch: Launch) -> None:
    """Take back at once what dead launches of this machine held of studies."""
    holders = _holders(client)
    dead = launch.dead({launch_of(holder) for holder in holders}) | launch.predecessors()
    for name in dead:
        # Its workers are gone; what they started may not be, if everything was killed at once.
        end_marked(f"{name}:")
    for holder in sorted(holders):
        if launch_of(holder) in dead:
            client.lose_worker(holder, "its process was gone when the work was resumed", counts=False)
    for name in dead:
        launch.forget(name)


def has_other_launches(client: Client, launch: Launch) -> bool:
    """Return whether another launch, here or elsewhere, works on a study."""
    other_launches = {launch_of(holder) for holder in _holders(client, leased=True)} - {launch.id}
    return launch.has_company() or bool(other_launches - launch.dead(other_launches))


def _holders(client: Client, *, leased: bool = False) -> set[str]:
    """Return the workers that hold trials or eval tasks of studies."""
    store, studies = client.store, client.controllers
    return {row.worker for study in studies for row in store.look(study, queries.running, leased=leased)}


def remove_outputs(store: Store, study: int, outputs: Path) -> None:
    """Remove what attempts saved that did not count and are not running.

    Safe while workers are alive: each attempt saves into a directory of its own, named by eval task and token.
    """
    claims = [OUTPUT.fullmatch(folder.name) for folder in entries(outputs)]
    named = [(int(claim[1]), int(claim[2])) for claim in claims if claim]
    for task, token in store.look(study, outputs_in_vain, named):
        shutil.rmtree(outputs / f"{task}.{token}", ignore_errors=True)


def outputs_in_vain(reader: Reader, claims: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the claims of eval tasks, each by its job and token, whose outputs do not count and will not."""
    return [(task, token) for task, token in claims if not _counts(reader, task, token)]


def _counts(reader: Reader, task: int, token: int) -> bool:
    """Return whether the result of an attempt counts, or may still come."""
    attempt = reader.attempt(task, token)
    if attempt is not None and attempt.state is AttemptState.LOST:
        # Perhaps only its lease ran out: a late result counts until another worker claims the eval task.
        record = reader.job(task)
        return record is not None and record.state is JobState.PENDING and record.token == token
    return attempt is not None and attempt.state in (AttemptState.RUNNING, AttemptState.COMPLETED)


def verify_best(client: Client) -> None:
    """Make sure that the best checkpoint, or all on the front, can be used; else the next best takes its place."""
    while True:
        rows = [best.checkpoint for best in client.store.look(client.record.id, queries.best)]
        if all(_verify(row, client) for row in rows if row is not None):
            return


def _verify(checkpoint: Checkpoint, client: Client) -> bool:
    """Verify a checkpoint; return False, and mark it lost or damaged, if it differs from what was committed."""
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
    records_of(client.store, client.record.id).set_unusable(checkpoint.name, damage)
    return False
