"""What the store in memory keeps, as rows with the indexes that its questions need."""

import threading
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
        self.members = {
            index: Member(study=study, index=index, state=MemberState.READY) for index in range(population_size)
        }
        self.by_state = Groups[int]()
        self.finite = Groups[int]()
        self.scored = Groups[int]()
        self.trials: Table[int, TrialRecord] = Table(self._follow_trial)
        self.running = Groups[tuple[int, int]]()
        self.expiry = Order[tuple[int, int]]()
        self.attempts: Table[tuple[int, int], Attempt] = Table(self._follow_attempt)
        self.in_state = Groups[str]()
        self.checkpoints: Table[str, Checkpoint] = Table(self._follow_checkpoint)
        self.reports: dict[tuple[int, int], list[Report]] = {}
        self.marks: dict[tuple[int, int, int], float] = {}
        self.last_completed: dict[str, float] = {}

    # Written out, since they are called several times in each transaction. None stands for a row that is not
    # there, and for the value of a row that an index does not have.

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
        scored_before, scored_after = _scored_in(old), _scored_in(new)
        if scored_before != scored_after:
            self.scored.move(trial, scored_before, scored_after)

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


def _scored_in(trial: TrialRecord | None) -> int | None:
    """Return the generation of a result that has a fitness."""
    if trial is None or trial.state is not TrialState.COMPLETED or trial.kind is not TrialKind.TRAIN:
        return None
    return None if trial.order is None else trial.generation


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
        self.groups: Table[int, Group] = Table(
            follow_with(_of_group, self.on_seen, self.best, self.queued, self.awaited)
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
        return group.seen, best, None, None
    return group.seen, best, group.run, group.study


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
