"""What the store in memory keeps, as rows with the indexes that its questions need."""

import threading
from functools import cached_property
from typing import Any, TypeAlias, final

from phyla.records import (
    Attempt,
    AttemptState,
    Checkpoint,
    CheckpointState,
    EvalAttempt,
    EvalEvent,
    EvalResult,
    EvalTaskRecord,
    Group,
    GroupState,
    Member,
    MemberState,
    Report,
    RunRecord,
    Scored,
    Seen,
    SeenState,
    StudyRecord,
    TrialKind,
    TrialRecord,
    TrialState,
)
from phyla.settings import Clock
from phyla.store.table import Groups, Order, Table, follow_with

LedgerKey: TypeAlias = tuple[str, str, int, int, int]
NEVER = float("-inf")
UNFINISHED = (TrialState.RUNNING, TrialState.PENDING)
_INDEXED = (CheckpointState.LIVE, CheckpointState.DELETING, CheckpointState.DAMAGED)


@final
class Memory:
    """All that a store in memory keeps, and the lock under which it is read and changed.

    Args:
        clock: tells the time.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.studies: dict[int, StudyRecord] = {}
        self.tables: dict[int, Tables] = {}
        self.next_trial = 1
        self.last_study = 0
        self.last_run = 0
        self.ledger = Ledger()


@final
class Tables:
    """What is kept of one study, and the indexes that its questions need."""

    def __init__(self, study: int, population_size: int) -> None:
        self.ranked = Order[int]()
        self.ready = Order[int]()
        self.ready_by_slot = Groups[int]()
        self.active = Groups[int]()
        self.waiting = Groups[int]()
        self.awaited = Groups[int]()
        self.members: Table[int, Member] = Table(self._follow_member)
        for index in range(population_size):
            self.members[index] = Member(study=study, index=index, state=MemberState.READY)
        self.by_state = Groups[int]()
        self.finite = Groups[int]()
        self.trials: Table[int, TrialRecord] = Table(self._follow_trial)
        self.running = Groups[tuple[int, int]]()
        self.expiry = Order[tuple[int, int]]()
        self.attempts: Table[tuple[int, int], Attempt] = Table(self._follow_attempt)
        self.in_state = Groups[str]()
        self.checkpoints: Table[str, Checkpoint] = Table(self._follow_checkpoint)
        self.best_elites = Order[int]()
        self.elites: Table[int, Scored | None] = Table(self._follow_elite)
        self.reports: dict[tuple[int, int], list[Report]] = {}
        self.marks: dict[tuple[int, int, int], float] = {}
        self.last_completed: dict[str, float] = {}

    @cached_property
    def aged(self) -> Order[int]:
        """Members that published a score, by the age of its weights and the score."""
        return self.members.order(_age)

    @cached_property
    def scored(self) -> Order[int]:
        """Trials with a score, by generation and score."""
        return self.trials.order(_score)

    # Written out, since they are called several times in each transaction. None stands for a row that is not
    # there, and for the value of a row that an index does not have.

    def _follow_member(self, index: int, old: Member | None, new: Member | None) -> None:
        old, new = old or _NOBODY, new or _NOBODY
        before: Any = old.published and old.published.order
        after: Any = new.published and new.published.order
        if before != after:
            self.ranked.move(index, before, after)
        was, now = old.state, new.state
        before = None if was is MemberState.DONE else old.generation
        after = None if now is MemberState.DONE else new.generation
        if before != after:
            self.active.move(index, before, after)
        if was is MemberState.READY or now is MemberState.READY:
            before = old.spent_steps if was is MemberState.READY else None
            after = new.spent_steps if now is MemberState.READY else None
            if before != after:
                self.ready.move(index, before, after)
            before = old.slot if was is MemberState.READY else None
            after = new.slot if now is MemberState.READY else None
            if before != after:
                self.ready_by_slot.move(index, before, after)
        if was is MemberState.WAITING or now is MemberState.WAITING:
            before = was if was is MemberState.WAITING else None
            after = now if now is MemberState.WAITING else None
            if before != after:
                self.waiting.move(index, before, after)
            before = before and old.wait_generation
            after = after and new.wait_generation
            if before != after:
                self.awaited.move(index, before, after)

    def _follow_trial(self, trial: int, old: TrialRecord | None, new: TrialRecord | None) -> None:
        was = None if old is None or old.state is TrialState.COMPLETED else old.state
        now = None if new is None or new.state is TrialState.COMPLETED else new.state
        if was is not now:
            self.by_state.move(trial, was, now)
        # Completed ones are found by their checkpoint, if others may choose them.
        before = old.checkpoint if old is not None and _is_finite(old) else None
        after = new.checkpoint if new is not None and _is_finite(new) else None
        if before != after:
            self.finite.move(trial, before, after)

    def _follow_attempt(self, key: tuple[int, int], old: Attempt | None, new: Attempt | None) -> None:
        was = old if old is not None and old.state is AttemptState.RUNNING else None
        now = new if new is not None and new.state is AttemptState.RUNNING else None
        before: Any = was and was.worker
        after: Any = now and now.worker
        if before != after:
            self.running.move(key, before, after)
        before = was and was.expires_at
        after = now and now.expires_at
        if before != after:
            self.expiry.move(key, before, after)

    def _follow_checkpoint(self, name: str, old: Checkpoint | None, new: Checkpoint | None) -> None:
        before = old.state if old is not None and old.state in _INDEXED else None
        after = new.state if new is not None and new.state in _INDEXED else None
        if before is not after:
            self.in_state.move(name, before, after)

    def _follow_elite(self, member: int, old: Scored | None, new: Scored | None) -> None:
        before = None if old is None else old.order or 0.0
        after = None if new is None else new.order or 0.0
        if before != after:
            self.best_elites.move(member, before, after)


_NOBODY = Member(study=0, index=-1, state=MemberState.DONE)


def _age(member: Member) -> tuple[int, float] | None:
    published = member.published
    return None if published is None or published.order is None else (published.step, published.order)


def _score(trial: TrialRecord) -> tuple[int, float] | None:
    if trial.state is not TrialState.COMPLETED or trial.kind is not TrialKind.TRAIN or trial.order is None:
        return None
    return trial.generation, trial.order


def _is_finite(trial: TrialRecord) -> bool:
    if trial.state is not TrialState.COMPLETED or trial.kind is not TrialKind.TRAIN:
        return False
    return trial.order is not None and trial.order > NEVER


@final
class Ledger:
    """What is kept of all runs of a store, and the indexes that its questions need."""

    def __init__(self) -> None:
        self.runs: dict[int, RunRecord] = {}
        self.by_name = Groups[int]()
        self.by_number = Order[int]()
        self.ready = Order[int]()
        self.seen: Table[int, Seen] = Table(follow_with(_of_seen, self.by_name, self.by_number, self.ready))
        self.on_seen = Groups[int]()
        self.best = Groups[int]()
        self.queued = Groups[int]()
        self.awaited = Groups[int]()
        self.unscored = Groups[int]()
        self.groups: Table[int, Group] = Table(
            follow_with(_of_group, self.on_seen, self.best, self.queued, self.awaited, self.unscored)
        )
        self.in_group = Groups[int]()
        self.pending = Order[int]()
        self.pending_on = Groups[int]()
        self.tasks: Table[int, EvalTaskRecord] = Table(
            follow_with(_of_task, self.in_group, self.pending, self.pending_on)
        )
        self.running = Groups[tuple[int, int]]()
        self.attempts: Table[tuple[int, int], EvalAttempt] = Table(follow_with(_of_eval_attempt, self.running))
        self.shards = Groups[LedgerKey]()
        self.results: Table[LedgerKey, EvalResult] = Table(follow_with(_of_result, self.shards))
        self.events: dict[int, EvalEvent] = {}

    def last(self, order: Order[int], run: int) -> Seen | None:
        """Return the checkpoint of a run that comes last in an order by (run, number)."""
        place = order.before((run + 1,)) - 1
        found = self.seen[order[place][1]] if place >= 0 else None
        return found if found is not None and found.run == run else None


def _of_seen(seen: Seen) -> tuple[object, ...]:
    number = (seen.run, seen.number)
    return (seen.run, seen.name, seen.index), number, number if seen.state is SeenState.READY else None


def _of_group(group: Group) -> tuple[object, ...]:
    best = group.run if group.best else None
    if group.state is not GroupState.QUEUED:
        return group.seen, best, None, None, None
    unscored = (group.study, group.member) if group.replicate == 0 else None
    return group.seen, best, group.run, (group.study, group.trial is None), unscored


def _of_task(task: EvalTaskRecord) -> tuple[object, ...]:
    if task.state is not TrialState.PENDING:
        return task.group, None, None
    return task.group, (task.run, *urgency(task)), (task.run, task.seen)


def _of_eval_attempt(attempt: EvalAttempt) -> tuple[object, ...]:
    return (attempt.run if attempt.state is AttemptState.RUNNING else None,)


def _of_result(result: EvalResult) -> tuple[object, ...]:
    return ((result.identity, result.task_identity, result.replicate, result.shards),)


def urgency(task: EvalTaskRecord) -> tuple[int, float, int, int]:
    """Return what pending eval tasks are sorted by."""
    return task.priority, task.rank, task.group, task.id
