"""What a client can do, however it reaches the studies."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol, final

from phyla.machine import Answer, Completion, Evaluated, Failure, NoWork, Room, Standing, Work
from phyla.records import Checkpoint, EvalJob, EvalResult, Group, Report, Waiting, WorkKind


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """Names of the checkpoints that a collection deleted, and how many bytes that freed."""

    deleted: tuple[str, ...] = ()
    freed_bytes: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResults:
    """What the ledger has of one group, by identity of the eval task, by shard; one that failed has fewer."""

    group: Group
    jobs: Sequence[EvalJob]
    results: Mapping[str, Sequence[EvalResult]]


class Client(Protocol):
    """One study or several, as workers and their supervisor speak with them.

    Every method may raise `StoreError`. A worker is named `host:slot:pid:launch`; a lease is named by (job,
    token), and job ids are unique in a store. What takes a token raises `LeaseLost` when that lease is gone.
    """

    def exchange(
        self,
        completions: Sequence[Completion | Evaluated],
        worker: str,
        count: int,
        *,
        kinds: AbstractSet[WorkKind] = ...,
        holding: int | None = None,
        room: Room = ...,
        whole: bool = False,
        held: AbstractSet[int] | None = None,
    ) -> tuple[list[Answer], list[Work], NoWork | None]:
        """Hand in finished work and claim more; for one study in one transaction.

        Args:
            completions: what was finished; a lease that is gone is an answer here, and is not raised.
            worker: the worker that asks for work.
            count: how much it wants at most.
            kinds: what it can do; eval tasks come first.
            holding: id of the checkpoint, as it was seen, that it has loaded.
            room: how many GPUs, which labels, and how much time it has.
            whole: without completions: that many trials of a population, or none.
            held: the jobs that the worker knows it holds; work whose answer was lost is then given to it again.

        Returns:
            An answer per completion; the work; and, when this is less than `count`, why.
        """
        ...

    def fail(self, failure: Failure) -> None:
        """Record that an attempt at a job failed."""
        ...

    def release(self, job: int, token: int) -> None:
        """Return a job to the queue; this does not count as a failure."""
        ...

    def report(self, trial: int, token: int, reports: Sequence[Report]) -> Standing:
        """Store what training reported so far; return whether the lease stands, and whether a rule stops it."""
        ...

    def save_progress(self, trial: int, token: int, checkpoint: Checkpoint) -> None:
        """Remember where a retry of a trial resumes; `UsageError` if the step is none of the trial's."""
        ...

    def checkpoint(self, name: str, *, study: int) -> Checkpoint | None:
        """Return what was recorded of a checkpoint."""
        ...

    def group_results(self, group: int, *, study: int) -> GroupResults:
        """Return what the ledger has of a group."""
        ...

    def best_group(self, suite: str, *, study: int) -> Group | None:
        """Return the best complete group of a suite so far."""
        ...

    def fail_study(self, study: int, message: str) -> None:
        """Stop a study, which has failed: no more work of it is given out."""
        ...

    def renew(self, worker: str) -> None:
        """Renew all leases of a worker that is known to be alive."""
        ...

    def lose_worker(self, worker: str, error: str, *, counts: bool) -> int:
        """Take back all that a dead worker held; return how many attempts that were.

        With `counts` the jobs are to blame, so that it counts towards their attempts.
        """
        ...

    @property
    def idle_s(self) -> float:
        """Seconds after which to ask again for work though nothing was committed."""
        ...

    def wait(self, seconds: float) -> bool:
        """Return whether there may be work, after `seconds` at the latest; for one thread at a time."""
        ...

    def waiting(self) -> Sequence[Waiting]:
        """Return how many eval tasks that may start ask for GPUs or a label."""
        ...

    def is_active(self) -> bool:
        """Return whether there may be more work."""
        ...

    def give_up(self, message: str) -> None:
        """Say that a launcher ends because its workers do, again and again."""
        ...

    def recover(self) -> None:
        """Clean up what processes that died left half done; safe while others are alive."""
        ...

    def collect(self) -> CollectResult:
        """Delete the checkpoints that nobody needs any more."""
        ...
