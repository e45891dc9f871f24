"""A store in memory: for tests, simulations and as the oracle of the other stores."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar, final

from phyla.errors import StoreError, StudyNotFound
from phyla.machine import (
    AddReports,
    AnyCommand,
    Command,
    EndAttempt,
    EvalCommand,
    InsertAttempt,
    InsertCheckpoint,
    InsertMember,
    InsertTrial,
    MarkDeleting,
    ParentGone,
    PublishAll,
    RaiseElites,
    RenewAttempts,
    SetCheckpointState,
    SetConfig,
    SetElite,
    SetStrategyState,
    SetStudyState,
    TakeCheckpoint,
    UpdateMember,
    UpdateTrial,
    WakeMembers,
)
from phyla.records import (
    Attempt,
    AttemptState,
    Checkpoint,
    CheckpointState,
    Group,
    GroupState,
    JsonObject,
    Member,
    MemberState,
    Report,
    RunKind,
    RunRecord,
    RunState,
    Scored,
    StudyRecord,
    StudyState,
    TrialKind,
    TrialRecord,
    TrialState,
)
from phyla.settings import Clock, system_clock
from phyla.store.memory_evaluation import Ledger, MemoryEvaluation

_K = TypeVar("_K")
_V = TypeVar("_V")
_UNFINISHED = (TrialState.RUNNING, TrialState.PENDING)


@final
class MemoryStore:
    """Keeps studies in dictionaries.

    Args:
        clock: tells the time.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._studies: dict[int, StudyRecord] = {}
        self._tables: dict[int, _Tables] = {}
        self._next_trial = 1
        self._ledger = Ledger()

    @property
    def url(self) -> str:
        """Where it is."""
        return "memory://"

    def create_study(self, name: str, config: JsonObject, seed: int, population_size: int) -> StudyRecord:
        """Create a study with all members ready, or return the one that exists under that name."""
        with self._lock:
            found = self.find_study(name)
            if found is not None:
                return found
            study = StudyRecord(
                id=len(self._studies) + 1,
                name=name,
                state=StudyState.RUNNING,
                config=config,
                seed=seed,
                population_size=population_size,
                created_at=self._clock(),
            )
            self._studies[study.id] = study
            self._tables[study.id] = _Tables(study.id, population_size)
            return study

    def find_study(self, name: str) -> StudyRecord | None:
        """Return a study by name, or None."""
        return next((study for study in self._studies.values() if study.name == name), None)

    def studies(self) -> Sequence[StudyRecord]:
        """Return all studies by id."""
        return list(self._studies.values())

    def set_config(self, study: int, config: JsonObject) -> None:
        """Replace the configuration of a study and make its done members ready to be asked again."""
        with self._lock:
            self._studies[study] = replace(self._studies[study], config=config)
            members = self._tables[study].members
            for index, member in members.items():
                if member.state is MemberState.DONE and not member.retired:
                    members[index] = replace(member, state=MemberState.READY)

    def set_state(self, study: int, state: StudyState, message: str | None = None) -> None:
        """Set the state of a study."""
        with self._lock:
            self._studies[study] = replace(self._studies[study], state=state, message=message)

    @contextmanager
    def transaction(self, study: int, *, exclusive: bool) -> Iterator["MemoryTransaction"]:
        """Open a writing transaction on one study; in memory each one is exclusive."""
        with self._lock:
            if study not in self._studies:
                raise StudyNotFound(f"there is no study with id {study} in {self.url}")
            transaction = MemoryTransaction(self, study)
            try:
                yield transaction
            except BaseException:
                transaction.undo()
                raise

    @contextmanager
    def reader(self, study: int) -> Iterator["MemoryTransaction"]:
        """Open a consistent look at one study."""
        with self.transaction(study, exclusive=False) as transaction:
            yield transaction

    def create_run(
        self, name: str, kind: RunKind, config: JsonObject, *, study: int | None = None, location: str = ""
    ) -> RunRecord:
        """Create a run, or return the one that exists under that name."""
        with self._lock:
            found = self.find_run(name)
            if found is not None:
                return found
            run = RunRecord(
                id=len(self._ledger.runs) + 1,
                name=name,
                kind=kind,
                study=study,
                location=location,
                config=config,
                created_at=self._clock(),
            )
            self._ledger.runs[run.id] = run
            return run

    def find_run(self, name: str) -> RunRecord | None:
        """Return a run by name, or None."""
        return next((run for run in self._ledger.runs.values() if run.name == name), None)

    def runs(self) -> Sequence[RunRecord]:
        """Return all runs by id."""
        return list(self._ledger.runs.values())

    def set_run_config(self, run: int, config: JsonObject) -> None:
        """Replace the configuration of a run, and follow it again if it had ended."""
        with self._lock:
            old = self._ledger.runs[run]
            self._ledger.runs[run] = replace(old, config=config, state=RunState.FOLLOWING, message=None)

    @contextmanager
    def evaluating(self, run: RunRecord, *, exclusive: bool = True) -> Iterator[MemoryEvaluation]:
        """Open a writing transaction on one run, and on its study if it has one."""
        with self._lock:
            if run.id not in self._ledger.runs:
                raise StoreError(f"there is no run with id {run.id} in {self.url}")
            population = None if run.study is None else MemoryTransaction(self, run.study)
            evaluation = MemoryEvaluation(self._ledger, run.id, self._clock(), population)
            try:
                yield evaluation
            except BaseException:
                evaluation.undo()
                raise

    @contextmanager
    def evaluations(self, run: RunRecord) -> Iterator[MemoryEvaluation]:
        """Open a consistent look at the evaluation of one run."""
        with self.evaluating(run) as evaluation:
            yield evaluation

    def close(self) -> None:
        """Nothing is open."""


class _Tables:
    def __init__(self, study: int, population_size: int) -> None:
        self.members = {
            index: Member(study=study, index=index, state=MemberState.READY) for index in range(population_size)
        }
        self.trials: dict[int, TrialRecord] = {}
        self.attempts: dict[tuple[int, int], Attempt] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self.elites: dict[int, Scored | None] = {}
        self.reports: dict[tuple[int, int], list[Report]] = {}


@final
class MemoryTransaction:
    """One transaction; changes are made at once and undone when the block raises."""

    def __init__(self, store: MemoryStore, study: int) -> None:
        self._store = store
        self._id = study
        self._t = store._tables[study]
        self._now = store._clock()
        self._undo: list[Callable[[], object]] = []

    # What can be read

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self._t.members)

    def now(self) -> float:
        """Return the time, one value throughout the transaction."""
        return self._now

    def study(self) -> StudyRecord:
        """Return the study."""
        return self._store._studies[self._id]

    def new_trial_id(self) -> int:
        """Return an id that no other trial has or gets."""
        self._store._next_trial += 1
        return self._store._next_trial - 1

    def member(self, index: int) -> Member:
        """Return a member."""
        return self._t.members[index]

    locked_member = member

    def members(self) -> Sequence[Member]:
        """Return all members by index."""
        return list(self._t.members.values())

    def _ranked(self) -> list[Member]:
        scored = [m for m in self._t.members.values() if m.published and m.published.order is not None]
        return sorted(scored, key=_rank_key, reverse=True)

    def scored(self) -> int:
        """Return how many members have a published fitness."""
        return len(self._ranked())

    def rank(self, member: Member) -> int:
        """Return how many members rank before this one."""
        mine = _rank_key(member)
        return sum(_rank_key(other) > mine for other in self._ranked())

    def at_rank(self, rank: int) -> Member:
        """Return the member at a rank."""
        return self._ranked()[rank]

    def elite(self, index: int) -> Scored | None:
        """Return the elite of a member, or None."""
        return self._t.elites.get(index)

    def elites(self) -> int:
        """Return how many members have an elite."""
        return sum(elite is not None for elite in self._t.elites.values())

    def elite_at_rank(self, rank: int) -> Scored:
        """Return the elite at a rank."""
        elites = [elite for elite in self._t.elites.values() if elite is not None]
        return sorted(elites, key=lambda elite: (elite.order or 0.0, elite.member), reverse=True)[rank]

    def lowest_generation(self) -> int | None:
        """Return the lowest generation of members that are not done."""
        return min(
            (m.generation for m in self._t.members.values() if m.state is not MemberState.DONE), default=None
        )

    def next_ready(self, slot: str) -> Member | None:
        """Return the ready member to decide about next."""
        ready = [m for m in self._t.members.values() if m.state is MemberState.READY]
        return min(ready, key=lambda m: (m.spent_steps, m.slot != slot, m.index), default=None)

    def next_pending(self) -> TrialRecord | None:
        """Return the pending trial with the lowest id."""
        pending = [t.id for t in self._t.trials.values() if t.state is TrialState.PENDING]
        return self._t.trials[min(pending)] if pending else None

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a trial."""
        return self._t.trials[trial_id]

    def locked_trial(self, trial_id: int) -> TrialRecord | None:
        """Return a trial, or None."""
        return self._t.trials.get(trial_id)

    def trials(
        self, *, member: int | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[TrialRecord]:
        """Return trials by id, from the first one whose id is above `after`."""
        chosen = [
            trial
            for key, trial in sorted(self._t.trials.items())
            if key > after and (member is None or trial.member == member)
        ]
        return chosen[:limit]

    def counts(self) -> dict[str, int]:
        """Return how many trials of kind train are in each state."""
        counts: dict[str, int] = {}
        for trial in self._t.trials.values():
            if trial.kind is TrialKind.TRAIN:
                counts[trial.state.value] = counts.get(trial.state.value, 0) + 1
        return counts

    def attempt(self, trial_id: int, token: int) -> Attempt | None:
        """Return one attempt."""
        return self._t.attempts.get((trial_id, token))

    def attempts(self, trial_id: int) -> Sequence[Attempt]:
        """Return the attempts of a trial, oldest first."""
        return [a for (trial, _), a in sorted(self._t.attempts.items()) if trial == trial_id]

    def all_attempts(self) -> Sequence[Attempt]:
        """Return all attempts by (trial, token)."""
        return [attempt for _, attempt in sorted(self._t.attempts.items())]

    def running(self, worker: str | None = None) -> Sequence[Attempt]:
        """Return the running attempts of one worker, or all of them."""
        return [
            attempt
            for _, attempt in sorted(self._t.attempts.items())
            if attempt.state is AttemptState.RUNNING and worker in (None, attempt.worker)
        ]

    def expired(self, limit: int) -> Sequence[Attempt]:
        """Return running attempts whose lease ran out, longest first."""
        now = self.now()
        late = [attempt for attempt in self.running() if attempt.expires_at < now]
        return sorted(late, key=lambda a: (a.expires_at, a.trial))[:limit]

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return a checkpoint's row."""
        return self._t.checkpoints.get(name)

    def checkpoints(self) -> Sequence[Checkpoint]:
        """Return all checkpoints by creation."""
        return sorted(self._t.checkpoints.values(), key=lambda c: (c.created_at, c.trial, c.name))

    def live_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state live, oldest first."""
        return [c for c in self.checkpoints() if c.state is CheckpointState.LIVE]

    def deleting_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state deleting, oldest first."""
        return [c for c in self.checkpoints() if c.state is CheckpointState.DELETING]

    def held_checkpoints(self) -> frozenset[str]:
        """Return names that members and unfinished trials refer to."""
        held: set[str | None] = set()
        for member in self._t.members.values():
            elite = self._t.elites.get(member.index)
            held.update(s.checkpoint for s in (member.head, member.published, elite) if s)
        for trial in self._t.trials.values():
            if trial.state in _UNFINISHED:
                held.update((trial.parent_checkpoint, trial.progress))
        ledger = self._store._ledger
        runs = {run.id for run in ledger.runs.values() if run.study == self._id}
        for group in ledger.groups.values():
            waits = group.state is GroupState.QUEUED and (group.started or group.guaranteed is not None)
            if group.run in runs and (group.best or waits):
                held.add(ledger.seen[group.seen].name)
        return frozenset(name for name in held if name is not None)

    def best_trials(self, count: int) -> Sequence[TrialRecord]:
        """Return the completed trials with the best finite fitness and a live checkpoint, best first."""
        finite = [
            trial
            for trial in self._t.trials.values()
            if trial.kind is TrialKind.TRAIN
            and trial.state is TrialState.COMPLETED
            and trial.order is not None
            and trial.order > float("-inf")
            and trial.checkpoint is not None
            and self._t.checkpoints[trial.checkpoint].state is CheckpointState.LIVE
        ]
        return sorted(finite, key=lambda t: (-(t.order or 0.0), t.id))[:count]

    def broken_in_a_row(self) -> int:
        """Return how many trials failed since the last one completed."""
        completed = [t.ended_at or 0.0 for t in self._t.trials.values() if t.state is TrialState.COMPLETED]
        last = max(completed, default=float("-inf"))
        failed = [t for t in self._t.trials.values() if t.state is TrialState.FAILED]
        return sum((t.ended_at or 0.0) > last for t in failed)

    def has_unfinished_trials(self) -> bool:
        """Return whether any trial is running or pending."""
        return any(trial.state in _UNFINISHED for trial in self._t.trials.values())

    def evaluation(self) -> MemoryEvaluation | None:
        """Return the evaluation of this study's checkpoints, in the same transaction."""
        ledger = self._store._ledger
        name = self.study().name
        # Others may watch the study, too, as runs under other names.
        own = next((run.id for run in ledger.runs.values() if run.study == self._id and run.name == name), None)
        return None if own is None else MemoryEvaluation(ledger, own, self._now, self)

    def _awaited(self) -> list[Group]:
        groups = self._store._ledger.groups.values()
        return [group for group in groups if group.study == self._id and group.state is GroupState.QUEUED]

    def unscored(self, member: int) -> int:
        """Return how many checkpoints of a member wait for their fitness."""
        return sum(g.member == member and g.replicate == 0 for g in self._awaited())

    def awaited_groups(self, *, fitness: bool) -> int:
        """Return how many of the study's own groups are queued."""
        return sum(not fitness or group.trial is not None for group in self._awaited())

    def has_waiting(self) -> bool:
        """Return whether any member waits."""
        return any(m.state is MemberState.WAITING for m in self._t.members.values())

    def waiting_generation(self) -> int | None:
        """Return the lowest generation any member waits for."""
        waited = (m.wait_generation for m in self._t.members.values() if m.state is MemberState.WAITING)
        return min((g for g in waited if g is not None), default=None)

    def next_wait_until(self) -> float | None:
        """Return the earliest time any member waits for."""
        waited = (m.wait_until for m in self._t.members.values() if m.state is MemberState.WAITING)
        return min((t for t in waited if t is not None), default=None)

    def active_members(self) -> int:
        """Return how many members are not done."""
        return sum(m.state is not MemberState.DONE for m in self._t.members.values())

    def reports(self, trial: int, token: int | None = None) -> Sequence[Report]:
        """Return what a trial reported, in order."""
        if token is None:
            token = max((t for key, t in self._t.reports if key == trial), default=0)
        return list(self._t.reports.get((trial, token), ()))

    # What can be changed

    def apply(self, commands: Sequence[AnyCommand]) -> list[str]:
        """Apply commands in order; return the checkpoints that were marked for deletion."""
        marked: list[str] = []
        for command in commands:
            if isinstance(command, EvalCommand):
                evaluation = self.evaluation()
                if evaluation is None:
                    raise TypeError(f"{command!r} needs a run, and study {self.study().name!r} has none")
                evaluation.apply_one(command)
            else:
                marked += self._apply(command)
        return marked

    def undo(self) -> None:
        """Take everything back, newest first."""
        for step in reversed(self._undo):
            step()
        self._undo.clear()

    def _apply(self, command: Command) -> list[str]:
        t = self._t
        match command:
            case InsertTrial(trial) | UpdateTrial(trial):
                self._set(t.trials, trial.id, trial)
            case InsertAttempt(attempt):
                self._set(t.attempts, (attempt.trial, attempt.token), attempt)
            case EndAttempt():
                key = (command.trial, command.token)
                ended = replace(
                    t.attempts[key],
                    state=command.state,
                    ended_at=command.ended_at,
                    outcome=command.outcome,
                    error=command.error,
                )
                self._set(t.attempts, key, ended)
            case RenewAttempts(worker, expires_at):
                for attempt in self.running(worker):
                    renewed = replace(attempt, expires_at=expires_at)
                    self._set(t.attempts, (attempt.trial, attempt.token), renewed)
            case UpdateMember(member):
                self._set(t.members, member.index, member)
            case InsertMember(member):
                self._set(t.members, member.index, member)
                larger = replace(self.study(), population_size=self.size)
                self._set(self._store._studies, self._id, larger)
            case SetConfig(config):
                for member in self.members():
                    if member.state is MemberState.DONE and not member.retired:
                        self._set(t.members, member.index, replace(member, state=MemberState.READY))
                self._set(self._store._studies, self._id, replace(self.study(), config=config))
            case WakeMembers():
                self._wake(command)
            case PublishAll():
                for member in self.members():
                    if member.head is not None and member.head.order is None:
                        continue
                    self._set(t.members, member.index, replace(member, published=member.head))
            case RaiseElites(index):
                for member in self.members() if index is None else [self.member(index)]:
                    self._raise_elite(member)
            case SetElite(index, elite):
                self._set(t.elites, index, elite)
            case InsertCheckpoint(checkpoint):
                self._set(t.checkpoints, checkpoint.name, checkpoint)
            case TakeCheckpoint(name):
                row = t.checkpoints.get(name)
                if row is None or row.state is not CheckpointState.LIVE:
                    raise ParentGone(name)
                self._set(t.checkpoints, name, replace(row, taken=row.taken + 1))
            case MarkDeleting(name, taken):
                row = t.checkpoints.get(name)
                if row is not None and row.state is CheckpointState.LIVE and row.taken == taken:
                    self._set(t.checkpoints, name, replace(row, state=CheckpointState.DELETING))
                    return [name]
            case SetCheckpointState(name, state):
                self._set(t.checkpoints, name, replace(t.checkpoints[name], state=state))
            case AddReports(trial_id, token, reports):
                old = t.reports.get((trial_id, token), [])
                self._set(t.reports, (trial_id, token), [*old, *reports])
            case SetStudyState(state, message):
                self._set(self._store._studies, self._id, replace(self.study(), state=state, message=message))
            case SetStrategyState(state):
                study = self.study()
                changed = replace(study, strategy_state=state, state_version=study.state_version + 1)
                self._set(self._store._studies, self._id, changed)
        return []

    def _raise_elite(self, member: Member) -> None:
        published, elite = member.published, self.elite(member.index)
        if published is None or not published.can_donate:
            return
        same = elite is not None and elite.checkpoint == published.checkpoint
        if elite is None or same or (published.order or 0.0) > (elite.order or 0.0):
            self._set(self._t.elites, member.index, published)

    def _wake(self, command: WakeMembers) -> None:
        for member in self.members():
            if member.state is not MemberState.WAITING:
                continue
            if command.now is not None:
                due = member.wait_until is not None and member.wait_until <= command.now
            elif member.wait_generation is not None:
                due = command.generation is not None and member.wait_generation <= command.generation
            else:
                due = command.completed and member.wait_until is None
            if due:
                awake = replace(
                    member,
                    state=MemberState.READY,
                    wait_generation=None,
                    wait_until=None,
                    wait_reason=None,
                )
                self._set(self._t.members, member.index, awake)

    def _set(self, table: dict[_K, _V], key: _K, value: _V) -> None:
        if key in table:
            old = table[key]
            self._undo.append(lambda: table.__setitem__(key, old))
        else:
            self._undo.append(lambda: table.pop(key))
        table[key] = value


def _rank_key(member: Member) -> tuple[float, int]:
    published = member.published
    order = published.order if published and published.order is not None else float("-inf")
    return order, member.index
