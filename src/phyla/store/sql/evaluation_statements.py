"""The statements about evaluation; see `phyla.store.sql.statements`, whose conventions hold here, too."""

from collections.abc import Sequence
from typing import Any, final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from phyla.store.sql.evaluation_rows import columns
from phyla.store.sql.tables import (
    AWAITED,
    BEST,
    ENDED,
    FRESH,
    PENDING,
    QUEUED,
    READY,
    RUNNING,
    STARTED,
    TAKEN_ON,
    UNFINISHED,
    eval_attempts,
    eval_events,
    eval_groups,
    eval_results,
    eval_tasks,
    runs,
    seen_checkpoints,
)

RUN = sa.bindparam("k_run", type_=sa.BigInteger)
STUDY = sa.bindparam("k_study", type_=sa.BigInteger)
SEEN = sa.bindparam("k_seen", type_=sa.BigInteger)
GROUP = sa.bindparam("k_group", type_=sa.BigInteger)
TASK = sa.bindparam("k_task", type_=sa.BigInteger)
TOKEN = sa.bindparam("k_token", type_=sa.Integer)
MEMBER = sa.bindparam("k_member", type_=sa.Integer)
NAME = sa.bindparam("k_name", type_=sa.Text)
PLACE = sa.bindparam("k_place", type_=sa.Integer)
SUITE = sa.bindparam("k_suite", type_=sa.Text)
REPLICATE = sa.bindparam("k_replicate", type_=sa.Integer)
IDENTITY = sa.bindparam("k_identity", type_=sa.Text)
HOW = sa.bindparam("k_how", type_=sa.Text)
SHARDS = sa.bindparam("k_shards", type_=sa.Integer)
WORKER = sa.bindparam("k_worker", type_=sa.Text)
NOW = sa.bindparam("k_now", type_=sa.Double)
EXPIRES_AFTER = sa.bindparam("k_expires_after", type_=sa.Double)
LIMIT = sa.bindparam("k_limit", type_=sa.Integer)
AFTER = sa.bindparam("k_after", type_=sa.BigInteger)

ZERO: sa.ColumnElement[int] = sa.literal_column("0")
ONE: sa.ColumnElement[int] = sa.literal_column("1")

TASK_COLUMNS = len(eval_tasks.columns)
GROUP_COLUMNS = len(eval_groups.columns)

CLAIMED = " FOR UPDATE OF eval_tasks SKIP LOCKED FOR KEY SHARE OF eval_groups SKIP LOCKED"
"""Claims of one group do not exclude each other, but each excludes whoever locks the group to end it."""


@final
class EvalStatements:
    """SQL texts for one database.

    Args:
        dialect: what they are compiled for.
        locks: whether rows are locked where that is promised; False for those who only look.
    """

    def __init__(self, dialect: sa.Dialect, *, locks: bool) -> None:
        self._dialect = dialect
        self._locks = locks and dialect.name != "sqlite"
        self._insert: Any = sqlite.insert if dialect.name == "sqlite" else postgresql.insert
        self._group_updates: dict[tuple[str, ...], str] = {}
        self._task_updates: dict[tuple[str, ...], str] = {}
        self._runs()
        self._seen()
        self._groups()
        self._of_studies()
        self._tasks()
        self._claims()
        self._attempts()
        self._results()
        self._events()

    def _compile(self, statement: sa.ClauseElement, values: Sequence[str] | None = None) -> str:
        return str(statement.compile(dialect=self._dialect, column_keys=values))

    def _compile_locking(self, statement: sa.ClauseElement, lock: str) -> str:
        return self._compile(statement) + (lock if self._locks else "")

    def _insert_with_id(self, table: sa.Table) -> str:
        given = [column.name for column in table.columns if column is not table.c.id]
        return self._compile(table.insert().returning(table.c.id), given)

    def _runs(self) -> None:
        r = runs.c
        one = sa.select(runs).where(r.id == RUN)
        self.run = self._compile(one)
        locked = one.with_for_update(key_share=True).cte("locked")
        clock = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)
        # The clock is read after the lock was waited for, hence the common table expression.
        self.locked_run_and_clock = self._compile(sa.select(locked, clock))
        self.run_and_clock = self._compile(sa.select(runs, clock).where(r.id == RUN))
        self.lock_run = self._compile(sa.select(r.id).where(r.id == RUN).with_for_update(key_share=True))
        self.run_by_name = self._compile(sa.select(runs).where(r.name == NAME))
        self.run_of_study = self._compile(sa.select(runs).where(r.name == NAME, r.study == STUDY))
        self.all_runs = self._compile(sa.select(runs).order_by(r.id))
        self.insert_run = self._compile(
            self._insert(runs).on_conflict_do_nothing(index_elements=["name"]),
            ["name", "kind", "study", "location", "state", "config", "created_at"],
        )
        self.set_run_config = self._compile(runs.update().where(r.id == RUN), ["config", "state", "message"])
        self.set_run_state = self._compile(runs.update().where(r.id == RUN), ["state", "message"])

    def _seen(self) -> None:
        s = seen_checkpoints.c
        mine = s.run == RUN
        select = sa.select(seen_checkpoints).where(mine)
        self.seen = self._compile(select.where(s.id == SEEN))
        newest = select.where(s.name == NAME, s.place == PLACE).order_by(s.id.desc())
        self.find_seen = self._compile(newest.limit(ONE).offset(ZERO))
        by_number = select.order_by(s.number.desc()).limit(ONE).offset(ZERO)
        self.newest_seen = self._compile(by_number)
        self.newest_ready = self._compile(by_number.where(READY))
        after = select.where(s.id > AFTER).order_by(s.id)
        self.all_seen = self._compile(after)
        self.seen_page = self._compile(after.limit(LIMIT).offset(ZERO))
        self.insert_seen = self._insert_with_id(seen_checkpoints)
        self.update_seen = self._compile(
            seen_checkpoints.update().where(s.id == SEEN), [column.name for column in s if column is not s.id]
        )

    def _groups(self) -> None:
        g = eval_groups.c
        mine = g.run == RUN
        of_suite = g.suite == SUITE
        select = sa.select(eval_groups).where(mine)
        one = select.where(g.id == GROUP)
        self.group = self._compile(one)
        self.locked_group = self._compile_locking(one, " FOR UPDATE")
        self.find_group = self._compile(
            sa.select(eval_groups).where(g.seen == SEEN, of_suite, g.replicate == REPLICATE)
        )
        self.groups_of = self._compile(sa.select(eval_groups).where(g.seen == SEEN).order_by(g.id))
        after = select.where(g.id > AFTER).order_by(g.id)
        self.groups = self._compile(after)
        self.groups_page = self._compile(after.limit(LIMIT).offset(ZERO))
        self.groups_of_suite = self._compile(after.where(of_suite))
        self.groups_of_suite_page = self._compile(after.where(of_suite).limit(LIMIT).offset(ZERO))
        self.fresh_groups = self._compile(select.where(of_suite, FRESH).order_by(g.id))
        self.last_queued_at = self._compile(sa.select(sa.func.max(g.created_at)).where(mine, of_suite, TAKEN_ON))
        self.busy = self._compile(
            sa.select(ONE).select_from(eval_groups).where(mine, of_suite, STARTED).limit(ONE).offset(ZERO)
        )
        self.best_group = self._compile(select.where(of_suite, BEST))
        ended = sa.select(sa.func.count()).select_from(eval_groups).where(mine, of_suite, ENDED)
        complete = sa.select(sa.func.max(g.ended_at)).where(mine, of_suite, ENDED)
        last = complete.where(g.state == sa.literal_column("'complete'")).scalar_subquery()
        self.partial_in_a_row = self._compile(
            ended.where(g.state == sa.literal_column("'partial'"), g.ended_at > sa.func.coalesce(last, NOW))
        )
        self.open_groups = self._compile(sa.select(sa.func.count()).select_from(eval_groups).where(mine, QUEUED))
        self.held_paths = self._compile(
            sa.union_all(sa.select(g.seen).where(mine, QUEUED), sa.select(g.seen).where(mine, BEST))
        )
        self.insert_group = self._insert_with_id(eval_groups)
        self.start_group = self._compile(
            eval_groups.update().where(g.id == GROUP).values(started=sa.literal_column("true")), []
        )

    def _of_studies(self) -> None:
        """What a study asks about the evaluation of its checkpoints."""
        g, s = eval_groups.c, seen_checkpoints.c
        awaited = sa.select(sa.func.count()).select_from(eval_groups).where(g.study == STUDY, AWAITED)
        self.awaited_groups = self._compile(awaited)
        names = (
            sa.select(s.name)
            .select_from(runs)
            .join(eval_groups, g.run == runs.c.id)
            .join(seen_checkpoints, s.id == g.seen)
            .where(runs.c.study == STUDY)
        )
        queued = g.state == sa.literal_column("'queued'")
        best: sa.ColumnElement[bool] = sa.literal_column("eval_groups.best")
        started: sa.ColumnElement[bool] = sa.literal_column("eval_groups.started")
        self.held_checkpoints = self._compile(
            sa.union_all(
                names.where(best), names.where(queued, started), names.where(queued, g.guaranteed.is_not(None))
            )
        )

    def update_group(self, fields: tuple[str, ...]) -> str:
        """Return the statement that writes these fields of a group."""
        found = self._group_updates.get(fields)
        if found is None:
            one = eval_groups.update().where(eval_groups.c.id == GROUP)
            found = self._group_updates[fields] = self._compile(one, columns(fields))
        return found

    def update_task(self, fields: tuple[str, ...]) -> str:
        """Return the statement that writes these fields of an eval task."""
        found = self._task_updates.get(fields)
        if found is None:
            one = eval_tasks.update().where(eval_tasks.c.id == TASK)
            found = self._task_updates[fields] = self._compile(one, columns(fields))
        return found

    def _tasks(self) -> None:
        t = eval_tasks.c
        mine = t.run == RUN
        select = sa.select(eval_tasks).where(mine)
        self.locked_task = self._compile_locking(select.where(t.id == TASK), " FOR UPDATE")
        self.group_tasks = self._compile(sa.select(eval_tasks).where(t.group_id == GROUP).order_by(t.id))
        after = select.where(t.id > AFTER).order_by(t.id)
        self.tasks = self._compile(after)
        self.tasks_page = self._compile(after.limit(LIMIT).offset(ZERO))
        self.unfinished_tasks = self._compile(
            sa.select(sa.func.count()).select_from(eval_tasks).where(t.group_id == GROUP, UNFINISHED)
        )
        self.next_not_before = self._compile(
            sa.select(sa.func.min(t.not_before)).where(mine, PENDING, t.not_before > NOW)
        )
        self.insert_task = self._compile(
            eval_tasks.insert().inline(), [column.name for column in t if column is not t.id]
        )
        self.limit_not_before = self._compile(
            eval_tasks.update().where(mine, PENDING, t.not_before > NOW), ["not_before"]
        )
        evaluation = t.kind == sa.literal_column("'evaluate'")
        self.reprioritise_tasks = self._compile(
            eval_tasks.update().where(t.group_id == GROUP, PENDING, evaluation), ["priority"]
        )

    def _claims(self) -> None:
        t, g, s = eval_tasks.c, eval_groups.c, seen_checkpoints.c
        pending = t.state == sa.literal_column("'pending'")
        # The sum keeps SQLite from choosing the index by `not_before`, and then sorting what it finds.
        due = sa.and_(t.run == RUN, pending, t.not_before + ZERO <= NOW)
        urgency = (t.priority, t.rank, t.group_id, t.id)
        next_task = (
            sa.select(eval_tasks, eval_groups, seen_checkpoints)
            .select_from(eval_tasks)
            .join(eval_groups, g.id == t.group_id)
            .join(seen_checkpoints, s.id == t.seen)
            .where(due)
            .order_by(*urgency)
            .limit(ONE)
            .offset(ZERO)
        )
        self.next_task = self._compile_locking(next_task, CLAIMED)
        first = eval_tasks.alias("first")
        f = first.c
        most_urgent = (
            sa.select(f.priority)
            .where(f.run == RUN, f.state == sa.literal_column("'pending'"), f.not_before + ZERO <= NOW)
            .order_by(f.priority, f.rank, f.group_id, f.id)
            .limit(ONE)
            .offset(ZERO)
            .scalar_subquery()
        )
        self.next_task_of_seen = self._compile_locking(
            next_task.where(t.seen == SEEN, t.priority == most_urgent), CLAIMED
        )

    def _attempts(self) -> None:
        a, t = eval_attempts.c, eval_tasks.c
        mine = a.run == RUN
        of_task = sa.select(eval_attempts).where(a.task == TASK, mine)
        self.attempt = self._compile(of_task.where(a.token == TOKEN))
        self.attempts = self._compile(of_task.order_by(a.token))
        running = sa.select(eval_attempts).where(mine, RUNNING).order_by(a.task, a.token)
        self.running = self._compile(running)
        self.running_of_worker = self._compile(running.where(a.worker == WORKER))
        # What somebody has locked is being ended just now; to wait for it could be a deadlock.
        self.expired = self._compile_locking(
            sa.select(eval_attempts)
            .join(eval_tasks, t.id == a.task)
            .join(eval_groups, eval_groups.c.id == t.group_id)
            .where(mine, a.state == sa.literal_column("'running'"), a.expires_at < NOW)
            .order_by(a.expires_at, a.task)
            .limit(LIMIT)
            .offset(ZERO),
            " FOR UPDATE OF eval_tasks, eval_groups SKIP LOCKED",
        )
        ahead = sa.select(eval_attempts).where(mine, RUNNING, a.expires_at > EXPIRES_AFTER, a.claimed_at > NOW)
        self.claimed_ahead = self._compile(ahead.order_by(a.expires_at, a.task))
        self.insert_attempt = self._compile(
            eval_attempts.insert().inline(), [column.name for column in eval_attempts.columns]
        )
        self.end_attempt = self._compile(
            eval_attempts.update().where(a.task == TASK, a.token == TOKEN), ["state", "ended_at", "error"]
        )
        held = sa.select(a.task, a.token).where(mine, RUNNING, a.worker == WORKER)
        self.renew_attempts = self._compile(
            eval_attempts.update().where(sa.tuple_(a.task, a.token).in_(held.with_for_update(skip_locked=True))),
            ["expires_at"],
        )

    def _results(self) -> None:
        r = eval_results.c
        entries = (r.identity == IDENTITY, r.task_identity == HOW, r.replicate == REPLICATE, r.shards == SHARDS)
        self.shards_done = self._compile(sa.select(r.shard).where(*entries))
        self.results = self._compile(sa.select(eval_results).where(*entries).order_by(r.shard))
        self.durations = self._compile(
            sa.select(r.duration_s)
            .where(r.task_identity == HOW)
            .order_by(r.created_at.desc(), r.duration_s.desc())
            .limit(LIMIT)
            .offset(ZERO)
        )
        self.insert_result = self._compile(
            self._insert(eval_results).on_conflict_do_nothing(), [column.name for column in r]
        )

    def _events(self) -> None:
        e = eval_events.c
        self.events = self._compile(sa.select(eval_events).where(e.run == RUN, e.id > AFTER).order_by(e.id))
        self.insert_event = self._compile(
            eval_events.insert().inline(), [column.name for column in e if column is not e.id]
        )
