"""How commands about a study are applied."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert  # its ON CONFLICT is SQLite's, too

from phyla import machine
from phyla.machine import AnyCommand, EvalCommand, ParentGone
from phyla.records import JsonObject, StudyRecord
from phyla.store.sql.backend import Session
from phyla.store.sql.codec import encode
from phyla.store.sql.rows import ATTEMPTS, CHECKPOINTS, MEMBERS, STUDIES, TRIALS
from phyla.store.sql.scope import Scope, given
from phyla.store.sql.tables import LIVE, RUNNING, attempts, checkpoints, marks, members, reports, studies

if TYPE_CHECKING:
    from phyla.store.sql.evaluation import SqlEvaluation

R = TypeVar("R")

STUDY, TRIAL, TOKEN, NAME = given("study"), given("trial"), given("token"), given("name")

_MAKES_WORK = (machine.EndAttempt, machine.SetStudyState, machine.SetConfig)
"""What workers that have nothing to do wait for."""

_SET_STRATEGY_STATE = (
    studies.update()
    .where(studies.c.id == STUDY)
    .values(strategy_state=sa.bindparam("committed", type_=sa.Text), state_version=studies.c.state_version + 1)
)

_m = members.c
_DONE = sa.and_(_m.study == STUDY, _m.state == "done", _m.retired.is_(sa.false()))
_WAKE_DONE = members.update().where(_DONE).values(state="ready")
RETRY_GIVEN_UP = (
    members.update()
    .where(_DONE, _m.broken_trial.is_not(None), _m.stops == 0)
    .values(state="ready", replacements=0)
)

_a = attempts.c
_HELD = sa.select(_a.trial, _a.token).where(_a.study == STUDY, RUNNING, _a.worker == given("worker"))
_RENEW = (
    attempts.update()
    .where(sa.tuple_(_a.trial, _a.token).in_(_HELD.with_for_update(skip_locked=True)))
    .values(expires_at=sa.bindparam("until", type_=sa.Double))
)

_r = reports.c
_NEXT = (
    sa.select(sa.func.coalesce(sa.func.max(_r.seq), 0) + 1)
    .where(_r.study == STUDY, _r.trial == TRIAL, _r.token == TOKEN)
    .scalar_subquery()
)
_ADD_REPORTS = reports.insert().from_select(
    ["study", "trial", "token", "seq", "batch"],
    sa.select(STUDY, TRIAL, TOKEN, _NEXT, sa.bindparam("reported", type_=sa.Text)),
)
_mark = insert(marks).values({name: sa.bindparam(f"mark_{name}", type_=c.type) for name, c in marks.c.items()})
_SET_MARK = _mark.on_conflict_do_update(
    index_elements=list(marks.primary_key.columns.keys()), set_={"average": _mark.excluded.average}
)

_c = checkpoints.c
_ONE = sa.and_(_c.study == STUDY, _c.name == NAME)
_TAKE = checkpoints.update().where(_ONE, LIVE).values(taken=_c.taken + 1)
_NOT_TAKEN = sa.select(_c.name).where(_ONE, LIVE, _c.taken == given("times")).with_for_update(skip_locked=True)
# A row that somebody has locked is being taken; to wait for it could be a deadlock.
_MARK_DELETING = (
    checkpoints.update()
    .where(_c.study == STUDY, _c.name.in_(_NOT_TAKEN.scalar_subquery()))
    .values(state="deleting")
)


class Applying(Scope):
    """A transaction on a study that commands are applied to.

    Args:
        session: inside an open transaction.
        study: the study's row, kept up to date.
        now: the database's time.
    """

    def __init__(self, session: Session, study: StudyRecord, now: float) -> None:
        super().__init__(session, now, study=study.id)
        self._study = study

    def _known(self, found: R | None, kind: str, key: int) -> R:
        if found is None:
            raise KeyError(f"study {self._study.id} has no {kind} {key}")
        return found

    def _applied(
        self, commands: Sequence[AnyCommand], evaluation: "Callable[[], SqlEvaluation | None]"
    ) -> list[str]:
        """Apply commands in order; return the checkpoints that were marked for deletion."""
        marked: list[str] = []
        if any(isinstance(command, _MAKES_WORK) for command in commands):
            self._session.backend.announce(self._session)
        for command in commands:
            way = _WAYS.get(type(command))
            if way is not None:
                marked += way(self, command) or ()
                continue
            found = evaluation()
            if found is None:
                raise TypeError(f"{command!r} needs a run, and study {self._study.name!r} has none")
            found.apply_one(cast("EvalCommand", command))
        return marked

    def _change_study(self, **changes: Any) -> None:
        """Write fields of the study."""
        self._study = replace(self._study, **changes)
        self._session.set(STUDIES, (self._study.id,), STUDIES.stored(changes))

    def _insert_trial(self, command: machine.InsertTrial) -> None:
        self._session.insert(TRIALS, self._session.hold(TRIALS, command.trial))

    def _update_trial(self, command: machine.UpdateTrial) -> None:
        self._session.update(TRIALS, command.trial)

    def _insert_attempt(self, command: machine.InsertAttempt) -> None:
        self._session.insert(ATTEMPTS, command.attempt)

    def _end_attempt(self, command: machine.EndAttempt) -> None:
        ended = {name: getattr(command, name) for name in ("state", "ended_at", "outcome", "error", "timings")}
        self._session.set(ATTEMPTS, (command.trial, command.token), ATTEMPTS.stored(ended))

    def _renew_attempts(self, command: machine.RenewAttempts) -> None:
        self._run(_RENEW, worker=command.worker, until=command.expires_at)

    def _update_member(self, command: machine.UpdateMember) -> None:
        self._session.update(MEMBERS, command.member)

    def _insert_member(self, command: machine.InsertMember) -> None:
        self._session.insert(MEMBERS, self._session.hold(MEMBERS, command.member))
        self._change_study(population_size=self._study.population_size + 1)

    def _set_config(self, command: machine.SetConfig) -> None:
        self._run(RETRY_GIVEN_UP)
        self._run(_WAKE_DONE)
        self._session.forget(MEMBERS)
        self._change_study(config=command.config)

    def _insert_checkpoint(self, command: machine.InsertCheckpoint) -> None:
        # A request that is sent again names the same checkpoint again.
        self._session.insert(CHECKPOINTS, command.checkpoint, conflict="replace")

    def _take_checkpoint(self, command: machine.TakeCheckpoint) -> None:
        if self._run(_TAKE, name=command.name).rowcount != 1:
            raise ParentGone(command.name)

    def _mark_deleting(self, command: machine.MarkDeleting) -> list[str]:
        marked = self._run(_MARK_DELETING, name=command.name, times=command.taken).rowcount == 1
        return [command.name] if marked else []

    def _set_checkpoint_state(self, command: machine.SetCheckpointState) -> None:
        changes = CHECKPOINTS.stored({"state": command.state, "damage": command.damage})
        self._session.set(CHECKPOINTS, (self._study.id, command.name), changes)

    def _add_reports(self, command: machine.AddReports) -> None:
        batch: JsonObject | Any = [[report.step, report.metrics] for report in command.reports]
        self._run(_ADD_REPORTS, trial=command.trial, token=command.token, reported=encode(batch))

    def _set_tally(self, command: machine.SetTally) -> None:
        tally = ATTEMPTS.stored({"tally": command.tally})
        self._session.set(ATTEMPTS, (command.trial, command.token), tally)
        for mark in command.marks:
            values = {
                "mark_study": self._study.id,
                "mark_every": mark.every,
                "mark_step": mark.step,
                "mark_trial": command.trial,
                "mark_average": None if math.isnan(mark.average) else mark.average,
            }
            self._session.run(_SET_MARK, values)

    def _set_study_state(self, command: machine.SetStudyState) -> None:
        self._change_study(state=command.state, message=command.message)

    def _set_strategy_state(self, command: machine.SetStrategyState) -> None:
        state = None if command.state is None else encode(command.state)
        self._run(_SET_STRATEGY_STATE, committed=state)
        version = self._study.state_version + 1
        self._study = replace(self._study, strategy_state=command.state, state_version=version)


_WAYS: dict[type, Callable[[Applying, Any], list[str] | None]] = {
    machine.InsertTrial: Applying._insert_trial,
    machine.UpdateTrial: Applying._update_trial,
    machine.InsertAttempt: Applying._insert_attempt,
    machine.EndAttempt: Applying._end_attempt,
    machine.RenewAttempts: Applying._renew_attempts,
    machine.UpdateMember: Applying._update_member,
    machine.InsertMember: Applying._insert_member,
    machine.SetConfig: Applying._set_config,
    machine.InsertCheckpoint: Applying._insert_checkpoint,
    machine.TakeCheckpoint: Applying._take_checkpoint,
    machine.MarkDeleting: Applying._mark_deleting,
    machine.SetCheckpointState: Applying._set_checkpoint_state,
    machine.AddReports: Applying._add_reports,
    machine.SetTally: Applying._set_tally,
    machine.SetStudyState: Applying._set_study_state,
    machine.SetStrategyState: Applying._set_strategy_state,
}
