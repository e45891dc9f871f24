"""One transaction on one study, and how commands are applied in it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import sqlalchemy as sa

from phyla import machine
from phyla.machine import Command, ParentGone
from phyla.records import (
    Checkpoint,
    EvalEvent,
    EvalJob,
    EvalResult,
    Group,
    Member,
    RunStart,
    TrialRecord,
)
from phyla.store.sql.read_evaluation import Evaluating
from phyla.store.sql.read_population import Population
from phyla.store.sql.rows import (
    ATTEMPTS,
    CHECKPOINTS,
    EVAL_JOBS,
    GROUPS,
    ROWS,
    STUDIES,
    encode,
    number,
)
from phyla.store.sql.scope import parameter
from phyla.store.sql.tables import (
    KEPT,
    LIVE,
    ONE_STUDY,
    PENDING_EVALUATION,
    RUNNING,
    attempts,
    checkpoints,
    eval_groups,
    jobs,
    marks,
    members,
    reports,
)

STUDY, GROUP, NOW, TRIAL, TOKEN, NAME = (
    parameter("study"),
    parameter("group"),
    parameter("now"),
    parameter("trial"),
    parameter("token"),
    parameter("name"),
)

_MAKES_WORK = (
    machine.EndAttempt,
    machine.InsertGroup,
    machine.InsertJobs,
    machine.InsertCheckpoint,
    machine.SetConfig,
    machine.SetStudyState,
)
"""What workers that have nothing to do wait for."""

_m = members.c
_DONE = sa.and_(_m.study == STUDY, _m.state == "done", _m.retired.is_(sa.false()))
_WAKE_DONE = members.update().where(_DONE).values(state="ready")
RETRY_GIVEN_UP = (
    members.update()
    .where(_DONE, _m.broken_trial.is_not(None), _m.stops == 0)
    .values(state="ready", replacements=0)
)

_a = attempts.c
_HELD = sa.select(_a.job, _a.token).where(_a.study == STUDY, RUNNING, _a.worker == parameter("worker"))
_RENEW = (
    attempts.update()
    .where(sa.tuple_(_a.job, _a.token).in_(_HELD.with_for_update(skip_locked=True)))
    .values(expires_at=sa.bindparam("until", type_=sa.Double))
)

_r = reports.c
_NEXT = (
    sa.select(sa.func.coalesce(sa.func.max(_r.seq), 0) + sa.bindparam("count", type_=sa.Integer))
    .where(_r.study == STUDY, _r.trial == TRIAL, _r.token == TOKEN)
    .scalar_subquery()
)
_ADD_REPORTS = reports.insert().from_select(
    ["study", "trial", "token", "seq", "batch"],
    sa.select(STUDY, TRIAL, TOKEN, _NEXT, sa.bindparam("reported", type_=sa.Text)),
)

_c = checkpoints.c
_TAKE = (
    checkpoints.update()
    .where(_c.study == parameter("owner"), _c.name == NAME, KEPT, LIVE)
    .values(taken=_c.taken + 1)
)
_SET_STATE = (
    checkpoints.update()
    .where(_c.study == parameter("owner"), _c.name == NAME, KEPT)
    .values(state=sa.bindparam("became", type_=sa.Text), error=sa.bindparam("why", type_=sa.Text))
)
_NOT_TAKEN = (
    sa.select(_c.name)
    .where(_c.study == STUDY, _c.name == NAME, KEPT, LIVE, _c.taken == parameter("times"))
    .with_for_update(skip_locked=True)
)
# A locked row is being taken by another transaction; waiting for it could deadlock.
_MARK_DELETING = (
    checkpoints.update()
    .where(_c.study == STUDY, KEPT, _c.name.in_(_NOT_TAKEN.scalar_subquery()))
    .values(state="deleting")
)


_j = jobs.c
_START_GROUP = eval_groups.update().where(eval_groups.c.id == GROUP).values(started=sa.true())
# A locked job is being claimed by another transaction; waiting for it could deadlock.
_waiting = jobs.alias("waiting")
_w = _waiting.c
_LATE = sa.select(_w.id).where(_w.study == STUDY, PENDING_EVALUATION, _w.not_before > NOW)
_LIMIT_NOT_BEFORE = (
    jobs.update()
    .where(_j.id.in_(_LATE.with_for_update(skip_locked=True)))
    .values(not_before=sa.bindparam("latest", type_=sa.Double))
)
_OF_GROUP = sa.select(_w.id).where(_w.group == GROUP, PENDING_EVALUATION, _w.kind == "evaluate")
_REPRIORITISE = (
    jobs.update()
    .where(_j.id.in_(_OF_GROUP.with_for_update(skip_locked=True)))
    .values(priority=sa.bindparam("urgency", type_=sa.Integer))
)


@final
class SqlTransaction(Population, Evaluating):
    """Reads and changes one study.

    Args:
        session: inside an open transaction.
        study: the study's row.
        now: the database's time.
    """

    _source: "SqlTransaction | None" = None
    _members: dict[int, Member] | None = None
    """The members as this transaction has changed them, where no other one can."""

    def members(self) -> Sequence[Member]:
        if not self._session.backend.one_writer:
            return super().members()
        if self._members is None:
            self._members = {member.index: member for member in super().members()}
        return list(self._members.values())

    def source(self) -> "SqlTransaction | None":
        if not self._study.watched:
            return self
        if self._source is None and self._study.source is not None:
            record = self._session.first(STUDIES, ONE_STUDY, {"study": self._study.source})
            assert record is not None
            self._source = SqlTransaction(self._session, record, self._now)
        return self._source

    def apply(self, commands: Sequence[Command]) -> list[str]:
        """Apply commands in order; return the checkpoints that were marked for deletion."""
        if any(isinstance(command, _MAKES_WORK) for command in commands):
            self._session.backend.announce(self._session)
        return [command.name for command in commands if self._apply_one(command)]  # type: ignore[union-attr]  # a mark

    def _apply_one(self, command: Command) -> bool:
        """Apply a command; return whether it marked a checkpoint for deletion."""
        session = self._session
        match command:
            case machine.Insert(record):
                self._insert(record)
            case machine.Update(record):
                session.update(ROWS[type(record)], record)
                self._note(record)
            case machine.InsertJobs(new):
                self._add_jobs(new)
            case machine.InsertGroup(group, tasks):
                self._add_group(group, tasks)
            case machine.InsertCheckpoint(checkpoint, groups):
                key = session.insert_new(CHECKPOINTS, checkpoint)
                for group, tasks in groups:
                    self._add_group(replace(group, seen=key), tasks)
            case machine.EndAttempt():
                names = ("state", "ended_at", "outcome", "error", "timings")
                self._set_attempt(command.job, command.token, **{name: getattr(command, name) for name in names})
            case machine.RenewAttempts(worker, expires_at):
                self._run(_RENEW, worker=worker, until=expires_at)
            case machine.SetConfig(config):
                self._run(RETRY_GIVEN_UP)
                self._run(_WAKE_DONE)
                self._members = None
                self._change_study(config=config)
            case machine.SetLocation(location):
                self._change_study(location=location)
            case machine.TakeCheckpoint(name):
                if self._run(_TAKE, name=name).rowcount != 1:
                    raise ParentGone(name)
            case machine.MarkDeleting(name, taken):
                return bool(self._run(_MARK_DELETING, name=name, times=taken).rowcount == 1)
            case machine.SetCheckpointState(name, state, error):
                self._run(_SET_STATE, name=name, **CHECKPOINTS.write_values({"became": state.value, "why": error}))
            case machine.AddReports(trial_id, token, reported):
                batch = encode([[report.step, report.metrics] for report in reported])
                self._run(_ADD_REPORTS, trial=trial_id, token=token, reported=batch, count=len(reported))
            case machine.SetTally(trial_id, token, tally, found):
                self._set_attempt(trial_id, token, tally=tally)
                for mark in found:
                    values = {
                        "study": self._study.id,
                        "every": mark.every,
                        "step": mark.step,
                        "trial": trial_id,
                        "average": number(mark.average),
                    }
                    session.put(marks, values)
            case machine.SetStudyState(study_state, message):
                self._change_study(state=study_state, message=message)
            case machine.SetStrategyState(committed):
                self._change_study(strategy_state=committed)
            case machine.StartGroup(group_id):
                self._run(_START_GROUP, group=group_id)
            case machine.Reprioritise(group_id, priority):
                session.set(GROUPS, (group_id,), {"priority": priority})
                self._run(_REPRIORITISE, group=group_id, urgency=priority)
            case machine.LimitNotBefore(latest):
                self._run(_LIMIT_NOT_BEFORE, now=latest, latest=latest)
        return False

    def _insert(self, record: Any) -> None:
        session, rows = self._session, ROWS[type(record)]
        match record:
            case EvalEvent() | Checkpoint() | RunStart():
                session.insert_once(rows, record)
            case EvalResult():
                session.insert(rows, record, keep=True)
            case TrialRecord() | Member():
                session.hold(rows, record)
                session.insert(rows, record)
            case _:
                session.insert(rows, record)
        self._note(record)
        if isinstance(record, Member):
            self._change_study(population_size=self._study.population_size + 1)

    def _note(self, record: Any) -> None:
        """Keep the members that were read as they are now."""
        if isinstance(record, Member) and self._members is not None:
            self._members[record.index] = record

    def _add_group(self, group: Group, jobs: Sequence[EvalJob]) -> None:
        key = self._session.insert_new(GROUPS, group)
        self._add_jobs([replace(job, group=key, seen=group.seen) for job in jobs])

    def _add_jobs(self, jobs: Sequence[EvalJob]) -> None:
        ids = self._session.backend.new_job_ids(self._session, len(jobs))
        self._session.insert_all(EVAL_JOBS, (replace(job, id=key) for key, job in zip(ids, jobs, strict=True)))

    def _change_study(self, **changes: Any) -> None:
        """Write fields of the study."""
        self._study = replace(self._study, **changes)
        self._session.set(STUDIES, (self._study.id,), STUDIES.write_values(changes))

    def _set_attempt(self, job: int, token: int, **changes: Any) -> None:
        self._session.set(ATTEMPTS, (job, token), ATTEMPTS.write_values(changes))
