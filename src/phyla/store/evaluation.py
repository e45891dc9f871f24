"""The contract of a store about evaluation."""

from collections.abc import Sequence
from typing import Protocol

from phyla.machine import AnyCommand, EvalView
from phyla.records import EvalAttempt, EvalEvent, EvalResult, EvalTaskRecord, Group, Seen

NEWEST_DURATIONS = 100
"""How many of an eval task's newest results its mean duration is taken from."""


class EvalReader(EvalView, Protocol):
    """A consistent, read-only look at the evaluation of one run; locks nothing."""

    def all_seen(self, *, after: int = 0, limit: int | None = None) -> Sequence[Seen]:
        """Return the checkpoints seen, by id, from the first one whose id is above `after`."""
        ...

    def groups(self, *, suite: str | None = None, after: int = 0, limit: int | None = None) -> Sequence[Group]:
        """Return groups by id, from the first one whose id is above `after`; of one suite, or all."""
        ...

    def eval_tasks(self, *, after: int = 0, limit: int | None = None) -> Sequence[EvalTaskRecord]:
        """Return eval tasks by id, from the first one whose id is above `after`."""
        ...

    def eval_attempts(self, task: int) -> Sequence[EvalAttempt]:
        """Return the attempts of an eval task, oldest first."""
        ...

    def results(self, identity: str, task_identity: str, replicate: int, shards: int) -> Sequence[EvalResult]:
        """Return the ledger's entries of one eval task on one checkpoint, by shard."""
        ...

    def mean_duration_s(self, task_identity: str) -> float | None:
        """Return how long a shard of an eval task took on average; None if it never ran.

        The mean of its `NEWEST_DURATIONS` newest results; of those of one time, the slowest count as newest.
        """
        ...

    def events(self, *, after: int = 0) -> Sequence[EvalEvent]:
        """Return events by id, from the first one whose id is above `after`."""
        ...

    def held_paths(self) -> frozenset[int]:
        """Return ids of the checkpoints seen that a queued or best group refers to."""
        ...


class EvalTransaction(EvalReader, Protocol):
    """A view that can be written; everything is committed at the end, or nothing."""

    def apply(self, commands: Sequence[AnyCommand]) -> list[str]:
        """Apply commands in order, those of the run's study too; see `phyla.store.Transaction.apply`."""
        ...
