"""What the store in memory keeps, as rows with the indexes that its questions need."""

from functools import cached_property
from typing import TypeAlias, final

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
    TrialKind,
    TrialRecord,
    TrialState,
)
from phyla.store.table import Groups, Order, Table

LedgerKey: TypeAlias = tuple[str, str, int, int, int]
NEVER = float("-inf")
UNFINISHED = (TrialState.RUNNING, TrialState.PENDING)
_PRESENT = (CheckpointState.LIVE, CheckpointState.DELETING)


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
        self.members = Table(
            _of_member, self.ranked, self.ready, self.ready_by_slot, self.active, self.waiting, self.awaited
        )
        for index in range(population_size):
            self.members[index] = Member(study=study, index=index, state=MemberState.READY)
        self.by_state = Groups[int]()
        self.finite = Groups[int]()
        self.trials = Table(_of_trial, self.by_state, self.finite)
        self.running = Groups[tuple[int, int]]()
        self.expiry = Order[tuple[int, int]]()
        self.attempts = Table(_of_attempt, self.running, self.expiry)
        self.present = Groups[str]()
        self.checkpoints = Table(_of_checkpoint, self.present)
        self.best_elites = Order[int]()
        self.elites = Table(_of_elite, self.best_elites)
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


def _age(member: Member) -> tuple[int, float] | None:
    published = member.published
    return None if published is None or published.order is None else (published.step, published.order)


def _score(trial: TrialRecord) -> tuple[int, float] | None:
    if trial.state is not TrialState.COMPLETED or trial.kind is not TrialKind.TRAIN or trial.order is None:
        return None
    return trial.generation, trial.order


def _of_member(member: Member) -> tuple[object, ...]:
    state, published = member.state, member.published
    ready, waiting = state is MemberState.READY, state is MemberState.WAITING
    return (
        published.order if published else None,
        member.spent_steps if ready else None,
        member.slot if ready else None,
        member.generation if state is not MemberState.DONE else None,
        state if waiting else None,
        member.wait_generation if waiting else None,
    )


def _of_trial(trial: TrialRecord) -> tuple[object, ...]:
    state = trial.state
    if state is not TrialState.COMPLETED:
        return state, None
    # Completed ones are found by their checkpoint, if others may choose them.
    finite = trial.order is not None and trial.order > NEVER and trial.kind is TrialKind.TRAIN
    return None, trial.checkpoint if finite else None


def _of_attempt(attempt: Attempt) -> tuple[object, ...]:
    return (attempt.worker, attempt.expires_at) if attempt.state is AttemptState.RUNNING else (None, None)


def _of_checkpoint(row: Checkpoint) -> tuple[object, ...]:
    return (row.state if row.state in _PRESENT else None,)


def _of_elite(elite: Scored | None) -> tuple[object, ...]:
    return (None if elite is None else (elite.order or 0.0),)


@final
class Ledger:
    """What is kept of all runs of a store, and the indexes that its questions need."""

    def __init__(self) -> None:
        self.runs: dict[int, RunRecord] = {}
        self.by_name = Groups[int]()
        self.by_number = Order[int]()
        self.ready = Order[int]()
        self.seen = Table(_of_seen, self.by_name, self.by_number, self.ready)
        self.on_seen = Groups[int]()
        self.best = Groups[int]()
        self.queued = Groups[int]()
        self.awaited = Groups[int]()
        self.unscored = Groups[int]()
        self.groups = Table(_of_group, self.on_seen, self.best, self.queued, self.awaited, self.unscored)
        self.in_group = Groups[int]()
        self.pending = Order[int]()
        self.pending_on = Groups[int]()
        self.tasks = Table(_of_task, self.in_group, self.pending, self.pending_on)
        self.running = Groups[tuple[int, int]]()
        self.attempts = Table(_of_eval_attempt, self.running)
        self.shards = Groups[LedgerKey]()
        self.results = Table(_of_result, self.shards)
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
