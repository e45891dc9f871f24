"""How commands about the evaluation of a run are applied."""

from collections.abc import Callable, Iterable, Sequence
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
        _WAYS[type(command)](self, command)

    def _insert_seen(self, command: commands_of.InsertSeen) -> None:
        seen = self._session.insert_new(SEEN, command.seen)
        for group, tasks in command.groups:
            self._add_group(replace(group, seen=seen), tasks)

    def _insert_group(self, command: commands_of.InsertGroup) -> None:
        self._add_group(command.group, command.tasks)

    def _add_group(self, group: Group, tasks: Sequence[EvalTaskRecord]) -> None:
        key = self._session.insert_new(GROUPS, group)
        self._add_tasks(replace(task, group=key, seen=group.seen) for task in tasks)

    def _insert_tasks(self, command: commands_of.InsertEvalTasks) -> None:
        self._add_tasks(command.tasks)

    def _add_tasks(self, tasks: Iterable[EvalTaskRecord]) -> None:
        self._session.insert_all(EVAL_TASKS, tasks)

    def _update_seen(self, command: commands_of.UpdateSeen) -> None:
        self._session.update(SEEN, command.seen)

    def _update_group(self, command: commands_of.UpdateGroup) -> None:
        self._session.update(GROUPS, command.group)

    def _start_group(self, command: commands_of.StartGroup) -> None:
        self._run(_START_GROUP, group=command.group)
        self._note_group(command.group, started=True)

    def _note_group(self, group: int, **changes: Any) -> None:
        """Follow a statement that changed a group."""
        held = self._session.held(GROUPS, group)
        if held is not None:
            self._session.hold(GROUPS, replace(held, **changes))

    def _reprioritise(self, command: commands_of.Reprioritise) -> None:
        self._session.set(GROUPS, (command.group,), {"priority": command.priority})
        self._run(_REPRIORITISE, group=command.group, urgency=command.priority)
        self._note_group(command.group, priority=command.priority)
        for task in self._session.forget(EVAL_TASKS, lambda task: task.group == command.group):
            self._locked.discard(("task", task.id))

    def _update_task(self, command: commands_of.UpdateEvalTask) -> None:
        self._session.update(EVAL_TASKS, command.task)

    def _insert_attempt(self, command: commands_of.InsertEvalAttempt) -> None:
        self._session.insert(EVAL_ATTEMPTS, command.attempt)

    def _end_attempt(self, command: commands_of.EndEvalAttempt) -> None:
        ended = {"state": command.state, "ended_at": command.ended_at, "error": command.error}
        self._session.set(EVAL_ATTEMPTS, (command.task, command.token), EVAL_ATTEMPTS.stored(ended))

    def _renew_attempts(self, command: commands_of.RenewEvalAttempts) -> None:
        self._run(_RENEW, worker=command.worker, until=command.expires_at)

    def _limit_not_before(self, command: commands_of.LimitNotBefore) -> None:
        self._run(_LIMIT_NOT_BEFORE, now=command.latest, latest=command.latest)

    def _insert_result(self, command: commands_of.InsertResult) -> None:
        self._session.insert(RESULTS, command.result, conflict="keep")

    def _insert_event(self, command: commands_of.InsertEvent) -> None:
        self._session.insert_new(EVENTS, command.event)

    def _set_run_state(self, command: commands_of.SetRunState) -> None:
        changes = {"state": command.state, "message": command.message}
        self._run_record = replace(self._run_record, **changes)  # type: ignore[arg-type]  # fields of the run
        self._session.set(RUNS, (self._run_record.id,), RUNS.stored(dict(changes)))


_WAYS: dict[type, Callable[[EvalApplying, Any], None]] = {
    commands_of.InsertSeen: EvalApplying._insert_seen,
    commands_of.InsertGroup: EvalApplying._insert_group,
    commands_of.InsertEvalTasks: EvalApplying._insert_tasks,
    commands_of.UpdateSeen: EvalApplying._update_seen,
    commands_of.UpdateGroup: EvalApplying._update_group,
    commands_of.StartGroup: EvalApplying._start_group,
    commands_of.Reprioritise: EvalApplying._reprioritise,
    commands_of.UpdateEvalTask: EvalApplying._update_task,
    commands_of.InsertEvalAttempt: EvalApplying._insert_attempt,
    commands_of.EndEvalAttempt: EvalApplying._end_attempt,
    commands_of.RenewEvalAttempts: EvalApplying._renew_attempts,
    commands_of.LimitNotBefore: EvalApplying._limit_not_before,
    commands_of.InsertResult: EvalApplying._insert_result,
    commands_of.InsertEvent: EvalApplying._insert_event,
    commands_of.SetRunState: EvalApplying._set_run_state,
}
