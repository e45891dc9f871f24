"""Views of one study inside one transaction, which the machine reads."""

from collections.abc import Sequence
from typing import Protocol

from phyla.machine.capacity import NO_LIMIT, Room
from phyla.records import (
    Attempt,
    Backlog,
    Checkpoint,
    CheckpointState,
    Cohort,
    EvalEvent,
    EvalJob,
    EvalResult,
    FileName,
    Group,
    Member,
    Report,
    RunStart,
    StudyRecord,
    TimeSpent,
    TrialRecord,
    Waiting,
)
from phyla.strategies import History


class Reader(History, Protocol):
    """A consistent view of one study, without locks."""

    # The queue

    def now(self) -> float:
        """Return the database's time, in seconds since the epoch; one value throughout the transaction."""

    def study(self) -> StudyRecord:
        """Return the study."""

    def job(self, job_id: int) -> TrialRecord | EvalJob | None:
        """Return a job of this study of any kind, or None; locks nothing."""

    def next_eval_job(self, holding: int | None, room: Room = NO_LIMIT) -> EvalJob | None:
        """Return the pending eval job to run next.

        Of those for whose GPUs and label there is room, and that do not rest, the lowest (priority, rank, group,
        id) whose `not_before` has come. When the worker holds a checkpoint (`holding`, a seen id) that has one of
        the same priority class, that one.
        """

    def failed_evaluations(self) -> Sequence[EvalJob]:
        """Return the shards of eval tasks that were tried and failed for good; the last 200, newest first."""

    def last_result_at(self, task_identity: str) -> float | None:
        """Return the time of the study's newest result of an eval task; None without any."""

    def next_not_before(self) -> float | None:
        """Return when the earliest pending eval job may start that may not start yet."""

    def group_jobs(self, group: int) -> Sequence[EvalJob]:
        """Return the eval jobs of a group, by id."""

    def unfinished_jobs(self, group: int) -> int:
        """Return how many eval jobs of a group are pending or running."""

    def attempt(self, job_id: int, token: int) -> Attempt | None:
        """Return one attempt."""

    def attempts(self, job_id: int) -> Sequence[Attempt]:
        """Return the attempts of a job, oldest first."""

    def running(self, worker: str | None = None) -> Sequence[Attempt]:
        """Return the running attempts of one worker, or all of them."""

    def expired(self, limit: int) -> Sequence[Attempt]:
        """Return running attempts whose lease ran out before `now()`, longest first."""

    def claimed_ahead(self, expires_after: float) -> Sequence[Attempt]:
        """Return running attempts claimed after `now()` whose lease lasts beyond a time; first to end first.

        There are some after the clock was set back.
        """

    # The population

    def members(self) -> Sequence[Member]:
        """Return all members by index, as one read."""

    def member(self, index: int) -> Member:
        """Return a member; locks nothing."""

    def reported(self, trial_id: int, token: int) -> int:
        """Return how many reports of one attempt are stored."""

    def last_reports(self, trial_id: int, token: int, count: int) -> Sequence[Report]:
        """Return the last reports of one attempt, oldest first."""

    def averages(self, every: int, step: int, *, besides: int, limit: int) -> Sequence[float]:
        """Return the averages that trials besides one had at a mark, newest trials first; nan is possible."""

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return a checkpoint's row."""

    def checkpoints(self, state: CheckpointState | None = None) -> Sequence[Checkpoint]:
        """Return all checkpoints, or those in state live, deleting or damaged; oldest first."""

    def held_checkpoints(self) -> frozenset[str]:
        """Return names of: each member's head, states and best; parents, progress of unfinished trials."""

    def best_trials(self, count: int) -> Sequence[TrialRecord]:
        """Return the completed trials with the best finite fitness and a live checkpoint, best first.

        Ties: the earlier trial first.
        """

    def final_trials(self) -> Sequence[TrialRecord]:
        """Return the measurements of finals, by id."""

    def broken_in_a_row(self) -> int:
        """Return how many trials failed since the last one completed and the study was last resumed."""

    def trials(
        self, *, member: int | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[TrialRecord]:
        """Return trials by id, from the first one whose id is above `after`."""

    def foremost(self, count: int) -> Sequence[Member]:
        """Return the members with the best heads, at most `count`, the best first."""

    def cohorts(self) -> Sequence[Cohort]:
        """Return groups of members in the same situation, with their sizes."""

    def time_spent(self) -> TimeSpent:
        """Return where the time of the attempts at trials went, and of the eval tasks, on all workers."""

    def ancestry(self, trial: int, limit: int | None = None) -> Sequence[TrialRecord]:
        """Return a trial, then that whose weights it started from, and so on; the first `limit` of them."""

    def newest_trials(self, count: int) -> Sequence[TrialRecord]:
        """Return the trials with the highest ids, newest first."""

    def children(self, trial: int) -> Sequence[TrialRecord]:
        """Return the trials that started from the weights of a trial, by id; looks at all that came after it."""

    def chosen_trials(self, ids: Sequence[int]) -> Sequence[TrialRecord]:
        """Return some trials by id, in the order of the ids; `KeyError` if there is none of an id."""

    def trial_attempts(self, *, after: tuple[int, int] = (0, 0), limit: int | None = None) -> Sequence[Attempt]:
        """Return the attempts of all trials by (trial, token), from the first one above `after`."""

    def reports(self, trial: int, token: int | None = None) -> Sequence[Report]:
        """Return what a trial reported, in order; of its newest attempt that reported unless `token` says."""

    def starts(self) -> Sequence[RunStart]:
        """Return how the study was started, each time, oldest first."""

    def counts(self) -> dict[str, int]:
        """Return how many trials of kind train are in each state; states without trials are left out."""

    # Evaluation

    def seen(self, seen_id: int) -> Checkpoint:
        """Return a checkpoint that was seen."""

    def find_seen(self, name: FileName, index: int = 0) -> Checkpoint | None:
        """Return the newest version of a checkpoint that was seen under a name."""

    def newest_seen(self, *, stepped: bool = False) -> Checkpoint | None:
        """Return the checkpoint with the highest number, in whatever state; if asked, that with the highest step.

        The latter is one of the newest branch, and of those with that step the newest. Waits until no other
        transaction assigns numbers.
        """

    def newest_ready(self) -> Checkpoint | None:
        """Return the checkpoint in state ready with the highest number."""

    def ledger(self, identity: str, task_identity: str, replicate: int, shards: int) -> Sequence[EvalResult]:
        """Return the ledger's entries of one eval task on one checkpoint, by shard."""

    def groups_of(self, seen: int) -> Sequence[Group]:
        """Return the groups on one checkpoint, by id; locks nothing."""

    def group(self, group_id: int) -> Group:
        """Return a group; locks nothing."""

    def fresh_groups(self, suite: str) -> Sequence[Group]:
        """Return the queued groups of class fresh that no population waits for."""

    def last_queued_at(self, suite: str) -> float | None:
        """Return when the newest group of a suite that was not skipped was created."""

    def busy(self, suite: str) -> bool:
        """Return whether a started group of the suite has not ended."""

    def best_group(self, suite: str) -> Group | None:
        """Return the group marked best of a suite."""

    def partial_in_a_row(self, suite: str) -> int:
        """Return how many groups of a suite ended partial since the last one ended complete."""

    def open_groups(self) -> int:
        """Return how many groups are queued."""

    def events(self, *, after: int = 0) -> Sequence[EvalEvent]:
        """Return events by id, from the first one whose id is above `after`."""

    def waiting(self, resting: frozenset[str] = frozenset()) -> Sequence[Waiting]:
        """Return how many eval jobs wait, may start and do not rest, by the GPUs and the label they need."""

    def all_seen(self, *, after: int = 0, limit: int | None = None) -> Sequence[Checkpoint]:
        """Return the checkpoints seen, by id, from the first one whose id is above `after`."""

    def groups(self, *, suite: str | None = None, after: int = 0, limit: int | None = None) -> Sequence[Group]:
        """Return groups by id, from the first one whose id is above `after`; of one suite, or all."""

    def ended_groups(self, since: float) -> Sequence[Group]:
        """Return the groups that ended at a time or later, by that time."""

    def backlog(self, suite: str) -> Backlog:
        """Return what of a suite waits or is being evaluated."""

    def eval_jobs(self, *, after: int = 0, limit: int | None = None) -> Sequence[EvalJob]:
        """Return eval jobs by id, from the first one whose id is above `after`."""

    def mean_duration_s(self, task_identity: str) -> float | None:
        """Return how long a shard of an eval task took on average; None if it never ran.

        The mean of its `NEWEST_DURATIONS` newest results; of those of one time, the slowest count as newest.
        """

    def held_paths(self) -> frozenset[int]:
        """Return ids of the checkpoints seen that a queued or best group refers to."""


class View(Reader, Protocol):
    """One study as a transaction sees it, its own writes included.

    Methods that say *locks* keep others off the row until the transaction ends. A group is locked before its jobs,
    and those before trials and members.
    """

    def new_job_id(self) -> int:
        """Return an id that no other job of this store has or gets."""

    def locked_trial(self, trial_id: int) -> TrialRecord | None:
        """Return a trial of this study, or None; locks it."""

    def next_pending(self) -> TrialRecord | None:
        """Return the pending trial with the lowest id; locks it and passes over locked ones."""

    def locked_eval_job(self, job_id: int) -> EvalJob | None:
        """Return an eval job of this study, or None; locks it. Its group has to be locked before."""

    def locked_ready(self, seen: Member) -> Member | None:
        """Lock a ready member; None if another transaction has it locked, or changed it since this one saw it."""

    def locked_member(self, index: int) -> Member:
        """Return a member; locks it."""

    def source(self) -> "View | None":
        """Return the study whose checkpoints these are, in the same transaction; None for a directory."""

    def locked_group(self, group_id: int) -> Group | None:
        """Return a group of this study, or None; locks it."""

    def next_eval_job(self, holding: int | None, room: Room = NO_LIMIT) -> EvalJob | None:
        """Return the pending eval job to run next; locks it and passes over locked ones.

        Of those for whose GPUs and label there is room, and that do not rest, the lowest (priority, rank, group,
        id) whose `not_before` has come. When the worker holds a checkpoint (`holding`, a seen id) that has one of
        the same priority class, that one.
        """
