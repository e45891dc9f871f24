"""One transaction on the evaluation of one run: each question beside its statement; see `transaction`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import sqlalchemy as sa

from phyla.machine import AnyCommand, EvalCommand
from phyla.records import (
    EvalAttempt,
    EvalEvent,
    EvalResult,
    EvalTaskRecord,
    Group,
    RunRecord,
    Seen,
    storable,
)
from phyla.store.evaluation import NEWEST_DURATIONS
from phyla.store.sql.backend import Session
from phyla.store.sql.evaluation_applying import EvalApplying
from phyla.store.sql.rows import EVAL_ATTEMPTS, EVAL_TASKS, EVENTS, GROUPS, RESULTS, SEEN
from phyla.store.sql.scope import NEVER, given
from phyla.store.sql.tables import (
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

if TYPE_CHECKING:
    from phyla.store.sql.transaction import SqlTransaction

RUN, SEEN_ID, GROUP, TASK, SUITE = given("run"), given("seen"), given("group"), given("task"), given("suite")
LIMIT, AFTER, NOW, TOKEN = given("limit"), given("after"), given("now"), given("token")
ZERO: sa.ColumnElement[int] = sa.literal_column("0")

_LOCK_RUN = sa.select(runs.c.id).where(runs.c.id == RUN).with_for_update(key_share=True)

_s = seen_checkpoints.c
_ALL_SEEN = sa.select(seen_checkpoints).where(_s.run == RUN)
_SEEN = _ALL_SEEN.where(_s.id == SEEN_ID)
_FIND_SEEN = _ALL_SEEN.where(_s.name == given("name"), _s.index == given("place")).order_by(_s.id.desc()).limit(1)
_NEWEST_SEEN = _ALL_SEEN.order_by(_s.number.desc()).limit(1)
_NEWEST_READY = _NEWEST_SEEN.where(READY)
_SEEN_AFTER = _ALL_SEEN.where(_s.id > AFTER).order_by(_s.id)
_SEEN_PAGE = _SEEN_AFTER.limit(LIMIT)

_r = eval_results.c
_RESULTS = (
    sa.select(eval_results)
    .where(_r.identity == given("identity"), _r.task_identity == given("task_identity"))
    .where(_r.replicate == given("replicate"), _r.shards == given("shards"))
    .order_by(_r.shard)
)
_SHARDS_DONE = _RESULTS.with_only_columns(_r.shard)
_DURATIONS = (
    sa.select(_r.duration_s)
    .where(_r.task_identity == given("task_identity"))
    .order_by(_r.created_at.desc(), _r.duration_s.desc())
    .limit(LIMIT)
)

_g = eval_groups.c
_GROUPS = sa.select(eval_groups).where(_g.run == RUN)
_OF_SUITE = _GROUPS.where(_g.suite == SUITE)
_GROUP = _GROUPS.where(_g.id == GROUP)
_LOCKED_GROUP = _GROUP.with_for_update()
_GROUPS_OF = sa.select(eval_groups).where(_g.seen == SEEN_ID).order_by(_g.id)
_FIND_GROUP = sa.select(eval_groups).where(
    _g.seen == SEEN_ID, _g.suite == SUITE, _g.replicate == given("replicate")
)
_GROUPS_AFTER = _GROUPS.where(_g.id > AFTER).order_by(_g.id)
_GROUPS_PAGE = _GROUPS_AFTER.limit(LIMIT)
_OF_SUITE_AFTER = _OF_SUITE.where(_g.id > AFTER).order_by(_g.id)
_OF_SUITE_PAGE = _OF_SUITE_AFTER.limit(LIMIT)
_FRESH = _OF_SUITE.where(FRESH).order_by(_g.id)
_LAST_QUEUED = sa.select(sa.func.max(_g.created_at)).where(_g.run == RUN, _g.suite == SUITE, TAKEN_ON)
_BUSY = sa.select(_g.id).where(_g.run == RUN, _g.suite == SUITE, STARTED).limit(1)
_BEST = _OF_SUITE.where(BEST)
_ENDED = sa.and_(_g.run == RUN, _g.suite == SUITE, ENDED)
_COMPLETE = sa.select(sa.func.max(_g.ended_at)).where(_ENDED, _g.state == "complete").scalar_subquery()
_PARTIAL_IN_A_ROW = (
    sa.select(sa.func.count())
    .select_from(eval_groups)
    .where(_ENDED, _g.state == "partial", _g.ended_at > sa.func.coalesce(_COMPLETE, given("since")))
)
_OPEN = sa.select(sa.func.count()).select_from(eval_groups).where(_g.run == RUN, QUEUED)
_HELD_PATHS = sa.union_all(
    sa.select(_g.seen).where(_g.run == RUN, QUEUED), sa.select(_g.seen).where(_g.run == RUN, BEST)
)

_t = eval_tasks.c
_TASKS = sa.select(eval_tasks).where(_t.run == RUN)
_LOCKED_TASK = _TASKS.where(_t.id == TASK).with_for_update()
_TASKS_AFTER = _TASKS.where(_t.id > AFTER).order_by(_t.id)
_TASKS_PAGE = _TASKS_AFTER.limit(LIMIT)
_GROUP_TASKS = sa.select(eval_tasks).where(_t.group == GROUP).order_by(_t.id)
_UNFINISHED = sa.select(sa.func.count()).select_from(eval_tasks).where(_t.group == GROUP, UNFINISHED)
_NOT_BEFORE = sa.select(sa.func.min(_t.not_before)).where(_t.run == RUN, PENDING, _t.not_before > NOW)
_NEXT = (
    sa.select(eval_tasks, eval_groups, seen_checkpoints)
    .select_from(eval_tasks)
    .join(eval_groups, _g.id == _t.group)
    .join(seen_checkpoints, _s.id == _t.seen)
    # The sum keeps SQLite from choosing the index by `not_before`, and then sorting what it finds.
    .where(_t.run == RUN, _t.state == "pending", _t.not_before + ZERO <= NOW)
    .order_by(_t.priority, _t.rank, _t.group, _t.id)
    .limit(1)
)
_first = eval_tasks.alias("first").c
_MOST_URGENT = (
    sa.select(_first.priority)
    .where(_first.run == RUN, _first.state == "pending", _first.not_before + ZERO <= NOW)
    .order_by(_first.priority, _first.rank, _first.group, _first.id)
    .limit(1)
    .scalar_subquery()
)
_NEXT_OF_SEEN = _NEXT.where(_t.seen == SEEN_ID, _t.priority == _MOST_URGENT)
# Claims of one group do not exclude each other, but each excludes whoever locks the group to end it.
_CLAIM, _CLAIM_OF_SEEN = (
    one.with_for_update(of=eval_tasks, skip_locked=True).suffix_with(
        "FOR KEY SHARE OF eval_groups SKIP LOCKED", dialect="postgresql"
    )
    for one in (_NEXT, _NEXT_OF_SEEN)
)

_a = eval_attempts.c
_ATTEMPTS = sa.select(eval_attempts).where(_a.task == TASK, _a.run == RUN).order_by(_a.token)
_ATTEMPT = _ATTEMPTS.where(_a.token == TOKEN)
_RUNNING = sa.select(eval_attempts).where(_a.run == RUN, RUNNING).order_by(_a.task, _a.token)
_RUNNING_OF_WORKER = _RUNNING.where(_a.worker == given("worker"))
# What somebody has locked is being ended just now; to wait for it could be a deadlock.
_EXPIRED = (
    sa.select(eval_attempts)
    .join(eval_tasks, _t.id == _a.task)
    .join(eval_groups, _g.id == _t.group)
    .where(_a.run == RUN, _a.state == "running", _a.expires_at < NOW)
    .order_by(_a.expires_at, _a.task)
    .limit(LIMIT)
    .with_for_update(of=[eval_tasks, eval_groups], skip_locked=True)
)
_CLAIMED_AHEAD = (
    sa.select(eval_attempts)
    .where(_a.run == RUN, RUNNING, _a.expires_at > given("expires_after"), _a.claimed_at > NOW)
    .order_by(_a.expires_at, _a.task)
)

_EVENTS = sa.select(eval_events).where(eval_events.c.run == RUN, eval_events.c.id > AFTER)
_EVENTS_AFTER = _EVENTS.order_by(eval_events.c.id)


@final
class SqlEvaluation(EvalApplying):
    """Reads and changes the evaluation of one run.

    Args:
        session: inside an open transaction.
        run: the run's row.
        now: the database's time.
        population: the run's study in the same transaction, if it has one.
    """

    def __init__(self, session: Session, run: RunRecord, now: float, population: "SqlTransaction | None") -> None:
        super().__init__(session, run, now)
        self._population = population
        # Only a row that is locked stays as it is.
        self._numbers_locked = not session.write or session.backend.one_writer

    # The run

    def run(self) -> RunRecord:
        """Return the run."""
        return self._run_record

    def population(self) -> "SqlTransaction | None":
        """Return the study, in the same transaction."""
        return self._population

    # Checkpoints that were seen

    def seen(self, seen_id: int) -> Seen:
        """Return a checkpoint that was seen."""
        found = self._session.held(SEEN, seen_id) or self._one(SEEN, _SEEN, seen=seen_id)
        if found is None:
            raise KeyError(f"run {self._run_record.id} has seen no checkpoint {seen_id}")
        return found

    def all_seen(self, *, after: int = 0, limit: int | None = None) -> Sequence[Seen]:
        """Return the checkpoints seen, by id."""
        if limit is None:
            return self._all(SEEN, _SEEN_AFTER, after=after)
        return self._all(SEEN, _SEEN_PAGE, after=after, limit=limit)

    def find_seen(self, name: str, index: int = 0) -> Seen | None:
        """Return the newest version of a checkpoint."""
        return self._one(SEEN, _FIND_SEEN, name=storable(name), place=index)

    def newest_seen(self) -> Seen | None:
        """Return the checkpoint with the highest number; locks the run."""
        if not self._numbers_locked:
            self._value(_LOCK_RUN)
            self._numbers_locked = True
        return self._one(SEEN, _NEWEST_SEEN)

    def newest_ready(self) -> Seen | None:
        """Return the checkpoint in state ready with the highest number."""
        return self._one(SEEN, _NEWEST_READY)

    # The ledger

    def shards_done(self, identity: str, task_identity: str, replicate: int, shards: int) -> frozenset[int]:
        """Return which shards the ledger has."""
        key = {"identity": identity, "task_identity": task_identity, "replicate": replicate, "shards": shards}
        return frozenset(shard for (shard,) in self._rows(_SHARDS_DONE, **key))

    def results(self, identity: str, task_identity: str, replicate: int, shards: int) -> Sequence[EvalResult]:
        """Return the ledger's entries by shard."""
        key = {"identity": identity, "task_identity": task_identity, "replicate": replicate, "shards": shards}
        return self._all(RESULTS, _RESULTS, **key)

    def mean_duration_s(self, task_identity: str) -> float | None:
        """Return how long a shard took on average, of the newest results."""
        took = [row[0] for row in self._rows(_DURATIONS, task_identity=task_identity, limit=NEWEST_DURATIONS)]
        return sum(took) / len(took) if took else None

    # Groups

    def group(self, group_id: int) -> Group:
        """Return a group."""
        found = self._session.held(GROUPS, group_id) or self._one(GROUPS, _GROUP, group=group_id)
        if found is None:
            raise KeyError(f"run {self._run_record.id} has no group {group_id}")
        return found

    def locked_group(self, group_id: int) -> Group | None:
        """Return a group of this run, or None; locks it."""
        if ("group", group_id) in self._locked:
            return self._session.held(GROUPS, group_id)
        found = self._one(GROUPS, _LOCKED_GROUP, group=group_id)
        if found is None:
            return None
        self._locked.add(("group", group_id))
        return self._session.hold(GROUPS, found)

    def find_group(self, seen: int, suite: str, replicate: int = 0) -> Group | None:
        """Return a group by its key."""
        return self._one(GROUPS, _FIND_GROUP, seen=seen, suite=suite, replicate=replicate)

    def groups_of(self, seen: int) -> Sequence[Group]:
        """Return the groups on one checkpoint."""
        return self._all(GROUPS, _GROUPS_OF, seen=seen)

    def groups(self, *, suite: str | None = None, after: int = 0, limit: int | None = None) -> Sequence[Group]:
        """Return groups by id."""
        if suite is None:
            if limit is None:
                return self._all(GROUPS, _GROUPS_AFTER, after=after)
            return self._all(GROUPS, _GROUPS_PAGE, after=after, limit=limit)
        if limit is None:
            return self._all(GROUPS, _OF_SUITE_AFTER, suite=suite, after=after)
        return self._all(GROUPS, _OF_SUITE_PAGE, suite=suite, after=after, limit=limit)

    def fresh_groups(self, suite: str) -> Sequence[Group]:
        """Return the queued groups of class fresh that no population waits for."""
        return self._all(GROUPS, _FRESH, suite=suite)

    def last_queued_at(self, suite: str) -> float | None:
        """Return when the newest group that was not skipped was created."""
        found: float | None = self._value(_LAST_QUEUED, suite=suite)
        return found

    def busy(self, suite: str) -> bool:
        """Return whether a started group has not ended."""
        return self._value(_BUSY, suite=suite) is not None

    def best_group(self, suite: str) -> Group | None:
        """Return the group marked best."""
        found = self._one(GROUPS, _BEST, suite=suite)
        if found is None or ("group", found.id) in self._locked:
            return found and self._session.held(GROUPS, found.id)
        return self._session.hold(GROUPS, found)

    def partial_in_a_row(self, suite: str) -> int:
        """Return how many groups ended partial since the last one ended complete."""
        return int(self._value(_PARTIAL_IN_A_ROW, suite=suite, since=NEVER))

    def open_groups(self) -> int:
        """Return how many groups are queued."""
        return int(self._value(_OPEN))

    def held_paths(self) -> frozenset[int]:
        """Return ids of the checkpoints seen that a queued or best group refers to."""
        return frozenset(seen for (seen,) in self._rows(_HELD_PATHS))

    # Eval tasks

    def eval_tasks(self, *, after: int = 0, limit: int | None = None) -> Sequence[EvalTaskRecord]:
        """Return eval tasks by id."""
        if limit is None:
            return self._all(EVAL_TASKS, _TASKS_AFTER, after=after)
        return self._all(EVAL_TASKS, _TASKS_PAGE, after=after, limit=limit)

    def next_eval_task(self, holding: int | None) -> EvalTaskRecord | None:
        """Return the pending eval task to run next; locks it and passes over locked ones."""
        session = self._session
        any_one, of_seen = (_CLAIM, _CLAIM_OF_SEEN) if session.write else (_NEXT, _NEXT_OF_SEEN)
        rows = [] if holding is None else self._rows(of_seen, now=self._now, seen=holding)
        rows = rows or self._rows(any_one, now=self._now)
        if not rows:
            return None
        # Whoever claims it asks for its group and checkpoint next.
        task, rest = EVAL_TASKS.record(rows[0][: EVAL_TASKS.width]), rows[0][EVAL_TASKS.width :]
        if ("group", task.group) not in self._locked:
            session.hold(GROUPS, GROUPS.record(rest[: GROUPS.width]))
        session.hold(SEEN, SEEN.record(rest[GROUPS.width :]))
        self._locked.add(("task", task.id))
        return session.hold(EVAL_TASKS, task)

    def next_not_before(self) -> float | None:
        """Return when the earliest pending eval task may start that may not start yet."""
        found: float | None = self._value(_NOT_BEFORE, now=self._now)
        return found

    def locked_eval_task(self, task_id: int) -> EvalTaskRecord | None:
        """Return an eval task of this run, or None; locks it."""
        if ("task", task_id) in self._locked:
            return self._session.held(EVAL_TASKS, task_id)
        found = self._one(EVAL_TASKS, _LOCKED_TASK, task=task_id)
        if found is None:
            return None
        self._locked.add(("task", task_id))
        return self._session.hold(EVAL_TASKS, found)

    def group_tasks(self, group: int) -> Sequence[EvalTaskRecord]:
        """Return the eval tasks of a group."""
        found = self._all(EVAL_TASKS, _GROUP_TASKS, group=group)
        return [self._session.hold(EVAL_TASKS, task) for task in found]

    def unfinished_tasks(self, group: int) -> int:
        """Return how many eval tasks of a group are pending or running."""
        return int(self._value(_UNFINISHED, group=group))

    # Attempts and events

    def eval_attempt(self, task: int, token: int) -> EvalAttempt | None:
        """Return one attempt."""
        return self._one(EVAL_ATTEMPTS, _ATTEMPT, task=task, token=token)

    def eval_attempts(self, task: int) -> Sequence[EvalAttempt]:
        """Return the attempts of an eval task, oldest first."""
        return self._all(EVAL_ATTEMPTS, _ATTEMPTS, task=task)

    def running_evaluations(self, worker: str | None = None) -> Sequence[EvalAttempt]:
        """Return the running attempts of one worker, or all of them."""
        if worker is None:
            return self._all(EVAL_ATTEMPTS, _RUNNING)
        return self._all(EVAL_ATTEMPTS, _RUNNING_OF_WORKER, worker=worker)

    def expired_evaluations(self, limit: int) -> Sequence[EvalAttempt]:
        """Return running attempts whose lease ran out, longest first; passes over what is locked."""
        return self._all(EVAL_ATTEMPTS, _EXPIRED, now=self._now, limit=limit)

    def claimed_ahead(self, expires_after: float) -> Sequence[EvalAttempt]:
        """Return running attempts that were claimed after `now()`, and whose lease lasts beyond a time."""
        return self._all(EVAL_ATTEMPTS, _CLAIMED_AHEAD, now=self._now, expires_after=expires_after)

    def events(self, *, after: int = 0) -> Sequence[EvalEvent]:
        """Return events by id."""
        return self._all(EVENTS, _EVENTS_AFTER, after=after)

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
