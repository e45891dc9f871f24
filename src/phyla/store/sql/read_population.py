"""Reads a population: members, trials, reports, checkpoints; each method beside its statement.

Statements repeat the condition of a partial index word for word, because SQLite proves nothing else; therefore
some conditions are text from `phyla.store.sql.tables`.
"""

import heapq
from collections.abc import Mapping, Sequence
from operator import itemgetter

import sqlalchemy as sa

from phyla.records import (
    Checkpoint,
    CheckpointState,
    Cohort,
    Member,
    MemberState,
    Report,
    RunStart,
    Score,
    TrialRecord,
    rank,
    storable,
)
from phyla.store.sql.read_jobs import Queue
from phyla.store.sql.rows import CHECKPOINTS, MEMBERS, STARTS, TRIALS, Row, decode
from phyla.store.sql.scope import NEVER, NO_LIMIT, parameter
from phyla.store.sql.tables import (
    DAMAGED,
    DELETING,
    ENDED_TRIAL,
    FINAL,
    KEPT,
    LIVE,
    RESULT,
    SCORED,
    UNFINISHED_TRIAL,
    checkpoints,
    eval_groups,
    jobs,
    marks,
    members,
    reports,
    starts,
    studies,
)
from phyla.store.sql.tables import (
    TRIAL as TRIAL_ROW,
)

STUDY, TRIAL, TOKEN, MEMBER = parameter("study"), parameter("trial"), parameter("token"), parameter("member")
LIMIT, NOW, SINCE, WORKER = parameter("limit"), parameter("now"), parameter("since"), parameter("worker")

_m = members.c
_MINE = _m.study == STUDY
_MEMBER = sa.select(members).where(_MINE, _m.index == MEMBER)
_LOCKED_MEMBER = _MEMBER.with_for_update()
_READY_MEMBER = _MEMBER.with_for_update(skip_locked=True)
_MEMBERS = sa.select(members).where(_MINE).order_by(_m.index)
_HEADS = sa.select(_m.index, _m.head, _m.retired).where(_MINE)
_GIVEN_UP_MEMBER = sa.and_(_m.state == "done", sa.not_(_m.retired), _m.broken_trial.is_not(None), _m.stops == 0)
_ALIKE = (
    *(_m.state, _m.progress, _m.generation, _m.retired, _GIVEN_UP_MEMBER),
    *(_m.joined_steps, _m.joined_generation),
)
_COHORTS = sa.select(*_ALIKE, sa.func.count()).where(_MINE).group_by(*_ALIKE)
_TRAINED = sa.select(sa.func.sum(_m.generation - _m.joined_generation)).where(_MINE)

_t = jobs.c
_OF_STUDY = _t.study == STUDY
_TRAIN = _t.kind == "train"
_TRIALS = TRIALS.select.where(_OF_STUDY, TRIAL_ROW, _t.id > parameter("after")).order_by(_t.id).limit(LIMIT)
_NEWEST_TRIALS = TRIALS.select.where(_OF_STUDY, TRIAL_ROW).order_by(_t.id.desc()).limit(LIMIT)
_CHILDREN = TRIALS.select.where(_OF_STUDY, TRIAL_ROW, _t.id > TRIAL, _t.parent == TRIAL).order_by(_t.id)
_TRIALS_OF_MEMBER = _TRIALS.where(_t.member == MEMBER)
# In no order: SQLite would else walk all trials by id instead of these by their own index.
_UNFINISHED = TRIALS.select.where(_OF_STUDY, UNFINISHED_TRIAL)
_CHECKPOINTS_IN_USE = sa.select(_t.parent_checkpoint, _t.progress).where(_OF_STUDY, UNFINISHED_TRIAL)
_GIVEN_UP = _t.state.in_(["failed", "cancelled"])
_COUNT_UNFINISHED = (
    sa.select(_t.state, sa.func.count()).where(_OF_STUDY, UNFINISHED_TRIAL, _TRAIN).group_by(_t.state)
)
_COUNT_GIVEN_UP = (
    sa.select(_t.state, sa.func.count()).where(_OF_STUDY, ENDED_TRIAL, _GIVEN_UP, _TRAIN).group_by(_t.state)
)
_LAST = (
    sa.select(sa.func.max(_t.ended_at)).where(_OF_STUDY, ENDED_TRIAL, _t.state == "completed").scalar_subquery()
)
_BROKEN_IN_A_ROW = (
    sa.select(sa.func.count())
    .select_from(jobs)
    .where(_OF_STUDY, ENDED_TRIAL, _t.state == "failed", _t.ended_at > sa.func.coalesce(_LAST, SINCE))
    .where(_t.ended_at > SINCE)
)
_LAST_COMPLETED = (
    TRIALS.select.where(_OF_STUDY, ENDED_TRIAL, _t.state == "completed", _TRAIN)
    .order_by(_t.ended_at.desc(), _t.id.desc())
    .limit(LIMIT)
)
_STOPPED = sa.and_(_t.state == "cancelled", _t.stop_reason.is_not(None))
# The states by name, so that their index is used.
_ABANDONED = TRIALS.select.where(_OF_STUDY, ENDED_TRIAL, _GIVEN_UP, _TRAIN, sa.or_(_t.state == "failed", _STOPPED))
_CAME_TO = sa.and_(_t.state == "completed", _t.age + _t.reached_step - _t.start_step >= parameter("age"))
_ENDED = TRIALS.select.where(
    _OF_STUDY,
    ENDED_TRIAL,
    _t.state.in_(["completed", "failed", "cancelled"]),
    _TRAIN,
    sa.or_(_CAME_TO, _t.state == "failed", _STOPPED),
)
_RESULTS = (
    sa.select(_t.member, _t.order)
    .where(_OF_STUDY, _t.generation == parameter("generation"), SCORED)
    .order_by(_t.id)
)
# Sorted later: SQLite would need a table of its own for it.
_SCORES = sa.select(_t.id, _t.parent, _t.generation, _t.order).where(_OF_STUDY, RESULT)
_FINAL_TRIALS = TRIALS.select.where(_OF_STUDY, FINAL).order_by(_t.id)
_BEST = (
    TRIALS.select.join(checkpoints, sa.and_(checkpoints.c.study == _t.study, checkpoints.c.name == _t.checkpoint))
    .where(_OF_STUDY, _t.state == "completed", _TRAIN, _t.order > SINCE, checkpoints.c.state == "live")
    .order_by(_t.order.desc(), _t.id)
    .limit(LIMIT)
)

_r = reports.c
_BATCHES = sa.select(_r.batch).where(_r.study == STUDY, _r.trial == TRIAL)
_NEWEST_TOKEN = sa.select(sa.func.max(_r.token)).where(_r.study == STUDY, _r.trial == TRIAL).scalar_subquery()
_REPORTS = _BATCHES.where(_r.token == TOKEN).order_by(_r.seq)
_NEWEST_REPORTS = _BATCHES.where(_r.token == _NEWEST_TOKEN).order_by(_r.seq)
_REPORTED = sa.select(sa.func.coalesce(sa.func.max(_r.seq), 0)).where(
    _r.study == STUDY, _r.trial == TRIAL, _r.token == TOKEN
)
_LAST_REPORTS = _BATCHES.where(_r.token == TOKEN).order_by(_r.seq.desc()).limit(LIMIT)
_AVERAGES = (
    sa.select(marks.c.average)
    .where(marks.c.study == STUDY, marks.c.every == parameter("every"), marks.c.step == parameter("step"))
    .where(marks.c.trial != TRIAL)
    .order_by(marks.c.trial.desc())
    .limit(LIMIT)
)

_STARTS = sa.select(starts).where(starts.c.study == STUDY).order_by(starts.c.id)

_c = checkpoints.c
_CHECKPOINTS = sa.select(checkpoints).where(_c.study == STUDY, KEPT).order_by(_c.created_at, _c.trial, _c.name)
_CHECKPOINT = sa.select(checkpoints).where(_c.study == STUDY, _c.name == parameter("name"), KEPT)
_LIVE, _DELETING, _DAMAGED = (_CHECKPOINTS.where(state) for state in (LIVE, DELETING, DAMAGED))
_IN_STATE = {
    CheckpointState.LIVE: _LIVE,
    CheckpointState.DELETING: _DELETING,
    CheckpointState.DAMAGED: _DAMAGED,
}

_g = eval_groups.c
# Other studies may watch this one.
_EVALUATED = (
    sa.select(checkpoints.c.name)
    .select_from(studies)
    .join(eval_groups, _g.study == studies.c.id)
    .join(checkpoints, checkpoints.c.id == _g.seen)
    .where(sa.or_(studies.c.id == STUDY, studies.c.source == STUDY))
)
_HELD_BY_EVALUATION = sa.union_all(
    _EVALUATED.where(sa.text("eval_groups.best")),
    _EVALUATED.where(_g.state == "queued", sa.text("eval_groups.started")),
    _EVALUATED.where(_g.state == "queued", _g.guaranteed.is_not(None)),
)


class Population(Queue):
    """Reads the members of a study, their trials and checkpoints."""

    def member(self, index: int) -> Member:
        return self._existing(self._member(_MEMBER, index), "member", index)

    def locked_member(self, index: int) -> Member:
        member = self._session.hold(MEMBERS, self._member(_LOCKED_MEMBER, index))
        return self._existing(member, "member", index)

    def members(self) -> Sequence[Member]:
        member = self._session.backend.member
        return [member(row) for row in self._rows(_MEMBERS)]

    def foremost(self, count: int) -> Sequence[Member]:
        def place(row: Row) -> tuple[bool, float, int]:
            index, head, retired = row
            return rank(index, None if head is None else decode(head)["order"], retired=retired)

        heads = self._rows(_HEADS) if count > 0 else []
        return [self.member(index) for index, *_ in heapq.nsmallest(count, heads, key=place)]

    def cohorts(self) -> Sequence[Cohort]:
        rows = [tuple(row) for row in self._rows(_COHORTS)]
        return [
            Cohort(
                state=MemberState(state),
                progress=progress,
                generation=generation,
                retired=bool(retired),
                given_up=bool(given_up),
                joined_steps=steps,
                joined_generation=joined,
                size=size,
            )
            for state, progress, generation, retired, given_up, steps, joined, size in sorted(rows)
        ]

    def locked_ready(self, seen: Member) -> Member | None:
        if not self._session.backend.one_writer and self._member(_READY_MEMBER, seen.index) != seen:
            return None
        return self._session.hold(MEMBERS, seen)

    def _member(self, statement: sa.Executable, index: int) -> Member | None:
        row = self._session.row(statement, {**self._own, "member": index})
        return None if row is None else self._session.backend.member(row)

    # Trials

    def trials(
        self, *, member: int | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[TrialRecord]:
        limit = NO_LIMIT if limit is None else limit
        if member is None:
            return self._all(TRIALS, _TRIALS, after=after, limit=limit)
        return self._all(TRIALS, _TRIALS_OF_MEMBER, after=after, member=member, limit=limit)

    def newest_trials(self, count: int) -> Sequence[TrialRecord]:
        return self._all(TRIALS, _NEWEST_TRIALS, limit=count)

    def children(self, trial: int) -> Sequence[TrialRecord]:
        return self._all(TRIALS, _CHILDREN, trial=trial)

    def counts(self) -> dict[str, int]:
        counts = {row[0]: row[1] for row in self._rows(_COUNT_UNFINISHED) + self._rows(_COUNT_GIVEN_UP)}
        completed = self._value(_TRAINED)
        return {**counts, "completed": int(completed)} if completed else counts

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        return self._all(TRIALS, _LAST_COMPLETED, limit=count)

    def ended(self, age: int | None) -> Sequence[TrialRecord]:
        trials = self._all(TRIALS, _ABANDONED) if age is None else self._all(TRIALS, _ENDED, age=age)
        return sorted(trials, key=lambda trial: (trial.ended_at or 0.0, trial.id))

    def unfinished(self) -> Sequence[TrialRecord]:
        return sorted(self._all(TRIALS, _UNFINISHED), key=lambda trial: trial.id)

    def results(self, generation: int) -> Mapping[int, float]:
        return {row[0]: row[1] for row in self._rows(_RESULTS, generation=generation)}

    def best_trials(self, count: int) -> Sequence[TrialRecord]:
        return self._all(TRIALS, _BEST, since=NEVER, limit=count)

    def final_trials(self) -> Sequence[TrialRecord]:
        return self._all(TRIALS, _FINAL_TRIALS)

    def scores(self) -> Sequence[Score]:
        nan = float("nan")
        rows = sorted(self._rows(_SCORES), key=itemgetter(0))
        return [Score(trial, parent, born, nan if order is None else order) for trial, parent, born, order in rows]

    def broken_in_a_row(self) -> int:
        resumed = self._study.resumed_at
        return int(self._value(_BROKEN_IN_A_ROW, since=NEVER if resumed is None else resumed))

    def starts(self) -> Sequence[RunStart]:
        return self._all(STARTS, _STARTS)

    # What was reported

    def reports(self, trial: int, token: int | None = None) -> Sequence[Report]:
        if token is None:
            batches = self._rows(_NEWEST_REPORTS, trial=trial)
        else:
            batches = self._rows(_REPORTS, trial=trial, token=token)
        return [report for (batch,) in batches for report in _reports(batch)]

    def last_reports(self, trial_id: int, token: int, count: int) -> Sequence[Report]:
        if count < 1:
            return []
        # A batch holds at least one report.
        batches = self._rows(_LAST_REPORTS, trial=trial_id, token=token, limit=count)
        return [report for (batch,) in reversed(batches) for report in _reports(batch)][-count:]

    def reported(self, trial_id: int, token: int) -> int:
        return int(self._value(_REPORTED, trial=trial_id, token=token))

    def averages(self, every: int, step: int, *, besides: int, limit: int) -> Sequence[float]:
        rows = self._rows(_AVERAGES, every=every, step=step, trial=besides, limit=limit)
        return [float("nan") if average is None else average for (average,) in rows]

    # Checkpoints

    def checkpoint(self, name: str) -> Checkpoint | None:
        return self._first(CHECKPOINTS, _CHECKPOINT, name=storable(name))

    def checkpoints(self, state: CheckpointState | None = None) -> Sequence[Checkpoint]:
        return self._all(CHECKPOINTS, _CHECKPOINTS if state is None else _IN_STATE[state])

    def held_checkpoints(self) -> frozenset[str]:
        rows = self._rows(_CHECKPOINTS_IN_USE) + self._rows(_HELD_BY_EVALUATION)
        held = {name for row in rows for name in row if name is not None}
        for member in self.members():
            held |= {state.checkpoint for state in (member.head, member.best, *member.states) if state is not None}
        return frozenset(held)


def _reports(batch: str) -> list[Report]:
    return [Report(step, metrics) for step, metrics in decode(batch)]
