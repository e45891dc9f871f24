"""Applies commands about evaluation."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, final

from phyla.machine.evaluation_commands import (
    EndEvalAttempt,
    EvalCommand,
    InsertEvalAttempt,
    InsertEvalTasks,
    InsertEvent,
    InsertGroup,
    InsertResult,
    InsertSeen,
    LimitNotBefore,
    RenewEvalAttempts,
    Reprioritise,
    SetRunState,
    StartGroup,
    UpdateEvalTask,
    UpdateGroup,
    UpdateSeen,
)
from phyla.records import EvalTaskRecord, Group, RunRecord, Seen
from phyla.store.sql.backend import Cursor
from phyla.store.sql.evaluation_rows import (
    GROUP_FIELDS,
    TASK_FIELDS,
    changed_group,
    changed_task,
    changes,
    eval_attempt_values,
    event_values,
    group_values,
    result_values,
    seen_values,
    task_values,
)
from phyla.store.sql.evaluation_statements import EvalStatements
from phyla.store.sql.rows import text


@final
class HeldEvaluation:
    """Rows as this transaction last read or wrote them, so that only what differs has to be written.

    Attributes:
        run: the run.
        seen: checkpoints.
        groups: groups; of those in `locked_groups`, nobody else can change anything.
        tasks: eval tasks; of those in `locked_tasks`, nobody else can change anything.
        locked_groups: ids of the groups that are locked.
        locked_tasks: ids of the eval tasks that are locked.
    """

    def __init__(self, run: RunRecord) -> None:
        self.run = run
        self.seen: dict[int, Seen] = {}
        self.groups: dict[int, Group] = {}
        self.tasks: dict[int, EvalTaskRecord] = {}
        self.locked_groups: set[int] = set()
        self.locked_tasks: set[int] = set()

    def group(self, group: Group) -> Group:
        """Remember a group that was read."""
        self.groups[group.id] = group
        return group

    def task(self, task: EvalTaskRecord) -> EvalTaskRecord:
        """Remember an eval task that was read."""
        self.tasks[task.id] = task
        return task


@final
class EvalWriter:
    """Turns commands into statements.

    Args:
        statements: SQL for the database.
        cursor: inside an open transaction.
        held: what the transaction knows; kept up to date.
    """

    def __init__(self, statements: EvalStatements, cursor: Cursor, held: HeldEvaluation) -> None:
        self._sql = statements
        self._cursor = cursor
        self._held = held
        self._id = held.run.id

    def apply(self, command: EvalCommand) -> None:
        """Apply one command."""
        _WAYS[type(command)](self, command)

    def _new_id(self) -> int:
        return int(self._cursor.fetchone()[0])

    def _insert_seen(self, command: InsertSeen) -> None:
        self._cursor.execute(self._sql.insert_seen, seen_values(command.seen))
        seen = self._new_id()
        for group, tasks in command.groups:
            self._add_group(replace(group, seen=seen), tasks)

    def _insert_group(self, command: InsertGroup) -> None:
        self._add_group(command.group, command.tasks)

    def _add_group(self, group: Group, tasks: Sequence[EvalTaskRecord]) -> None:
        self._cursor.execute(self._sql.insert_group, group_values(group))
        key = self._new_id()
        self._add_tasks(replace(task, group=key, seen=group.seen) for task in tasks)

    def _insert_tasks(self, command: InsertEvalTasks) -> None:
        self._add_tasks(command.tasks)

    def _add_tasks(self, tasks: Iterable[EvalTaskRecord]) -> None:
        rows = [task_values(task) for task in tasks]
        if rows:
            self._cursor.executemany(self._sql.insert_task, rows)

    def _update_seen(self, command: UpdateSeen) -> None:
        values = {**seen_values(command.seen), "k_seen": command.seen.id}
        self._cursor.execute(self._sql.update_seen, values)
        self._held.seen[command.seen.id] = command.seen

    def _update_group(self, command: UpdateGroup) -> None:
        group = command.group
        old = self._held.groups.get(group.id)
        fields = GROUP_FIELDS if old is None else changed_group(old, group)
        if fields:
            values = changes(group, fields)
            values["k_group"] = group.id
            self._cursor.execute(self._sql.update_group(fields), values)
        self._held.group(group)

    def _start_group(self, command: StartGroup) -> None:
        self._cursor.execute(self._sql.start_group, {"k_group": command.group})
        held = self._held.groups.get(command.group)
        if held is not None:
            self._held.group(replace(held, started=True))

    def _reprioritise(self, command: Reprioritise) -> None:
        key = {"k_group": command.group, "priority": command.priority}
        self._cursor.execute(self._sql.update_group(("priority",)), key)
        self._cursor.execute(self._sql.reprioritise_tasks, key)
        held = self._held.groups.get(command.group)
        if held is not None:
            self._held.group(replace(held, priority=command.priority))
        for task in [task for task in self._held.tasks.values() if task.group == command.group]:
            del self._held.tasks[task.id]
            self._held.locked_tasks.discard(task.id)

    def _update_task(self, command: UpdateEvalTask) -> None:
        task = command.task
        old = self._held.tasks.get(task.id)
        fields = TASK_FIELDS if old is None else changed_task(old, task)
        if fields:
            values = changes(task, fields)
            values["k_task"] = task.id
            self._cursor.execute(self._sql.update_task(fields), values)
        self._held.task(task)

    def _insert_attempt(self, command: InsertEvalAttempt) -> None:
        self._cursor.execute(self._sql.insert_attempt, eval_attempt_values(command.attempt))

    def _end_attempt(self, command: EndEvalAttempt) -> None:
        values = {
            "state": command.state.value,
            "ended_at": command.ended_at,
            "error": text(command.error),
            "k_task": command.task,
            "k_token": command.token,
        }
        self._cursor.execute(self._sql.end_attempt, values)

    def _renew_attempts(self, command: RenewEvalAttempts) -> None:
        values = {"expires_at": command.expires_at, "k_run": self._id, "k_worker": command.worker}
        self._cursor.execute(self._sql.renew_attempts, values)

    def _limit_not_before(self, command: LimitNotBefore) -> None:
        values = {"not_before": command.latest, "k_run": self._id, "k_now": command.latest}
        self._cursor.execute(self._sql.limit_not_before, values)

    def _insert_result(self, command: InsertResult) -> None:
        self._cursor.execute(self._sql.insert_result, result_values(command.result))

    def _insert_event(self, command: InsertEvent) -> None:
        self._cursor.execute(self._sql.insert_event, event_values(command.event))

    def _set_run_state(self, command: SetRunState) -> None:
        values = {"state": command.state.value, "message": text(command.message), "k_run": self._id}
        self._cursor.execute(self._sql.set_run_state, values)
        self._held.run = replace(self._held.run, state=command.state, message=command.message)


_WAYS: dict[type, Callable[[EvalWriter, Any], None]] = {
    InsertSeen: EvalWriter._insert_seen,
    InsertGroup: EvalWriter._insert_group,
    InsertEvalTasks: EvalWriter._insert_tasks,
    UpdateSeen: EvalWriter._update_seen,
    UpdateGroup: EvalWriter._update_group,
    StartGroup: EvalWriter._start_group,
    Reprioritise: EvalWriter._reprioritise,
    UpdateEvalTask: EvalWriter._update_task,
    InsertEvalAttempt: EvalWriter._insert_attempt,
    EndEvalAttempt: EvalWriter._end_attempt,
    RenewEvalAttempts: EvalWriter._renew_attempts,
    LimitNotBefore: EvalWriter._limit_not_before,
    InsertResult: EvalWriter._insert_result,
    InsertEvent: EvalWriter._insert_event,
    SetRunState: EvalWriter._set_run_state,
}
