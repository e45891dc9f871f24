"""Packing: reserves GPUs for eval tasks that need more than a usual worker has. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from phyla.records import Waiting


@final
@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs for one wide worker, which runs at most `jobs` eval tasks that need exactly this number."""

    gpus: frozenset[str]
    jobs: int


def wide_tasks(waiting: Iterable[Waiting], *, above: int, labels: Collection[str]) -> dict[int, int]:
    """Return how many allowed eval tasks need more GPUs than a usual worker has, by number of GPUs."""
    tasks = Counter[int]()
    for group in waiting:
        if group.gpus > above and group.label in ("", *labels):
            tasks[group.gpus] += group.count
    return tasks


@final
class Packing:
    """Makes room for wide workers among the usual workers of a run.

    A reservation takes GPUs from usual workers: they finish their work and exit, then the wide worker starts. When
    it exits, they restart. No worker starves: the size that was served longest ago is next, and no other size gets
    room before it; a wide worker exits after the tasks that waited when its room was reserved; and a restarted
    usual worker keeps its GPUs until it was offered work.

    Args:
        pool: the GPUs that wide workers may use.
        usual: the GPUs of each usual worker; workers may share GPUs.
    """

    def __init__(self, pool: Sequence[str], usual: Sequence[Collection[str]]) -> None:
        self._pool = tuple(pool)
        self._usual = [frozenset(gpus) for gpus in usual]
        self._served: dict[int, int] = {}
        self._reservations = 0
        self.reserved: dict[int, Reservation] = {}

    def reserve(self, waiting: Mapping[int, int], protected: Collection[int]) -> int | None:
        """Make the next reservation.

        Args:
            waiting: the number of waiting eval tasks by the GPUs that they need.
            protected: the usual workers that were not offered work since they started.

        Returns:
            Its key, a number above those of the usual workers; None if there is no room now.
        """
        held = [len(room.gpus) for room in self.reserved.values()]
        wanting = [size for size, jobs in waiting.items() if jobs > held.count(size) and size <= len(self._pool)]
        if not wanting:
            return None
        # Among sizes that were never served, the largest first.
        size = min(wanting, key=lambda size: (size in held, self._served.get(size, 0), -size))
        occupied = frozenset[str]().union(
            *(room.gpus for room in self.reserved.values()), *(self._usual[worker] for worker in protected)
        )
        free = [gpu for gpu in self._pool if gpu not in occupied]
        if len(free) < size:
            return None
        # Idle GPUs first, then those of as few workers as possible.
        owner = {gpu: place for place, gpus in enumerate(self._usual) for gpu in gpus}
        chosen = sorted(free, key=lambda gpu: owner.get(gpu, -1))[:size]
        self._reservations += 1
        self._served[size] = self._reservations
        key = next(key for key in range(len(self._usual), 10**9) if key not in self.reserved)
        self.reserved[key] = Reservation(frozenset(chosen), waiting[size])
        return key

    def in_the_way(self, key: int) -> list[int]:
        """Return the usual workers that must exit before a wide worker starts."""
        wanted = self.reserved[key].gpus
        return [worker for worker, gpus in enumerate(self._usual) if gpus & wanted]

    def may_run(self, worker: int) -> bool:
        """Return whether a usual worker may run: none of its GPUs is reserved."""
        return not any(room.gpus & self._usual[worker] for room in self.reserved.values())

    def release(self, key: int) -> None:
        """End a reservation whose wide worker has exited or is no longer needed."""
        self.reserved.pop(key, None)
