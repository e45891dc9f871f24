"""How the store in memory applies commands."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phyla.machine import (
    AddReports,
    EndAttempt,
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
from phyla.records import CheckpointState, MemberState, TrialState
from phyla.store.memory_tables import NEVER

if TYPE_CHECKING:
    from phyla.store.memory_transaction import MemoryTransaction


def _set_trial(tx: "MemoryTransaction", command: InsertTrial | UpdateTrial) -> None:
    trial = command.trial
    tx.changes.set(tx.tables.trials, trial.id, trial)
    if trial.state is TrialState.COMPLETED and trial.ended_at is not None:
        last = max(trial.ended_at, tx.tables.last_completed.get("at", NEVER))
        tx.changes.set(tx.tables.last_completed, "at", last)


def _insert_attempt(tx: "MemoryTransaction", command: InsertAttempt) -> None:
    attempt = command.attempt
    tx.changes.set(tx.tables.attempts, (attempt.trial, attempt.token), attempt)


def _end_attempt(tx: "MemoryTransaction", command: EndAttempt) -> None:
    key = (command.trial, command.token)
    ended = replace(
        tx.tables.attempts[key],
        state=command.state,
        ended_at=command.ended_at,
        outcome=command.outcome,
        error=command.error,
        timings=command.timings,
    )
    tx.changes.set(tx.tables.attempts, key, ended)


def _renew_attempts(tx: "MemoryTransaction", command: RenewAttempts) -> None:
    for attempt in tx.running(command.worker):
        renewed = replace(attempt, expires_at=command.expires_at)
        tx.changes.set(tx.tables.attempts, (attempt.trial, attempt.token), renewed)


def _update_member(tx: "MemoryTransaction", command: UpdateMember) -> None:
    tx.changes.set(tx.tables.members, command.member.index, command.member)


def _insert_member(tx: "MemoryTransaction", command: InsertMember) -> None:
    tx.changes.set(tx.tables.members, command.member.index, command.member)
    tx.set_study(replace(tx.study(), population_size=tx.size))


def retry_given_up(tx: "MemoryTransaction") -> None:
    """Make members ready that were given up for broken trials, as if none had broken yet."""
    for member in tx.members():
        if member.given_up:
            again = replace(member, state=MemberState.READY, replacements=0)
            tx.changes.set(tx.tables.members, member.index, again)


def _set_config(tx: "MemoryTransaction", command: SetConfig) -> None:
    retry_given_up(tx)
    for member in tx.members():
        if member.state is MemberState.DONE and not member.retired:
            tx.changes.set(tx.tables.members, member.index, replace(member, state=MemberState.READY))
    tx.set_study(replace(tx.study(), config=command.config))


def _insert_checkpoint(tx: "MemoryTransaction", command: InsertCheckpoint) -> None:
    tx.changes.set(tx.tables.checkpoints, command.checkpoint.name, command.checkpoint)


def _take_checkpoint(tx: "MemoryTransaction", command: TakeCheckpoint) -> None:
    row = tx.tables.checkpoints.get(command.name)
    if row is None or row.state is not CheckpointState.LIVE:
        raise ParentGone(command.name)
    tx.changes.set(tx.tables.checkpoints, row.name, replace(row, taken=row.taken + 1))


def _mark_deleting(tx: "MemoryTransaction", command: MarkDeleting) -> str | None:
    row = tx.tables.checkpoints.get(command.name)
    if row is None or row.state is not CheckpointState.LIVE or row.taken != command.taken:
        return None
    tx.changes.set(tx.tables.checkpoints, row.name, replace(row, state=CheckpointState.DELETING))
    return row.name


def _set_checkpoint_state(tx: "MemoryTransaction", command: SetCheckpointState) -> None:
    row = tx.tables.checkpoints[command.name]
    tx.changes.set(tx.tables.checkpoints, row.name, replace(row, state=command.state, damage=command.damage))


def _add_reports(tx: "MemoryTransaction", command: AddReports) -> None:
    key = (command.trial, command.token)
    tx.changes.set(tx.tables.reports, key, [*tx.tables.reports.get(key, ()), *command.reports])


def _set_tally(tx: "MemoryTransaction", command: SetTally) -> None:
    key = (command.trial, command.token)
    tx.changes.set(tx.tables.attempts, key, replace(tx.tables.attempts[key], tally=command.tally))
    for mark in command.marks:
        tx.changes.set(tx.tables.marks, (mark.every, mark.step, command.trial), mark.average)


def _set_study_state(tx: "MemoryTransaction", command: SetStudyState) -> None:
    tx.set_study(replace(tx.study(), state=command.state, message=command.message))


def _set_strategy_state(tx: "MemoryTransaction", command: SetStrategyState) -> None:
    study = tx.study()
    tx.set_study(replace(study, strategy_state=command.state, state_version=study.state_version + 1))


WAYS: dict[type, Callable[["MemoryTransaction", Any], str | None]] = {
    InsertTrial: _set_trial,
    UpdateTrial: _set_trial,
    InsertAttempt: _insert_attempt,
    EndAttempt: _end_attempt,
    RenewAttempts: _renew_attempts,
    UpdateMember: _update_member,
    InsertMember: _insert_member,
    SetConfig: _set_config,
    InsertCheckpoint: _insert_checkpoint,
    TakeCheckpoint: _take_checkpoint,
    MarkDeleting: _mark_deleting,
    SetCheckpointState: _set_checkpoint_state,
    AddReports: _add_reports,
    SetTally: _set_tally,
    SetStudyState: _set_study_state,
    SetStrategyState: _set_strategy_state,
}
"""How each command is applied; what is returned is the checkpoint that it marked for deletion, if it did."""
