"""Rows in memory with indexes, so that the store in memory answers without looking at every row."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar, final

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_ABSENT: Any = object()


@final
class Groups(Generic[K, V]):
    """Keys of rows by a value that is computed from the row.

    Args:
        value_of: gives the value of a row; None for rows that are in no group.
    """

    def __init__(self, value_of: Callable[[V], Hashable | None]) -> None:
        self._value_of = value_of
        # A group of one is the key itself: there may be a million of them.
        self._groups: dict[Hashable, Any] = {}

    def change(self, key: K, old: V, new: V) -> None:
        """Follow a row from `old` to `new`; `_ABSENT` for none."""
        before = None if old is _ABSENT else self._value_of(old)
        after = None if new is _ABSENT else self._value_of(new)
        if before == after:
            return
        groups = self._groups
        if before is not None:
            held = groups[before]
            if type(held) is dict:
                del held[key]
            if type(held) is not dict or not held:
                del groups[before]
        if after is not None:
            held = groups.get(after, _ABSENT)
            if held is _ABSENT:
                groups[after] = key
            elif type(held) is dict:
                held[key] = None
            else:
                groups[after] = {held: None, key: None}

    def of(self, value: Hashable) -> list[K]:
        """Return the keys of the rows with this value, in no order."""
        held = self._groups.get(value, _ABSENT)
        if held is _ABSENT:
            return []
        return list(held) if type(held) is dict else [held]

    def count(self, value: Hashable) -> int:
        """Return how many rows have this value."""
        held = self._groups.get(value, _ABSENT)
        return len(held) if type(held) is dict else int(held is not _ABSENT)


@final
class Order(Generic[K, V]):
    """Keys of rows, sorted by something that is computed from the row, and then by key.

    Args:
        value_of: gives what is sorted by; None for rows that are left out.
    """

    def __init__(self, value_of: Callable[[V], Any]) -> None:
        self._value_of = value_of
        self._sorted: list[tuple[Any, K]] = []

    def change(self, key: K, old: V, new: V) -> None:
        """Follow a row from `old` to `new`; `_ABSENT` for none."""
        before = None if old is _ABSENT else self._value_of(old)
        after = None if new is _ABSENT else self._value_of(new)
        if before == after:
            return
        if before is not None:
            del self._sorted[bisect_left(self._sorted, (before, key))]
        if after is not None:
            insort(self._sorted, (after, key))

    def __len__(self) -> int:
        return len(self._sorted)

    def __getitem__(self, place: int) -> tuple[Any, K]:
        """Return (value, key) at a place."""
        return self._sorted[place]

    def before(self, value: Any) -> int:
        """Return how many rows have a lower value."""
        return bisect_left(self._sorted, (value,))

    def above(self, value: Any, key: K) -> int:
        """Return how many rows come after a place that a row with this value and key has, or would have."""
        return len(self._sorted) - bisect_right(self._sorted, (value, key))

    def since(self, value: Any) -> Iterator[tuple[Any, K]]:
        """Iterate over (value, key), from the first that is not lower."""
        for place in range(self.before(value), len(self._sorted)):
            yield self._sorted[place]


@final
class Table(dict[K, V]):
    """Rows by key. Its indexes follow each assignment and each `pop`; nothing else may change it.

    Args:
        indexes: what follows the rows.
    """

    def __init__(self, *indexes: Groups[K, V] | Order[K, V]) -> None:
        super().__init__()
        self._indexes = indexes

    def __setitem__(self, key: K, row: V) -> None:
        old = self.get(key, _ABSENT)
        super().__setitem__(key, row)
        for index in self._indexes:
            index.change(key, old, row)

    def pop(self, key: K) -> V:  # type: ignore[override]
        """Remove a row."""
        old = super().pop(key)
        for index in self._indexes:
            index.change(key, old, _ABSENT)
        return old
