"""The client that works in process: a controller on a store, and a population's checkpoints on a file system."""

import contextlib
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import final

from phyla.api import CollectResult, GroupResults
from phyla.checkpoints import LocalCheckpoints, import_checkpoint, import_name
from phyla.controller import TRAIN_ONLY, Controller, mark_deleting
from phyla.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing, StudyNotFound
from phyla.local_client.sorting import sort_out
from phyla.machine import (
    Answer,
    Completion,
    Evaluated,
    Failure,
    Imported,
    NoWork,
    Rules,
    SetCheckpointState,
    Standing,
    Stopped,
    Work,
)
from phyla.records import (
    Checkpoint,
    CheckpointState,
    EvalResult,
    Group,
    Report,
    StartFrom,
    StudyRecord,
    StudyState,
    WorkKind,
)
from phyla.settings import Clock
from phyla.store import Store

LOG = logging.getLogger("phyla")


@final
class LocalClient:
    """Speaks with one study, of any kind, through its store.

    Args:
        store: where the study is remembered.
        study: the study; its configuration is the one that the rules were made from.
        rules: what its decisions go by, until the configuration changes.
        repository: where a population's checkpoints are; None for a watched study, whose watcher cleans up.
        collects: whether it collects checkpoints from time to time; False where somebody else does.
        joins: whether others run the study, so that giving up here ends nothing there.
    """

    def __init__(
        self,
        store: Store,
        study: StudyRecord,
        rules: Rules,
        repository: LocalCheckpoints | None = None,
        *,
        collects: bool = True,
        joins: bool = False,
    ) -> None:
        self._store = store
        self._study = study
        self._controller = Controller(store, study.id, rules, study.config, source=study.source)
        self._checkpoints = repository
        self._collects = collects and repository is not None
        self._joins = joins
        self._changes = store.changes()
        self._completed_since_collection = 0

    @property
    def _repository(self) -> LocalCheckpoints:
        assert self._checkpoints is not None, "a watched study has no checkpoints of its own"
        return self._checkpoints

    def study(self) -> StudyRecord:
        """Return the study as it stands."""
        found = self._store.find_study(self._study.name)
        if found is None:
            raise StudyNotFound(f"study {self._study.name!r} is gone from {self._store.url}")
        return found

    def exchange(
        self,
        completions: Sequence[Completion | Evaluated],
        worker: str,
        count: int,
        *,
        kinds: Collection[WorkKind] = TRAIN_ONLY,
        holding: int | None = None,
    ) -> tuple[list[Answer], list[Work], NoWork | None]:
        """Hand in finished work and claim up to `count` new trials and eval tasks, atomically."""
        answer = self._controller.complete(completions, worker, count, kinds=kinds, holding=holding)
        self._completed_since_collection += len(completions)
        self._discard_stopped(completions, answer[0])
        if self._collects and self._completed_since_collection >= self.collect_every:
            self.collect()
        return answer

    def _discard_stopped(self, completions: Sequence[Completion | Evaluated], answers: Sequence[Answer]) -> None:
        """Delete checkpoints of trials that a rule stopped when they were handed in; no row names them."""
        names = {
            done.checkpoint.name
            for done, answer in zip(completions, answers, strict=True)
            if isinstance(answer, Stopped) and isinstance(done, Completion) and done.checkpoint is not None
        }
        if names:
            with self._store.reader(self._study.id) as reader:
                unknown = [name for name in names if reader.checkpoint(name) is None]
            with contextlib.suppress(CheckpointError):
                self._repository.delete(*unknown)

    @property
    def collect_every(self) -> int:
        """Completed trials after which a collection is worth its while."""
        return max(16, self._study.population_size // 2)

    def fail(self, failure: Failure) -> None:
        """Record that an attempt at a job failed."""
        if failure.damage is not None:
            LOG.warning("%s; it is not used any more", failure.damage)
        self._controller.fail(failure)

    def checkpoint(self, name: str, *, study: int) -> Checkpoint | None:
        """Return what was recorded of a checkpoint of a study."""
        with self._store.reader(study) as reader:
            return reader.checkpoint(name)

    def group_results(self, group: int, *, study: int) -> GroupResults:
        """Return what the ledger has of a group of a study."""
        with self._store.reader(study) as reader:
            found = reader.group(group)
            seen = reader.seen(found.seen)
            jobs = [job for job in reader.group_jobs(group) if job.task]
            results: dict[str, Sequence[EvalResult]] = {
                task: reader.ledger(seen.identity, task, found.replicate, shards)
                for task, shards in {job.identity: job.shards for job in jobs}.items()
            }
        return GroupResults(group=found, jobs=jobs, results=results)

    def best_group(self, suite: str, *, study: int) -> Group | None:
        """Return the best complete group of a suite of a study so far."""
        with self._store.reader(study) as reader:
            return reader.best_group(suite)

    def wait(self, seconds: float) -> None:
        """Return once something was committed, or after `seconds` at the latest."""
        self._changes.wait(seconds)

    def is_active(self) -> bool:
        """Return whether there may be more work."""
        return self.study().state in (StudyState.RUNNING, StudyState.DRAINING)

    def release(self, job: int, token: int) -> None:
        """Return a job to the queue."""
        self._controller.release(job, token)

    def report(self, trial: int, token: int, reports: Sequence[Report]) -> Standing:
        """Store what training reported so far; return whether the lease still stands, and if a rule stops it."""
        return self._controller.report(trial, token, reports)

    def renew(self, worker: str) -> None:
        """Renew all leases of a worker."""
        self._controller.renew(worker)

    def save_progress(self, trial: int, token: int, checkpoint: Checkpoint) -> None:
        """Remember where a retry of the trial resumes."""
        self._controller.save_progress(trial, token, checkpoint)

    def lose_worker(self, worker: str, error: str, *, counts: bool) -> int:
        """Take back all that a dead worker held."""
        return self._controller.lose_worker(worker, error, counts=counts)

    def end_study(self, study: int, state: StudyState, message: str | None) -> None:
        """Stop a study: no more work of it is given out."""
        self._store.set_state(study, state, message)

    def give_up(self, message: str) -> None:
        """Say that this launcher ends because its workers do; what a watched study lacks stays queued."""
        if not self._joins and not self._study.watched:
            self.end_study(self._study.id, StudyState.FAILED, message)

    def start_from(self, entries: Sequence[StartFrom], clock: Clock) -> None:
        """Bring checkpoints in from elsewhere and let every member start from one, unless they have already.

        All members start at once, in one transaction: who dies before leaves copies that nobody knows, which
        `recover` removes.

        Raises:
            CheckpointError: one of them cannot be brought in.
        """
        if not entries or not self._controller.awaits_imports():
            return
        try:
            imports = [self._imported(number, entry, clock) for number, entry in enumerate(entries)]
        except CheckpointError:
            # Somebody else may have been quicker, and have removed what we were writing.
            if self._controller.awaits_imports():
                raise
            return
        self._controller.import_checkpoints(imports)

    def _imported(self, number: int, entry: StartFrom, clock: Clock) -> Imported:
        # No two processes may write under one name.
        name = import_name(self._repository.prefix, number)
        source = Path(entry.path)
        committed = import_checkpoint(
            self._repository, source, name, step=entry.step, now=clock(), digest=entry.digest
        )
        return Imported(
            name=name,
            origin=str(source),
            step=committed.step,
            params=self._controller.population.space.check_part(entry.params),
            index=entry.index,
            digest=committed.digest,
            size_bytes=committed.size_bytes,
        )

    def collect(self) -> CollectResult:
        """Delete the checkpoints that nobody needs any more.

        A checkpoint that cannot be deleted stays marked and is tried again by `recover`.

        Raises:
            CheckpointsAbsent: the directory of the checkpoints is not there, or is not the study's.
        """
        self._completed_since_collection = 0
        if self._checkpoints is None:
            return CollectResult(deleted=(), freed_bytes=0)
        collectable = self._controller.retention().collectable
        if collectable:
            self._checkpoints.check_owner()
        return collect(self._store, self._study.id, self._checkpoints, collectable)

    def recover(self) -> None:
        """Clean up a population after processes that died, and take back lost checkpoints that are there again.

        Only what this store made and knows to be over is deleted: half-done deletions, and what attempts left
        that failed or were superseded. Safe while other workers are alive: what a running or late attempt may
        still be writing is left alone.

        Raises:
            CheckpointsAbsent: the directory of the checkpoints is not there, or is not the study's.
        """
        if self._checkpoints is None:
            return
        self._repository.check_owner()
        committed = self._repository.names()
        staged, begun = self._repository.staged(), self._repository.deleting()
        with self._store.reader(self._study.id) as reader:
            found = sort_out(reader, {*committed, *staged, *begun}, self._repository.prefix)
            deleting = [row.name for row in reader.deleting_checkpoints()]
        gone = (CheckpointState.DELETING, CheckpointState.DELETED)
        deleted = [name for name in begun if name in found.rows and found.rows[name].state in gone]
        for name in found.leftover:
            self._repository.discard(name)
        self._repository.delete(*found.leftover, *deleted)
        _delete(self._store, self._study.id, self._repository, deleting)
        self._take_back([found.rows[name] for name in committed if name in found.rows])

    def verify(self, checkpoint: Checkpoint) -> bool:
        """Read a checkpoint again; if it is not what was committed, mark it as lost or damaged and return False.

        Raises:
            CheckpointsAbsent: the directory of the checkpoints is not there, or is not the study's.
            CheckpointStorageFailed: it cannot be read now, which says nothing about it.
        """
        damage = None
        try:
            self._repository.use(checkpoint.name, checkpoint.digest, again=True)
        except CheckpointMissing as error:
            LOG.warning("%s", error)
        except CheckpointCorrupt as error:
            damage = str(error)
            LOG.warning("%s; it is not used any more", error)
        else:
            return True
        self._controller.set_unusable(checkpoint.name, damage)
        return False

    def _take_back(self, rows: Sequence[Checkpoint]) -> None:
        """Make lost checkpoints live again that are complete where they should be."""
        back = []
        for row in rows:
            if row.state is CheckpointState.LOST:
                with contextlib.suppress(CheckpointError):
                    if self._repository.check(row.name).digest == row.digest:
                        back.append(row.name)
        self._controller.set_checkpoints(back, CheckpointState.LIVE)


def collect(
    store: Store, study: int, repository: LocalCheckpoints, candidates: Sequence[Checkpoint]
) -> CollectResult:
    """Delete checkpoints that are not kept; needs nothing of the study's rules.

    Args:
        store: where the study is remembered.
        study: its id.
        repository: where its checkpoints are.
        candidates: what may go; those that a trial took meanwhile stay.

    Raises:
        StoreError: the database failed.
    """
    if not candidates:
        return CollectResult(deleted=(), freed_bytes=0)
    return _delete(store, study, repository, mark_deleting(store, study, candidates))


def _delete(store: Store, study: int, repository: LocalCheckpoints, names: Sequence[str]) -> CollectResult:
    freed = 0
    deleted: list[str] = []
    try:
        freed = repository.delete(*names)
        deleted = list(names)
    except CheckpointError:
        # One of them cannot be deleted now; the others can.
        for name in names:
            with contextlib.suppress(CheckpointError):
                freed += repository.delete(name)
                deleted.append(name)
    if deleted:
        with store.transaction(study, exclusive=True) as tx:
            tx.apply([SetCheckpointState(name, CheckpointState.DELETED) for name in deleted])
    return CollectResult(deleted=tuple(deleted), freed_bytes=freed)
