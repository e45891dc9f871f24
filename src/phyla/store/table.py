"""Rows in memory with indexes, so that the store in memory answers without looking at every row."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar, final

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_ABSENT: Any = object()


@final
class Groups(Generic[K]):
    """Keys of rows by a value of the row."""

    def __init__(self) -> None:
        # A group of one is the key itself: there may be a million of them.
        self._groups: dict[Hashable, Any] = {}

    def move(self, key: K, before: Hashable | None, after: Hashable | None) -> None:
        """Follow a row whose value changes; None for a row that is in no group."""
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

    def of_any(self, values: Iterable[Hashable]) -> list[K]:
        """Return the keys of the rows with any of these values, in no order."""
        found: list[K] = []
        for value in values:
            held = self._groups.get(value, _ABSENT)
            if type(held) is dict:
                found += held
            elif held is not _ABSENT:
                found.append(held)
        return found

    def values(self) -> Iterable[Any]:
        """Return the values that any row has."""
        return self._groups.keys()

    def count(self, value: Hashable) -> int:
        """Return how many rows have this value."""
        held = self._groups.get(value, _ABSENT)
        return len(held) if type(held) is dict else int(held is not _ABSENT)


@final
class Order(Generic[K]):
    """Keys of rows, sorted by a value of the row, and then by key."""

    def __init__(self) -> None:
        self._sorted: list[tuple[Any, K]] = []

    def move(self, key: K, before: Any, after: Any) -> None:
        """Follow a row whose value changes; None for a row that is left out."""
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


Follow: TypeAlias = Callable[[K, V | None, V | None], None]
"""Brings indexes up to date: from key, old row and new row; None where there is none."""


@final
class Table(dict[K, V]):
    """Rows by key. Its indexes follow each assignment and each `pop`; nothing else may change it.

    Args:
        follow: brings the indexes up to date.
    """

    def __init__(self, follow: Follow[K, V]) -> None:
        super().__init__()
        self._follow = follow

    def __setitem__(self, key: K, row: V) -> None:
        self.swap(key, row)

    def swap(self, key: K, row: V) -> Any:
        """Assign a row; return the one that was there, or a mark that there was none."""
        old = self.get(key, _ABSENT)
        dict.__setitem__(self, key, row)
        self._follow(key, None if old is _ABSENT else old, row)
        return old

    def pop(self, key: K) -> V:  # type: ignore[override]
        """Remove a row."""
        old = super().pop(key)
        self._follow(key, old, None)
        return old


def follow_with(values_of: Callable[[V], tuple[Any, ...]], *indexes: Groups[K] | Order[K]) -> Follow[K, V]:
    """Return what keeps each index at its value of a row.

    Args:
        values_of: gives the value of a row for each index, in order; None where the row is not in it.
        indexes: what follows the rows.
    """
    nothing = (None,) * len(indexes)

    def follow(key: K, old: V | None, new: V | None) -> None:
        before = nothing if old is None else values_of(old)
        after = nothing if new is None else values_of(new)
        if before != after:
            for index, was, now in zip(indexes, before, after, strict=True):
                if was != now:
                    index.move(key, was, now)

    return follow


@final
class Changes:
    """Assignments to tables, which can be taken back."""

    def __init__(self) -> None:
        self._made: list[tuple[dict[Any, Any], Any, Any]] = []

    def set(self, table: dict[K, V], key: K, row: V) -> None:
        """Assign a row."""
        if type(table) is Table:
            self._made.append((table, key, table.swap(key, row)))
            return
        self._made.append((table, key, table.get(key, _ABSENT)))
        table[key] = row

    def undo(self) -> None:
        """Take everything back, newest first."""
        for table, key, old in reversed(self._made):
            if old is _ABSENT:
                table.pop(key)
            else:
                table[key] = old
        self._made.clear()
