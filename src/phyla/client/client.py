"""The requests of workers, their supervisor and tools to studies."""

import contextlib
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import final

from phyla import queries
from phyla.checkpoints import Checkpoints
from phyla.client.checkpoint_custody import CollectResult, collect, delete_marked, placed, sort_out
from phyla.controller import TRAIN_ONLY, Controller, controller_of, records_of
from phyla.errors import CheckpointError, LeaseLost
from phyla.machine import (
    NO_LIMIT,
    Answer,
    Completion,
    Ended,
    Evaluated,
    Failure,
    Idle,
    NoWork,
    ReportAnswer,
    Room,
    Rules,
    Stopped,
    Work,
)
from phyla.queries import GroupResults
from phyla.records import (
    Checkpoint,
    CheckpointState,
    Group,
    Report,
    StudyRecord,
    StudyState,
    Waiting,
    WorkKind,
)
from phyla.settings import Clock, system_clock
from phyla.store import Store

LOG = logging.getLogger("phyla")

IDLE_LOOK_S = 1.0
"""How often a worker that is busy with other studies asks a study without work again."""


@final
class Client:
    """Sends requests to one study of any kind, or to several watched ones, through their store.

    Every method may raise `StoreError`. A worker is named `host:slot:pid:launch`; a lease is named by (job,
    token), and job ids are unique in a store. Methods with a token raise `LeaseLost` if the lease is gone.

    With several studies a worker gets work for the checkpoint that it has loaded first, then work of the most
    urgent class; equally urgent studies take turns.

    Args:
        store: the store of the studies.
        record: the study as it was when it was opened; the rules were made from its configuration.
        rules: the rules of its decisions, until the configuration changes.
        repository: the checkpoints of a population; None for a watched study, whose watcher cleans up.
        collects: whether it runs garbage collections; False if another process does.
        joins: whether other processes run the study, so that giving up does not fail it.
        watched: further watched studies with their rules.
        clock: the clock for asking studies without work again.
    """

    def __init__(
        self,
        store: Store,
        record: StudyRecord,
        rules: Rules,
        repository: Checkpoints | None = None,
        *,
        collects: bool = True,
        joins: bool = False,
        watched: Sequence[tuple[StudyRecord, Rules]] = (),
        clock: Clock = system_clock,
    ) -> None:
        self.store = store
        self.record = record
        self.controllers = {
            study.id: controller_of(store, study.id, study_rules, study.config, source=study.source)
            for study, study_rules in ((record, rules), *watched)
        }
        self.controller = self.controllers[record.id]
        self._checkpoints = repository
        self._collects = collects and repository is not None
        self._joins = joins
        self._clock = clock
        self._changes = store.changes()
        self._completed_since_collection = 0
        self._asked_at: dict[int, float] = {}
        self._last_study = 0

    @property
    def repository(self) -> Checkpoints:
        """The checkpoints of a population."""
        assert self._checkpoints is not None, "a watched study has no checkpoints of its own"
        return self._checkpoints

    @property
    def collect_every(self) -> int:
        """How many completed trials trigger a garbage collection."""
        return max(16, self.record.population_size // 2)

    # Requests of workers

    def exchange(
        self,
        completions: Sequence[Completion | Evaluated],
        worker: str,
        count: int,
        *,
        kinds: AbstractSet[WorkKind] = TRAIN_ONLY,
        holding: int | None = None,
        room: Room = NO_LIMIT,
        whole: bool = False,
        held: AbstractSet[int] | None = None,
    ) -> tuple[list[Answer], list[Work], NoWork | None]:
        """Submit finished work and claim more; for one study in one transaction.

        Args:
            completions: finished work; a lost lease is returned as an answer, not raised.
            worker: the name of the worker.
            count: the most jobs to claim.
            kinds: the kinds of work it can do; eval tasks come first.
            holding: id of the registered checkpoint that it has loaded.
            room: its GPUs, labels and remaining time.
            whole: claim exactly `count` trials of a population, or none; only without completions.
            held: the jobs that the worker knows it holds; jobs leased to it whose answer was lost are sent again.

        Returns:
            An answer per completion; the work; and the reason if this is less than `count`.
        """
        if len(self.controllers) > 1:
            answers: list[Answer] = []
            for done in completions:
                try:
                    controller = self._controller_of(done.job if isinstance(done, Evaluated) else done.trial)
                    answers += controller.complete([done])[0]
                except LeaseLost as error:
                    answers.append(error)
            return answers, *self._claim_in_turn(worker, count, kinds, holding, room, held)
        answer = self.controller.complete(
            completions, worker, count, kinds=kinds, holding=holding, room=room, whole=whole, held=held
        )
        self._discard_stopped(completions, answer[0])
        self._completed_since_collection += len(completions)
        if self._collects and self._completed_since_collection >= self.collect_every:
            self.collect()
        return answer

    def _discard_stopped(self, completions: Sequence[Completion | Evaluated], answers: Sequence[Answer]) -> None:
        """Delete the checkpoints of completions that a rule stopped; they have no record."""
        names = {
            done.checkpoint.name
            for done, answer in zip(completions, answers, strict=True)
            if isinstance(answer, Stopped) and isinstance(done, Completion) and done.checkpoint is not None
        }
        if names:
            known = self.store.look(self.record.id, queries.checkpoints, names=sorted(names))
            with contextlib.suppress(CheckpointError):
                self.repository.delete(*sorted(names - {row.name for row in known}))

    def _claim_in_turn(
        self,
        worker: str,
        count: int,
        kinds: AbstractSet[WorkKind],
        holding: int | None,
        room: Room,
        held: AbstractSet[int] | None,
    ) -> tuple[list[Work], NoWork | None]:
        """Ask the studies in turn, each in its own transaction, until one has work."""
        if not count:
            return [], None
        ended: list[Ended] = []
        waits: list[float] = []
        for study, has_work in self._in_turn(holding, room):
            now = self._clock()
            if not has_work and 0 <= now - self._asked_at.get(study, float("-inf")) < IDLE_LOOK_S:
                # Asking costs a write transaction, and helps only if leases expired or the study ended.
                continue
            _, claimed, rest = self.controllers[study].complete(
                (), worker, count, kinds=kinds, holding=holding, room=room, held=held
            )
            if claimed:
                self._last_study = study
                return claimed, rest
            if isinstance(rest, Ended):
                ended.append(rest)
            elif isinstance(rest, Idle):
                self._asked_at[study] = now
                if rest.seconds is not None:
                    waits.append(rest.seconds)
        if len(ended) == len(self.controllers):
            messages = [end.message for end in ended if end.message]
            return [], Ended(state=StudyState.COMPLETED, message="; ".join(messages) or None)
        return [], Idle(seconds=min(waits, default=None), why="no checkpoint waits for evaluation")

    def _in_turn(self, holding: int | None, room: Room) -> list[tuple[int, bool]]:
        """Return the studies in the order in which to ask them, and whether each has work."""
        order = []
        for study in self.controllers:
            job = self.store.look(study, queries.next_eval_job, holding, room)
            turn = (study - self._last_study - 1) % (max(self.controllers) + 1)
            urgency = (float("inf"), False) if job is None else (job.priority, job.seen != holding)
            order.append((*urgency, turn, study, job is not None))
        return [(study, has_work) for *_, study, has_work in sorted(order)]

    def _controller_of(self, job: int) -> Controller:
        """Return the controller of the study that has a job, or raise `LeaseLost`."""
        if len(self.controllers) == 1:
            return self.controller
        for study, controller in self.controllers.items():
            if self.store.look(study, queries.job, job) is not None:
                return controller
        raise LeaseLost(f"job {job} is in none of the studies of this process; its study may have been deleted")

    def fail(self, failure: Failure) -> None:
        """Record that an attempt at a job failed."""
        if failure.damage is not None:
            LOG.warning("%s; it will not be used again", failure.damage)
        self._controller_of(failure.job).fail(failure)

    def release(self, job: int, token: int, error: str | None = None) -> None:
        """Return a job to the queue, with its message if any; it does not count as a failure."""
        self._controller_of(job).release(job, token, error)

    def report(self, trial: int, token: int, reports: Sequence[Report]) -> ReportAnswer:
        """Store the reports of training; return whether the lease holds, and whether a rule stops the trial."""
        return self.controller.report(trial, token, reports)

    def save_progress(self, trial: int, token: int, checkpoint: Checkpoint) -> None:
        """Record the checkpoint from which a retry resumes; `UsageError` if its step is outside the trial."""
        self.controller.save_progress(trial, token, checkpoint)

    def checkpoint(self, name: str, *, study: int) -> Checkpoint | None:
        """Return the record of a checkpoint."""
        return next(iter(self.store.look(study, queries.checkpoints, names=[name])), None)

    def group_results(self, group: int, *, study: int) -> GroupResults:
        """Return the results of a group from the ledger."""
        return self.store.look(study, queries.group_results, group)

    def newest_complete(self, suite: str, *, study: int) -> Sequence[GroupResults]:
        """Return the results of a suite on the newest checkpoint with a complete group of it, if there is one."""
        found = self.store.look(study, queries.newest_complete, suite)
        groups = [results for checkpoint in found for results in checkpoint.groups]
        return [results for results in groups if results.group.suite == suite and not results.group.replicate]

    def in_evaluation(self, checkpoints: Sequence[int], *, study: int) -> Sequence[int]:
        """Return which of the checkpoints seen, by id, have unfinished evaluations."""
        return self.store.look(study, queries.in_evaluation, checkpoints)

    def best_group(self, suite: str, *, study: int) -> Group | None:
        """Return the best complete group of a suite so far."""
        return self.store.look(study, queries.in_use, [suite]).best.get(suite)

    @property
    def idle_s(self) -> float:
        """Seconds after which to ask for work again without a commit."""
        return self._changes.idle_s

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for a commit; return whether there may be work. One thread at a time."""
        return self._changes.wait(seconds)

    # Requests of supervisors

    def study(self) -> StudyRecord:
        """Return the current record of the study; of several, the first."""
        return self.store.look(self.record.id, queries.study)

    def waiting(self) -> Sequence[Waiting]:
        """Return the numbers of ready eval tasks by their needs of GPUs and labels."""
        studies = self.controllers
        return [tasks for study in studies for tasks in self.store.look(study, queries.waiting, resting=False)]

    def is_active(self) -> bool:
        """Return whether there may be more work."""
        states = (self.store.look(study, queries.study).state for study in self.controllers)
        return any(state in (StudyState.RUNNING, StudyState.DRAINING) for state in states)

    def has_completed(self) -> bool:
        """Return whether any trial has completed; of several studies, in the first."""
        return self.store.look(self.record.id, queries.summary).newest is not None

    def renew(self, worker: str) -> None:
        """Renew all leases of a worker that is known to be alive."""
        for controller in self.controllers.values():
            controller.renew(worker)

    def lose_worker(self, worker: str, error: str, *, counts: bool) -> int:
        """Take back all jobs of a dead worker; return the number of attempts.

        With `counts` the loss counts towards the attempts of the jobs.
        """
        return sum(
            controller.lose_worker(worker, error, counts=counts) for controller in self.controllers.values()
        )

    def fail_study(self, study: int, message: str) -> None:
        """Mark a study as failed: it hands out no more work."""
        records_of(self.store, study).fail_study(message)

    def give_up(self, message: str) -> None:
        """Give up because the workers of a launcher keep dying."""
        # Evaluations of a watched study stay queued.
        if not self._joins and not self.record.watched:
            self.fail_study(self.record.id, message)

    # Checkpoints of a population

    def collect(self) -> CollectResult:
        """Delete the checkpoints that are no longer needed; if some deletion fails, `recover` repeats it."""
        self._completed_since_collection = 0
        if self._checkpoints is None:
            return CollectResult()
        collectable = self.controller.retention().collectable
        if collectable:
            self._checkpoints.check_owner()
        return collect(self.store, self.record.id, self._checkpoints, collectable)

    def recover(self) -> None:
        """Clean up a population after dead processes, and restore lost checkpoints that reappeared.

        Only directories of this store's ended attempts are deleted, never those that a running or late attempt may
        still write.
        """
        repository = self._checkpoints
        if repository is None:
            return
        repository.check_owner()
        committed = repository.names()
        staged, begun = repository.staged(), repository.deleting()
        names = sorted({*committed, *staged, *begun})
        directories = self.store.look(self.record.id, sort_out, names, repository.prefix)
        deleting = self.store.look(self.record.id, queries.checkpoints, state=CheckpointState.DELETING)
        gone = (CheckpointState.DELETING, CheckpointState.DELETED)
        deleted = [name for name in begun if name in directories.rows and directories.rows[name].state in gone]
        for name in directories.leftover:
            repository.discard(name)
        repository.delete(*directories.leftover, *deleted)
        delete_marked(self.store, self.record.id, repository, [row.name for row in placed(deleting)])
        back = []
        for row in (directories.rows[name] for name in committed if name in directories.rows):
            if row.state is CheckpointState.LOST:
                with contextlib.suppress(CheckpointError):
                    if repository.check(row.name).digest == row.digest:
                        back.append(row.name)
        records_of(self.store, self.record.id).set_checkpoints(back, CheckpointState.LIVE)
