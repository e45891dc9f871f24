"""How commands about the evaluation of a run are applied."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from phyla.machine import EvalCommand
from phyla.machine import evaluation_commands as commands_of
from phyla.records import EvalTaskRecord, Group, RunRecord
from phyla.store.sql.backend import Session
from phyla.store.sql.rows import EVAL_ATTEMPTS, EVAL_TASKS, EVENTS, GROUPS, RESULTS, RUNS, SEEN
from phyla.store.sql.scope import Scope, given
from phyla.store.sql.tables import PENDING, RUNNING, eval_attempts, eval_groups, eval_tasks

_MAKES_WORK = (commands_of.EndEvalAttempt, commands_of.InsertEvalTasks, commands_of.SetRunState)
"""What workers that have nothing to do wait for."""

RUN, GROUP, NOW = given("run"), given("group"), given("now")

_g, _t, _a = eval_groups.c, eval_tasks.c, eval_attempts.c
_START_GROUP = eval_groups.update().where(_g.id == GROUP).values(started=sa.true())
_LIMIT_NOT_BEFORE = (
    eval_tasks.update()
    .where(_t.run == RUN, PENDING, _t.not_before > NOW)
    .values(not_before=sa.bindparam("latest", type_=sa.Double))
)
_REPRIORITISE = (
    eval_tasks.update()
    .where(_t.group == GROUP, PENDING, _t.kind == sa.literal_column("'evaluate'"))
    .values(priority=sa.bindparam("urgency", type_=sa.Integer))
)
_HELD = sa.select(_a.task, _a.token).where(_a.run == RUN, RUNNING, _a.worker == given("worker"))
_RENEW = (
    eval_attempts.update()
    .where(sa.tuple_(_a.task, _a.token).in_(_HELD.with_for_update(skip_locked=True)))
    .values(expires_at=sa.bindparam("until", type_=sa.Double))
)


class EvalApplying(Scope):
    """A transaction on a run that commands are applied to.

    Args:
        session: inside an open transaction.
        run: the run's row, kept up to date.
        now: the database's time.
    """

    def __init__(self, session: Session, run: RunRecord, now: float) -> None:
        super().__init__(session, now, run=run.id)
        self._run_record = run
        self._locked: set[tuple[str, int]] = set()

    def apply_one(self, command: EvalCommand) -> None:
        """Apply one command about evaluation."""
        if isinstance(command, _MAKES_WORK):
            self._session.backend.announce(self._session)
        session = self._session
        match command:
            case commands_of.InsertSeen(seen, groups):
                seen_id = session.insert_new(SEEN, seen)
                for group, tasks in groups:
                    self._add_group(replace(group, seen=seen_id), tasks)
            case commands_of.InsertGroup(group, tasks):
                self._add_group(group, tasks)
            case commands_of.InsertEvalTasks(tasks):
                session.insert_all(EVAL_TASKS, tasks)
            case commands_of.UpdateSeen(seen):
                session.update(SEEN, seen)
            case commands_of.UpdateGroup(group):
                session.update(GROUPS, group)
            case commands_of.StartGroup(group_id):
                self._run(_START_GROUP, group=group_id)
                self._note_group(group_id, started=True)
            case commands_of.Reprioritise(group_id, priority):
                session.set(GROUPS, (group_id,), {"priority": priority})
                self._run(_REPRIORITISE, group=group_id, urgency=priority)
                self._note_group(group_id, priority=priority)
                for task in session.forget(EVAL_TASKS, lambda task: task.group == group_id):
                    self._locked.discard(("task", task.id))
            case commands_of.UpdateEvalTask(task):
                session.update(EVAL_TASKS, task)
            case commands_of.InsertEvalAttempt(attempt):
                session.insert(EVAL_ATTEMPTS, attempt)
            case commands_of.EndEvalAttempt():
                ended = {"state": command.state, "ended_at": command.ended_at, "error": command.error}
                session.set(EVAL_ATTEMPTS, (command.task, command.token), EVAL_ATTEMPTS.stored(ended))
            case commands_of.RenewEvalAttempts(worker, expires_at):
                self._run(_RENEW, worker=worker, until=expires_at)
            case commands_of.LimitNotBefore(latest):
                self._run(_LIMIT_NOT_BEFORE, now=latest, latest=latest)
            case commands_of.InsertResult(result):
                session.insert(RESULTS, result, conflict="keep")
            case commands_of.InsertEvent(event):
                session.insert_new(EVENTS, event)
            case commands_of.SetRunState(state, message):
                self._run_record = replace(self._run_record, state=state, message=message)
                changes = RUNS.stored({"state": state, "message": message})
                session.set(RUNS, (self._run_record.id,), changes)

    def _add_group(self, group: Group, tasks: Sequence[EvalTaskRecord]) -> None:
        key = self._session.insert_new(GROUPS, group)
        self._session.insert_all(EVAL_TASKS, [replace(task, group=key, seen=group.seen) for task in tasks])

    def _note_group(self, group: int, **changes: Any) -> None:
        """Follow a statement that changed a group."""
        held = self._session.held(GROUPS, group)
        if held is not None:
            self._session.hold(GROUPS, replace(held, **changes))
