"""How commands about a study are applied."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert  # its ON CONFLICT is SQLite's, too

from phyla import machine
from phyla.machine import AnyCommand, ParentGone
from phyla.records import Mark, StudyRecord
from phyla.store.sql.backend import Session
from phyla.store.sql.codec import encode
from phyla.store.sql.rows import ATTEMPTS, CHECKPOINTS, MEMBERS, STUDIES, TRIALS, number
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

    def apply(self, commands: Sequence[AnyCommand]) -> list[str]:
        """Apply commands in order; return the checkpoints that were marked for deletion."""
        if any(isinstance(command, _MAKES_WORK) for command in commands):
            self._session.backend.announce(self._session)
        return [command.name for command in commands if self._apply_one(command)]  # type: ignore[union-attr]  # a mark

    def _apply_one(self, command: AnyCommand) -> bool:
        """Apply a command; return whether it marked a checkpoint for deletion."""
        session = self._session
        match command:
            case machine.InsertTrial(trial):
                session.insert(TRIALS, session.hold(TRIALS, trial))
            case machine.UpdateTrial(trial):
                session.update(TRIALS, trial)
            case machine.InsertAttempt(attempt):
                session.insert(ATTEMPTS, attempt)
            case machine.EndAttempt():
                names = ("state", "ended_at", "outcome", "error", "timings")
                self._set_attempt(command, **{name: getattr(command, name) for name in names})
            case machine.RenewAttempts(worker, expires_at):
                self._run(_RENEW, worker=worker, until=expires_at)
            case machine.UpdateMember(member):
                session.update(MEMBERS, member)
            case machine.InsertMember(member):
                session.insert(MEMBERS, session.hold(MEMBERS, member))
                self._change_study(population_size=self._study.population_size + 1)
            case machine.SetConfig(config):
                self._run(RETRY_GIVEN_UP)
                self._run(_WAKE_DONE)
                session.forget(MEMBERS)
                self._change_study(config=config)
            case machine.InsertCheckpoint(checkpoint):
                # A request that is sent again names the same checkpoint again.
                session.insert(CHECKPOINTS, checkpoint, conflict="replace")
            case machine.TakeCheckpoint(name):
                if self._run(_TAKE, name=name).rowcount != 1:
                    raise ParentGone(name)
            case machine.MarkDeleting(name, taken):
                return bool(self._run(_MARK_DELETING, name=name, times=taken).rowcount == 1)
            case machine.SetCheckpointState(name, state, damage):
                changes = CHECKPOINTS.stored({"state": state, "damage": damage})
                session.set(CHECKPOINTS, (self._study.id, name), changes)
            case machine.AddReports(trial_id, token, reported):
                batch = encode([[report.step, report.metrics] for report in reported])
                self._run(_ADD_REPORTS, trial=trial_id, token=token, reported=batch)
            case machine.SetTally():
                self._set_attempt(command, tally=command.tally)
                for mark in command.marks:
                    self._set_mark(command.trial, mark)
            case machine.SetStudyState(study_state, message):
                self._change_study(state=study_state, message=message)
            case machine.SetStrategyState(committed):
                self._run(_SET_STRATEGY_STATE, committed=None if committed is None else encode(committed))
                version = self._study.state_version + 1
                self._study = replace(self._study, strategy_state=committed, state_version=version)
            case _:
                evaluation = self.evaluation()
                if evaluation is None:
                    raise TypeError(f"{command!r} needs a run, and study {self._study.name!r} has none")
                evaluation.apply_one(command)
        return False

    @abstractmethod
    def evaluation(self) -> "SqlEvaluation | None":
        """Return the evaluation of this study's checkpoints, in the same transaction."""

    def _change_study(self, **changes: Any) -> None:
        """Write fields of the study."""
        self._study = replace(self._study, **changes)
        self._session.set(STUDIES, (self._study.id,), STUDIES.stored(changes))

    def _set_attempt(self, of: machine.EndAttempt | machine.SetTally, **changes: Any) -> None:
        self._session.set(ATTEMPTS, (of.trial, of.token), ATTEMPTS.stored(changes))

    def _set_mark(self, trial: int, mark: Mark) -> None:
        values = {
            "mark_study": self._study.id,
            "mark_every": mark.every,
            "mark_step": mark.step,
            "mark_trial": trial,
            "mark_average": number(mark.average),
        }
        self._session.run(_SET_MARK, values)
