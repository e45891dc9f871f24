"""Applies commands."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from phyla.machine import (
    AddReports,
    Command,
    EndAttempt,
    InsertAttempt,
    InsertCheckpoint,
    InsertTrial,
    MarkDeleting,
    ParentGone,
    PublishAll,
    RenewAttempts,
    SetCheckpointState,
    SetStrategyState,
    SetStudyState,
    TakeCheckpoint,
    UpdateMember,
    UpdateTrial,
    WakeMembers,
)
from phyla.records import Member, StudyRecord, TrialRecord
from phyla.store.sql.backend import Cursor
from phyla.store.sql.codec import encode
from phyla.store.sql.rows import (
    MEMBER_FIELDS,
    TRIAL_FIELDS,
    Values,
    attempt_values,
    batch_json,
    changed,
    checkpoint_values,
    member_values,
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

    def apply(self, commands: Sequence[Command]) -> list[str]:
        """Apply commands in order; return the checkpoints that were marked for deletion."""
        marked: list[str] = []
        for command in commands:
            match command:
                case UpdateMember(member):
                    self._update_member(member)
                case InsertTrial(trial):
                    self._cursor.execute(self._sql.insert_trial, trial_values(trial))
                    self._held.trial(trial)
                case UpdateTrial(trial):
                    self._update_trial(trial)
                case MarkDeleting(name, taken):
                    if self._mark_deleting(name, taken):
                        marked.append(name)
                case SetStudyState() | SetStrategyState():
                    self._apply_to_study(command)
                case WakeMembers() | PublishAll():
                    self._apply_to_members(command)
                case InsertCheckpoint() | TakeCheckpoint() | SetCheckpointState():
                    self._apply_to_checkpoint(command)
                case _:
                    self._apply_to_attempt(command)
        return marked

    def _update_member(self, member: Member) -> None:
        old = self._held.members.get(member.index)
        fields = MEMBER_FIELDS if old is None else changed(old, member, MEMBER_FIELDS)
        if fields:
            values = member_values(member, fields)
            values["k_study"], values["k_member"] = self._id, member.index
            self._cursor.execute(self._sql.update_member(fields), values)
        self._held.members[member.index] = member

    def _update_trial(self, trial: TrialRecord) -> None:
        old = self._held.trials.get(trial.id)
        fields = TRIAL_FIELDS if old is None else changed(old, trial, TRIAL_FIELDS)
        if fields:
            values = trial_changes(trial, fields)
            values["k_trial"] = trial.id
            self._cursor.execute(self._sql.update_trial(fields), values)
        self._held.trials[trial.id] = trial

    def _mark_deleting(self, name: str, taken: int) -> bool:
        key = {"k_study": self._id, "k_name": name, "k_taken": taken}
        self._cursor.execute(self._sql.mark_deleting, key)
        return self._cursor.rowcount == 1

    def _apply_to_study(self, command: SetStudyState | SetStrategyState) -> None:
        study = self._held.study
        if isinstance(command, SetStudyState):
            values = {"state": command.state.value, "message": text(command.message), "k_study": self._id}
            self._cursor.execute(self._sql.set_study_state, values)
            self._held.study = replace(study, state=command.state, message=command.message)
        else:
            state = None if command.state is None else encode(command.state)
            self._cursor.execute(self._sql.set_strategy_state, {"strategy_state": state, "k_study": self._id})
            self._held.study = replace(study, strategy_state=command.state, state_version=study.state_version + 1)

    def _apply_to_members(self, command: WakeMembers | PublishAll) -> None:
        key: Values = {"k_study": self._id}
        if isinstance(command, PublishAll):
            self._cursor.execute(self._sql.publish_all, key)
        elif command.now is not None:
            self._cursor.execute(self._sql.wake_by_time, {**key, "k_now": command.now})
        else:
            if command.generation is not None:
                reached = {**key, "k_generation": command.generation}
                self._cursor.execute(self._sql.wake_by_generation, reached)
            if command.completed:
                self._cursor.execute(self._sql.wake_by_completion, key)
        self._held.members.clear()

    def _apply_to_checkpoint(self, command: InsertCheckpoint | TakeCheckpoint | SetCheckpointState) -> None:
        match command:
            case InsertCheckpoint(checkpoint):
                self._cursor.execute(self._sql.insert_checkpoint, checkpoint_values(checkpoint))
            case TakeCheckpoint(name):
                self._cursor.execute(self._sql.take_checkpoint, {"k_study": self._id, "k_name": name})
                if self._cursor.rowcount != 1:
                    raise ParentGone(name)
            case SetCheckpointState(name, state):
                values = {"state": state.value, "k_study": self._id, "k_name": name}
                self._cursor.execute(self._sql.set_checkpoint_state, values)

    def _apply_to_attempt(self, command: InsertAttempt | EndAttempt | RenewAttempts | AddReports) -> None:
        match command:
            case InsertAttempt(attempt):
                self._cursor.execute(self._sql.insert_attempt, attempt_values(attempt))
            case EndAttempt():
                values = {
                    "state": command.state.value,
                    "ended_at": command.ended_at,
                    "outcome": None if command.outcome is None else encode(command.outcome),
                    "error": text(command.error),
                    "k_trial": command.trial,
                    "k_token": command.token,
                }
                self._cursor.execute(self._sql.end_attempt, values)
            case RenewAttempts(worker, expires_at):
                values = {"expires_at": expires_at, "k_study": self._id, "k_worker": worker}
                self._cursor.execute(self._sql.renew_attempts, values)
            case AddReports(trial, token, reports):
                values = {
                    "batch": batch_json(reports),
                    "k_study": self._id,
                    "k_trial": trial,
                    "k_token": token,
                }
                self._cursor.execute(self._sql.insert_reports, values)
