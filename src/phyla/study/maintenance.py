"""Maintain a study from outside, and take back, remove or delete what earlier launches and studies left.

Needs no training code. Whether others are at work is decided by leases and locks, never by host and pid.
"""

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from phyla import machine
from phyla.arguments import check_integer
from phyla.client import CollectResult, LocalClient, claim_checkpoints, collect, open_checkpoints, sort_out
from phyla.controller import controller_of, keeping_of, resized
from phyla.errors import (
    CheckpointCorrupt,
    CheckpointMissing,
    CheckpointsAbsent,
    ConfigurationError,
    NotImportable,
    StateError,
)
from phyla.machine import Retention
from phyla.records import Aim, AttemptState, Checkpoint, JobState, StudyRecord, StudyState
from phyla.study.places import Places, entries, find_study
from phyla.study.progress import best_of

if TYPE_CHECKING:
    from phyla.store import Reader, Store
    from phyla.worker import Launch

LOG = logging.getLogger("phyla")


def maintain(
    name: str,
    *,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> "Maintenance":
    """Open a study to maintain it; where it is, is said as for `load_study`."""
    places = Places.of(home, storage, checkpoints)
    return Maintenance(*find_study(name, places), places)


@final
class Maintenance:
    """What a person may do to a study besides running it."""

    def __init__(self, store: "Store", study: StudyRecord, places: Places) -> None:
        self.places = places
        self._store = store
        self._study = study
        self._repository = open_checkpoints(store, study.name, places.checkpoints(study.name))

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
        if found.kept or found.collectable:
            self._repository.check_owner()
        return collect(self._store, self._study.id, self._repository, found.collectable)

    def adopt(self) -> str:
        """Make the checkpoint directory this study's, after its store was copied or restored; deletes nothing.

        Only for a directory that no other store works on: one that belongs to a study of the same name in another
        store, one that lost its marker and holds nothing but checkpoints, or an empty one. What was adopted is
        returned in a sentence.
        """
        name, root = self._study.name, self.places.checkpoints(self._study.name)
        try:
            claim_checkpoints(self._store, self._study, self._repository)
        except CheckpointsAbsent:
            pass
        else:
            return f"{root} belongs to study {name!r} of this store already"
        names = {*self._repository.names(), *self._repository.staged()}
        with self._store.reader(self._study.id) as reader:
            restored = bool(sort_out(reader, names, self._repository.prefix).forgotten)
        assert self._repository.ownership is not None
        was = self._repository.ownership.adopt()
        if restored:
            # What the store has forgotten keeps the old id in its names; what it makes from now on gets a new one.
            self._store.renew_identity()
            self._repository = open_checkpoints(self._store, name, root)
            assert self._repository.ownership is not None
            was = self._repository.ownership.adopt()
        names = {*self._repository.names(), *self._repository.staged(), *self._repository.deleting()}
        with self._store.reader(self._study.id) as reader:
            found = sort_out(reader, names, self._repository.prefix)
            missing = sum(row.name not in found.rows for row in reader.live_checkpoints())
        return (
            f"{root} belongs to study {name!r} of this store now; {was}. The store knows {len(found.rows)} of the "
            f"checkpoints there; {len(found.unknown)} it does not know, and leaves alone; {missing} that it knows "
            "are not there"
        )

    def stop(self, message: str) -> None:
        """Stop the study, if it is running: its workers finish their trial and end."""
        state = self._now().state
        if state is not StudyState.RUNNING:
            raise StateError(f"study {self._study.name!r} is {state} already; there is nothing to stop")
        self._store.set_state(self._study.id, StudyState.STOPPED, message)

    def resume(self) -> bool:
        """Let a stopped or failed study go on; return False when it is running already."""
        state = self._now().state
        if state is StudyState.COMPLETED:
            raise StateError(
                f"study {self._study.name!r} is completed: every member has spent its steps. Raise total_steps "
                "in the study file, then: phyla change FILE"
            )
        if state is StudyState.RUNNING:
            return False
        self._store.set_state(self._study.id, StudyState.RUNNING)
        return True

    def retry(self) -> list[int]:
        """Let the members that were given up, because their trials kept breaking, try again; return which."""
        with self._store.reader(self._study.id) as reader:
            state, members = reader.study().state, [one.index for one in reader.members() if one.given_up]
        if state is not StudyState.RUNNING:
            raise StateError(f"study {self._study.name!r} is {state}; once it is resumed, its members try again")
        if not members:
            raise StateError(f"study {self._study.name!r} has no member that was given up")
        self._store.set_state(self._study.id, StudyState.RUNNING)
        return members

    def resize(self, population_size: int, *, newcomers: Literal["best", "fresh"] = "best") -> int:
        """Give the study another number of members, of which running workers take part; return how many it had.

        New members join where the one that has come least far is, and start from the best ones, with
        hyperparameters near theirs, or fresh. If it shrinks, the worst members are retired: their unfinished
        trials are cancelled.
        """
        study = self._now()
        strategy: Any = study.config["strategy"]
        if "population_size" not in strategy:
            raise ConfigurationError(
                f"the number of members of study {study.name!r} is fixed: its strategy {strategy['plugin']!r} has "
                "no population_size"
            )
        if study.state is StudyState.COMPLETED:
            raise StateError(
                f"study {study.name!r} is completed: no member has anything left to train. Raise total_steps and "
                "population_size in the study file, then: phyla change FILE"
            )
        check_integer("population_size", population_size)
        before = int(strategy["population_size"])
        if before == population_size:
            return before
        try:
            config, rules = resized(study.config, population_size)
        except NotImportable as error:
            raise NotImportable(
                f"{error}: write population_size={population_size} into it, then run: phyla change FILE"
            ) from error
        controller = controller_of(self._store, study.id, rules)
        changes = {"strategy.population_size": (before, population_size)}
        controller.change(config, changes, before=study.config, fresh=newcomers == "fresh")
        return before

    def _now(self) -> StudyRecord:
        with self._store.reader(self._study.id) as reader:
            return reader.study()


def take_back(client: LocalClient, launch: "Launch") -> None:
    """Take back at once what dead launches of this machine held of studies."""
    from phyla.worker import launch_of
    from phyla.worker.keeper import end_marked

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


def others_at_work(client: LocalClient, launch: "Launch") -> bool:
    """Return whether another launch, here or elsewhere, is at work on a study."""
    from phyla.worker import launch_of

    others = {launch_of(holder) for holder in _holders(client, unexpired=True)} - {launch.id}
    return launch.has_company() or bool(others - launch.dead(others))


def _holders(client: LocalClient, *, unexpired: bool = False) -> set[str]:
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
        return record is not None and record.state is JobState.PENDING and record.token == token
    return attempt is not None and attempt.state in (AttemptState.RUNNING, AttemptState.COMPLETED)


def verify_best(client: LocalClient) -> None:
    """Make sure that the best checkpoint, or all on the front, can be used; else the next best takes its place."""
    aim = Aim.from_config(client.record.config)
    while True:
        with client.store.reader(client.record.id) as reader:
            found = [reader.checkpoint(trial.checkpoint or "") for trial in best_of(reader, aim)]
        if all(_verify(row, client) for row in found if row is not None):
            return


def _verify(checkpoint: Checkpoint, client: LocalClient) -> bool:
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
