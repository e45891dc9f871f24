"""The client that works in process: a controller on a store, and checkpoints on a file system."""

import contextlib
import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import final

from phyla.api import Answer, CollectResult, Given, GroupResults
from phyla.checkpoints import CheckpointRepository, import_checkpoint
from phyla.controller import TRAIN_ONLY, Controller, mark_deleting
from phyla.errors import CheckpointError, StudyNotFound
from phyla.local_client.run_client import group_results
from phyla.machine import (
    Completion,
    Evaluated,
    EvaluationFailed,
    Failure,
    Imported,
    NoWork,
    Retention,
    Rules,
    SetCheckpointState,
    Standing,
    Stopped,
)
from phyla.records import (
    Attempt,
    Checkpoint,
    CheckpointState,
    Group,
    Report,
    RunRecord,
    StartFrom,
    StudyRecord,
    StudyState,
    TrialState,
    WorkKind,
)
from phyla.settings import Clock
from phyla.store import Reader, Store


@final
class LocalClient:
    """Speaks with one study through its store.

    Args:
        store: where the study is remembered.
        study: the study; its configuration is the one that the rules were made from.
        rules: what its decisions go by, until the configuration changes.
        repository: where its checkpoints are.
        collects: whether it collects checkpoints from time to time; False where somebody else does.
        joins: whether others run the study, so that giving up here ends nothing there.
    """

    def __init__(
        self,
        store: Store,
        study: StudyRecord,
        rules: Rules,
        repository: CheckpointRepository,
        *,
        collects: bool = True,
        joins: bool = False,
    ) -> None:
        self._store = store
        self._study = study
        self._controller = Controller(store, study.id, rules, study.config)
        self._repository = repository
        self._collects = collects
        self._joins = joins
        self._completed_since_collection = 0

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
    ) -> tuple[list[Answer], list[Given], NoWork | None]:
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
        """Record that an attempt failed."""
        self._controller.fail(failure)

    def fail_evaluation(self, failure: EvaluationFailed) -> None:
        """Record that an attempt at an eval task failed."""
        self._controller.fail_evaluation(failure)

    def release_evaluation(self, task: int, token: int) -> None:
        """Return an eval task to the queue."""
        self._controller.release_evaluation(task, token)

    def group_results(self, group: int) -> GroupResults:
        """Return what the ledger has of a group."""
        with self._store.evaluations(self._run()) as reader:
            return group_results(reader, group)

    def best_group(self, suite: str, *, run: int) -> Group | None:
        """Return the best complete group of a suite so far; the study has one run of its own."""
        with self._store.evaluations(self._run()) as reader:
            return reader.best_group(suite)

    def _run(self) -> RunRecord:
        found = self._store.find_run(self._study.name)
        if found is None:
            raise StudyNotFound(f"study {self._study.name!r} in {self._store.url} has no suites")
        return found

    def is_active(self) -> bool:
        """Return whether there may be more work."""
        return self.study().state is StudyState.RUNNING

    def release(self, trial: int, token: int) -> None:
        """Return a trial to the queue."""
        self._controller.release(trial, token)

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

    def end_study(self, state: StudyState, message: str | None) -> None:
        """Stop the study."""
        self._store.set_state(self._study.id, state, message)

    def give_up(self, message: str) -> None:
        """Say that this launcher ends because its workers do."""
        if not self._joins:
            self.end_study(StudyState.FAILED, message)

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
        name = f"start-{number}-{uuid.uuid4().hex[:12]}"
        source = Path(entry.path)
        committed = import_checkpoint(
            self._repository, source, name, step=entry.step, now=clock(), digest=entry.digest
        )
        return Imported(
            name=name,
            origin=str(source),
            step=committed.step,
            params=self._controller.rules.space.check_part(entry.params),
            index=entry.index,
            digest=committed.digest,
            size_bytes=committed.size_bytes,
        )

    def retention(self) -> Retention:
        """Return which checkpoints are kept and which may go; changes nothing."""
        return self._controller.retention()

    def collect(self) -> CollectResult:
        """Delete the checkpoints that nobody needs any more.

        A checkpoint that cannot be deleted stays marked and is tried again by `recover`.
        """
        self._completed_since_collection = 0
        return self._delete(self._controller.mark_deleting(self._controller.retention().collectable))

    def _delete(self, names: Sequence[str]) -> CollectResult:
        found = _deleted(self._repository, names)
        self._controller.set_checkpoints(found.deleted, CheckpointState.DELETED)
        return found

    def recover(self) -> None:
        """Clean up after processes that died: half-done deletions, staging and unrecorded directories.

        Safe while other workers are alive: what a running or late attempt may still be writing is left alone.
        """
        present = {*self._repository.names(), *self._repository.staged()}
        with self._store.reader(self._study.id) as reader:
            running = {f"{attempt.trial}.{attempt.token}" for attempt in reader.running()}
            unknown = [name for name in present if reader.checkpoint(name) is None]
            kept = running | {f"{late.trial}.{late.token}" for late in _late(reader, unknown)}
            leftover = [name for name in unknown if ".".join(name.split(".")[:2]) not in kept]
            deleting = [row.name for row in reader.deleting_checkpoints()]
        for name in leftover:
            self._repository.discard(name)
        self._repository.delete(*leftover)
        self._repository.finish_deletions()
        self._delete(deleting)


def collect(
    store: Store, study: int, repository: CheckpointRepository, candidates: Sequence[Checkpoint]
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
    found = _deleted(repository, mark_deleting(store, study, candidates))
    with store.transaction(study, exclusive=True) as tx:
        tx.apply([SetCheckpointState(name, CheckpointState.DELETED) for name in found.deleted])
    return found


def _deleted(repository: CheckpointRepository, names: Sequence[str]) -> CollectResult:
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
    return CollectResult(deleted=tuple(deleted), freed_bytes=freed)


def _late(reader: Reader, names: Collection[str]) -> Iterator[Attempt]:
    """Return those of the attempts with these names that only let their lease run out, and may still complete."""
    keys = {tuple(name.split(".")[:2]) for name in names}
    for trial, token in (
        (int(key[0]), int(key[1])) for key in keys if len(key) == 2 and all(map(str.isdecimal, key))
    ):
        attempt = reader.attempt(trial, token)
        if attempt is None or attempt.ended_at is None or attempt.ended_at < attempt.expires_at:
            continue
        newest = reader.trial(trial)
        if newest.state is TrialState.PENDING and newest.token == token:
            yield attempt
