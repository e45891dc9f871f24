"""The client Protocols."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from phyla.machine import Answer, Completion, Evaluated, Failure, NoWork, Standing, Work
from phyla.records import Checkpoint, EvalJob, EvalResult, Group, Report, StudyState, WorkKind


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """What a collection of checkpoints did.

    Attributes:
        deleted: names whose bytes were removed.
        freed_bytes: how much that was.
    """

    deleted: tuple[str, ...]
    freed_bytes: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResults:
    """What the ledger has of one group.

    Attributes:
        group: the group.
        jobs: its eval jobs, one per shard.
        results: the entries by identity of the eval task, by shard; one that failed has fewer than shards.
    """

    group: Group
    jobs: Sequence[EvalJob]
    results: Mapping[str, Sequence[EvalResult]]


class Client(Protocol):
    """Studies, as workers and their supervisor speak with them. Every method may raise `StoreError`.

    A worker is named `host:slot:pid:launch`; a lease is named by (job, token), and job ids are unique in a store.
    """

    def exchange(
        self,
        completions: Sequence[Completion | Evaluated],
        worker: str,
        count: int,
        *,
        kinds: Collection[WorkKind] = ...,
        holding: int | None = None,
    ) -> tuple[list[Answer], list[Work], NoWork | None]:
        """Hand in finished work and claim up to `count` new trials and eval tasks, atomically.

        Args:
            completions: what was finished.
            worker: the worker that asks for work.
            count: how much is wanted.
            kinds: what is wanted; eval tasks come first.
            holding: id of the checkpoint, as it was seen, that the worker has loaded.

        Returns:
            An answer per completion; the work; and, when this is less than `count`, why.
        """
        ...

    def fail(self, failure: Failure) -> None:
        """Record that an attempt at a job failed.

        Raises:
            LeaseLost: the lease is gone.
        """
        ...

    def release(self, job: int, token: int) -> None:
        """Return a job to the queue; this does not count as a failure.

        Raises:
            LeaseLost: the lease is gone.
        """
        ...

    def report(self, trial: int, token: int, reports: Sequence[Report]) -> Standing:
        """Store what training reported so far; return whether the lease still stands, and if a rule stops it."""
        ...

    def save_progress(self, trial: int, token: int, checkpoint: Checkpoint) -> None:
        """Remember where a retry of the trial resumes.

        Raises:
            LeaseLost: the lease is gone.
            UsageError: its step is none of the trial's.
        """
        ...

    def checkpoint(self, name: str, *, study: int) -> Checkpoint | None:
        """Return what was recorded of a checkpoint of a study."""
        ...

    def group_results(self, group: int, *, study: int) -> GroupResults:
        """Return what the ledger has of a group of a study."""
        ...

    def best_group(self, suite: str, *, study: int) -> Group | None:
        """Return the best complete group of a suite of a study so far."""
        ...

    def end_study(self, study: int, state: StudyState, message: str | None) -> None:
        """Stop a study: no more work of it is given out."""
        ...

    def renew(self, worker: str) -> None:
        """Renew all leases of a worker that is known to be alive."""
        ...

    def lose_worker(self, worker: str, error: str, *, counts: bool) -> int:
        """Take back all that a dead worker held; return how many attempts that were."""
        ...

    def wait(self, seconds: float) -> None:
        """Return once there may be work for a worker that got none, or after `seconds` at the latest.

        For one thread, and not while another call of it runs.
        """
        ...

    def is_active(self) -> bool:
        """Return whether there may be more work."""
        ...

    def give_up(self, message: str) -> None:
        """Say that this launcher ends because its workers do, again and again."""
        ...

    def recover(self) -> None:
        """Clean up what processes that died left half done; safe while others are alive."""
        ...

    def collect(self) -> CollectResult:
        """Delete the checkpoints that nobody needs any more."""
        ...
