"""The client Protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

from phyla.errors import LeaseLost
from phyla.machine import Accepted, Claimed, Completion, Ended, Failure, Idle
from phyla.records import Checkpoint, Report, StudyRecord, StudyState


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


class Client(Protocol):
    """One study, as a worker speaks with it. Every method may raise `StoreError`.

    A worker is named `host:slot:pid:start`; a trial's lease is named by (trial, token).
    """

    def study(self) -> StudyRecord:
        """Return the study."""
        ...

    def exchange(
        self, completions: Sequence[Completion], worker: str, count: int
    ) -> tuple[list[Accepted | LeaseLost], list[Claimed], Idle | Ended | None]:
        """Complete trials and claim up to `count` new ones, atomically.

        Returns:
            An answer per completion; the claimed trials; and, when these are fewer than `count`, why.
        """
        ...

    def fail(self, failure: Failure) -> None:
        """Record that an attempt failed.

        Raises:
            LeaseLost: the lease is gone.
        """
        ...

    def release(self, trial: int, token: int) -> None:
        """Return a trial to the queue; it is no failure.

        Raises:
            LeaseLost: the lease is gone.
        """
        ...

    def report(self, trial: int, token: int, reports: Sequence[Report]) -> bool:
        """Store what training reported so far; return whether the lease still stands."""
        ...

    def renew(self, worker: str) -> None:
        """Renew all leases of a worker that is known to be alive."""
        ...

    def save_progress(self, trial: int, token: int, checkpoint: Checkpoint) -> None:
        """Remember where a retry of the trial resumes.

        Raises:
            LeaseLost: the lease is gone.
        """
        ...

    def lose_worker(self, worker: str, error: str, *, counts: bool) -> int:
        """Take back all that a dead worker held; return how many attempts that were."""
        ...

    def end_study(self, state: StudyState, message: str | None) -> None:
        """Stop the study: no more trials are given out."""
        ...

    def collect(self) -> CollectResult:
        """Delete the checkpoints that nobody needs any more."""
        ...

    def recover(self) -> None:
        """Clean up what processes that died left half done; safe while others are alive."""
        ...
