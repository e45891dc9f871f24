"""A store in memory: for tests, simulations and as the oracle of the other stores."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

from phyla.errors import StoreError, StudyNotFound
from phyla.machine import (
    AddReports,
    AnyCommand,
    EndAttempt,
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
    SetTally,
    TakeCheckpoint,
    UpdateMember,
    UpdateTrial,
    WakeMembers,
)
from phyla.records import (
    Attempt,
    Checkpoint,
    CheckpointState,
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
    replace,
)
from phyla.settings import Clock, system_clock
from phyla.store.memory_evaluation import MemoryEvaluation
from phyla.store.memory_tables import NEVER, UNFINISHED, Ledger, Tables
from phyla.store.table import Changes


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
        self._tables: dict[int, Tables] = {}
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
            self._tables[study.id] = Tables(study.id, population_size)
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
    def transaction(self, study: int, *, exclusive: bool, alone: bool = False) -> Iterator["MemoryTransaction"]:
        """Open a writing transaction on one study; in memory each one is alone."""
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


@final
class MemoryTransaction:
    """One transaction; changes are made at once and undone when the block raises."""

    def __init__(self, store: MemoryStore, study: int) -> None:
        self._store = store
        self._id = study
        self._t = store._tables[study]
        self._now = store._clock()
        self._changes = Changes()

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

    def scored(self) -> int:
        """Return how many members have a published fitness."""
        return len(self._t.ranked)

    def rank(self, member: Member) -> int:
        """Return how many members rank before this one."""
        return self._t.ranked.above(*_rank_key(member))

    def at_rank(self, rank: int) -> Member:
        """Return the member at a rank."""
        return self._t.members[self._t.ranked[-1 - rank][1]]

    def vectors(self) -> Sequence[tuple[int, tuple[float, ...]]]:
        """Return index and sort keys of the members that may donate."""
        members = self._t.members.values()
        return [(m.index, m.published.orders) for m in members if m.published and m.published.can_donate]

    def elite(self, index: int) -> Scored | None:
        """Return the elite of a member, or None."""
        return self._t.elites.get(index)

    def elites(self) -> int:
        """Return how many members have an elite."""
        return len(self._t.best_elites)

    def elite_at_rank(self, rank: int) -> Scored:
        """Return the elite at a rank."""
        elite = self._t.elites[self._t.best_elites[-1 - rank][1]]
        assert elite is not None
        return elite

    def lowest_generation(self) -> int | None:
        """Return the lowest generation of members that are not done."""
        return min(self._t.active.values(), default=None)

    def next_ready(self, slot: str) -> Member | None:
        """Return the ready member to decide about next."""
        ready = self._t.ready
        if not len(ready):
            return None
        least, index = ready[0]
        here = [i for i in self._t.ready_by_slot.of(slot) if self._t.members[i].spent_steps == least]
        return self._t.members[min(here, default=index)]

    def next_pending(self) -> TrialRecord | None:
        """Return the pending trial with the lowest id."""
        pending = self._t.by_state.of(TrialState.PENDING)
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

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        """Return the training trials that completed last, newest first."""
        done = [t for t in self._t.trials.values() if _is_result(t)]
        return sorted(done, key=lambda t: (t.ended_at or 0.0, t.id), reverse=True)[:count]

    def unfinished(self) -> Sequence[TrialRecord]:
        """Return the trials that are running or queued for a retry, by id."""
        found = [*self._t.by_state.of(TrialState.RUNNING), *self._t.by_state.of(TrialState.PENDING)]
        return [self._t.trials[key] for key in sorted(found)]

    def standing(self, generation: int, order: float) -> tuple[int, int, int]:
        """Return how many completed trials of a generation are better, how many equal, how many have a fitness."""
        scored = self._t.scored
        first, end = scored.before((generation,)), scored.before((generation + 1,))
        better = end - scored.before((generation, math.nextafter(order, math.inf)))
        return better, end - better - scored.before((generation, order)), end - first

    def orders(self, generation: int, rank: int, count: int) -> Sequence[float]:
        """Return sort keys of the completed trials of a generation that have a fitness, best first."""
        scored = self._t.scored
        first, end = scored.before((generation,)), scored.before((generation + 1,))
        return [scored[at][0][1] for at in range(end - 1 - rank, max(first, end - rank - count) - 1, -1)]

    def next_age(self, after: int) -> int | None:
        """Return the lowest age above one, in steps, of weights with a published fitness."""
        place = self._t.aged.before((after + 1,))
        return self._t.aged[place][0][0] if place < len(self._t.aged) else None

    def rank_among(self, ages: tuple[int, int], order: float, member: int) -> int:
        """Return how many members on weights of an age rank before a place."""
        aged = self._t.aged
        return sum(aged.above((age, order), member) - len(aged) + end for age, _, end in self._ages(ages))

    def at_rank_among(self, ages: tuple[int, int], rank: int) -> tuple[float, int]:
        """Return sort key and index of the member at a rank among those on weights of an age."""
        aged = self._t.aged
        spans = [(first, end) for _, first, end in self._ages(ages)]
        if len(spans) == 1:
            # They are sorted already.
            (_, order), member = aged[spans[0][1] - 1 - rank]
            return order, member
        return sorted((aged[at][0][1], aged[at][1]) for span in spans for at in range(*span))[-1 - rank]

    def _ages(self, ages: tuple[int, int]) -> Iterator[tuple[int, int, int]]:
        """Iterate over (age, first, end): between which places in their order the members of an age are."""
        age = self.next_age(ages[0] - 1)
        while age is not None and age <= ages[1]:
            yield age, self._t.aged.before((age,)), self._t.aged.before((age + 1,))
            age = self.next_age(age)

    def attempt(self, trial_id: int, token: int) -> Attempt | None:
        """Return one attempt."""
        return self._t.attempts.get((trial_id, token))

    def attempts(self, trial_id: int) -> Sequence[Attempt]:
        """Return the attempts of a trial, oldest first."""
        trial = self._t.trials.get(trial_id)
        # Tokens count up from 1.
        keys = [(trial_id, token) for token in range(1, trial.token + 1)] if trial else []
        return [self._t.attempts[key] for key in keys if key in self._t.attempts]

    def all_attempts(self) -> Sequence[Attempt]:
        """Return all attempts by (trial, token)."""
        return [attempt for _, attempt in sorted(self._t.attempts.items())]

    def running(self, worker: str | None = None) -> Sequence[Attempt]:
        """Return the running attempts of one worker, or all of them."""
        keys = [key for _, key in self._t.expiry.since(NEVER)] if worker is None else self._t.running.of(worker)
        return [self._t.attempts[key] for key in sorted(keys)]

    def expired(self, limit: int) -> Sequence[Attempt]:
        """Return running attempts whose lease ran out, longest first."""
        late = min(limit, self._t.expiry.before(self._now))
        return [self._t.attempts[self._t.expiry[place][1]] for place in range(late)]

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return a checkpoint's row."""
        return self._t.checkpoints.get(name)

    def checkpoints(self) -> Sequence[Checkpoint]:
        """Return all checkpoints by creation."""
        return sorted(self._t.checkpoints.values(), key=_creation)

    def live_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state live, oldest first."""
        return self._present(CheckpointState.LIVE)

    def deleting_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state deleting, oldest first."""
        return self._present(CheckpointState.DELETING)

    def _present(self, state: CheckpointState) -> list[Checkpoint]:
        present = [self._t.checkpoints[name] for name in self._t.present.of(state)]
        return sorted(present, key=_creation)

    def held_checkpoints(self) -> frozenset[str]:
        """Return names that members and unfinished trials refer to."""
        held: set[str | None] = set()
        for member in self._t.members.values():
            elite = self._t.elites.get(member.index)
            held.update(s.checkpoint for s in (member.head, member.published, elite) if s)
        for trial in self._unfinished():
            held.update((trial.parent_checkpoint, trial.progress))
        ledger = self._store._ledger
        runs = {run.id for run in ledger.runs.values() if run.study == self._id}
        for key in (key for run in runs for key in (*ledger.best.of(run), *ledger.queued.of(run))):
            group = ledger.groups[key]
            if group.best or group.started or group.guaranteed is not None:
                held.add(ledger.seen[group.seen].name)
        return frozenset(name for name in held if name is not None)

    def best_trials(self, count: int) -> Sequence[TrialRecord]:
        """Return the completed trials with the best finite fitness and a live checkpoint, best first."""
        live = self._t.present.of(CheckpointState.LIVE)
        finite = [self._t.trials[trial] for name in live for trial in self._t.finite.of(name)]
        return sorted(finite, key=lambda t: (-(t.order or 0.0), t.id))[:count]

    def broken_in_a_row(self) -> int:
        """Return how many trials failed since the last one completed."""
        last = self._t.last_completed.get("at", NEVER)
        failed = [self._t.trials[trial] for trial in self._t.by_state.of(TrialState.FAILED)]
        return sum((t.ended_at or 0.0) > last for t in failed)

    def has_unfinished_trials(self) -> bool:
        """Return whether any trial is running or pending."""
        return any(self._t.by_state.count(state) for state in UNFINISHED)

    def _unfinished(self) -> list[TrialRecord]:
        return [self._t.trials[trial] for state in UNFINISHED for trial in self._t.by_state.of(state)]

    def evaluation(self) -> MemoryEvaluation | None:
        """Return the evaluation of this study's checkpoints, in the same transaction."""
        ledger = self._store._ledger
        name = self.study().name
        # Others may watch the study, too, as runs under other names.
        own = next((run.id for run in ledger.runs.values() if run.study == self._id and run.name == name), None)
        return None if own is None else MemoryEvaluation(ledger, own, self._now, self)

    def unscored(self, member: int) -> int:
        """Return how many checkpoints of a member wait for their fitness."""
        return self._store._ledger.unscored.count((self._id, member))

    def awaited_groups(self, *, fitness: bool) -> int:
        """Return how many of the study's own groups are queued."""
        awaited = self._store._ledger.awaited
        return awaited.count((self._id, False)) + (0 if fitness else awaited.count((self._id, True)))

    def has_waiting(self) -> bool:
        """Return whether any member waits."""
        return self._t.waiting.count(MemberState.WAITING) > 0

    def waiting_generation(self) -> int | None:
        """Return the lowest generation any member waits for."""
        return min(self._t.awaited.values(), default=None)

    def next_wait_until(self) -> float | None:
        """Return the earliest time any member waits for."""
        waited = (self._t.members[index].wait_until for index in self._t.waiting.of(MemberState.WAITING))
        return min((t for t in waited if t is not None), default=None)

    def active_members(self) -> int:
        """Return how many members are not done."""
        return sum(self._t.active.count(generation) for generation in self._t.active.values())

    def reports(self, trial: int, token: int | None = None) -> Sequence[Report]:
        """Return what a trial reported, in order."""
        if token is None:
            token = max((t for key, t in self._t.reports if key == trial), default=0)
        return list(self._t.reports.get((trial, token), ()))

    def last_reports(self, trial_id: int, token: int, count: int) -> Sequence[Report]:
        """Return the last reports of one attempt, oldest first."""
        return self._t.reports.get((trial_id, token), [])[-count:] if count > 0 else []

    def averages(self, every: int, step: int, *, besides: int, limit: int) -> Sequence[float]:
        """Return the averages that trials besides one had at a mark, of the newest trials first."""
        found = [
            (trial, average)
            for (e, s, trial), average in self._t.marks.items()
            if (e, s) == (every, step) and trial != besides
        ]
        return [average for _, average in sorted(found, reverse=True)][:limit]

    # What can be changed

    def apply(self, commands: Sequence[AnyCommand]) -> list[str]:
        """Apply commands in order; return the checkpoints that were marked for deletion."""
        return [name for command in commands if (name := self._apply(command)) is not None]

    def undo(self) -> None:
        """Take everything back, newest first."""
        self._changes.undo()

    def _apply(self, command: AnyCommand) -> str | None:
        """Apply one command; return the checkpoint that it marked for deletion, if it did."""
        # The most frequent ones first: they are tried in this order.
        t = self._t
        match command:
            case InsertTrial(trial) | UpdateTrial(trial):
                self._changes.set(t.trials, trial.id, trial)
                if trial.state is TrialState.COMPLETED and trial.ended_at is not None:
                    last = max(trial.ended_at, t.last_completed.get("at", NEVER))
                    self._changes.set(t.last_completed, "at", last)
            case UpdateMember(member):
                self._changes.set(t.members, member.index, member)
            case InsertAttempt(attempt):
                self._changes.set(t.attempts, (attempt.trial, attempt.token), attempt)
            case EndAttempt():
                key = (command.trial, command.token)
                ended = replace(
                    t.attempts[key],
                    state=command.state,
                    ended_at=command.ended_at,
                    outcome=command.outcome,
                    error=command.error,
                    timings=command.timings,
                )
                self._changes.set(t.attempts, key, ended)
            case InsertCheckpoint(checkpoint):
                self._changes.set(t.checkpoints, checkpoint.name, checkpoint)
            case TakeCheckpoint(name):
                row = t.checkpoints.get(name)
                if row is None or row.state is not CheckpointState.LIVE:
                    raise ParentGone(name)
                self._changes.set(t.checkpoints, name, replace(row, taken=row.taken + 1))
            case MarkDeleting(name, taken):
                row = t.checkpoints.get(name)
                if row is not None and row.state is CheckpointState.LIVE and row.taken == taken:
                    self._changes.set(t.checkpoints, name, replace(row, state=CheckpointState.DELETING))
                    return name
            case SetCheckpointState(name, state):
                self._changes.set(t.checkpoints, name, replace(t.checkpoints[name], state=state))
            case RenewAttempts(worker, expires_at):
                for attempt in self.running(worker):
                    renewed = replace(attempt, expires_at=expires_at)
                    self._changes.set(t.attempts, (attempt.trial, attempt.token), renewed)
            case InsertMember(member):
                self._changes.set(t.members, member.index, member)
                larger = replace(self.study(), population_size=self.size)
                self._changes.set(self._store._studies, self._id, larger)
            case SetConfig(config):
                for member in self.members():
                    if member.state is MemberState.DONE and not member.retired:
                        self._changes.set(t.members, member.index, replace(member, state=MemberState.READY))
                self._changes.set(self._store._studies, self._id, replace(self.study(), config=config))
            case WakeMembers():
                self._wake(command)
            case PublishAll():
                for member in self.members():
                    if member.head is not None and member.head.order is None:
                        continue
                    self._changes.set(t.members, member.index, replace(member, published=member.head))
            case RaiseElites(index):
                for member in self.members() if index is None else [self.member(index)]:
                    self._raise_elite(member)
            case SetElite(index, elite):
                self._changes.set(t.elites, index, elite)
            case AddReports(trial_id, token, reports):
                old = t.reports.get((trial_id, token), [])
                self._changes.set(t.reports, (trial_id, token), [*old, *reports])
            case SetTally(trial_id, token, tally, marks):
                key = (trial_id, token)
                self._changes.set(t.attempts, key, replace(t.attempts[key], tally=tally))
                for mark in marks:
                    self._changes.set(t.marks, (mark.every, mark.step, trial_id), mark.average)
            case SetStudyState(state, message):
                self._changes.set(
                    self._store._studies, self._id, replace(self.study(), state=state, message=message)
                )
            case SetStrategyState(state):
                study = self.study()
                changed = replace(study, strategy_state=state, state_version=study.state_version + 1)
                self._changes.set(self._store._studies, self._id, changed)
            case _:
                evaluation = self.evaluation()
                if evaluation is None:
                    raise TypeError(f"{command!r} needs a run, and study {self.study().name!r} has none")
                evaluation.apply_one(command)
        return None

    def _raise_elite(self, member: Member) -> None:
        published, elite = member.published, self.elite(member.index)
        if published is None or not published.can_donate:
            return
        same = elite is not None and elite.checkpoint == published.checkpoint
        if elite is None or same or (published.order or 0.0) > (elite.order or 0.0):
            self._changes.set(self._t.elites, member.index, published)

    def _wake(self, command: WakeMembers) -> None:
        for index in sorted(self._t.waiting.of(MemberState.WAITING)):
            member = self._t.members[index]
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
                self._changes.set(self._t.members, member.index, awake)


def _creation(row: Checkpoint) -> tuple[float, int, str]:
    return row.created_at, row.trial, row.name


def _rank_key(member: Member) -> tuple[float, int]:
    published = member.published
    order = published.order if published and published.order is not None else NEVER
    return order, member.index


def _is_result(trial: TrialRecord) -> bool:
    return trial.state is TrialState.COMPLETED and trial.kind is TrialKind.TRAIN
