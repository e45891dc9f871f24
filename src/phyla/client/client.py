"""What workers, their supervisor and tools ask of studies."""

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
"""How often a study without work is asked again by a worker that other studies keep busy."""


@final
class Client:
    """Speaks with one study of any kind, or with several watched ones, through their store.

    Every method may raise `StoreError`. A worker is named `host:slot:pid:launch`; a lease is named by (job,
    token), and job ids are unique in a store. What takes a token raises `LeaseLost` when that lease is gone.

    With several studies a worker gets work of the checkpoint that it has loaded; then of the most urgent class;
    and among studies that are equally urgent, of one after the other.

    Args:
        store: where the studies are remembered.
        record: the study as it was when it was opened; the rules were made from its configuration.
        rules: what its decisions go by, until the configuration changes.
        repository: where a population's checkpoints are; None for a watched study, whose watcher cleans up.
        collects: whether it collects checkpoints from time to time; False where another process does.
        joins: whether others run the study, so that giving up here ends nothing there.
        others: further watched studies with their rules.
        clock: tells when to ask studies without work again.
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
        others: Sequence[tuple[StudyRecord, Rules]] = (),
        clock: Clock = system_clock,
    ) -> None:
        self.store = store
        self.record = record
        self.controllers = {
            each.id: controller_of(store, each.id, theirs, each.config, source=each.source)
            for each, theirs in ((record, rules), *others)
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
        """Where the checkpoints of a population are."""
        assert self._checkpoints is not None, "a watched study has no checkpoints of its own"
        return self._checkpoints

    @property
    def collect_every(self) -> int:
        """How many completed trials trigger a garbage collection."""
        return max(16, self.record.population_size // 2)

    # Working

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
        """Hand in finished work and claim more; for one study in one transaction.

        Args:
            completions: what was finished; a lease that is gone is an answer here, and is not raised.
            worker: the worker that asks for work.
            count: how much it wants at most.
            kinds: what it can do; eval tasks come first.
            holding: id of the checkpoint, as it was seen, that it has loaded.
            room: how many GPUs, which labels, and how much time it has.
            whole: without completions: that many trials of a population, or none.
            held: the jobs that the worker knows it holds; work whose answer was lost is then given to it again.

        Returns:
            An answer per completion; the work; and, when this is less than `count`, why.
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
        """Delete checkpoints of trials that a rule stopped when they were handed in; no row names them."""
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
        """Ask one study after the other, each in a transaction of its own, until one has work."""
        if not count:
            return [], None
        ended: list[Ended] = []
        waits: list[float] = []
        for study, has_work in self._in_turn(holding, room):
            now = self._clock()
            if not has_work and 0 <= now - self._asked_at.get(study, float("-inf")) < IDLE_LOOK_S:
                # Asking costs a transaction that writes; it only matters for leases that ran out, and at the end.
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
            messages = [each.message for each in ended if each.message]
            return [], Ended(state=StudyState.COMPLETED, message="; ".join(messages) or None)
        return [], Idle(seconds=min(waits, default=None), why="no checkpoint waits for evaluation")

    def _in_turn(self, holding: int | None, room: Room) -> list[tuple[int, bool]]:
        """Return the studies in the order in which to ask them, and whether each has something to do."""
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
        raise LeaseLost(f"none of the studies that this process works for has job {job}; was its study deleted?")

    def fail(self, failure: Failure) -> None:
        """Record that an attempt at a job failed."""
        if failure.damage is not None:
            LOG.warning("%s; it is not used any more", failure.damage)
        self._controller_of(failure.job).fail(failure)

    def release(self, job: int, token: int, error: str | None = None) -> None:
        """Return a job to the queue, with what it said if it asked for that; this does not count as a failure."""
        self._controller_of(job).release(job, token, error)

    def report(self, trial: int, token: int, reports: Sequence[Report]) -> ReportAnswer:
        """Store what training reported so far; return whether the lease stands, and whether a rule stops it."""
        return self.controller.report(trial, token, reports)

    def save_progress(self, trial: int, token: int, checkpoint: Checkpoint) -> None:
        """Remember where a retry of a trial resumes; `UsageError` if the step is none of the trial's."""
        self.controller.save_progress(trial, token, checkpoint)

    def checkpoint(self, name: str, *, study: int) -> Checkpoint | None:
        """Return what was recorded of a checkpoint."""
        return next(iter(self.store.look(study, queries.checkpoints, names=[name])), None)

    def group_results(self, group: int, *, study: int) -> GroupResults:
        """Return what the ledger has of a group."""
        return self.store.look(study, queries.group_results, group)

    def best_group(self, suite: str, *, study: int) -> Group | None:
        """Return the best complete group of a suite so far."""
        return self.store.look(study, queries.in_use, [suite]).best.get(suite)

    @property
    def idle_s(self) -> float:
        """Seconds after which to ask again for work though nothing was committed."""
        return self._changes.idle_s

    def wait(self, seconds: float) -> bool:
        """Return whether there may be work, after `seconds` at the latest; for one thread at a time."""
        return self._changes.wait(seconds)

    # Supervising

    def study(self) -> StudyRecord:
        """Return the study as it stands; of several, the first one."""
        return self.store.look(self.record.id, queries.study)

    def waiting(self) -> Sequence[Waiting]:
        """Return how many eval tasks that may start ask for GPUs or a label."""
        studies = self.controllers
        return [each for study in studies for each in self.store.look(study, queries.waiting, resting=False)]

    def is_active(self) -> bool:
        """Return whether there may be more work."""
        states = (self.store.look(study, queries.study).state for study in self.controllers)
        return any(state in (StudyState.RUNNING, StudyState.DRAINING) for state in states)

    def has_completed(self) -> bool:
        """Return whether any trial has completed; of several studies, of the first one."""
        return self.store.look(self.record.id, queries.summary).newest is not None

    def renew(self, worker: str) -> None:
        """Renew all leases of a worker that is known to be alive."""
        for controller in self.controllers.values():
            controller.renew(worker)

    def lose_worker(self, worker: str, error: str, *, counts: bool) -> int:
        """Take back all that a dead worker held; return how many attempts that were.

        With `counts` the jobs are to blame, so that it counts towards their attempts.
        """
        return sum(each.lose_worker(worker, error, counts=counts) for each in self.controllers.values())

    def fail_study(self, study: int, message: str) -> None:
        """Stop a study, which has failed: no more work of it is given out."""
        records_of(self.store, study).fail_study(message)

    def give_up(self, message: str) -> None:
        """Say that a launcher ends because its workers do, again and again."""
        # What a watched study lacks stays queued.
        if not self._joins and not self.record.watched:
            self.fail_study(self.record.id, message)

    # Checkpoints of a population

    def collect(self) -> CollectResult:
        """Delete the checkpoints that are no longer needed; what cannot be deleted now, `recover` deletes."""
        self._completed_since_collection = 0
        if self._checkpoints is None:
            return CollectResult()
        collectable = self.controller.retention().collectable
        if collectable:
            self._checkpoints.check_owner()
        return collect(self.store, self.record.id, self._checkpoints, collectable)

    def recover(self) -> None:
        """Clean up a population after processes that died, and take back lost checkpoints that are there again.

        Only what this store made and knows to be over is deleted. What a running or late attempt may still be
        writing is left alone.
        """
        repository = self._checkpoints
        if repository is None:
            return
        repository.check_owner()
        committed = repository.names()
        staged, begun = repository.staged(), repository.deleting()
        names = sorted({*committed, *staged, *begun})
        found = self.store.look(self.record.id, sort_out, names, repository.prefix)
        deleting = self.store.look(self.record.id, queries.checkpoints, state=CheckpointState.DELETING)
        gone = (CheckpointState.DELETING, CheckpointState.DELETED)
        deleted = [name for name in begun if name in found.rows and found.rows[name].state in gone]
        for name in found.leftover:
            repository.discard(name)
        repository.delete(*found.leftover, *deleted)
        delete_marked(self.store, self.record.id, repository, [row.name for row in placed(deleting)])
        back = []
        for row in (found.rows[name] for name in committed if name in found.rows):
            if row.state is CheckpointState.LOST:
                with contextlib.suppress(CheckpointError):
                    if repository.check(row.name).digest == row.digest:
                        back.append(row.name)
        records_of(self.store, self.record.id).set_checkpoints(back, CheckpointState.LIVE)
