"""Maintain a study from outside, and take back, remove or delete what earlier launches and studies left.

Needs no training code. Whether others are at work is decided by leases and locks, never by host and pid.
"""

import logging
import shutil
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, final

from phyla import machine
from phyla.checkpoints import Checkpoints, RemotePlace
from phyla.client import (
    Client,
    CollectResult,
    claim_checkpoints,
    collect,
    open_checkpoints,
    placed,
    sort_out,
)
from phyla.configuration import keeping_of
from phyla.controller import housekeeping_of, sightings_of
from phyla.errors import (
    CheckpointCorrupt,
    CheckpointMissing,
    CheckpointsAbsent,
    ConnectionLost,
    StateError,
)
from phyla.formatting import listed
from phyla.machine import Retention
from phyla.records import (
    Aim,
    AttemptState,
    Checkpoint,
    CheckpointState,
    JobState,
    Member,
    StudyRecord,
    StudyState,
    said_by,
)
from phyla.store.retry import again
from phyla.study.places import ROOT, Places, entries, find_study
from phyla.study.results.progress import best_of

if TYPE_CHECKING:
    from phyla.store import Reader, Store
    from phyla.worker import Launch

LOG = logging.getLogger("phyla")
ACTION = "action"
"""Kind of the events that say who did what."""


def maintain(name: str, places: Places) -> "Maintenance":
    """Open a study to maintain it."""
    return Maintenance(*find_study(name, places), places)


@final
class Maintenance:
    """What a person may do to a study besides running it."""

    def __init__(self, store: "Store", study: StudyRecord, places: Places) -> None:
        self.places = places
        self._store = store
        self._study = study

    @cached_property
    def _repository(self) -> Checkpoints:
        root = self.places.checkpoints(self._study.name, self._study.config)
        return open_checkpoints(self._store, self._study.name, root)

    def retention(self) -> Retention:
        """Return which checkpoints are kept and why, and which may go; changes nothing."""
        with self._store.reader(self._study.id) as reader:
            return machine.retention(reader, keeping_of(reader.study().config))

    def explain_retention(self) -> str:
        """Return the formula of what is kept, and its bound, in words."""
        return machine.explain(keeping_of(self._study.config))

    def collect(self) -> CollectResult:
        """Delete the checkpoints that nobody needs any more, if their directory is the study's."""
        found = self.retention()
        if placed([*(row for row, _ in found.kept), *found.collectable]):
            self._repository.check_owner()
        return collect(self._store, self._study.id, self._repository, found.collectable)

    def adopt(self) -> str:
        """Make the checkpoint directory this study's, after it was moved, or its store copied; deletes nothing.

        Only for a directory that no other store works on: one that belongs to a study of the same name in another
        store, one that lost its marker and holds nothing but checkpoints, or an empty one. If a person named it,
        the study remembers it. What was adopted is returned in a sentence.
        """
        name, config = self._study.name, self._study.config
        root = self.places.like(config).checkpoint_root / name
        repository = open_checkpoints(self._store, name, root)
        try:
            claim_checkpoints(self._store, self._study, repository)
        except CheckpointsAbsent:
            now = f"now; {self._take(root)}"
        else:
            now = "already"
        if self.places.named:
            given = {key: value for key, value in config.items() if key != ROOT} | self.places.remembered()
            housekeeping_of(self._store, self._study.id).store_config(given, config)
        self._study = self._now()
        repository = open_checkpoints(self._store, name, root)
        names = {*repository.names(), *repository.staged(), *repository.deleting()}
        with self._store.reader(self._study.id) as reader:
            found = sort_out(reader, names, repository.prefix)
            missing = sum(row.name not in found.rows for row in placed(reader.checkpoints(CheckpointState.LIVE)))
        return (
            f"{root} belongs to study {name!r} of this store {now}. The store knows {len(found.rows)} of the "
            f"checkpoints there; {len(found.unknown)} it does not know, and leaves alone; {missing} that it knows "
            "are not there"
        )

    def _take(self, root: Path | RemotePlace) -> str:
        """Mark a directory as the study's, and return what it was."""
        repository = open_checkpoints(self._store, self._study.name, root)
        names = {*repository.names(), *repository.staged()}
        with self._store.reader(self._study.id) as reader:
            restored = bool(sort_out(reader, names, repository.prefix).forgotten)
        assert repository.ownership is not None
        was = repository.ownership.adopt()
        if not restored:
            return was
        # What the store has forgotten keeps the old id in its names; what it makes from now on gets a new one.
        self._store.renew_identity()
        return self._take(root)

    def stop(self, message: str) -> None:
        """Stop the study, if it is running: its workers finish their trial and end."""
        state = self._now().state
        if state is not StudyState.RUNNING:
            raise StateError(f"study {self._study.name!r} is {state} already; there is nothing to stop")
        self._store.set_state(self._study.id, StudyState.STOPPED, message)

    def resume(self) -> bool:
        """Let a study go on; return False when it is running already. Members that were given up try again."""
        if let_go_on(self._store, self._study):
            return True
        if self._now().state is StudyState.COMPLETED:
            raise StateError(
                f"study {self._study.name!r} is completed: every member has spent its steps. Raise total_steps "
                "in the study file, then: phyla change FILE"
            )
        return False

    def retry(self) -> list[int]:
        """Let the members that were given up, because their trials kept breaking, try again; return which."""
        with self._store.reader(self._study.id) as reader:
            state, members = reader.study().state, [one.index for one in reader.members() if one.given_up]
        if state not in (StudyState.RUNNING, StudyState.COMPLETED):
            raise StateError(f"study {self._study.name!r} is {state}; once it is resumed, its members try again")
        if not members:
            raise StateError(f"study {self._study.name!r} has no member that was given up")
        self._store.set_state(self._study.id, StudyState.RUNNING)
        return members

    def note(self, who: str, done: str) -> None:
        """Remember who did what, for the page of the study: `("ann", "stopped the study")`."""
        sightings_of(self._store, self._study, ()).note(ACTION, f"{who} {done}")

    def _now(self) -> StudyRecord:
        with self._store.reader(self._study.id) as reader:
            return reader.study()


def gave_up(store: "Store", study: StudyRecord) -> list[Member]:
    """Return the members that a completed study is complete without; they may try again."""
    with store.reader(study.id) as reader:
        members = reader.members() if reader.study().state is StudyState.COMPLETED else ()
        return [member for member in members if member.given_up]


@again(ConnectionLost)
def incomplete(store: "Store", study: StudyRecord) -> str | None:
    """Say which members a completed study is complete without, and why; None where it lacks none."""
    members = gave_up(store, study)
    if not members:
        return None
    last = max(member.broken_trial or 0 for member in members)
    with store.reader(study.id) as reader:
        error = said_by(reader.trial(last).error)
    which = listed([f"{member.index} (given up after {member.progress:,} steps)" for member in members])
    who = f"member{'' if len(members) == 1 else 's'} {which}"
    return (
        f"study {study.name!r} is complete except for {who}: trials broke again and again, the last one, "
        f"trial {last}, with: {error}. Once the cause is gone, run the study again; that trains only what is "
        "missing"
    )


@again(ConnectionLost)
def let_go_on(store: "Store", study: StudyRecord) -> bool:
    """Let a study go on that was stopped, has failed, or gave members up, which try again; return whether."""
    with store.reader(study.id) as reader:
        ended = reader.study().state in (StudyState.STOPPED, StudyState.FAILED)
    if ended or gave_up(store, study):
        store.set_state(study.id, StudyState.RUNNING)
        return True
    return False


@again(ConnectionLost)
def take_back(client: Client, launch: "Launch") -> None:
    """Take back at once what dead launches of this machine held of studies."""
    from phyla.worker import launch_of
    from phyla.worker.containment.keeper import end_marked

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


def others_at_work(client: Client, launch: "Launch") -> bool:
    """Return whether another launch, here or elsewhere, is at work on a study."""
    from phyla.worker import launch_of

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


def remove_outputs(reader: "Reader", outputs: Path) -> None:
    """Remove what attempts saved that did not count and are not running.

    Safe while workers are alive: each attempt saves into a directory of its own, named by eval task and token.
    """
    for folder in entries(outputs):
        task, _, token = folder.name.partition(".")
        if task.isdecimal() and token.isdecimal() and not _counts(reader, int(task), int(token)):
            shutil.rmtree(folder, ignore_errors=True)


def _counts(reader: "Reader", task: int, token: int) -> bool:
    """Return whether the result of an attempt counts, or may still come."""
    attempt = reader.attempt(task, token)
    if attempt is not None and attempt.state is AttemptState.LOST:
        # Perhaps only its lease ran out: a late result counts until somebody else claims the eval task.
        record = reader.locked_eval_job(task)
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
