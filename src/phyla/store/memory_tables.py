"""What the store in memory keeps, as rows with the indexes that its questions need."""

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
_RUNNING = AttemptState.RUNNING
_PRESENT = (CheckpointState.LIVE, CheckpointState.DELETING)
_PENDING = TrialState.PENDING
_QUEUED = GroupState.QUEUED


@final
class Tables:
    """What is kept of one study, and the indexes that its questions need."""

    def __init__(self, study: int, population_size: int) -> None:
        self.ranked = Order[int, Member](lambda m: m.published.order if m.published else None)
        self.ready = Order[int, Member](lambda m: m.spent_steps if m.state is MemberState.READY else None)
        self.ready_by_slot = Groups[int, Member](lambda m: m.slot if m.state is MemberState.READY else None)
        self.active = Order[int, Member](lambda m: m.generation if m.state is not MemberState.DONE else None)
        self.waiting = Groups[int, Member](lambda m: m.state if m.state is MemberState.WAITING else None)
        self.awaited = Order[int, Member](lambda m: m.wait_generation if m.state is MemberState.WAITING else None)
        self.members = Table(self.ranked, self.ready, self.ready_by_slot, self.active, self.waiting, self.awaited)
        for index in range(population_size):
            self.members[index] = Member(study=study, index=index, state=MemberState.READY)
        self.open = Groups[int, TrialRecord](lambda t: t.state if t.state in UNFINISHED else None)
        self.failed = Groups[int, TrialRecord](lambda t: t.state if t.state is TrialState.FAILED else None)
        self.finite = Groups[int, TrialRecord](_checkpoint_of_finite)
        self.trials = Table(self.open, self.failed, self.finite)
        self.running = Groups[tuple[int, int], Attempt](lambda a: a.worker if a.state is _RUNNING else None)
        self.expiry = Order[tuple[int, int], Attempt](lambda a: a.expires_at if a.state is _RUNNING else None)
        self.attempts = Table(self.running, self.expiry)
        self.by_state = Groups[str, Checkpoint](lambda c: c.state if c.state in _PRESENT else None)
        self.checkpoints = Table(self.by_state)
        self.best_elites = Order[int, Scored | None](lambda s: None if s is None else (s.order or 0.0))
        self.elites = Table(self.best_elites)
        self.reports: dict[tuple[int, int], list[Report]] = {}
        self.last_completed: dict[str, float] = {}


def _checkpoint_of_finite(trial: TrialRecord) -> str | None:
    """Return the checkpoint of a completed training with a finite fitness."""
    done = trial.kind is TrialKind.TRAIN and trial.state is TrialState.COMPLETED
    return trial.checkpoint if done and trial.order is not None and trial.order > NEVER else None


@final
class Ledger:
    """What is kept of all runs of a store, and the indexes that its questions need."""

    def __init__(self) -> None:
        self.runs: dict[int, RunRecord] = {}
        self.by_name = Groups[int, Seen](lambda s: (s.run, s.name, s.index))
        self.by_number = Order[int, Seen](lambda s: (s.run, s.number))
        self.ready = Order[int, Seen](lambda s: (s.run, s.number) if s.state is SeenState.READY else None)
        self.seen = Table(self.by_name, self.by_number, self.ready)
        self.on_seen = Groups[int, Group](lambda g: g.seen)
        self.queued = Groups[int, Group](lambda g: g.run if g.state is _QUEUED else None)
        self.awaited = Groups[int, Group](lambda g: (g.study, g.trial is None) if g.state is _QUEUED else None)
        self.unscored = Groups[int, Group](
            lambda g: (g.study, g.member) if g.state is _QUEUED and g.replicate == 0 else None
        )
        self.best = Groups[int, Group](lambda g: g.run if g.best else None)
        self.groups = Table(self.on_seen, self.queued, self.awaited, self.unscored, self.best)
        self.in_group = Groups[int, EvalTaskRecord](lambda t: t.group)
        self.pending = Order[int, EvalTaskRecord](lambda t: (t.run, *urgency(t)) if t.state is _PENDING else None)
        self.pending_on = Groups[int, EvalTaskRecord](lambda t: (t.run, t.seen) if t.state is _PENDING else None)
        self.tasks = Table(self.in_group, self.pending, self.pending_on)
        self.running = Groups[tuple[int, int], EvalAttempt](
            lambda a: a.run if a.state is AttemptState.RUNNING else None
        )
        self.attempts = Table(self.running)
        self.shards = Groups[LedgerKey, EvalResult](lambda r: (r.identity, r.task_identity, r.replicate, r.shards))
        self.results = Table(self.shards)
        self.events: dict[int, EvalEvent] = {}

    def last(self, order: Order[int, Seen], run: int) -> Seen | None:
        """Return the checkpoint of a run that comes last in an order by (run, number)."""
        place = order.before((run + 1,)) - 1
        found = self.seen[order[place][1]] if place >= 0 else None
        return found if found is not None and found.run == run else None


def urgency(task: EvalTaskRecord) -> tuple[int, float, int, int]:
    """Return what pending eval tasks are sorted by."""
    return task.priority, task.rank, task.group, task.id
