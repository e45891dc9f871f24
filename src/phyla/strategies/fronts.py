"""Non-dominated fronts and crowding distances, as in NSGA-II.

Vectors of sort keys, one per goal, higher is better. Source: Deb et al. 2002, A fast and elitist multiobjective
genetic algorithm: NSGA-II, sections III-A and III-B.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from phyla.records import WORST, TrialRecord

Vectors: TypeAlias = npt.NDArray[np.float64]
"""Shape (number of vectors, number of goals); finite."""


def dominates(vector: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether a vector is at least as good in every goal, and better in one."""
    return tuple(vector) != tuple(other) and all(
        mine >= theirs for mine, theirs in zip(vector, other, strict=True)
    )


def front_ranks(vectors: Vectors) -> npt.NDArray[np.intp]:
    """Return the front of each vector: 0 for those that none dominates, 1 for those that only front 0 does, ...

    Equal vectors share a front. O(n log n) for two goals, O(n^2) array operations for more.
    """
    distinct, _, place = _distinct(vectors)
    # Best first goal first, so that a vector is dominated only by vectors before it.
    ordered = distinct[::-1]
    ranks = _two(ordered) if ordered.shape[1] == 2 else _many(ordered)
    return ranks[::-1][place]


def _distinct(vectors: Vectors) -> tuple[Vectors, npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the distinct vectors in ascending order, where each is first, and which one each vector is."""
    distinct, first, place = np.unique(vectors, axis=0, return_index=True, return_inverse=True)
    return distinct, first, place.reshape(-1)


def _two(ordered: Vectors) -> npt.NDArray[np.intp]:
    """A front dominates a later vector unless that is better in the second goal than the whole front."""
    best: list[float] = []
    ranks: list[int] = []
    for second in (-ordered[:, 1]).tolist():
        rank = bisect_right(best, second)
        if rank == len(best):
            best.append(second)
        else:
            best[rank] = second
        ranks.append(rank)
    return np.asarray(ranks, dtype=np.intp)


def _many(ordered: Vectors) -> npt.NDArray[np.intp]:
    """A vector is one front behind the last front that dominates it."""
    columns = np.ascontiguousarray(ordered.T)
    ranks = np.zeros(len(ordered), dtype=np.intp)
    for index in range(1, len(ordered)):
        above = np.ones(index, dtype=np.bool_)
        for column in columns[1:]:
            above &= column[:index] >= column[index]
        ranks[index] = ranks[:index].max(where=above, initial=-1) + 1
    return ranks


def crowding(vectors: Vectors, fronts: npt.NDArray[np.intp] | None = None) -> npt.NDArray[np.float64]:
    """Return the crowding distance of each vector within its front; more is less crowded.

    It sums, over goals, the distance between the neighbours on both sides in units of the front's range; infinite
    for the best and the worst of each goal. Of equal vectors the first gets it, the others 0. Without `fronts` all
    are on one.
    """
    distinct, first, _ = _distinct(vectors)
    front = np.zeros(len(distinct), dtype=np.intp) if fronts is None else fronts[first]
    distance = np.zeros(len(distinct))
    for column in distinct.T:
        order = np.lexsort((column, front))
        values = column[order]
        starts = np.flatnonzero(np.diff(front[order], prepend=-1))
        ends = np.append(starts[1:], len(order)) - 1
        with np.errstate(over="ignore"):
            span = np.repeat(values[ends] - values[starts], ends - starts + 1)
            gap = np.zeros(len(order))
            gap[1:-1] = values[2:] - values[:-2]
        inner = (span > 0) & (span < np.inf)
        inner[starts] = inner[ends] = False
        distance[order[inner]] += gap[inner] / span[inner]
        distance[order[starts]] = distance[order[ends]] = np.inf
    distances = np.zeros(len(vectors))
    distances[first] = distance
    return distances


def thinned(vectors: Vectors, limit: int) -> list[int]:
    """Return the indices of at most `limit` vectors of a front, without the most crowded.

    The best of each goal stay as long as the limit allows.
    """
    indices = np.arange(len(vectors))
    while len(indices) > limit:
        # A few at a time, since each removal makes others less crowded.
        excess = len(indices) - limit
        distance = crowding(vectors[indices])
        # Among equals the later ones are removed.
        most_crowded = np.lexsort((-indices, distance))[: max(1, excess // 8)]
        indices = np.delete(indices, most_crowded)
    return [int(index) for index in indices]


def first_front(vectors: Vectors) -> list[int]:
    """Return which vectors none dominates, best in the first goal first; of equal ones the first."""
    distinct, first, _ = _distinct(vectors)
    return [int(index) for index in first[front_ranks(distinct) == 0][::-1]]


def front_of(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that no other dominates, best in the first goal first; of equal ones the earliest.

    Infeasible trials, and trials with a goal that is not finite, are never included.
    """
    candidates: list[TrialRecord] = []
    orders: list[tuple[float, ...]] = []
    for trial in sorted(trials, key=lambda trial: trial.id):
        if trial.criteria is not None and trial.criteria.orders and (trial.order or 0.0) > WORST:
            candidates.append(trial)
            orders.append(trial.criteria.orders)
    return [candidates[at] for at in first_front(np.asarray(orders, dtype=np.float64))] if candidates else []
