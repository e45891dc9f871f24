"""The facts phyla remembers, as frozen records.

Times are seconds since the epoch (UTC) by the database's clock. Steps are counts of training steps;
`start_step`, `end_step` and `reached_step` are the age of the weights, `progress` is the member's own
clock. Hyperparameters are flat mappings with slashed names.
"""

from phyla.records.checkpoint import GROWS, Checkpoint, CheckpointKind, CheckpointState
from phyla.records.constrained import Constrained, Constraint
from phyla.records.evaluation import (
    ACTION,
    Backlog,
    EvalEvent,
    EvalJob,
    EvalResult,
    Group,
    GroupState,
    Priority,
    Waiting,
)
from phyla.records.job import (
    LOG_FOLLOWS,
    Attempt,
    AttemptState,
    Cause,
    JobKind,
    JobState,
    Mark,
    Phase,
    Report,
    Tally,
    TimeSpent,
    WorkKind,
    summarize_error,
)
from phyla.records.json import (
    Json,
    JsonObject,
    json_number,
    read_list,
    read_number,
    read_object,
    significant,
    strict,
)
from phyla.records.member import Cohort, Member, MemberState, Scored, rank
from phyla.records.names import FileName, escape_name, on_one_line, restore_name, storable, storable_text
from phyla.records.objective import (
    UNLESS_NONE,
    WORST,
    Aim,
    Criteria,
    Goal,
    Judgement,
    Maximize,
    Minimize,
    Objective,
    Worth,
    direction,
    exact,
    judge_values,
    order_to_stop_at,
    require_objective,
    worth,
)
from phyla.records.pareto import Pareto
from phyla.records.start import RunStart, with_differences
from phyla.records.study import StartFrom, StudyKind, StudyRecord, StudyState
from phyla.records.token import Role, Token, token_digest, token_of
from phyla.records.trial import Score, TrialRecord
from phyla.records.weighted_sum import WeightedSum
from phyla.validation import suggest_arguments

suggest_arguments(Constrained, Maximize, Minimize, Pareto, StartFrom, WeightedSum)
