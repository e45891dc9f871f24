"""A store as plain as it can be: dictionaries of records, and a look at all of them for each question.

It is the oracle of the stores in databases.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from phyla import machine
from phyla.errors import StateError, StoreError, StudyNotFound
from phyla.machine import AnyCommand, EvalCommand, ParentGone
from phyla.machine import evaluation_commands as evaluation
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
    JsonObject,
    Member,
    MemberState,
    Priority,
    Report,
    RunKind,
    RunRecord,
    RunState,
    Seen,
    SeenState,
    StudyRecord,
    StudyState,
    TrialKind,
    TrialRecord,
    TrialState,
)
from phyla.settings import Clock, system_clock
from phyla.store import Changes, StoreIdentity
from phyla.store.evaluation import NEWEST_DURATIONS

R = TypeVar("R")

NEVER = float("-inf")
UNFINISHED = (TrialState.RUNNING, TrialState.PENDING)


@dataclass
class Tables:
    """Every row of the store by its key."""

    studies: dict[int, StudyRecord] = field(default_factory=dict)
    members: dict[tuple[int, int], Member] = field(default_factory=dict)
    trials: dict[int, TrialRecord] = field(default_factory=dict)
    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    checkpoints: dict[tuple[int, str], Checkpoint] = field(default_factory=dict)
    reports: dict[tuple[int, int, int], tuple[Report, ...]] = field(default_factory=dict)
    marks: dict[tuple[int, int, int, int], float] = field(default_factory=dict)
    runs: dict[int, RunRecord] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    tasks: dict[int, EvalTaskRecord] = field(default_factory=dict)
    eval_attempts: dict[tuple[int, int], EvalAttempt] = field(default_factory=dict)
    results: dict[tuple[str, str, int, int, int], EvalResult] = field(default_factory=dict)
    events: dict[int, EvalEvent] = field(default_factory=dict)

    def copy(self) -> "Tables":
        """Return tables of their own with the same rows, which never change."""
        return Tables(**{name: copy(rows) for name, rows in vars(self).items()})


class NaiveStore:
    """Keeps studies in dictionaries; for one thread."""

    def __init__(self, clock: Clock = system_clock) -> None:
        self.clock = clock
        self.tables = Tables()
        self.last_trial = 0
        self._last_study = 0
        self._last_run = 0
        self._identity = StoreIdentity(id=uuid.uuid4().hex, lasting=False)
        self.url = "naive"

    def identity(self) -> StoreIdentity:
        return self._identity

    def renew_identity(self) -> StoreIdentity:
        self._identity = StoreIdentity(id=uuid.uuid4().hex, copied_from=self._identity.id, lasting=False)
        return self._identity

    def create_study(self, name: str, config: JsonObject, seed: int, population_size: int) -> StudyRecord:
        found = self.find_study(name)
        if found is not None:
            return found
        self._last_study += 1
        study = StudyRecord(
            id=self._last_study,
            name=name,
            state=StudyState.RUNNING,
            config=config,
            seed=seed,
            population_size=population_size,
            created_at=self.clock(),
        )
        self.tables.studies[study.id] = study
        for index in range(population_size):
            self.tables.members[study.id, index] = Member(study=study.id, index=index, state=MemberState.READY)
        return study

    def find_study(self, name: str) -> StudyRecord | None:
        return next((study for study in self.studies() if study.name == name), None)

    def studies(self) -> Sequence[StudyRecord]:
        return [study for _, study in sorted(self.tables.studies.items())]

    def delete_study(self, study: int, *, worker: str | None = None) -> None:
        tables = self.tables
        if study not in tables.studies:
            raise StudyNotFound(f"there is no study with id {study}")
        runs = {run.id for run in tables.runs.values() if run.study == study}
        now = self.clock()
        attempts: list[Attempt | EvalAttempt] = [a for a in tables.attempts.values() if a.study == study]
        attempts += [a for a in tables.eval_attempts.values() if a.run in runs]
        for attempt in attempts:
            if attempt.state is AttemptState.RUNNING and attempt.expires_at > now and attempt.worker != worker:
                raise StateError(f"{attempt.worker} holds a lease")
        elsewhere = {seen.identity for seen in tables.seen.values() if seen.run not in runs}
        trials = {trial.id for trial in tables.trials.values() if trial.study == study}

        def without(rows: dict[Any, Any], keep: Any) -> dict[Any, Any]:
            return {key: row for key, row in rows.items() if keep(key, row)}

        for name in ("seen", "groups", "tasks", "eval_attempts", "events"):
            setattr(tables, name, without(getattr(tables, name), lambda _, row: row.run not in runs))
        tables.results = without(tables.results, lambda key, row: row.run not in runs or key[0] in elsewhere)
        tables.runs = without(tables.runs, lambda key, _: key not in runs)
        tables.marks = without(tables.marks, lambda key, _: key[0] != study)
        tables.reports = without(tables.reports, lambda key, _: key[0] not in trials)
        for name in ("members", "trials", "attempts", "checkpoints"):
            setattr(tables, name, without(getattr(tables, name), lambda _, row: row.study != study))
        del tables.studies[study]

    def set_state(self, study: int, state: StudyState, message: str | None = None) -> None:
        with self.transaction(study, exclusive=True) as tx:
            tx.apply([machine.SetStudyState(state, message)])
            if state is StudyState.RUNNING:
                tx.set_study(replace(tx.study(), resumed_at=tx.now()))
                tx.retry_given_up()

    @contextmanager
    def transaction(self, study: int, *, exclusive: bool, alone: bool = False) -> Iterator["NaiveTransaction"]:
        if study not in self.tables.studies:
            raise StudyNotFound(f"there is no study with id {study}")
        with self._undone():
            yield NaiveTransaction(self, study, self.clock())

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Take back whatever was done in a block that raises."""
        before = self.tables.copy()
        try:
            yield
        except BaseException:
            self.tables = before
            raise

    @contextmanager
    def reader(self, study: int) -> Iterator["NaiveTransaction"]:
        with self.transaction(study, exclusive=False) as tx:
            yield tx

    def create_run(
        self, name: str, kind: RunKind, config: JsonObject, *, study: int | None = None, location: str = ""
    ) -> RunRecord:
        found = self.find_run(name)
        if found is not None:
            return found
        self._last_run += 1
        run = RunRecord(
            id=self._last_run,
            name=name,
            kind=kind,
            study=study,
            location=location,
            config=config,
            created_at=self.clock(),
        )
        self.tables.runs[run.id] = run
        return run

    def find_run(self, name: str) -> RunRecord | None:
        return next((run for run in self.runs() if run.name == name), None)

    def runs(self) -> Sequence[RunRecord]:
        return [run for _, run in sorted(self.tables.runs.items())]

    def set_run_config(self, run: int, config: JsonObject) -> None:
        old = self.tables.runs[run]
        self.tables.runs[run] = replace(old, config=config, state=RunState.FOLLOWING, message=None)

    @contextmanager
    def evaluating(self, run: RunRecord, *, exclusive: bool = True) -> Iterator["NaiveEvaluation"]:
        if run.id not in self.tables.runs:
            raise StoreError(f"there is no run with id {run.id}")
        with self._undone():
            now = self.clock()
            population = None if run.study is None else NaiveTransaction(self, run.study, now)
            yield NaiveEvaluation(self, run.id, now, population)

    @contextmanager
    def evaluations(self, run: RunRecord) -> Iterator["NaiveEvaluation"]:
        with self.evaluating(run) as found:
            yield found

    def changes(self) -> Changes:
        raise NotImplementedError("nobody waits for an oracle")

    def close(self) -> None:
        pass


class NaiveTransaction:
    """One study."""

    def __init__(self, store: NaiveStore, study: int, now: float) -> None:
        self._store = store
        self._id = study
        self._now = now

    @property
    def _t(self) -> Tables:
        return self._store.tables

    # What can be read

    @property
    def size(self) -> int:
        return self.study().population_size

    def now(self) -> float:
        return self._now

    def study(self) -> StudyRecord:
        return self._t.studies[self._id]

    def new_trial_id(self) -> int:
        self._store.last_trial += 1
        return self._store.last_trial

    def member(self, index: int) -> Member:
        return self._t.members[self._id, index]

    locked_member = member

    def members(self) -> Sequence[Member]:
        return [member for (study, _), member in sorted(self._t.members.items()) if study == self._id]

    def locked_ready(self, seen: Member) -> Member | None:
        member = self.member(seen.index)
        return member if member == seen else None

    def trials(
        self, *, member: int | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[TrialRecord]:
        mine = [trial for _, trial in sorted(self._t.trials.items()) if trial.study == self._id]
        return [t for t in mine if t.id > after and member in (None, t.member)][:limit]

    def next_pending(self) -> TrialRecord | None:
        return next((trial for trial in self.trials() if trial.state is TrialState.PENDING), None)

    def trial(self, trial_id: int) -> TrialRecord:
        found = self.locked_trial(trial_id)
        if found is None:
            raise KeyError(trial_id)
        return found

    def locked_trial(self, trial_id: int) -> TrialRecord | None:
        found = self._t.trials.get(trial_id)
        return found if found is not None and found.study == self._id else None

    def _trained(self, *states: TrialState) -> list[TrialRecord]:
        return [t for t in self.trials() if t.kind is TrialKind.TRAIN and t.state in states]

    def counts(self) -> dict[str, int]:
        states = [trial.state.value for trial in self._trained(*TrialState)]
        return {state: states.count(state) for state in sorted(set(states))}

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        return sorted(self._trained(TrialState.COMPLETED), key=_end, reverse=True)[:count]

    def ended(self, step: int | None) -> Sequence[TrialRecord]:
        def came_to(trial: TrialRecord) -> bool:
            if trial.state is TrialState.COMPLETED:
                return step is not None and trial.reached_step is not None and trial.reached_step >= step
            return trial.state is TrialState.FAILED or trial.stop_reason is not None

        return sorted(filter(came_to, self._trained(*TrialState)), key=_end)

    def unfinished(self) -> Sequence[TrialRecord]:
        return [trial for trial in self.trials() if trial.state in UNFINISHED]

    def results(self, generation: int) -> Sequence[TrialRecord]:
        done = self._trained(TrialState.COMPLETED)
        return [trial for trial in done if trial.generation == generation and trial.order is not None]

    def best_trials(self, count: int) -> Sequence[TrialRecord]:
        live = {row.name for row in self.live_checkpoints()}
        done = [t for t in self._trained(TrialState.COMPLETED) if t.order is not None and t.order > NEVER]
        return sorted([t for t in done if t.checkpoint in live], key=lambda t: (-(t.order or 0.0), t.id))[:count]

    def broken_in_a_row(self) -> int:
        resumed = self.study().resumed_at
        completed = [t.ended_at or 0.0 for t in self.trials() if t.state is TrialState.COMPLETED]
        last = max([NEVER if resumed is None else resumed, *completed])
        return sum((t.ended_at or 0.0) > last for t in self.trials() if t.state is TrialState.FAILED)

    def attempt(self, trial_id: int, token: int) -> Attempt | None:
        return next((attempt for attempt in self.attempts(trial_id) if attempt.token == token), None)

    def attempts(self, trial_id: int) -> Sequence[Attempt]:
        return [attempt for attempt in self.all_attempts() if attempt.trial == trial_id]

    def all_attempts(self) -> Sequence[Attempt]:
        return [attempt for _, attempt in sorted(self._t.attempts.items()) if attempt.study == self._id]

    def running(self, worker: str | None = None) -> Sequence[Attempt]:
        mine = [attempt for attempt in self.all_attempts() if attempt.state is AttemptState.RUNNING]
        return [attempt for attempt in mine if worker in (None, attempt.worker)]

    def expired(self, limit: int) -> Sequence[Attempt]:
        late = [attempt for attempt in self.running() if attempt.expires_at < self._now]
        return sorted(late, key=lambda a: (a.expires_at, a.trial))[:limit]

    def claimed_ahead(self, expires_after: float) -> Sequence[Attempt]:
        ahead = [a for a in self.running() if a.expires_at > expires_after and a.claimed_at > self._now]
        return sorted(ahead, key=lambda a: (a.expires_at, a.trial))

    def reports(self, trial: int, token: int | None = None) -> Sequence[Report]:
        tokens = [key[1] for key in self._t.reports if key[0] == trial] or [0]
        wanted = max(tokens) if token is None else token
        batches = [batch for key, batch in sorted(self._t.reports.items()) if key[:2] == (trial, wanted)]
        return [report for batch in batches for report in batch]

    def last_reports(self, trial_id: int, token: int, count: int) -> Sequence[Report]:
        return self.reports(trial_id, token)[-count:] if count > 0 else []

    def averages(self, every: int, step: int, *, besides: int, limit: int) -> Sequence[float]:
        mark = (self._id, every, step)
        found = [(key[3], average) for key, average in self._t.marks.items() if key[:3] == mark]
        return [average for trial, average in sorted(found, reverse=True) if trial != besides][:limit]

    def checkpoint(self, name: str) -> Checkpoint | None:
        return self._t.checkpoints.get((self._id, name))

    def checkpoints(self) -> Sequence[Checkpoint]:
        mine = [row for row in self._t.checkpoints.values() if row.study == self._id]
        return sorted(mine, key=lambda row: (row.created_at, row.trial, row.name))

    def _in_state(self, state: CheckpointState) -> list[Checkpoint]:
        return [row for row in self.checkpoints() if row.state is state]

    def live_checkpoints(self) -> Sequence[Checkpoint]:
        return self._in_state(CheckpointState.LIVE)

    def deleting_checkpoints(self) -> Sequence[Checkpoint]:
        return self._in_state(CheckpointState.DELETING)

    def damaged_checkpoints(self) -> Sequence[Checkpoint]:
        return self._in_state(CheckpointState.DAMAGED)

    def held_checkpoints(self) -> frozenset[str]:
        held: set[str | None] = set()
        for member in self.members():
            held.update(one.checkpoint for one in (member.head, member.best, *member.states) if one is not None)
        for trial in self.unfinished():
            held.update((trial.parent_checkpoint, trial.progress))
        runs = {run.id for run in self._t.runs.values() if run.study == self._id}
        for group in [group for group in self._t.groups.values() if group.run in runs]:
            wanted = group.started or group.guaranteed is not None
            if group.best or (wanted and group.state is GroupState.QUEUED):
                held.add(self._t.seen[group.seen].name)
        return frozenset(cast("set[str]", held - {None}))

    def evaluation(self) -> "NaiveEvaluation | None":
        own = [run.id for run in self._t.runs.values() if (run.study, run.name) == (self._id, self.study().name)]
        return NaiveEvaluation(self._store, own[0], self._now, self) if own else None

    def awaited_groups(self) -> int:
        return sum((g.study, g.state) == (self._id, GroupState.QUEUED) for g in self._t.groups.values())

    # What can be changed

    def set_study(self, study: StudyRecord) -> None:
        self._t.studies[self._id] = study

    def _set_attempt(self, trial: int, token: int, **changes: Any) -> None:
        self._t.attempts[trial, token] = replace(self._t.attempts[trial, token], **changes)

    def _set_checkpoint(self, name: str, **changes: Any) -> None:
        self._t.checkpoints[self._id, name] = replace(self._t.checkpoints[self._id, name], **changes)

    def retry_given_up(self) -> None:
        for member in self.members():
            if member.given_up:
                again = replace(member, state=MemberState.READY, replacements=0)
                self._t.members[self._id, member.index] = again

    def apply(self, commands: Sequence[AnyCommand]) -> list[str]:
        marked: list[str] = []
        for command in commands:
            marked += self._apply(command)
        return marked

    def _apply(self, command: AnyCommand) -> list[str]:
        """Apply one command; return the checkpoints that were marked for deletion."""
        tables = self._t
        match command:
            case machine.InsertTrial(trial) | machine.UpdateTrial(trial):
                tables.trials[trial.id] = trial
            case machine.InsertAttempt(attempt):
                tables.attempts[attempt.trial, attempt.token] = attempt
            case machine.EndAttempt():
                ended = {
                    name: getattr(command, name) for name in ("state", "ended_at", "outcome", "error", "timings")
                }
                self._set_attempt(command.trial, command.token, **ended)
            case machine.RenewAttempts(worker, expires_at):
                for attempt in self.running(worker):
                    self._set_attempt(attempt.trial, attempt.token, expires_at=expires_at)
            case machine.UpdateMember(member):
                tables.members[self._id, member.index] = member
            case machine.InsertMember(member):
                tables.members[self._id, member.index] = member
                self.set_study(replace(self.study(), population_size=self.size + 1))
            case machine.SetConfig(config):
                self.retry_given_up()
                for member in self.members():
                    if member.state is MemberState.DONE and not member.retired:
                        tables.members[self._id, member.index] = replace(member, state=MemberState.READY)
                self.set_study(replace(self.study(), config=config))
            case machine.InsertCheckpoint(row):
                tables.checkpoints[self._id, row.name] = row
            case machine.TakeCheckpoint(name):
                live = self.checkpoint(name)
                if live is None or live.state is not CheckpointState.LIVE:
                    raise ParentGone(name)
                self._set_checkpoint(name, taken=live.taken + 1)
            case machine.MarkDeleting(name, taken):
                live = self.checkpoint(name)
                if live is None or live.state is not CheckpointState.LIVE or live.taken != taken:
                    return []
                self._set_checkpoint(name, state=CheckpointState.DELETING)
                return [name]
            case machine.SetCheckpointState(name, state, damage):
                self._set_checkpoint(name, state=state, damage=damage)
            case machine.AddReports(trial_id, token, reports):
                tables.reports[trial_id, token, len(tables.reports)] = tuple(reports)
            case machine.SetTally(trial_id, token, tally, marks):
                self._set_attempt(trial_id, token, tally=tally)
                for mark in marks:
                    tables.marks[self._id, mark.every, mark.step, trial_id] = mark.average
            case machine.SetStudyState(study_state, message):
                self.set_study(replace(self.study(), state=study_state, message=message))
            case machine.SetStrategyState(json):
                version = self.study().state_version + 1
                self.set_study(replace(self.study(), strategy_state=json, state_version=version))
            case _:
                found = self.evaluation()
                if found is None:
                    raise TypeError(f"{command!r} needs a run")
                found.apply_one(command)
        return []


def _end(trial: TrialRecord) -> tuple[float, int]:
    return trial.ended_at or 0.0, trial.id


def _urgency(task: EvalTaskRecord) -> tuple[int, float, int, int]:
    return task.priority, task.rank, task.group, task.id


class NaiveEvaluation:
    """The evaluation of one run."""

    def __init__(self, store: NaiveStore, run: int, now: float, population: NaiveTransaction | None) -> None:
        self._store = store
        self._id = run
        self._now = now
        self._population = population

    @property
    def _t(self) -> Tables:
        return self._store.tables

    # What can be read

    def now(self) -> float:
        return self._now

    def run(self) -> RunRecord:
        return self._t.runs[self._id]

    def population(self) -> NaiveTransaction | None:
        return self._population

    def all_seen(self, *, after: int = 0, limit: int | None = None) -> Sequence[Seen]:
        return [s for key, s in sorted(self._t.seen.items()) if key > after and s.run == self._id][:limit]

    def seen(self, seen_id: int) -> Seen:
        return _existing([seen for seen in self.all_seen() if seen.id == seen_id])

    def find_seen(self, name: str, index: int = 0) -> Seen | None:
        found = [seen for seen in self.all_seen() if (seen.name, seen.index) == (name, index)]
        return found[-1] if found else None

    def newest_seen(self) -> Seen | None:
        return max(self.all_seen(), key=lambda seen: seen.number, default=None)

    def newest_ready(self) -> Seen | None:
        ready = [seen for seen in self.all_seen() if seen.state is SeenState.READY]
        return max(ready, key=lambda seen: seen.number, default=None)

    def shards_done(self, identity: str, task_identity: str, replicate: int, shards: int) -> frozenset[int]:
        return frozenset(r.shard for r in self.results(identity, task_identity, replicate, shards))

    def results(self, identity: str, task_identity: str, replicate: int, shards: int) -> Sequence[EvalResult]:
        key = (identity, task_identity, replicate, shards)
        entries = self._t.results.values()
        found = [r for r in entries if (r.identity, r.task_identity, r.replicate, r.shards) == key]
        return sorted(found, key=lambda r: r.shard)

    def mean_duration_s(self, task_identity: str) -> float | None:
        mine = [r for r in self._t.results.values() if r.task_identity == task_identity]
        newest = sorted(mine, key=lambda r: (r.created_at, r.duration_s), reverse=True)[:NEWEST_DURATIONS]
        return sum(r.duration_s for r in newest) / len(newest) if newest else None

    def groups(self, *, suite: str | None = None, after: int = 0, limit: int | None = None) -> Sequence[Group]:
        mine = [group for _, group in sorted(self._t.groups.items()) if group.run == self._id]
        return [group for group in mine if group.id > after and suite in (None, group.suite)][:limit]

    def group(self, group_id: int) -> Group:
        return _existing([group for group in self.groups() if group.id == group_id])

    def locked_group(self, group_id: int) -> Group | None:
        return next((group for group in self.groups() if group.id == group_id), None)

    def groups_of(self, seen: int) -> Sequence[Group]:
        return [group for group in self.groups() if group.seen == seen]

    def find_group(self, seen: int, suite: str, replicate: int = 0) -> Group | None:
        return next((g for g in self.groups_of(seen) if (g.suite, g.replicate) == (suite, replicate)), None)

    def _in_state(self, state: GroupState, suite: str | None = None) -> list[Group]:
        return [group for group in self.groups(suite=suite) if group.state is state]

    def fresh_groups(self, suite: str) -> Sequence[Group]:
        queued = self._in_state(GroupState.QUEUED, suite)
        return [g for g in queued if g.priority == Priority.FRESH and g.guaranteed != "fitness"]

    def last_queued_at(self, suite: str) -> float | None:
        taken_on = [g.created_at for g in self.groups(suite=suite) if g.state is not GroupState.SKIPPED]
        return max(taken_on, default=None)

    def busy(self, suite: str) -> bool:
        return any(group.started for group in self._in_state(GroupState.QUEUED, suite))

    def best_group(self, suite: str) -> Group | None:
        return next((group for group in self.groups(suite=suite) if group.best), None)

    def partial_in_a_row(self, suite: str) -> int:
        last = max([g.ended_at or 0.0 for g in self._in_state(GroupState.COMPLETE, suite)], default=NEVER)
        return sum((g.ended_at or 0.0) > last for g in self._in_state(GroupState.PARTIAL, suite))

    def open_groups(self) -> int:
        return len(self._in_state(GroupState.QUEUED))

    def held_paths(self) -> frozenset[int]:
        return frozenset(g.seen for g in self.groups() if g.best or g.state is GroupState.QUEUED)

    def eval_tasks(self, *, after: int = 0, limit: int | None = None) -> Sequence[EvalTaskRecord]:
        return [t for key, t in sorted(self._t.tasks.items()) if key > after and t.run == self._id][:limit]

    def _pending(self) -> list[EvalTaskRecord]:
        return sorted([t for t in self.eval_tasks() if t.state is TrialState.PENDING], key=_urgency)

    def next_eval_task(self, holding: int | None) -> EvalTaskRecord | None:
        due = [task for task in self._pending() if task.not_before <= self._now]
        held = [task for task in due if task.seen == holding and task.priority == due[0].priority]
        return next(iter(held + due), None)

    def next_not_before(self) -> float | None:
        return min((task.not_before for task in self._pending() if task.not_before > self._now), default=None)

    def locked_eval_task(self, task_id: int) -> EvalTaskRecord | None:
        return next((task for task in self.eval_tasks() if task.id == task_id), None)

    def group_tasks(self, group: int) -> Sequence[EvalTaskRecord]:
        return [task for task in self.eval_tasks() if task.group == group]

    def unfinished_tasks(self, group: int) -> int:
        return sum(task.state in UNFINISHED for task in self.group_tasks(group))

    def eval_attempt(self, task: int, token: int) -> EvalAttempt | None:
        return self._t.eval_attempts.get((task, token))

    def eval_attempts(self, task: int) -> Sequence[EvalAttempt]:
        return [attempt for (of, _), attempt in sorted(self._t.eval_attempts.items()) if of == task]

    def running_evaluations(self, worker: str | None = None) -> Sequence[EvalAttempt]:
        mine = [attempt for _, attempt in sorted(self._t.eval_attempts.items()) if attempt.run == self._id]
        return [a for a in mine if a.state is AttemptState.RUNNING and worker in (None, a.worker)]

    def expired_evaluations(self, limit: int) -> Sequence[EvalAttempt]:
        late = [attempt for attempt in self.running_evaluations() if attempt.expires_at < self._now]
        return sorted(late, key=lambda a: (a.expires_at, a.task))[:limit]

    def claimed_ahead(self, expires_after: float) -> Sequence[EvalAttempt]:
        running = self.running_evaluations()
        ahead = [a for a in running if a.expires_at > expires_after and a.claimed_at > self._now]
        return sorted(ahead, key=lambda a: (a.expires_at, a.task))

    def events(self, *, after: int = 0) -> Sequence[EvalEvent]:
        return [e for key, e in sorted(self._t.events.items()) if key > after and e.run == self._id]

    # What can be changed

    def apply(self, commands: Sequence[AnyCommand]) -> list[str]:
        marked: list[str] = []
        for command in commands:
            if isinstance(command, EvalCommand):
                self.apply_one(command)
            elif self._population is None:
                raise TypeError(f"{command!r} needs a study")
            else:
                marked += self._population.apply([command])
        return marked

    def apply_one(self, command: EvalCommand) -> None:
        tables = self._t
        match command:
            case evaluation.InsertSeen(seen, groups):
                seen = replace(seen, id=_next(tables.seen))
                tables.seen[seen.id] = seen
                for group, tasks in groups:
                    self._insert_group(replace(group, seen=seen.id), tasks)
            case evaluation.InsertGroup(group, tasks):
                self._insert_group(group, tasks)
            case evaluation.UpdateSeen(seen):
                tables.seen[seen.id] = seen
            case evaluation.UpdateGroup(group):
                tables.groups[group.id] = group
            case evaluation.StartGroup(group_id):
                tables.groups[group_id] = replace(tables.groups[group_id], started=True)
            case evaluation.Reprioritise(group_id, priority):
                tables.groups[group_id] = replace(tables.groups[group_id], priority=priority)
                for task in self.group_tasks(group_id):
                    if task.state is TrialState.PENDING and task.task:
                        tables.tasks[task.id] = replace(task, priority=priority)
            case evaluation.InsertEvalTasks(tasks):
                self._insert_tasks(tasks)
            case evaluation.UpdateEvalTask(task):
                tables.tasks[task.id] = task
            case evaluation.InsertEvalAttempt(attempt):
                tables.eval_attempts[attempt.task, attempt.token] = attempt
            case evaluation.EndEvalAttempt():
                key = (command.task, command.token)
                ended = {name: getattr(command, name) for name in ("state", "ended_at", "error")}
                tables.eval_attempts[key] = replace(tables.eval_attempts[key], **ended)
            case evaluation.RenewEvalAttempts(worker, expires_at):
                for attempt in self.running_evaluations(worker):
                    key = (attempt.task, attempt.token)
                    tables.eval_attempts[key] = replace(attempt, expires_at=expires_at)
            case evaluation.LimitNotBefore(latest):
                for task in self._pending():
                    tables.tasks[task.id] = replace(task, not_before=min(task.not_before, latest))
            case evaluation.InsertResult(r):
                tables.results.setdefault((r.identity, r.task_identity, r.replicate, r.shard, r.shards), r)
            case evaluation.InsertEvent(event):
                event = replace(event, id=_next(tables.events))
                tables.events[event.id] = event
            case evaluation.SetRunState(state, message):
                tables.runs[self._id] = replace(self.run(), state=state, message=message)

    def _insert_group(self, group: Group, tasks: Sequence[EvalTaskRecord]) -> None:
        group = replace(group, id=_next(self._t.groups))
        self._t.groups[group.id] = group
        self._insert_tasks([replace(task, group=group.id, seen=group.seen) for task in tasks])

    def _insert_tasks(self, tasks: Sequence[EvalTaskRecord]) -> None:
        for task in tasks:
            task = replace(task, id=_next(self._t.tasks))
            self._t.tasks[task.id] = task


def _next(rows: dict[int, Any]) -> int:
    return max(rows, default=0) + 1


def _existing(found: list[R]) -> R:
    if not found:
        raise KeyError("there is no such row in this run")
    return found[0]
