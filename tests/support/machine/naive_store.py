"""A store as plain as it can be: dictionaries of records, and a look at all of them for each question.

It is the oracle of the stores in databases. It also refuses what the table of transitions forbids.
"""

import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

from phyla import machine
from phyla.errors import StateError, StudyNotFound
from phyla.machine import NO_LIMIT, Command, ParentGone, Room
from phyla.machine.jobs import change_state
from phyla.records import (
    Attempt,
    AttemptState,
    Backlog,
    Checkpoint,
    CheckpointKind,
    CheckpointState,
    Cohort,
    EvalEvent,
    EvalJob,
    EvalResult,
    Group,
    GroupState,
    JobKind,
    JobState,
    JsonObject,
    Member,
    MemberState,
    Phase,
    Priority,
    Report,
    RunStart,
    Score,
    StudyKind,
    StudyRecord,
    StudyState,
    TimeSpent,
    Token,
    TrialRecord,
    Waiting,
)
from phyla.settings import Clock, system_clock
from phyla.store import Changes, StoreIdentity
from phyla.store.contract import NEWEST_DURATIONS, P, Query

Job = TrialRecord | EvalJob
R = TypeVar("R")

NEVER = float("-inf")
ALIKE = [each.name for each in fields(Cohort) if each.name != "size"]
UNFINISHED = (JobState.RUNNING, JobState.PENDING)


@dataclass
class Tables:
    """Every row of the store by its key."""

    studies: dict[int, StudyRecord] = field(default_factory=dict)
    members: dict[tuple[int, int], Member] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    reports: dict[tuple[int, int, int], tuple[Report, ...]] = field(default_factory=dict)
    marks: dict[tuple[int, int, int, int], float] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    results: dict[tuple[str, str, int, int, int], EvalResult] = field(default_factory=dict)
    events: dict[int, EvalEvent] = field(default_factory=dict)
    starts: dict[int, RunStart] = field(default_factory=dict)

    def copy(self) -> "Tables":
        """Return tables of their own with the same rows, which never change."""
        return Tables(**{name: copy(rows) for name, rows in vars(self).items()})


class NaiveStore:
    """Keeps studies in dictionaries; for one thread."""

    def __init__(self, clock: Clock = system_clock) -> None:
        self.clock = clock
        self.tables = Tables()
        self.last_job = 0
        self._last_study = 0
        self._identity = StoreIdentity(id=uuid.uuid4().hex, lasting=False)
        self.url = "naive"
        self._tokens: dict[str, Token] = {}

    def hold_on(self, seconds: float) -> None:
        """Wait for nothing."""

    def identity(self) -> StoreIdentity:
        return self._identity

    def renew_identity(self) -> StoreIdentity:
        self._identity = StoreIdentity(id=uuid.uuid4().hex, copied_from=self._identity.id, lasting=False)
        return self._identity

    def create_study(
        self,
        name: str,
        config: JsonObject,
        seed: int = 0,
        population_size: int = 0,
        *,
        kind: StudyKind = StudyKind.POPULATION,
        location: str = "",
        source: int | None = None,
    ) -> StudyRecord:
        found = self.find_study(name)
        if found is not None:
            return found
        self._last_study += 1
        study = StudyRecord(
            id=self._last_study,
            name=name,
            kind=kind,
            state=StudyState.RUNNING,
            config=config,
            seed=seed,
            population_size=population_size,
            created_at=self.clock(),
            location=location,
            source=source,
        )
        self.tables.studies[study.id] = study
        for index in range(population_size):
            self.tables.members[study.id, index] = Member(study=study.id, index=index, state=MemberState.READY)
        return study

    def find_study(self, name: str) -> StudyRecord | None:
        return next((study for study in self.studies() if study.name == name), None)

    def studies(self) -> Sequence[StudyRecord]:
        return [study for _, study in sorted(self.tables.studies.items())]

    def delete_study(self, study: int) -> None:
        tables = self.tables
        if study not in tables.studies:
            raise StudyNotFound(f"there is no study with id {study}")
        doomed = {one.id for one in self.studies() if study in (one.id, one.source)}

        def without(rows: dict[Any, Any], keep: Any) -> dict[Any, Any]:
            return {key: row for key, row in rows.items() if keep(key, row)}

        trials = {job.id for job in tables.jobs.values() if job.study in doomed}
        tables.reports = without(tables.reports, lambda key, _: key[0] not in trials)
        tables.marks = without(tables.marks, lambda key, _: key[0] not in doomed)
        for name in ("members", "jobs", "attempts", "checkpoints", "groups", "events", "starts"):
            setattr(tables, name, without(getattr(tables, name), lambda _, row: row.study not in doomed))
        elsewhere = {row.identity for row in tables.checkpoints.values() if row.number >= 0}
        tables.results = without(tables.results, lambda key, row: row.study not in doomed or key[0] in elsewhere)
        tables.studies = without(tables.studies, lambda key, _: key not in doomed)

    def set_state(self, study: int, state: StudyState, message: str | None = None) -> None:
        with self.transaction(study, exclusive=True) as tx:
            tx.apply([machine.SetStudyState(state, message)])
            if state is StudyState.RUNNING:
                tx.set_study(resumed_at=tx.now())
                tx.retry_given_up()

    def tokens(self) -> Sequence[Token]:
        return sorted(self._tokens.values(), key=lambda token: token.name)

    def add_token(self, token: Token) -> None:
        if self._tokens.setdefault(token.name, token) is not token:
            raise StateError(f"there is a token {token.name!r} already")

    def revoke_token(self, name: str) -> None:
        if self._tokens.pop(name, None) is None:
            raise StateError(f"there is no token {name!r}")

    @contextmanager
    def transaction(
        self, study: int, *, exclusive: bool, alone: bool = False, source: int | None = None
    ) -> Iterator["NaiveTransaction"]:
        """Take back whatever was done in a block that raises, except for the ids of jobs that were given."""
        if study not in self.tables.studies:
            raise StudyNotFound(f"there is no study with id {study}")
        before = self.tables.copy()
        try:
            yield NaiveTransaction(self, study, self.clock())
        except BaseException:
            self.tables = before
            raise

    @contextmanager
    def reader(self, study: int) -> Iterator["NaiveTransaction"]:
        with self.transaction(study, exclusive=False) as tx:
            yield tx

    def look(self, study: int, query: Query[P, R], /, *args: P.args, **named: P.kwargs) -> R:
        with self.reader(study) as reader:
            return query(reader, *args, **named)

    def changes(self) -> Changes:
        raise NotImplementedError("nobody waits for an oracle")

    def close(self) -> None:
        pass


def backlog_of(groups: Sequence[Group], order: Callable[[int], Any] = lambda seen: seen) -> Backlog:
    """What of some groups, which are of one suite, waits or is being evaluated, in the order of checkpoints."""
    queued = [group for group in groups if group.state is GroupState.QUEUED]
    done = [group.seen for group in groups if group.state is GroupState.COMPLETE]
    complete = max(done, key=order, default=None)
    waiting = {group.seen for group in queued if group.replicate == 0}
    behind = {seen for seen in waiting if complete is None or order(seen) > order(complete)}
    return Backlog(
        complete=complete,
        waiting=len(queued),
        behind=len(behind),
        oldest=min(behind, default=None),
        newest=max(behind, default=None),
    )


class NaiveTransaction:
    """One study."""

    def __init__(self, store: NaiveStore, study: int, now: float) -> None:
        self._store = store
        self._id = study
        self._now = now

    @property
    def _t(self) -> Tables:
        return self._store.tables

    # The queue

    def now(self) -> float:
        return self._now

    def study(self) -> StudyRecord:
        return self._t.studies[self._id]

    def source(self) -> "NaiveTransaction | None":
        if self.study().kind is StudyKind.DIRECTORY:
            return None
        return NaiveTransaction(self._store, self.study().source or self._id, self._now)

    def new_job_id(self) -> int:
        self._store.last_job += 1
        return self._store.last_job

    def job(self, job_id: int) -> Job | None:
        found = self._t.jobs.get(job_id)
        return found if found is not None and found.study == self._id else None

    def _jobs(self, kind: type[R]) -> list[R]:
        mine = [job for _, job in sorted(self._t.jobs.items()) if job.study == self._id]
        return [job for job in mine if isinstance(job, kind)]

    def trials(
        self, *, member: int | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[TrialRecord]:
        mine = self._jobs(TrialRecord)
        return [t for t in mine if t.id > after and member in (None, t.member)][:limit]

    def next_pending(self) -> TrialRecord | None:
        return next((trial for trial in self.trials() if trial.state is JobState.PENDING), None)

    def trial(self, trial_id: int) -> TrialRecord:
        return _existing([trial for trial in self.trials() if trial.id == trial_id])

    def ancestry(self, trial: int, limit: int | None = None) -> Sequence[TrialRecord]:
        found = [self.trial(trial)]
        while found[-1].parent is not None:
            found.append(self.trial(found[-1].parent))
        return found[:limit]

    def chosen_trials(self, ids: Sequence[int]) -> Sequence[TrialRecord]:
        return [self.trial(one) for one in ids]

    def locked_trial(self, trial_id: int) -> TrialRecord | None:
        found = self.job(trial_id)
        return found if isinstance(found, TrialRecord) else None

    def eval_jobs(self, *, after: int = 0, limit: int | None = None) -> Sequence[EvalJob]:
        return [job for job in self._jobs(EvalJob) if job.id > after][:limit]

    def _pending(self) -> list[EvalJob]:
        pending = [job for job in self.eval_jobs() if job.state is JobState.PENDING]
        return sorted(pending, key=lambda job: (job.priority, job.rank, job.group, job.id))

    def next_eval_job(self, holding: int | None, room: Room = NO_LIMIT) -> EvalJob | None:
        least, most = room.gpus
        due = [job for job in self._pending() if job.not_before <= self._now and least <= job.gpus <= most]
        due = [job for job in due if job.label in ("", *room.labels) and job.identity not in room.resting]
        held = [job for job in due if job.seen == holding and job.priority == due[0].priority]
        return next(iter(held + due), None)

    def failed_evaluations(self) -> Sequence[EvalJob]:
        failed = [job for job in self.eval_jobs() if job.state is JobState.FAILED and job.token]
        tried = [job for job in failed if job.kind is JobKind.EVALUATE]
        return sorted(tried, key=lambda job: (job.ended_at or 0.0, job.id), reverse=True)[:200]

    def waiting(self, resting: frozenset[str] = frozenset()) -> Sequence[Waiting]:
        due = [job for job in self._pending() if job.not_before <= self._now and (job.gpus or job.label)]
        due = [job for job in due if job.identity not in resting]
        counts = Counter((job.gpus, job.label) for job in due)
        return [Waiting(gpus=gpus, label=label, count=count) for (gpus, label), count in sorted(counts.items())]

    def next_not_before(self) -> float | None:
        return min((job.not_before for job in self._pending() if job.not_before > self._now), default=None)

    def locked_eval_job(self, job_id: int) -> EvalJob | None:
        found = self.job(job_id)
        return found if isinstance(found, EvalJob) else None

    def group_jobs(self, group: int) -> Sequence[EvalJob]:
        return [job for job in self.eval_jobs() if job.group == group]

    def unfinished_jobs(self, group: int) -> int:
        return sum(job.state in UNFINISHED for job in self.group_jobs(group))

    def _attempts(self) -> list[Attempt]:
        return [attempt for _, attempt in sorted(self._t.attempts.items()) if attempt.study == self._id]

    def attempt(self, job_id: int, token: int) -> Attempt | None:
        return next((attempt for attempt in self.attempts(job_id) if attempt.token == token), None)

    def attempts(self, job_id: int) -> Sequence[Attempt]:
        return [attempt for attempt in self._attempts() if attempt.job == job_id]

    def trial_attempts(self, *, after: tuple[int, int] = (0, 0), limit: int | None = None) -> Sequence[Attempt]:
        mine = [attempt for attempt in self._attempts() if self.locked_trial(attempt.job) is not None]
        return [attempt for attempt in mine if (attempt.job, attempt.token) > after][:limit]

    def running(self, worker: str | None = None) -> Sequence[Attempt]:
        mine = [attempt for attempt in self._attempts() if attempt.state is AttemptState.RUNNING]
        return [attempt for attempt in mine if worker in (None, attempt.worker)]

    def expired(self, limit: int) -> Sequence[Attempt]:
        late = [attempt for attempt in self.running() if attempt.expires_at < self._now]
        return sorted(late, key=lambda a: (a.expires_at, a.job))[:limit]

    def claimed_ahead(self, expires_after: float) -> Sequence[Attempt]:
        ahead = [a for a in self.running() if a.expires_at > expires_after and a.claimed_at > self._now]
        return sorted(ahead, key=lambda a: (a.expires_at, a.job))

    # The population

    def member(self, index: int) -> Member:
        return self._t.members[self._id, index]

    locked_member = member

    def members(self) -> Sequence[Member]:
        return [member for (study, _), member in sorted(self._t.members.items()) if study == self._id]

    def foremost(self, count: int) -> Sequence[Member]:
        return sorted(self.members(), key=lambda member: member.rank)[: max(0, count)]

    def cohorts(self) -> Sequence[Cohort]:
        sizes = Counter(tuple(getattr(member, name) for name in ALIKE) for member in self.members())
        return [Cohort(**dict(zip(ALIKE, each, strict=True)), size=sizes[each]) for each in sorted(sizes)]

    def time_spent(self) -> TimeSpent:
        seconds = dict.fromkeys(Phase, 0.0)
        attempts = self.trial_attempts()
        cut = [one for one in attempts if one.timings is None and one.state is AttemptState.CANCELLED]
        known = [one.timings for one in attempts if one.timings is not None]
        known += [{Phase.TRAINING: (one.ended_at or 0.0) - one.claimed_at} for one in cut]
        for phase in Phase:
            seconds[phase] = sum((each.get(phase, 0.0) for each in known), 0.0)
        tasks = [one for one in self.eval_jobs() if one.ended_at is not None and one.started_at is not None]
        if tasks:
            lasted = [(one.ended_at or 0.0) - (one.started_at or 0.0) for one in tasks]
            seconds[Phase.EVALUATING] = sum((max(0.0, each) for each in lasted), 0.0)
        ended = sum(one.ended_at is not None for one in attempts)
        return TimeSpent(seconds=seconds, timed=len(known), ended=ended)

    def locked_ready(self, seen: Member) -> Member | None:
        member = self.member(seen.index)
        return member if member == seen else None

    def _trained(self, *states: JobState) -> list[TrialRecord]:
        return [t for t in self.trials() if t.kind is JobKind.TRAIN and t.state in states]

    def children(self, trial: int) -> list[TrialRecord]:
        return [one for one in self.trials() if one.parent == trial]

    def newest_trials(self, count: int) -> Sequence[TrialRecord]:
        return self.trials()[::-1][:count]

    def counts(self) -> dict[str, int]:
        states = [trial.state.value for trial in self._trained(*JobState)]
        return {state: states.count(state) for state in sorted(set(states))}

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        return sorted(self._trained(JobState.COMPLETED), key=_end, reverse=True)[:count]

    def ended(self, age: int | None) -> Sequence[TrialRecord]:
        def came_to(trial: TrialRecord) -> bool:
            if trial.state is JobState.COMPLETED:
                return age is not None and trial.reached_age is not None and trial.reached_age >= age
            return trial.state is JobState.FAILED or trial.stop_reason is not None

        return sorted(filter(came_to, self._trained(*JobState)), key=_end)

    def unfinished(self) -> Sequence[TrialRecord]:
        return [trial for trial in self.trials() if trial.state in UNFINISHED]

    def results(self, generation: int) -> Mapping[int, float]:
        done = self._trained(JobState.COMPLETED)
        return {t.member: t.order for t in done if t.generation == generation and t.order is not None}

    def best_trials(self, count: int) -> Sequence[TrialRecord]:
        live = {row.name for row in self.checkpoints(CheckpointState.LIVE)}
        done = [t for t in self._trained(JobState.COMPLETED) if t.order is not None and t.order > NEVER]
        return sorted([t for t in done if t.checkpoint in live], key=lambda t: (-(t.order or 0.0), t.id))[:count]

    def final_trials(self) -> Sequence[TrialRecord]:
        return [trial for trial in self.trials() if trial.kind is JobKind.FINAL]

    def scores(self) -> Sequence[Score]:
        done = self._trained(JobState.COMPLETED)
        return [Score(t.id, t.parent, t.generation, math.nan if t.order is None else t.order) for t in done]

    def broken_in_a_row(self) -> int:
        resumed = self.study().resumed_at
        completed = [t.ended_at or 0.0 for t in self.trials() if t.state is JobState.COMPLETED]
        last = max([NEVER if resumed is None else resumed, *completed])
        return sum((t.ended_at or 0.0) > last for t in self.trials() if t.state is JobState.FAILED)

    def reports(self, trial: int, token: int | None = None) -> Sequence[Report]:
        tokens = [key[1] for key in self._t.reports if key[0] == trial] or [0]
        wanted = max(tokens) if token is None else token
        batches = [batch for key, batch in sorted(self._t.reports.items()) if key[:2] == (trial, wanted)]
        return [report for batch in batches for report in batch]

    def reported(self, trial_id: int, token: int) -> int:
        return len(self.reports(trial_id, token))

    def last_reports(self, trial_id: int, token: int, count: int) -> Sequence[Report]:
        return self.reports(trial_id, token)[-count:] if count > 0 else []

    def averages(self, every: int, step: int, *, besides: int, limit: int) -> Sequence[float]:
        mark = (self._id, every, step)
        found = [(key[3], average) for key, average in self._t.marks.items() if key[:3] == mark]
        return [average for trial, average in sorted(found, reverse=True) if trial != besides][:limit]

    def checkpoint(self, name: str) -> Checkpoint | None:
        return next((row for row in self.checkpoints() if row.name == name), None)

    def checkpoints(self, state: CheckpointState | None = None) -> Sequence[Checkpoint]:
        mine = [row for row in self._t.checkpoints.values() if row.study == self._id]
        kept = [row for row in mine if row.kind is not CheckpointKind.SEEN and state in (None, row.state)]
        return sorted(kept, key=lambda row: (row.created_at, row.trial or 0, row.name))

    def held_checkpoints(self) -> frozenset[str]:
        held: set[str | None] = set()
        for member in self.members():
            held.update(one.checkpoint for one in (member.head, member.best, *member.states) if one is not None)
        for trial in self.unfinished():
            held.update((trial.parent_checkpoint, trial.progress))
        for study in self._store.studies():
            if self._id in (study.id, study.source):
                held |= NaiveTransaction(self._store, study.id, self._now)._held_by_evaluation()
        return frozenset(cast("set[str]", held - {None}))

    def _held_by_evaluation(self) -> set[str]:
        """Return names of what was evaluated best, or of what evaluation has begun or must not be skipped."""
        queued = self._in_group_state(GroupState.QUEUED)
        wanted = [group for group in queued if group.started or group.guaranteed is not None]
        return {self.seen(group.seen).name for group in self.groups() if group.best or group in wanted}

    # Evaluation

    def all_seen(self, *, after: int = 0, limit: int | None = None) -> Sequence[Checkpoint]:
        mine = [row for key, row in sorted(self._t.checkpoints.items()) if key > after and row.study == self._id]
        return [row for row in mine if row.number >= 0][:limit]

    def seen(self, seen_id: int) -> Checkpoint:
        return _existing([seen for seen in self.all_seen() if seen.id == seen_id])

    def find_seen(self, name: str, index: int = 0) -> Checkpoint | None:
        found = [seen for seen in self.all_seen() if (seen.name, seen.index) == (name, index)]
        return found[-1] if found else None

    def newest_seen(self, *, stepped: bool = False) -> Checkpoint | None:
        if not stepped:
            return max(self.all_seen(), key=lambda seen: seen.number, default=None)
        found = [seen for seen in self.all_seen() if seen.step >= 0]
        return max(found, key=lambda seen: (seen.branch, seen.step, seen.number), default=None)

    def newest_ready(self) -> Checkpoint | None:
        usable = [seen for seen in self.all_seen() if seen.usable]
        return max(usable, key=lambda seen: seen.number, default=None)

    def ledger(self, identity: str, task_identity: str, replicate: int, shards: int) -> Sequence[EvalResult]:
        key = (identity, task_identity, replicate, shards)
        entries = self._t.results.values()
        found = [r for r in entries if (r.identity, r.task_identity, r.replicate, r.shards) == key]
        return sorted(found, key=lambda r: r.shard)

    def last_result_at(self, task_identity: str) -> float | None:
        mine = [r for r in self._t.results.values() if (r.study, r.task_identity) == (self._id, task_identity)]
        return max((r.created_at for r in mine), default=None)

    def mean_duration_s(self, task_identity: str) -> float | None:
        mine = [r for r in self._t.results.values() if r.task_identity == task_identity]
        newest = sorted(mine, key=lambda r: (r.created_at, r.duration_s), reverse=True)[:NEWEST_DURATIONS]
        return sum(r.duration_s for r in newest) / len(newest) if newest else None

    def groups(self, *, suite: str | None = None, after: int = 0, limit: int | None = None) -> Sequence[Group]:
        mine = [group for _, group in sorted(self._t.groups.items()) if group.study == self._id]
        return [group for group in mine if group.id > after and suite in (None, group.suite)][:limit]

    def ended_groups(self, since: float) -> Sequence[Group]:
        ended = [(group.ended_at, group.id, group) for group in self.groups() if group.ended_at is not None]
        return [group for ended_at, _, group in sorted(ended, key=lambda each: each[:2]) if ended_at >= since]

    def group(self, group_id: int) -> Group:
        return _existing([group for group in self.groups() if group.id == group_id])

    def locked_group(self, group_id: int) -> Group | None:
        return next((group for group in self.groups() if group.id == group_id), None)

    def groups_of(self, seen: int) -> Sequence[Group]:
        return [group for group in self.groups() if group.seen == seen]

    def _in_group_state(self, state: GroupState, suite: str | None = None) -> list[Group]:
        return [group for group in self.groups(suite=suite) if group.state is state]

    def fresh_groups(self, suite: str) -> Sequence[Group]:
        queued = self._in_group_state(GroupState.QUEUED, suite)
        return [g for g in queued if g.priority == Priority.FRESH and g.guaranteed != "fitness"]

    def last_queued_at(self, suite: str) -> float | None:
        taken_on = [g.created_at for g in self.groups(suite=suite) if g.state is not GroupState.SKIPPED]
        return max(taken_on, default=None)

    def busy(self, suite: str) -> bool:
        return any(group.started for group in self._in_group_state(GroupState.QUEUED, suite))

    def best_group(self, suite: str) -> Group | None:
        return next((group for group in self.groups(suite=suite) if group.best), None)

    def partial_in_a_row(self, suite: str) -> int:
        last = max([g.ended_at or 0.0 for g in self._in_group_state(GroupState.COMPLETE, suite)], default=NEVER)
        return sum((g.ended_at or 0.0) > last for g in self._in_group_state(GroupState.PARTIAL, suite))

    def open_groups(self) -> int:
        return len(self._in_group_state(GroupState.QUEUED))

    def backlog(self, suite: str) -> Backlog:
        if self.study().kind is not StudyKind.DIRECTORY:
            return backlog_of(self.groups(suite=suite))
        of = {seen.id: (seen.branch, seen.step, seen.number) for seen in self.all_seen()}
        return backlog_of(self.groups(suite=suite), of.__getitem__)

    def held_paths(self) -> frozenset[int]:
        return frozenset(g.seen for g in self.groups() if g.best or g.state is GroupState.QUEUED)

    def starts(self) -> Sequence[RunStart]:
        return [start for _, start in sorted(self._t.starts.items()) if start.study == self._id]

    def events(self, *, after: int = 0) -> Sequence[EvalEvent]:
        return [e for key, e in sorted(self._t.events.items()) if key > after and e.study == self._id]

    # What can be changed

    @property
    def _owner(self) -> "NaiveTransaction":
        """The study whose checkpoints commands mean."""
        return self.source() or self

    def set_study(self, **changes: Any) -> None:
        self._t.studies[self._id] = replace(self.study(), **changes)

    def _set_attempt(self, job: int, token: int, **changes: Any) -> None:
        self._t.attempts[job, token] = replace(self._t.attempts[job, token], **changes)

    def _set_checkpoint(self, name: str, **changes: Any) -> None:
        row = self.checkpoint(name)
        assert row is not None
        self._t.checkpoints[row.id] = replace(row, **changes)

    def _set_group(self, group: int, **changes: Any) -> None:
        self._t.groups[group] = replace(self._t.groups[group], **changes)

    def retry_given_up(self) -> None:
        for member in self.members():
            if member.given_up:
                again = replace(member, state=MemberState.READY, replacements=0)
                self._t.members[self._id, member.index] = again

    def apply(self, commands: Sequence[Command]) -> list[str]:
        marked: list[str] = []
        for command in commands:
            marked += self._apply(command)
        return marked

    def _apply(self, command: Command) -> list[str]:
        """Apply one command; return the checkpoints that were marked for deletion."""
        tables = self._t
        match command:
            case machine.Insert(record):
                self._insert(record)
            case machine.Update(record):
                self._update(record)
            case machine.InsertJobs(jobs):
                self._insert_jobs(jobs)
            case machine.EndAttempt():
                ended = {
                    name: getattr(command, name) for name in ("state", "ended_at", "outcome", "error", "timings")
                }
                self._set_attempt(command.job, command.token, **ended)
            case machine.RenewAttempts(worker, expires_at):
                for attempt in self.running(worker):
                    self._set_attempt(attempt.job, attempt.token, expires_at=expires_at)
            case machine.SetConfig(config):
                self.retry_given_up()
                for member in self.members():
                    if member.state is MemberState.DONE and not member.retired:
                        tables.members[self._id, member.index] = replace(member, state=MemberState.READY)
                self.set_study(config=config)
            case machine.TakeCheckpoint(name):
                owner = self._owner
                live = owner.checkpoint(name)
                if live is None or live.state is not CheckpointState.LIVE:
                    raise ParentGone(name)
                owner._set_checkpoint(name, taken=live.taken + 1)
            case machine.MarkDeleting(name, taken):
                live = self.checkpoint(name)
                if live is None or live.state is not CheckpointState.LIVE or live.taken != taken:
                    return []
                self._set_checkpoint(name, state=CheckpointState.DELETING)
                return [name]
            case machine.SetCheckpointState(name, state, error):
                self._owner._set_checkpoint(name, state=state, error=error)
            case machine.AddReports(trial_id, token, reports):
                tables.reports[trial_id, token, len(tables.reports)] = tuple(reports)
            case machine.SetTally(trial_id, token, tally, marks):
                self._set_attempt(trial_id, token, tally=tally)
                for mark in marks:
                    tables.marks[self._id, mark.every, mark.step, trial_id] = mark.average
            case machine.SetStudyState(study_state, message):
                self.set_study(state=study_state, message=message)
            case machine.SetStrategyState(json):
                self.set_study(strategy_state=json)
            case machine.SetLocation(location):
                self.set_study(location=location)
            case machine.InsertCheckpoint(checkpoint, groups):
                key = self._insert_checkpoint(checkpoint)
                for group, jobs in groups:
                    self._insert_group(replace(group, seen=key), jobs)
            case machine.InsertGroup(group, jobs):
                self._insert_group(group, jobs)
            case machine.StartGroup(group_id):
                self._set_group(group_id, started=True)
            case machine.Reprioritise(group_id, priority):
                self._set_group(group_id, priority=priority)
                for job in self.group_jobs(group_id):
                    if job.state is JobState.PENDING and job.kind is JobKind.EVALUATE:
                        tables.jobs[job.id] = replace(job, priority=priority)
            case machine.LimitNotBefore(latest):
                for job in self._pending():
                    tables.jobs[job.id] = replace(job, not_before=min(job.not_before, latest))
        return []

    def _insert(self, record: Any) -> None:
        tables = self._t
        match record:
            case TrialRecord():
                tables.jobs[record.id] = record
            case Attempt():
                tables.attempts[record.job, record.token] = record
            case Member():
                tables.members[self._id, record.index] = record
                self.set_study(population_size=self.study().population_size + 1)
            case Checkpoint():
                if self.checkpoint(record.name) is None:
                    self._insert_checkpoint(record)
            case EvalResult() as r:
                tables.results.setdefault((r.identity, r.task_identity, r.replicate, r.shard, r.shards), r)
            case EvalEvent():
                record = replace(record, id=_next(tables.events))
                tables.events[record.id] = record
            case RunStart():
                record = replace(record, id=_next(tables.starts))
                tables.starts[record.id] = record

    def _update(self, record: Any) -> None:
        tables = self._t
        match record:
            case TrialRecord() | EvalJob():
                before = tables.jobs[record.id]
                if record.state is not before.state:
                    change_state(before, record.state)
                tables.jobs[record.id] = record
            case Member():
                tables.members[record.study, record.index] = record
            case Checkpoint():
                tables.checkpoints[record.id] = record
            case Group():
                tables.groups[record.id] = record

    def _insert_checkpoint(self, checkpoint: Checkpoint) -> int:
        key = _next(self._t.checkpoints)
        self._t.checkpoints[key] = replace(checkpoint, id=key)
        return key

    def _insert_group(self, group: Group, jobs: Sequence[EvalJob]) -> None:
        group = replace(group, id=_next(self._t.groups))
        self._t.groups[group.id] = group
        self._insert_jobs([replace(job, group=group.id, seen=group.seen) for job in jobs])

    def _insert_jobs(self, jobs: Sequence[EvalJob]) -> None:
        for job in jobs:
            key = self.new_job_id()
            self._t.jobs[key] = replace(job, id=key)


def _end(trial: TrialRecord) -> tuple[float, int]:
    return trial.ended_at or 0.0, trial.id


def _next(rows: dict[int, Any]) -> int:
    return max(rows, default=0) + 1


def _existing(found: list[R]) -> R:
    if not found:
        raise KeyError("there is no such row in this study")
    return found[0]
