"""Whom a watcher tells what it found."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from phyla.machine import Observed
from phyla.records import Seen


class Sink(Protocol):
    """Remembers what was seen in one run. Every method may raise `StoreError`."""

    def observe(self, found: Sequence[Observed]) -> None:
        """Note checkpoints, oldest first, and queue or skip suites on them."""
        ...

    def gone(self, seen: Mapping[int, str], *, unless_held: bool = False) -> frozenset[int]:
        """Note that checkpoints vanished, and why; return those of which it was noted.

        Args:
            seen: their ids, and why.
            unless_held: not those that a queued or best group refers to.
        """
        ...

    def note(self, kind: str, message: str, *, seen: int | None = None) -> None:
        """Remember something that a person should know."""
        ...

    def drain(self, why: str) -> None:
        """Say that no more checkpoints come."""
        ...

    def seen(self, after: int = 0) -> Sequence[Seen]:
        """Return the checkpoints seen, by id, from the first one whose id is above `after`."""
        ...

    def held(self) -> tuple[frozenset[int], Mapping[str, Seen]]:
        """Return which checkpoints queued or best groups refer to, and the best one of each suite."""
        ...


class Follower(Protocol):
    """Follows one run until no more checkpoints come."""

    @property
    def ended(self) -> bool:
        """Whether it has said that no more checkpoints come."""
        ...

    @property
    def wait_s(self) -> float:
        """Seconds after which to look again at the latest."""
        ...

    def look(self) -> None:
        """Look once, and tell what is new.

        Raises:
            StoreError: the database failed; look again.
        """
        ...

    def tend(self) -> None:
        """Remove what nobody needs any more, and let `best` links lead to the best checkpoints.

        Raises:
            StoreError: the database failed; tend again.
        """
        ...
