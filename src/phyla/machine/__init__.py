"""The machine: `(view, event) -> commands`. Pure: it reads a view and changes nothing."""

from phyla.machine.claim import claim
from phyla.machine.commands import (
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
from phyla.machine.events import Accepted, ClaimAnswer, Claimed, Completion, Ended, Failure, Idle
from phyla.machine.finish import complete, fail, lose, release, save_progress, settle
from phyla.machine.retention import Retention, bound, explain, retention
from phyla.machine.rules import Rules
from phyla.machine.view import View

__all__ = [
    "Accepted",
    "AddReports",
    "ClaimAnswer",
    "Claimed",
    "Command",
    "Completion",
    "EndAttempt",
    "Ended",
    "Failure",
    "Idle",
    "InsertAttempt",
    "InsertCheckpoint",
    "InsertTrial",
    "MarkDeleting",
    "ParentGone",
    "PublishAll",
    "RenewAttempts",
    "Retention",
    "Rules",
    "SetCheckpointState",
    "SetStrategyState",
    "SetStudyState",
    "TakeCheckpoint",
    "UpdateMember",
    "UpdateTrial",
    "View",
    "WakeMembers",
    "bound",
    "claim",
    "complete",
    "explain",
    "fail",
    "lose",
    "release",
    "retention",
    "save_progress",
    "settle",
]
