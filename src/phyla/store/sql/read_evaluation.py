"""Reads evaluation: observed checkpoints, groups, the ledger; each method beside its statement."""

from collections.abc import Sequence

import sqlalchemy as sa

from phyla.records import (
    Backlog,
    Checkpoint,
    EvalEvent,
    EvalResult,
    FileName,
    Group,
    StudyKind,
    storable,
)
from phyla.store.contract import NEWEST_DURATIONS
from phyla.store.sql.read_jobs import Queue
from phyla.store.sql.rows import CHECKPOINTS, EVENTS, GROUPS, RESULTS
from phyla.store.sql.scope import NEVER, NO_LIMIT, parameter
from phyla.store.sql.tables import (
    BEST,
    ENDED,
    EVALUATED,
    FRESH,
    QUEUED,
    STARTED,
    TAKEN_ON,
    USABLE,
    checkpoints,
    eval_events,
    eval_groups,
    eval_results,
)

STUDY, SEEN_ID, GROUP, SUITE = parameter("study"), parameter("seen"), parameter("group"), parameter("suite")
LIMIT, AFTER = parameter("limit"), parameter("after")

_s = checkpoints.c
_ALL_SEEN = sa.select(checkpoints).where(_s.study == STUDY, EVALUATED)
_SEEN = _ALL_SEEN.where(_s.id == SEEN_ID)
_FIND_SEEN = (
    _ALL_SEEN.where(_s.name == parameter("name"), _s.index == parameter("place")).order_by(_s.id.desc()).limit(1)
)
_NEWEST_SEEN = _ALL_SEEN.order_by(_s.number.desc()).limit(1)
_NEWEST_STEPPED = (
    _ALL_SEEN.where(_s.step >= 0).order_by(_s.branch.desc(), _s.step.desc(), _s.number.desc()).limit(1)
)
_NEWEST_READY = sa.select(checkpoints).where(_s.study == STUDY, USABLE).order_by(_s.number.desc()).limit(1)
_SEEN_AFTER = _ALL_SEEN.where(_s.id > AFTER).order_by(_s.id).limit(LIMIT)

_r = eval_results.c
_RESULTS = (
    sa.select(eval_results)
    .where(_r.identity == parameter("identity"), _r.task_identity == parameter("task_identity"))
    .where(_r.replicate == parameter("replicate"), _r.shards == parameter("shards"))
    .order_by(_r.shard)
)
_LAST_RESULT = (
    sa.select(_r.created_at)
    .where(_r.task_identity == parameter("task_identity"), _r.study == STUDY)
    .order_by(_r.created_at.desc())
    .limit(1)
)
_DURATIONS = (
    sa.select(_r.duration_s)
    .where(_r.task_identity == parameter("task_identity"))
    .order_by(_r.created_at.desc(), _r.duration_s.desc())
    .limit(LIMIT)
)

_g = eval_groups.c
_GROUPS = sa.select(eval_groups).where(_g.study == STUDY)
_OF_SUITE = _GROUPS.where(_g.suite == SUITE)
_GROUP = _GROUPS.where(_g.id == GROUP)
_LOCKED_GROUP = _GROUP.with_for_update()
_GROUPS_OF = sa.select(eval_groups).where(_g.seen == SEEN_ID).order_by(_g.id)
_GROUPS_AFTER = _GROUPS.where(_g.id > AFTER).order_by(_g.id).limit(LIMIT)
_OF_SUITE_AFTER = _OF_SUITE.where(_g.id > AFTER).order_by(_g.id).limit(LIMIT)
_ENDED_SINCE = _GROUPS.where(ENDED, _g.ended_at >= parameter("since")).order_by(_g.ended_at, _g.id)
_FRESH = _OF_SUITE.where(FRESH).order_by(_g.id)
_LAST_QUEUED = sa.select(sa.func.max(_g.created_at)).where(_g.study == STUDY, _g.suite == SUITE, TAKEN_ON)
_BUSY = sa.select(_g.id).where(_g.study == STUDY, _g.suite == SUITE, STARTED).limit(1)
_BEST = _OF_SUITE.where(BEST)
_ENDED = sa.and_(_g.study == STUDY, _g.suite == SUITE, ENDED)
_COMPLETE = sa.select(sa.func.max(_g.ended_at)).where(_ENDED, _g.state == "complete").scalar_subquery()
_PARTIAL_IN_A_ROW = (
    sa.select(sa.func.count())
    .select_from(eval_groups)
    .where(_ENDED, _g.state == "partial", _g.ended_at > sa.func.coalesce(_COMPLETE, parameter("since")))
)
_OPEN = sa.select(sa.func.count()).select_from(eval_groups).where(_g.study == STUDY, QUEUED)
_NEWEST_COMPLETE = sa.select(sa.func.max(_g.seen)).where(_ENDED, _g.state == "complete")
_WAITING = sa.select(sa.func.count()).select_from(eval_groups).where(_g.study == STUDY, _g.suite == SUITE, QUEUED)
_BEHIND = sa.select(sa.func.count(), sa.func.min(_g.seen), sa.func.max(_g.seen)).where(
    _g.study == STUDY, _g.suite == SUITE, QUEUED, _g.seen > SEEN_ID, _g.replicate == 0
)
_IN_ORDER = (_s.branch, _s.step, _s.number)
_ITS_COMPLETE = sa.exists().where(_g.seen == _s.id, _g.suite == SUITE, ENDED, _g.state == "complete")
_FARTHEST_COMPLETE = _ALL_SEEN.where(_ITS_COMPLETE).order_by(*(column.desc() for column in _IN_ORDER)).limit(1)
_AFTER_IT = sa.tuple_(*_IN_ORDER) > sa.tuple_(parameter("branch"), parameter("step"), parameter("number"))
_FARTHER = _BEHIND.where(_g.seen.in_(sa.select(_s.id).where(_s.study == STUDY, EVALUATED, _AFTER_IT)))
_HELD_PATHS = sa.union_all(
    sa.select(_g.seen).where(_g.study == STUDY, QUEUED), sa.select(_g.seen).where(_g.study == STUDY, BEST)
)

_EVENTS = sa.select(eval_events).where(eval_events.c.study == STUDY, eval_events.c.id > AFTER)
_EVENTS_AFTER = _EVENTS.order_by(eval_events.c.id)


class Evaluating(Queue):
    """Reads groups, their priorities and their results."""

    # Checkpoints that were seen

    def seen(self, seen_id: int) -> Checkpoint:
        return self._existing(self._first(CHECKPOINTS, _SEEN, seen=seen_id), "evaluated checkpoint", seen_id)

    def all_seen(self, *, after: int = 0, limit: int | None = None) -> Sequence[Checkpoint]:
        return self._all(CHECKPOINTS, _SEEN_AFTER, after=after, limit=NO_LIMIT if limit is None else limit)

    def find_seen(self, name: FileName, index: int = 0) -> Checkpoint | None:
        return self._first(CHECKPOINTS, _FIND_SEEN, name=storable(name), place=index)

    def newest_seen(self, *, stepped: bool = False) -> Checkpoint | None:
        if self._session.write:
            self._session.backend.lock_numbers(self._session, self._study.id)
        return self._first(CHECKPOINTS, _NEWEST_STEPPED if stepped else _NEWEST_SEEN)

    def newest_ready(self) -> Checkpoint | None:
        return self._first(CHECKPOINTS, _NEWEST_READY)

    # The ledger

    def ledger(self, identity: str, task_identity: str, replicate: int, shards: int) -> Sequence[EvalResult]:
        key = {"identity": identity, "task_identity": task_identity, "replicate": replicate, "shards": shards}
        return self._all(RESULTS, _RESULTS, **key)

    def mean_duration_s(self, task_identity: str) -> float | None:
        took = [row[0] for row in self._rows(_DURATIONS, task_identity=task_identity, limit=NEWEST_DURATIONS)]
        return sum(took) / len(took) if took else None

    def last_result_at(self, task_identity: str) -> float | None:
        result_at: float | None = self._value(_LAST_RESULT, task_identity=task_identity)
        return result_at

    # Groups

    def group(self, group_id: int) -> Group:
        return self._existing(self._first(GROUPS, _GROUP, group=group_id), "group", group_id)

    def locked_group(self, group_id: int) -> Group | None:
        return self._hold(GROUPS, _LOCKED_GROUP, group=group_id)

    def groups_of(self, seen: int) -> Sequence[Group]:
        return self._all(GROUPS, _GROUPS_OF, seen=seen)

    def groups(self, *, suite: str | None = None, after: int = 0, limit: int | None = None) -> Sequence[Group]:
        limit = NO_LIMIT if limit is None else limit
        if suite is None:
            return self._all(GROUPS, _GROUPS_AFTER, after=after, limit=limit)
        return self._all(GROUPS, _OF_SUITE_AFTER, suite=suite, after=after, limit=limit)

    def ended_groups(self, since: float) -> Sequence[Group]:
        return self._all(GROUPS, _ENDED_SINCE, since=since)

    def fresh_groups(self, suite: str) -> Sequence[Group]:
        return self._all(GROUPS, _FRESH, suite=suite)

    def last_queued_at(self, suite: str) -> float | None:
        queued_at: float | None = self._value(_LAST_QUEUED, suite=suite)
        return queued_at

    def busy(self, suite: str) -> bool:
        return self._value(_BUSY, suite=suite) is not None

    def best_group(self, suite: str) -> Group | None:
        return self._hold(GROUPS, _BEST, suite=suite)

    def partial_in_a_row(self, suite: str) -> int:
        return int(self._value(_PARTIAL_IN_A_ROW, suite=suite, since=NEVER))

    def open_groups(self) -> int:
        return int(self._value(_OPEN))

    def backlog(self, suite: str) -> Backlog:
        if self._study.kind is StudyKind.DIRECTORY:
            # Its checkpoints may come in another order than they were trained in.
            last = self._first(CHECKPOINTS, _FARTHEST_COMPLETE, suite=suite)
            complete = None if last is None else last.id
            at = {name: -2 if last is None else getattr(last, name) for name in ("branch", "step", "number")}
            ((behind, oldest, newest),) = self._rows(_FARTHER, suite=suite, seen=0, **at)
        else:
            complete = self._value(_NEWEST_COMPLETE, suite=suite)
            ((behind, oldest, newest),) = self._rows(_BEHIND, suite=suite, seen=complete or 0)
        waiting = int(self._value(_WAITING, suite=suite))
        return Backlog(complete=complete, waiting=waiting, behind=behind, oldest=oldest, newest=newest)

    def held_paths(self) -> frozenset[int]:
        return frozenset(seen for (seen,) in self._rows(_HELD_PATHS))

    def events(self, *, after: int = 0) -> Sequence[EvalEvent]:
        return self._all(EVENTS, _EVENTS_AFTER, after=after)
