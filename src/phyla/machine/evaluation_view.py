"""What the machine reads about the evaluation of a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from phyla.records import EvalAttempt, EvalTaskRecord, Group, RunRecord, Seen

if TYPE_CHECKING:
    from phyla.machine.view import View


class EvalView(Protocol):
    """One run as a transaction sees it, its own writes included; *locks* as in `View`.

    A group is locked before its eval tasks, and those before anything of the study.
    """

    def now(self) -> float:
        """Return the database's time, in seconds since the epoch; one value throughout the transaction."""
        ...

    def run(self) -> RunRecord:
        """Return the run."""
        ...

    def population(self) -> "View | None":
        """Return the study whose run this is, in the same transaction; None for a directory."""
        ...

    def seen(self, seen_id: int) -> Seen:
        """Return a checkpoint that was seen."""
        ...

    def find_seen(self, name: str, index: int = 0) -> Seen | None:
        """Return the newest version of a checkpoint that was seen under a name."""
        ...

    def newest_seen(self) -> Seen | None:
        """Return the checkpoint with the highest number, in whatever state.

        Locks the run, so that nobody else gives out the next number.
        """
        ...

    def newest_ready(self) -> Seen | None:
        """Return the checkpoint in state ready with the highest number."""
        ...

    def shards_done(self, identity: str, task_identity: str, replicate: int, shards: int) -> frozenset[int]:
        """Return which shards of an eval task the ledger has results of."""
        ...

    def find_group(self, seen: int, suite: str, replicate: int = 0) -> Group | None:
        """Return a group by its key; locks nothing."""
        ...

    def groups_of(self, seen: int) -> Sequence[Group]:
        """Return the groups on one checkpoint, by id; locks nothing."""
        ...

    def group(self, group_id: int) -> Group:
        """Return a group; locks nothing."""
        ...

    def locked_group(self, group_id: int) -> Group | None:
        """Return a group of this run, or None; locks it."""
        ...

    def fresh_groups(self, suite: str) -> Sequence[Group]:
        """Return the queued groups of class fresh that no population waits for."""
        ...

    def last_queued_at(self, suite: str) -> float | None:
        """Return when the newest group of a suite that was not skipped was created."""
        ...

    def busy(self, suite: str) -> bool:
        """Return whether a started group of the suite has not ended."""
        ...

    def best_group(self, suite: str) -> Group | None:
        """Return the group marked best of a suite."""
        ...

    def partial_in_a_row(self, suite: str) -> int:
        """Return how many groups of a suite ended partial since the last one ended complete."""
        ...

    def open_groups(self) -> int:
        """Return how many groups are queued."""
        ...

    def next_eval_task(self, holding: int | None) -> EvalTaskRecord | None:
        """Return the pending eval task to run next; locks it and passes over locked ones.

        Lowest (priority, rank, group, id) whose `not_before` has come. When the worker holds a checkpoint
        (`holding`, a seen id) that has one of the same priority class, that one.
        """
        ...

    def next_not_before(self) -> float | None:
        """Return when the earliest pending eval task may start that may not start yet."""
        ...

    def locked_eval_task(self, task_id: int) -> EvalTaskRecord | None:
        """Return an eval task of this run, or None; locks it."""
        ...

    def group_tasks(self, group: int) -> Sequence[EvalTaskRecord]:
        """Return the eval tasks of a group, by id."""
        ...

    def unfinished_tasks(self, group: int) -> int:
        """Return how many eval tasks of a group are pending or running."""
        ...

    def eval_attempt(self, task: int, token: int) -> EvalAttempt | None:
        """Return one attempt."""
        ...

    def expired_evaluations(self, limit: int) -> Sequence[EvalAttempt]:
        """Return running attempts whose lease ran out before `now()`, longest first."""
        ...

    def claimed_ahead(self, expires_after: float) -> Sequence[EvalAttempt]:
        """Return running attempts claimed after `now()` whose lease lasts beyond a time; first to end first.

        There are some after the clock was set back.
        """
        ...

    def running_evaluations(self, worker: str | None = None) -> Sequence[EvalAttempt]:
        """Return the running attempts of one worker, or all of them."""
        ...
