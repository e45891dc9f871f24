"""What the machine reads about evaluation."""

from collections.abc import Sequence
from typing import Protocol

from phyla.records import Group, Seen


class EvaluationView(Protocol):
    """The evaluation of one study's checkpoints as a transaction sees it; *locks* as in `View`.

    A group is locked before its jobs, and those before anything of the study.
    """

    def seen(self, seen_id: int) -> Seen:
        """Return a checkpoint that was seen."""
        ...

    def find_seen(self, name: str, index: int = 0) -> Seen | None:
        """Return the newest version of a checkpoint that was seen under a name."""
        ...

    def newest_seen(self) -> Seen | None:
        """Return the checkpoint with the highest number, in whatever state.

        Waits until nobody else gives out numbers.
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
        """Return a group of this study, or None; locks it."""
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
