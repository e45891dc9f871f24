"""Packing: which GPUs of a machine serve eval tasks that ask for more than a usual worker has. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from phyla.records import Waiting


@final
@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs for one wide worker, which runs eval tasks that ask for just so many, at most `jobs` of them."""

    gpus: frozenset[str]
    jobs: int


def wide_tasks(waiting: Iterable[Waiting], *, above: int, labels: Collection[str]) -> dict[int, int]:
    """Return how many eval tasks wait for more GPUs than a usual worker has, by GPUs, that its labels allow."""
    found = Counter[int]()
    for one in waiting:
        if one.gpus > above and one.label in ("", *labels):
            found[one.gpus] += one.count
    return found


@final
class Packing:
    """Makes room for wide workers between the usual ones of a run.

    A reservation takes GPUs from usual workers: they hand in what they are at and end, then the wide worker
    starts. When it ends, they start again. Nobody starves: the size that was served longest ago is next, and where
    there is no room for it yet, no other size gets any; a wide worker ends after the tasks that waited when its
    room was reserved; and a usual worker that started again keeps its GPUs until it was offered work.

    Args:
        pool: every GPU that wide workers may have.
        usual: the GPUs of each usual worker; workers may share some.
    """

    def __init__(self, pool: Sequence[str], usual: Sequence[Collection[str]]) -> None:
        self._pool = tuple(pool)
        self._usual = [frozenset(gpus) for gpus in usual]
        self._served: dict[int, int] = {}
        self._reservations = 0
        self.reserved: dict[int, Reservation] = {}

    def reserve(self, waiting: Mapping[int, int], kept: Collection[int]) -> int | None:
        """Make the next reservation.

        Args:
            waiting: how many eval tasks wait, by the GPUs that they ask for.
            kept: the usual workers that were not offered work since they started.

        Returns:
            Its key, a number from that of the usual workers on; None if none can be made now.
        """
        held = [len(one.gpus) for one in self.reserved.values()]
        wanting = [size for size, jobs in waiting.items() if jobs > held.count(size) and size <= len(self._pool)]
        if not wanting:
            return None
        # Of one that was never served, the larger first.
        size = min(wanting, key=lambda size: (size in held, self._served.get(size, 0), -size))
        taken = frozenset[str]().union(
            *(one.gpus for one in self.reserved.values()), *(self._usual[worker] for worker in kept)
        )
        free = [gpu for gpu in self._pool if gpu not in taken]
        if len(free) < size:
            return None
        # Idle ones first, then those of as few workers as possible.
        owner = {gpu: place for place, gpus in enumerate(self._usual) for gpu in gpus}
        chosen = sorted(free, key=lambda gpu: owner.get(gpu, -1))[:size]
        self._reservations += 1
        self._served[size] = self._reservations
        key = next(key for key in range(len(self._usual), 10**9) if key not in self.reserved)
        self.reserved[key] = Reservation(frozenset(chosen), waiting[size])
        return key

    def in_the_way(self, key: int) -> list[int]:
        """Return the usual workers that have to end before a wide worker starts."""
        wanted = self.reserved[key].gpus
        return [worker for worker, gpus in enumerate(self._usual) if gpus & wanted]

    def may_run(self, worker: int) -> bool:
        """Return whether a usual worker may run: none of its GPUs is reserved."""
        return not any(one.gpus & self._usual[worker] for one in self.reserved.values())

    def release(self, key: int) -> None:
        """End a reservation: its wide worker has ended, or is not needed any more."""
        self.reserved.pop(key, None)
