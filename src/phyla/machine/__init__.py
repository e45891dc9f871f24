"""The machine: `(view, event) -> commands`. Pure and read-only."""

from phyla.machine.capacity import ANY_GPUS, NO_LIMIT, ONLY_END, RECENT, Room, expected_s
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
    SetLocation,
    SetStrategyState,
    SetStudyState,
    SetTally,
    StartGroup,
    TakeCheckpoint,
    Update,
)
from phyla.machine.evaluating.groups import (
    claim_evaluation,
    complete_evaluation,
    ended_groups,
    finish_watching,
    is_news,
    restore_claim,
    settle_group,
)
from phyla.machine.evaluating.observe import SUITE_LEFT, gone, observe, set_unusable
from phyla.machine.evaluating.requeue import backfill, drain, evaluate_again, try_again
from phyla.machine.evaluating.resting import asleep, is_ending
from phyla.machine.evaluating.score import SAME_SAMPLES
from phyla.machine.finals.final import begin_final
from phyla.machine.finals.winner import Winner, count_measurements, find_winner
from phyla.machine.finish import complete, save_progress
from phyla.machine.population import (
    Imported,
    awaits_imports,
    import_start,
    is_at_import,
    join,
    reopen,
    reopen_study,
    retire,
    to_retire,
    youngest,
)
from phyla.machine.queue import fail, lose, release
from phyla.machine.quorum import Comparisons
from phyla.machine.requests import (
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
    NotJudged,
    NoWork,
    Outdated,
    ReportAnswer,
    Stopped,
    Work,
)
from phyla.machine.retention import ALL, Keeping, KeptCheckpoints, bound, explain, retention
from phyla.machine.rules import Rules, TrainRules, WatchRules
from phyla.machine.stopping import report
from phyla.machine.view import Reader, View
