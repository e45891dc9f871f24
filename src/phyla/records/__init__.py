"""The facts phyla remembers, as frozen records.

Times are seconds since the epoch (UTC) by the database's clock. Steps are counts of training steps;
`start_step`, `end_step` and `reached_step` are the age of the weights, `spent_steps` is the member's
own clock. Hyperparameters are flat mappings with slashed names.
"""

from phyla.records.attempt import Attempt, AttemptState, Report
from phyla.records.checkpoint import Checkpoint, CheckpointKind, CheckpointState
from phyla.records.evaluation import (
    EvalAttempt,
    EvalEvent,
    EvalResult,
    EvalTaskKind,
    EvalTaskRecord,
    Group,
    GroupState,
    Priority,
    RunKind,
    RunRecord,
    RunState,
    Seen,
    SeenState,
    WorkKind,
)
from phyla.records.json import Json, JsonObject, json_number, read_list, read_number, read_object
from phyla.records.member import Member, MemberState, Scored
from phyla.records.objective import Maximize, Minimize, Objective
from phyla.records.start import StartFrom
from phyla.records.study import StudyRecord, StudyState
from phyla.records.trial import TrialKind, TrialRecord, TrialState

__all__ = [
    "Attempt",
    "AttemptState",
    "Checkpoint",
    "CheckpointKind",
    "CheckpointState",
    "EvalAttempt",
    "EvalEvent",
    "EvalResult",
    "EvalTaskKind",
    "EvalTaskRecord",
    "Group",
    "GroupState",
    "Json",
    "JsonObject",
    "Maximize",
    "Member",
    "MemberState",
    "Minimize",
    "Objective",
    "Priority",
    "Report",
    "RunKind",
    "RunRecord",
    "RunState",
    "Scored",
    "Seen",
    "SeenState",
    "StartFrom",
    "StudyRecord",
    "StudyState",
    "TrialKind",
    "TrialRecord",
    "TrialState",
    "WorkKind",
    "json_number",
    "read_list",
    "read_number",
    "read_object",
]
