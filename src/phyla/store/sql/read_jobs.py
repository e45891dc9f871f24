"""The queue: jobs of every kind, their attempts and leases; each question beside its statement."""

from collections.abc import Sequence
from itertools import chain

import sqlalchemy as sa

from phyla import machine
from phyla.machine import Room
from phyla.records import Attempt, EvalJob, Phase, TimeSpent, TrialRecord, Waiting
from phyla.store.sql.rows import ATTEMPTS, EVAL_JOBS, TRIALS
from phyla.store.sql.scope import NO_LIMIT, Scope, parameter
from phyla.store.sql.tables import (
    EVALUATION,
    FAILED_EVALUATION,
    PENDING_EVALUATION,
    PENDING_TRIAL,
    RUNNING,
    TRIAL,
    UNFINISHED_EVALUATION,
    attempts,
    eval_groups,
    jobs,
)

STUDY, JOB, TOKEN, GROUP = parameter("study"), parameter("job"), parameter("token"), parameter("group")
LIMIT, NOW, AFTER, WORKER, SEEN_ID = (
    parameter("limit"),
    parameter("now"),
    parameter("after"),
    parameter("worker"),
    parameter("seen"),
)
LEAST, MOST, LABELS, RESTING = parameter("least"), parameter("most"), parameter("labels"), parameter("resting")
ZERO: sa.ColumnElement[int] = sa.literal_column("0")
COMMA, EMPTY = (sa.literal_column(f"'{text}'", sa.Text) for text in (",", ""))

_j, _g = jobs.c, eval_groups.c
_OF_STUDY = _j.study == STUDY
_TRIAL = TRIALS.select.where(_j.id == JOB, _OF_STUDY, TRIAL)
_LOCKED_TRIAL = _TRIAL.with_for_update()
_NEXT_TRIAL = (
    TRIALS.select.where(_OF_STUDY, PENDING_TRIAL).order_by(_j.id).limit(1).with_for_update(skip_locked=True)
)
_EVAL_JOBS = EVAL_JOBS.select.where(_OF_STUDY, _j.member.is_(None))
_EVAL_JOB = _EVAL_JOBS.where(_j.id == JOB)
_LOCKED_EVAL_JOB = _EVAL_JOB.with_for_update()
_EVAL_JOBS_AFTER = _EVAL_JOBS.where(_j.id > AFTER).order_by(_j.id).limit(LIMIT)
_GROUP_JOBS = EVAL_JOBS.select.where(_j.group == GROUP).order_by(_j.id)
_UNFINISHED = sa.select(sa.func.count()).select_from(jobs).where(_j.group == GROUP, UNFINISHED_EVALUATION)
_FAILED = (
    EVAL_JOBS.select.where(_OF_STUDY, FAILED_EVALUATION).order_by(_j.ended_at.desc(), _j.id.desc()).limit(LIMIT)
)
_NOT_BEFORE = sa.select(sa.func.min(_j.not_before)).where(_OF_STUDY, PENDING_EVALUATION, _j.not_before > NOW)


def _awake(identity: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    return sa.func.replace(RESTING, COMMA + identity + COMMA, EMPTY) == RESTING


def _fits(table: sa.FromClause) -> sa.ColumnElement[bool]:
    job = table.c
    # The label between commas is in the list. LIKE would take "_" for any letter, and on SQLite "A" for "a".
    labelled = sa.func.replace(LABELS, COMMA + job.label + COMMA, EMPTY) != LABELS
    # The sum keeps SQLite from choosing the index by `not_before`, and then sorting what it finds.
    return sa.and_(job.not_before + ZERO <= NOW, job.gpus.between(LEAST, MOST), labelled, _awake(job.identity))


_NEXT_EVALUATION = (
    EVAL_JOBS.select.join(eval_groups, _g.id == _j.group)
    .where(_OF_STUDY, _j.state == "pending", _fits(jobs))
    .order_by(_j.priority, _j.rank, _j.group, _j.id)
    .limit(1)
)
_WAITING = (
    sa.select(_j.gpus, _j.label, sa.func.count())
    .where(_OF_STUDY, PENDING_EVALUATION, _j.not_before + ZERO <= NOW, sa.or_(_j.gpus > 0, _j.label != ""))
    .where(_awake(_j.identity))
    .group_by(_j.gpus, _j.label)
    .order_by(_j.gpus, _j.label)
)
_others = jobs.alias("first")
_first = _others.c
_MOST_URGENT = (
    sa.select(_first.priority)
    .where(_first.study == STUDY, _first.state == "pending", _first.group.is_not(None))
    .where(_fits(_others))
    .order_by(_first.priority, _first.rank, _first.group, _first.id)
    .limit(1)
    .scalar_subquery()
)
_NEXT_OF_SEEN = _NEXT_EVALUATION.where(_j.seen == SEEN_ID, _j.priority == _MOST_URGENT)
# Claims of one group do not exclude each other, but each excludes a transaction that ends the group.
_CLAIM, _CLAIM_OF_SEEN = (
    statement.with_for_update(of=jobs, skip_locked=True).suffix_with(
        "FOR KEY SHARE OF eval_groups SKIP LOCKED", dialect="postgresql"
    )
    for statement in (_NEXT_EVALUATION, _NEXT_OF_SEEN)
)

_a = attempts.c
_ATTEMPTS = sa.select(attempts).where(_a.job == JOB, _a.study == STUDY).order_by(_a.token)
_ATTEMPT = _ATTEMPTS.where(_a.token == TOKEN)
_TRIAL_ATTEMPTS = (
    sa.select(attempts)
    .join(jobs, _j.id == _a.job)
    .where(_OF_STUDY, TRIAL, _j.id >= JOB, sa.or_(_j.id > JOB, _a.token > TOKEN))
    .order_by(_j.id, _a.token)
    .limit(LIMIT)
)
# As JSON; what SQLite's JSON functions take is text.
_TIMINGS = sa.cast(_a.timings, sa.JSON().with_variant(sa.Text(), "sqlite"))
# A rule stopped it.
_CUT = sa.and_(_a.timings.is_(None), _a.state == "cancelled", _a.ended_at.is_not(None))
_CUT_S = sa.case((_CUT, _a.ended_at - _a.claimed_at))
_TIME_OF_TRIALS = (
    sa.select(
        *(sa.func.count(_a.ended_at), sa.func.count(_a.timings), sa.func.count(_CUT_S), sa.func.sum(_CUT_S)),
        *(sa.func.sum(_TIMINGS[phase.value].as_float()) for phase in Phase),
    )
    .select_from(attempts)
    .join(jobs, _j.id == _a.job)
    .where(_OF_STUDY, TRIAL)
)
_LASTED = _j.ended_at - _j.started_at
_TIME_OF_EVALUATIONS = sa.select(sa.func.sum(sa.case((_LASTED > 0, _LASTED), else_=0.0))).where(
    _OF_STUDY, EVALUATION, _j.ended_at.is_not(None), _j.started_at.is_not(None)
)
_RUNNING = sa.select(attempts).where(_a.study == STUDY, RUNNING).order_by(_a.job, _a.token)
_RUNNING_OF_WORKER = _RUNNING.where(_a.worker == WORKER)
_LATE = (
    sa.select(attempts)
    .join(jobs, _j.id == _a.job)
    .where(_a.study == STUDY, _a.state == "running", _a.expires_at < NOW)
    .order_by(_a.expires_at, _a.job)
    .limit(LIMIT)
)
# A locked row is being ended by another transaction; waiting for it could deadlock.
_EXPIRED_TRIALS = _LATE.where(TRIAL).with_for_update(of=jobs, skip_locked=True)
_EXPIRED_EVALUATIONS = _LATE.join(eval_groups, _g.id == _j.group).with_for_update(
    of=[jobs, eval_groups], skip_locked=True
)
_CLAIMED_AHEAD = (
    sa.select(attempts)
    .where(_a.study == STUDY, RUNNING, _a.expires_at > parameter("expires_after"), _a.claimed_at > NOW)
    .order_by(_a.expires_at, _a.job)
)


FAILED_AT_MOST = 200


class Queue(Scope):
    """Reads the jobs of a study, and who works on them."""

    def new_job_id(self) -> int:
        (job_id,) = self._session.backend.new_job_ids(self._session, 1)
        return job_id

    def job(self, job_id: int) -> TrialRecord | EvalJob | None:
        return self._first(TRIALS, _TRIAL, job=job_id) or self._first(EVAL_JOBS, _EVAL_JOB, job=job_id)

    # Trials

    def trial(self, trial_id: int) -> TrialRecord:
        return self._existing(self._first(TRIALS, _TRIAL, job=trial_id), "trial", trial_id)

    def chosen_trials(self, ids: Sequence[int]) -> Sequence[TrialRecord]:
        return [self.trial(trial_id) for trial_id in ids]

    def ancestry(self, trial: int, limit: int | None = None) -> Sequence[TrialRecord]:
        lineage = [self.trial(trial)]
        while lineage[-1].parent is not None and (limit is None or len(lineage) < limit):
            lineage.append(self.trial(lineage[-1].parent))
        return lineage

    def locked_trial(self, trial_id: int) -> TrialRecord | None:
        return self._hold(TRIALS, _LOCKED_TRIAL, job=trial_id)

    def next_pending(self) -> TrialRecord | None:
        return self._hold(TRIALS, _NEXT_TRIAL)

    # Eval jobs

    def eval_jobs(self, *, after: int = 0, limit: int | None = None) -> Sequence[EvalJob]:
        return self._all(EVAL_JOBS, _EVAL_JOBS_AFTER, after=after, limit=NO_LIMIT if limit is None else limit)

    def next_eval_job(self, holding: int | None, room: Room = machine.NO_LIMIT) -> EvalJob | None:
        least, most = room.gpus
        # An aggregation has no identity, so an empty name is in the one list and not in the other.
        labels, resting = (",".join(("", *names, "")) for names in (("", *room.labels), sorted(room.resting)))
        due = {"now": self._now, "least": least, "most": most, "labels": labels, "resting": resting}
        any_one, of_seen = (_CLAIM, _CLAIM_OF_SEEN) if self._session.write else (_NEXT_EVALUATION, _NEXT_OF_SEEN)
        job = None if holding is None else self._hold(EVAL_JOBS, of_seen, **due, seen=holding)
        return job or self._hold(EVAL_JOBS, any_one, **due)

    def failed_evaluations(self) -> Sequence[EvalJob]:
        return self._all(EVAL_JOBS, _FAILED, limit=FAILED_AT_MOST)

    def waiting(self, resting: frozenset[str] = frozenset()) -> Sequence[Waiting]:
        rows = self._rows(_WAITING, now=self._now, resting=",".join(("", *sorted(resting), "")))
        return [Waiting(gpus=int(gpus), label=str(label), count=int(count)) for gpus, label, count in rows]

    def next_not_before(self) -> float | None:
        not_before: float | None = self._value(_NOT_BEFORE, now=self._now)
        return not_before

    def locked_eval_job(self, job_id: int) -> EvalJob | None:
        return self._hold(EVAL_JOBS, _LOCKED_EVAL_JOB, job=job_id)

    def group_jobs(self, group: int) -> Sequence[EvalJob]:
        jobs = self._all(EVAL_JOBS, _GROUP_JOBS, group=group)
        for job in jobs:
            self._session.hold(EVAL_JOBS, job)
        return jobs

    def unfinished_jobs(self, group: int) -> int:
        return int(self._value(_UNFINISHED, group=group))

    # Attempts

    def attempt(self, job_id: int, token: int) -> Attempt | None:
        return self._first(ATTEMPTS, _ATTEMPT, job=job_id, token=token)

    def attempts(self, job_id: int) -> Sequence[Attempt]:
        return self._all(ATTEMPTS, _ATTEMPTS, job=job_id)

    def trial_attempts(self, *, after: tuple[int, int] = (0, 0), limit: int | None = None) -> Sequence[Attempt]:
        job, token = after
        limit = NO_LIMIT if limit is None else limit
        return self._all(ATTEMPTS, _TRIAL_ATTEMPTS, job=job, token=token, limit=limit)

    def time_spent(self) -> TimeSpent:
        (row,) = self._rows(_TIME_OF_TRIALS)
        ended, timed, cut, cut_s, *sums = row
        seconds = {phase: float(spent or 0.0) for phase, spent in zip(Phase, sums, strict=True)}
        seconds[Phase.TRAINING] += cut_s or 0.0
        evaluating = self._value(_TIME_OF_EVALUATIONS)
        if evaluating is not None:
            seconds[Phase.EVALUATING] = float(evaluating)
        return TimeSpent(seconds=seconds, timed=timed + cut, ended=ended)

    def running(self, worker: str | None = None) -> Sequence[Attempt]:
        if worker is None:
            return self._all(ATTEMPTS, _RUNNING)
        return self._all(ATTEMPTS, _RUNNING_OF_WORKER, worker=worker)

    def expired(self, limit: int) -> Sequence[Attempt]:
        kinds = (_EXPIRED_EVALUATIONS, _EXPIRED_TRIALS)
        late = chain.from_iterable(
            self._all(ATTEMPTS, statement, now=self._now, limit=limit) for statement in kinds
        )
        return sorted(late, key=lambda attempt: (attempt.expires_at, attempt.job))[:limit]

    def claimed_ahead(self, expires_after: float) -> Sequence[Attempt]:
        return self._all(ATTEMPTS, _CLAIMED_AHEAD, now=self._now, expires_after=expires_after)
