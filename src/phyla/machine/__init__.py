"""The machine: `(view, event) -> commands`. Pure: it reads a view and changes nothing."""

from phyla.machine.claim import claim
from phyla.machine.commands import (
    AddReports,
    Command,
    EndAttempt,
    Insert,
    InsertCheckpoint,
    InsertGroup,
    InsertJobs,
    LimitNotBefore,
    MarkDeleting,
    ParentGone,
    RenewAttempts,
    Reprioritise,
    SetCheckpointState,
    SetConfig,
    SetStrategyState,
    SetStudyState,
    SetTally,
    StartGroup,
    TakeCheckpoint,
    Update,
)
from phyla.machine.evaluate import (
    claim_evaluation,
    claimed_before,
    complete_evaluation,
    ended_groups,
    finish_watching,
    settle_group,
)
from phyla.machine.events import (
    Accepted,
    Answer,
    ClaimAnswer,
    Claimed,
    ClaimedEvaluation,
    Completion,
    Ended,
    Evaluated,
    Failure,
    Idle,
    NoTime,
    NoWork,
    Outdated,
    Standing,
    Stopped,
    Work,
)
from phyla.machine.finish import complete, save_progress
from phyla.machine.observe import (
    SUITE_LEFT,
    backfill,
    drain,
    evaluate_again,
    gone,
    observe,
    set_unusable,
    try_again,
)
from phyla.machine.population import (
    Imported,
    awaits_imports,
    import_start,
    imported,
    join,
    reopen,
    reopen_study,
    retire,
    to_retire,
    youngest,
)
from phyla.machine.queue import fail, lose, release
from phyla.machine.resting import asleep, is_ending
from phyla.machine.retention import ALL, Keeping, Retention, bound, explain, retention
from phyla.machine.room import ANY_GPUS, NO_LIMIT, RECENT, Room, expected_s
from phyla.machine.rules import Rules, TrainRules, WatchRules
from phyla.machine.score import SAME_SAMPLES
from phyla.machine.stopping import report
from phyla.machine.view import View
