"""One transaction on the evaluation of one run, on the driver's cursor."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from phyla.machine import AnyCommand, EndEvalAttempt, EvalCommand, InsertEvalTasks, SetRunState
from phyla.records import EvalAttempt, EvalEvent, EvalResult, EvalTaskRecord, Group, RunRecord, Seen, storable
from phyla.store.evaluation import NEWEST_DURATIONS
from phyla.store.sql.backend import Backend, Cursor
from phyla.store.sql.evaluation_rows import (
    eval_attempt_record,
    event_record,
    group_record,
    result_record,
    seen_record,
    task_record,
)
from phyla.store.sql.evaluation_statements import GROUP_COLUMNS, TASK_COLUMNS
from phyla.store.sql.evaluation_writing import EvalWriter, HeldEvaluation
from phyla.store.sql.rows import Row

if TYPE_CHECKING:
    from phyla.store.sql.transaction import SqlTransaction

NEVER = float("-inf")

_MAKES_WORK = (EndEvalAttempt, InsertEvalTasks, SetRunState)
"""What workers that have nothing to do wait for."""


@final
class SqlEvaluation:
    """Reads and changes the evaluation of one run.

    Args:
        backend: the database.
        cursor: inside an open transaction.
        run: the run's row.
        now: the database's time.
        population: the run's study in the same transaction, if it has one.
        write: whether rows are locked where that is promised.
    """

    def __init__(
        self,
        backend: Backend,
        cursor: Cursor,
        run: RunRecord,
        now: float,
        population: "SqlTransaction | None",
        *,
        write: bool,
    ) -> None:
        self._backend = backend
        self._sql = (backend.statements if write else backend.reading).evaluation
        self._cursor = cursor
        self._id = run.id
        self._now = now
        self._population = population
        # Only a row that is locked stays as it is.
        self._numbers_locked = not write or backend.one_writer
        self._held = HeldEvaluation(run)
        self._writer = EvalWriter(self._sql, cursor, self._held)

    def _one(self, statement: str, **key: object) -> Row | None:
        key["k_run"] = self._id
        self._cursor.execute(statement, key)
        row: Row | None = self._cursor.fetchone()
        return row

    def _all(self, statement: str, **key: object) -> list[Row]:
        key["k_run"] = self._id
        self._cursor.execute(statement, key)
        return self._cursor.fetchall()

    def _count(self, statement: str, **key: object) -> int:
        row = self._one(statement, **key)
        return int(row[0]) if row else 0

    # The run

    def now(self) -> float:
        """Return the database's time, one value throughout the transaction."""
        return self._now

    def run(self) -> RunRecord:
        """Return the run."""
        return self._held.run

    def population(self) -> "SqlTransaction | None":
        """Return the study, in the same transaction."""
        return self._population

    # Checkpoints that were seen

    def seen(self, seen_id: int) -> Seen:
        """Return a checkpoint that was seen."""
        held = self._held.seen.get(seen_id)
        if held is not None:
            return held
        row = self._one(self._sql.seen, k_seen=seen_id)
        if row is None:
            raise KeyError(f"run {self._id} has seen no checkpoint {seen_id}")
        return seen_record(row)

    def all_seen(self, *, after: int = 0, limit: int | None = None) -> Sequence[Seen]:
        """Return the checkpoints seen, by id."""
        if limit is None:
            rows = self._all(self._sql.all_seen, k_after=after)
        else:
            rows = self._all(self._sql.seen_page, k_after=after, k_limit=limit)
        return [seen_record(row) for row in rows]

    def find_seen(self, name: str, index: int = 0) -> Seen | None:
        """Return the newest version of a checkpoint."""
        row = self._one(self._sql.find_seen, k_name=storable(name), k_place=index)
        return None if row is None else seen_record(row)

    def newest_seen(self) -> Seen | None:
        """Return the checkpoint with the highest number; locks the run."""
        if not self._numbers_locked:
            self._one(self._sql.lock_run)
            self._numbers_locked = True
        row = self._one(self._sql.newest_seen)
        return None if row is None else seen_record(row)

    def newest_ready(self) -> Seen | None:
        """Return the checkpoint in state ready with the highest number."""
        row = self._one(self._sql.newest_ready)
        return None if row is None else seen_record(row)

    # The ledger

    def shards_done(self, identity: str, task_identity: str, replicate: int, shards: int) -> frozenset[int]:
        """Return which shards the ledger has."""
        key = {"k_identity": identity, "k_how": task_identity, "k_replicate": replicate, "k_shards": shards}
        self._cursor.execute(self._sql.shards_done, key)
        return frozenset(shard for (shard,) in self._cursor.fetchall())

    def results(self, identity: str, task_identity: str, replicate: int, shards: int) -> Sequence[EvalResult]:
        """Return the ledger's entries by shard."""
        key = {"k_identity": identity, "k_how": task_identity, "k_replicate": replicate, "k_shards": shards}
        self._cursor.execute(self._sql.results, key)
        return [result_record(row) for row in self._cursor.fetchall()]

    def mean_duration_s(self, task_identity: str) -> float | None:
        """Return how long a shard took on average, of the newest results."""
        key = {"k_how": task_identity, "k_limit": NEWEST_DURATIONS}
        self._cursor.execute(self._sql.durations, key)
        took = [row[0] for row in self._cursor.fetchall()]
        return sum(took) / len(took) if took else None

    # Groups

    def group(self, group_id: int) -> Group:
        """Return a group."""
        held = self._held.groups.get(group_id)
        if held is not None:
            return held
        row = self._one(self._sql.group, k_group=group_id)
        if row is None:
            raise KeyError(f"run {self._id} has no group {group_id}")
        return group_record(row)

    def locked_group(self, group_id: int) -> Group | None:
        """Return a group of this run, or None; locks it."""
        if group_id in self._held.locked_groups:
            return self._held.groups[group_id]
        row = self._one(self._sql.locked_group, k_group=group_id)
        if row is None:
            return None
        self._held.locked_groups.add(group_id)
        return self._held.group(group_record(row))

    def find_group(self, seen: int, suite: str, replicate: int = 0) -> Group | None:
        """Return a group by its key."""
        row = self._one(self._sql.find_group, k_seen=seen, k_suite=suite, k_replicate=replicate)
        return None if row is None else group_record(row)

    def groups_of(self, seen: int) -> Sequence[Group]:
        """Return the groups on one checkpoint."""
        return [group_record(row) for row in self._all(self._sql.groups_of, k_seen=seen)]

    def groups(self, *, suite: str | None = None, after: int = 0, limit: int | None = None) -> Sequence[Group]:
        """Return groups by id."""
        sql = self._sql
        key: dict[str, object] = {"k_after": after}
        if limit is not None:
            key["k_limit"] = limit
        if suite is None:
            statement = sql.groups if limit is None else sql.groups_page
        else:
            key["k_suite"] = suite
            statement = sql.groups_of_suite if limit is None else sql.groups_of_suite_page
        return [group_record(row) for row in self._all(statement, **key)]

    def fresh_groups(self, suite: str) -> Sequence[Group]:
        """Return the queued groups of class fresh that no population waits for."""
        return [group_record(row) for row in self._all(self._sql.fresh_groups, k_suite=suite)]

    def last_queued_at(self, suite: str) -> float | None:
        """Return when the newest group that was not skipped was created."""
        row = self._one(self._sql.last_queued_at, k_suite=suite)
        return None if row is None else row[0]

    def busy(self, suite: str) -> bool:
        """Return whether a started group has not ended."""
        return self._one(self._sql.busy, k_suite=suite) is not None

    def best_group(self, suite: str) -> Group | None:
        """Return the group marked best."""
        row = self._one(self._sql.best_group, k_suite=suite)
        if row is None:
            return None
        return (
            self._held.groups[row[0]]
            if row[0] in self._held.locked_groups
            else self._held.group(group_record(row))
        )

    def partial_in_a_row(self, suite: str) -> int:
        """Return how many groups ended partial since the last one ended complete."""
        return self._count(self._sql.partial_in_a_row, k_suite=suite, k_now=NEVER)

    def open_groups(self) -> int:
        """Return how many groups are queued."""
        return self._count(self._sql.open_groups)

    def held_paths(self) -> frozenset[int]:
        """Return ids of the checkpoints seen that a queued or best group refers to."""
        return frozenset(seen for (seen,) in self._all(self._sql.held_paths))

    # Eval tasks

    def eval_tasks(self, *, after: int = 0, limit: int | None = None) -> Sequence[EvalTaskRecord]:
        """Return eval tasks by id."""
        if limit is None:
            rows = self._all(self._sql.tasks, k_after=after)
        else:
            rows = self._all(self._sql.tasks_page, k_after=after, k_limit=limit)
        return [task_record(row) for row in rows]

    def next_eval_task(self, holding: int | None) -> EvalTaskRecord | None:
        """Return the pending eval task to run next; locks it and passes over locked ones."""
        row = None
        if holding is not None:
            row = self._one(self._sql.next_task_of_seen, k_now=self._now, k_seen=holding)
        row = row or self._one(self._sql.next_task, k_now=self._now)
        if row is None:
            return None
        # Whoever claims it asks for its group and checkpoint next.
        task, rest = task_record(row[:TASK_COLUMNS]), row[TASK_COLUMNS:]
        if task.group not in self._held.locked_groups:
            self._held.group(group_record(rest[:GROUP_COLUMNS]))
        self._held.seen[task.seen] = seen_record(rest[GROUP_COLUMNS:])
        self._held.locked_tasks.add(task.id)
        return self._held.task(task)

    def next_not_before(self) -> float | None:
        """Return when the earliest pending eval task may start that may not start yet."""
        row = self._one(self._sql.next_not_before, k_now=self._now)
        return None if row is None else row[0]

    def locked_eval_task(self, task_id: int) -> EvalTaskRecord | None:
        """Return an eval task of this run, or None; locks it."""
        if task_id in self._held.locked_tasks:
            return self._held.tasks[task_id]
        row = self._one(self._sql.locked_task, k_task=task_id)
        if row is None:
            return None
        self._held.locked_tasks.add(task_id)
        return self._held.task(task_record(row))

    def group_tasks(self, group: int) -> Sequence[EvalTaskRecord]:
        """Return the eval tasks of a group."""
        return [self._held.task(task_record(row)) for row in self._all(self._sql.group_tasks, k_group=group)]

    def unfinished_tasks(self, group: int) -> int:
        """Return how many eval tasks of a group are pending or running."""
        self._cursor.execute(self._sql.unfinished_tasks, {"k_group": group})
        return int(self._cursor.fetchone()[0])

    # Attempts and events

    def eval_attempt(self, task: int, token: int) -> EvalAttempt | None:
        """Return one attempt."""
        row = self._one(self._sql.attempt, k_task=task, k_token=token)
        return None if row is None else eval_attempt_record(row)

    def eval_attempts(self, task: int) -> Sequence[EvalAttempt]:
        """Return the attempts of an eval task, oldest first."""
        return [eval_attempt_record(row) for row in self._all(self._sql.attempts, k_task=task)]

    def running_evaluations(self, worker: str | None = None) -> Sequence[EvalAttempt]:
        """Return the running attempts of one worker, or all of them."""
        if worker is None:
            rows = self._all(self._sql.running)
        else:
            rows = self._all(self._sql.running_of_worker, k_worker=worker)
        return [eval_attempt_record(row) for row in rows]

    def expired_evaluations(self, limit: int) -> Sequence[EvalAttempt]:
        """Return running attempts whose lease ran out, longest first; passes over what is locked."""
        rows = self._all(self._sql.expired, k_now=self._now, k_limit=limit)
        return [eval_attempt_record(row) for row in rows]

    def claimed_ahead(self, expires_after: float) -> Sequence[EvalAttempt]:
        """Return running attempts that were claimed after `now()`, and whose lease lasts beyond a time."""
        rows = self._all(self._sql.claimed_ahead, k_now=self._now, k_expires_after=expires_after)
        return [eval_attempt_record(row) for row in rows]

    def events(self, *, after: int = 0) -> Sequence[EvalEvent]:
        """Return events by id."""
        return [event_record(row) for row in self._all(self._sql.events, k_after=after)]

    # What can be changed

    def apply(self, commands: Sequence[AnyCommand]) -> list[str]:
        """Apply commands in order, those of the run's study too."""
        marked: list[str] = []
        for command in commands:
            if isinstance(command, EvalCommand):
                self.apply_one(command)
            elif self._population is None:
                raise TypeError(f"{command!r} needs a study, and run {self.run().name!r} has none")
            else:
                marked += self._population.apply([command])
        return marked

    def apply_one(self, command: EvalCommand) -> None:
        """Apply one command about evaluation."""
        if isinstance(command, _MAKES_WORK):
            self._backend.announce(self._cursor)
        self._writer.apply(command)
