"""Applies commands."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast, final

from phyla.machine import (
    AddReports,
    AnyCommand,
    EndAttempt,
    EvalCommand,
    InsertAttempt,
    InsertCheckpoint,
    InsertMember,
    InsertTrial,
    MarkDeleting,
    ParentGone,
    RenewAttempts,
    SetCheckpointState,
    SetConfig,
    SetStrategyState,
    SetStudyState,
    SetTally,
    TakeCheckpoint,
    UpdateMember,
    UpdateTrial,
)
from phyla.records import Member, StudyRecord, TrialRecord
from phyla.store.sql.backend import Cursor
from phyla.store.sql.codec import encode
from phyla.store.sql.rows import (
    MEMBER_FIELDS,
    TRIAL_FIELDS,
    attempt_values,
    batch_json,
    changed_member,
    changed_trial,
    checkpoint_values,
    member_values,
    stored_state,
    tally_json,
    text,
    trial_changes,
    trial_values,
)
from phyla.store.sql.statements import Statements


@final
class Held:
    """Rows as this transaction knows them: the study, and what it has locked.

    Nobody else can change them before it ends, so only what differs from them has to be written.
    """

    def __init__(self, study: StudyRecord) -> None:
        self.study = study
        self.members: dict[int, Member] = {}
        self.trials: dict[int, TrialRecord] = {}

    def member(self, member: Member) -> Member:
        """Remember a member that was locked."""
        self.members[member.index] = member
        return member

    def trial(self, trial: TrialRecord) -> TrialRecord:
        """Remember a trial that was locked."""
        self.trials[trial.id] = trial
        return trial


@final
class Writer:
    """Turns commands into statements.

    Args:
        statements: SQL for the database.
        cursor: inside an open transaction.
        held: what the transaction knows; kept up to date.
    """

    def __init__(self, statements: Statements, cursor: Cursor, held: Held) -> None:
        self._sql = statements
        self._cursor = cursor
        self._held = held
        self._id = held.study.id

    def apply(
        self, commands: Sequence[AnyCommand], apply_to_evaluation: Callable[[EvalCommand], None]
    ) -> list[str]:
        """Apply commands in order; return the checkpoints that were marked for deletion.

        Args:
            commands: what to apply.
            apply_to_evaluation: applies what is about the evaluation of the study's checkpoints.
        """
        marked: list[str] = []
        for command in commands:
            way = _WAYS.get(type(command))
            if way is not None:
                way(self, command)
            elif isinstance(command, MarkDeleting):
                if self._mark_deleting(command):
                    marked.append(command.name)
            else:
                apply_to_evaluation(cast("EvalCommand", command))
        return marked

    def _update_member(self, command: UpdateMember) -> None:
        member = command.member
        old = self._held.members.get(member.index)
        fields = MEMBER_FIELDS if old is None else changed_member(old, member)
        if fields:
            values = member_values(member, fields)
            values["k_study"], values["k_member"] = self._id, member.index
            self._cursor.execute(self._sql.update_member(fields), values)
        self._held.members[member.index] = member

    def _insert_member(self, command: InsertMember) -> None:
        member = command.member
        values = {**member_values(member), "study": self._id, "member": member.index}
        self._cursor.execute(self._sql.insert_whole_member, values)
        size = self._held.study.population_size + 1
        self._cursor.execute(self._sql.set_population_size, {"population_size": size, "k_study": self._id})
        self._held.study = replace(self._held.study, population_size=size)
        self._held.members[member.index] = member

    def _set_config(self, command: SetConfig) -> None:
        self._cursor.execute(self._sql.retry_given_up, {"k_study": self._id})
        self._cursor.execute(self._sql.wake_done, {"k_study": self._id})
        self._held.members.clear()
        values = {"config": encode(command.config), "k_study": self._id}
        self._cursor.execute(self._sql.set_config, values)
        self._held.study = replace(self._held.study, config=command.config)

    def _insert_trial(self, command: InsertTrial) -> None:
        self._cursor.execute(self._sql.insert_trial, trial_values(command.trial))
        self._held.trial(command.trial)

    def _update_trial(self, command: UpdateTrial) -> None:
        trial = command.trial
        old = self._held.trials.get(trial.id)
        fields = TRIAL_FIELDS if old is None else changed_trial(old, trial)
        if fields:
            values = trial_changes(trial, fields)
            values["k_trial"] = trial.id
            self._cursor.execute(self._sql.update_trial(fields), values)
        self._held.trials[trial.id] = trial

    def _insert_attempt(self, command: InsertAttempt) -> None:
        self._cursor.execute(self._sql.insert_attempt, attempt_values(command.attempt))

    def _end_attempt(self, command: EndAttempt) -> None:
        values = {
            "state": command.state.value,
            "ended_at": command.ended_at,
            "outcome": None if command.outcome is None else encode(command.outcome),
            "error": text(command.error),
            "timings": None if command.timings is None else encode(command.timings),
            "k_trial": command.trial,
            "k_token": command.token,
        }
        self._cursor.execute(self._sql.end_attempt, values)

    def _renew_attempts(self, command: RenewAttempts) -> None:
        values = {"expires_at": command.expires_at, "k_study": self._id, "k_worker": command.worker}
        self._cursor.execute(self._sql.renew_attempts, values)

    def _add_reports(self, command: AddReports) -> None:
        values = {
            "batch": batch_json(command.reports),
            "k_study": self._id,
            "k_trial": command.trial,
            "k_token": command.token,
        }
        self._cursor.execute(self._sql.insert_reports, values)

    def _set_tally(self, command: SetTally) -> None:
        key = {"k_trial": command.trial, "k_token": command.token}
        self._cursor.execute(self._sql.set_tally, {"tally": tally_json(command.tally), **key})
        for mark in command.marks:
            values = {
                "study": self._id,
                "every": mark.every,
                "step": mark.step,
                "trial": command.trial,
                "average": None if math.isnan(mark.average) else mark.average,
            }
            self._cursor.execute(self._sql.set_mark, values)

    def _insert_checkpoint(self, command: InsertCheckpoint) -> None:
        self._cursor.execute(self._sql.insert_checkpoint, checkpoint_values(command.checkpoint))

    def _take_checkpoint(self, command: TakeCheckpoint) -> None:
        self._cursor.execute(self._sql.take_checkpoint, {"k_study": self._id, "k_name": command.name})
        if self._cursor.rowcount != 1:
            raise ParentGone(command.name)

    def _mark_deleting(self, command: MarkDeleting) -> bool:
        key = {"k_study": self._id, "k_name": command.name, "k_taken": command.taken}
        self._cursor.execute(self._sql.mark_deleting, key)
        return self._cursor.rowcount == 1

    def _set_checkpoint_state(self, command: SetCheckpointState) -> None:
        values = {
            "state": stored_state(command.state),
            "damage": text(command.damage),
            "k_study": self._id,
            "k_name": command.name,
        }
        self._cursor.execute(self._sql.set_checkpoint_state, values)

    def _set_study_state(self, command: SetStudyState) -> None:
        values = {"state": command.state.value, "message": text(command.message), "k_study": self._id}
        self._cursor.execute(self._sql.set_study_state, values)
        self._held.study = replace(self._held.study, state=command.state, message=command.message)

    def _set_strategy_state(self, command: SetStrategyState) -> None:
        study = self._held.study
        state = None if command.state is None else encode(command.state)
        self._cursor.execute(self._sql.set_strategy_state, {"strategy_state": state, "k_study": self._id})
        self._held.study = replace(study, strategy_state=command.state, state_version=study.state_version + 1)


_WAYS: dict[type, Callable[[Writer, Any], None]] = {
    InsertTrial: Writer._insert_trial,
    UpdateTrial: Writer._update_trial,
    InsertAttempt: Writer._insert_attempt,
    EndAttempt: Writer._end_attempt,
    RenewAttempts: Writer._renew_attempts,
    InsertMember: Writer._insert_member,
    SetConfig: Writer._set_config,
    UpdateMember: Writer._update_member,
    InsertCheckpoint: Writer._insert_checkpoint,
    TakeCheckpoint: Writer._take_checkpoint,
    SetCheckpointState: Writer._set_checkpoint_state,
    AddReports: Writer._add_reports,
    SetTally: Writer._set_tally,
    SetStudyState: Writer._set_study_state,
    SetStrategyState: Writer._set_strategy_state,
}
