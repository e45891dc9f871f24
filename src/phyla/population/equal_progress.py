"""Scores as where they stand among those at equal progress."""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias, final

from phyla.population.protocol import Population
from phyla.records import Member, Scored, TrialRecord, replace

Place: TypeAlias = tuple[float, int]
"""Where a member stands among those of its age: sort key of its score, then its index."""

_NEVER = float("-inf")
_FIRST, _LAST = -1, 2**31 - 1
"""Before and after the index of every member, for places between scores."""


@final
@dataclass(frozen=True, slots=True)
class _Peers:
    """Members whose weights are equally old; those that stand best have the best scores.

    Attributes:
        generation: the generation that ends at their age.
        ages: the age of the youngest and of the oldest weights, in steps.
    """

    generation: int
    ages: tuple[int, int]


@final
@dataclass(frozen=True, slots=True)
class _Placed:
    """A member whose rank was found; another one is searched between such ones.

    Attributes:
        rank: how many members stand better.
        better: how many of each age.
        index: the member's.
        peers: which age is its own.
    """

    rank: int
    better: Sequence[int]
    index: int
    peers: int

    def next(self) -> list[int]:
        """Return, of each age, the rank of the first one behind it."""
        return [better + (at == self.peers) for at, better in enumerate(self.better)]


@final
class EqualProgress:
    """A population whose sort keys say where a score stands among scores of equally old weights.

    The key is the share of them that are not better, itself counted half: the best of many is near 1, the worst
    near 0, and one that nobody can be compared with is at one half. Scores that are no finite number stay
    worst. What stands for equally old weights is the generation that ends at their age; so a member that took
    over older weights is compared with the scores of older ones.

    Everything that an exploit rule sees is in these keys, members, elites and trials; fitness is as it was.

    Among members whose weights are equally old, keys and scores give the same order. So a rank is counted age by
    age, each by an index: the sort key of a score at one age is turned into the score that would have it at
    another. The member at a rank is found by searching all ages at once. Both cost a few indexed queries for each
    age that members are at.

    Args:
        population: whose scores they are.
        steps_per_trial: steps of one generation.
    """

    def __init__(self, population: Population, steps_per_trial: int) -> None:
        self._population = population
        self._steps = steps_per_trial
        self._real: dict[int, Scored] = {}
        self._keys: dict[tuple[int, float], float] = {}
        self._shown_keys: dict[int, float] = {}
        self._scores: dict[int, int] = {}
        self._orders: dict[int, Sequence[float]] = {}
        self._elites: list[Scored] | None = None
        self._all_peers: list[_Peers] | None = None
        self._ranks: dict[int, int] = {}
        self._sizes: list[int] | None = None
        self._known: list[_Placed] = []

    def shown(self, member: Member) -> Member:
        """Return a member with the key of what it published."""
        return replace(member, published=None if member.published is None else self._placed(member.published))

    def real(self, scored: Scored) -> Scored:
        """Return what a rule chose, with the sort key that it has."""
        return self._real.get(scored.trial, scored)

    @property
    def size(self) -> int:
        """Number of members."""
        return self._population.size

    def scored(self) -> int:
        """Return how many members have a published fitness."""
        return self._population.scored()

    def rank(self, member: Member) -> int:
        """Return how many members stand better; ties by score, then by member index, higher first."""
        assert member.published is not None
        own = self.real(member.published)
        assert own.order is not None
        if member.index not in self._ranks:
            generation, place = self._generation(own.step), (own.order, member.index)
            self._ranks[member.index] = sum(self._better(peers, generation, place) for peers in self._peers())
        return self._ranks[member.index]

    def at_rank(self, rank: int) -> Member:
        """Return the member at a rank.

        Raises:
            IndexError: there are not so many.
        """
        peers = self._peers()
        scored = self.scored()
        if not 0 <= rank < scored:
            raise IndexError(f"there are {scored} members with a score, none at rank {rank}")
        if self._sizes is None:
            others = [self._population.rank_among(one.ages, _NEVER, _FIRST) for one in peers[1:]]
            self._sizes = [scored - sum(others), *others]
        at = bisect_left(self._known, rank, key=_rank)
        if at < len(self._known) and self._known[at].rank == rank:
            return self.member(self._known[at].index)
        # Among those of each age, the member that is wanted is at one of the ranks low .. high - 1.
        low = self._known[at - 1].next() if at else [0] * len(peers)
        high = self._known[at].better if at < len(self._known) else self._sizes
        for turn in count():
            sizes = [last - first for first, last in zip(low, high, strict=True)]
            widest = sizes.index(max(sizes))
            # Most often all ages are alike, so that the share of the better ones is the same in each; where it is
            # not, halving makes sure that this ends soon.
            share, of = (1, 2) if turn % 3 == 2 else (rank - sum(low), sum(sizes))
            at = low[widest] + sizes[widest] * share // of
            chosen = peers[widest]
            place = self._population.at_rank_among(chosen.ages, at)
            better = [
                at if one is chosen else first if first == last else self._better(one, chosen.generation, place)
                for one, first, last in zip(peers, low, high, strict=True)
            ]
            found = _Placed(sum(better), better, place[1], widest)
            insort(self._known, found, key=_rank)
            if found.rank == rank:
                break
            if found.rank < rank:
                low = [max(first, after) for first, after in zip(low, found.next(), strict=True)]
            else:
                high = [min(last, before) for last, before in zip(high, better, strict=True)]
        return self.member(found.index)

    def member(self, index: int) -> Member:
        """Return a member."""
        return self.shown(self._population.member(index))

    def members(self) -> Sequence[Member]:
        """Return all members."""
        return [self.shown(member) for member in self._population.members()]

    def vectors(self) -> Sequence[tuple[int, tuple[float, ...]]]:
        """Return index and sort key of the members that may donate; there is one goal."""
        shown = [(one.index, one.published) for one in self.members()]
        return [(index, (one.order,)) for index, one in shown if one and one.can_donate and one.order is not None]

    def lowest_generation(self) -> int | None:
        """Return the lowest generation of members that are not done."""
        return self._population.lowest_generation()

    def most_spent(self) -> int | None:
        """Return the most steps that a ready member has spent."""
        return self._population.most_spent()

    def elites(self) -> int:
        """Return how many members have an elite."""
        return self._population.elites()

    def elite_at_rank(self, rank: int) -> Scored:
        """Return the elite at a rank; each is the state with its member's best fitness.

        The first call places every elite.
        """
        return self.ranked_elites()[rank]

    def ranked_elites(self) -> Sequence[Scored]:
        """Return all elites by rank."""
        if self._elites is None:
            elites = self._population.ranked_elites()
            for generation in {self._generation(one.step) for one in elites}:
                self._orders[generation] = self._population.orders(generation, 0, self.scored_in(generation))[::-1]
            placed = [self._placed(one) for one in elites]
            self._elites = sorted(placed, key=lambda one: (one.order or 0.0, one.member), reverse=True)
        return self._elites

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a trial."""
        trial = self._population.trial(trial_id)
        if trial.reached_step is None:
            return trial
        return replace(trial, order=self._shown(trial.id, trial.reached_step, trial.order))

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        """Return the trials that completed last."""
        return [self.trial(trial.id) for trial in self._population.last_completed(count)]

    def ended(self, step: int | None) -> Sequence[TrialRecord]:
        """Return the trials that came to an age, broke, or were stopped."""
        return [self.trial(trial.id) for trial in self._population.ended(step)]

    def unfinished(self) -> Sequence[TrialRecord]:
        """Return the trials that are running or queued for a retry."""
        return self._population.unfinished()

    def orders(self, generation: int, rank: int, count: int) -> Sequence[float]:
        """Return sort keys of a generation; here they are those of the scores themselves."""
        return self._population.orders(generation, rank, count)

    def ahead(self, generation: int, order: float) -> tuple[int, int]:
        """Return how many of a generation are better and equal; by the sort key of the score itself."""
        return self._population.ahead(generation, order)

    def scored_in(self, generation: int) -> int:
        """Return how many completed trials of a generation have a fitness."""
        if generation not in self._scores:
            self._scores[generation] = self._population.scored_in(generation)
        return self._scores[generation]

    def next_age(self, after: int) -> int | None:
        """Return the lowest age above one, in steps, of weights with a published fitness."""
        return self._population.next_age(after)

    def rank_among(self, ages: tuple[int, int], order: float, member: int) -> int:
        """Return how many members of an age rank before a place; by the sort key of the score itself."""
        return self._population.rank_among(ages, order, member)

    def at_rank_among(self, ages: tuple[int, int], rank: int) -> tuple[float, int]:
        """Return sort key and index of the member at a rank among those of an age; the key of the score itself."""
        return self._population.at_rank_among(ages, rank)

    def _peers(self) -> list[_Peers]:
        if self._all_peers is None:
            self._all_peers = []
            age = self._population.next_age(-1)
            while age is not None:
                generation = self._generation(age)
                last = (generation + 1) * self._steps
                ages, following = (age, age), self._population.next_age(age)
                if following is not None and following <= last:
                    ages, following = (age, last), self._population.next_age(last)
                self._all_peers.append(_Peers(generation, ages))
                age = following
        return self._all_peers

    def _better(self, peers: _Peers, generation: int, place: Place) -> int:
        """Return how many of these members stand better than one that has a place among those of a generation."""
        if peers.generation != generation and place[0] > _NEVER:
            # Scores that are no finite number have no key that could be better.
            place = max(self._place_at(peers.generation, self._key(generation, place[0]), place), (_NEVER, _LAST))
        return self._population.rank_among(peers.ages, *place)

    def _place_at(self, generation: int, key: float, place: Place) -> Place:
        """Return a place such that, of members of this age, those stand better who rank before it.

        Scores of the generation, best first, have falling keys, and what is between two of them has one between
        theirs. So there are two neighbours, one with a better key and one without; only equal keys need a look at
        the place itself.
        """
        scores = self.scored_in(generation)
        rank = bisect_left(range(scores), -key, key=lambda rank: -_share(rank, scores))
        near = self._population.orders(generation, max(0, rank - 1), 2 if rank else 1)
        above = near[0] if rank else math.inf
        below = near[-1] if rank < scores else _NEVER
        if above == below:
            return above, _FIRST
        between = _share(rank, scores + 1)
        if between < key:
            return above, _FIRST
        if between == key:
            return min(max(place, (below, _LAST)), (above, _FIRST))
        if rank < scores and _share(rank, scores) == key:
            return min(max(place, (below, _FIRST)), (below, _LAST))
        return below, _LAST

    def _generation(self, step: int) -> int:
        """Return the generation that ends at an age."""
        return max(0, -(-step // self._steps) - 1)

    def _placed(self, scored: Scored) -> Scored:
        self._real[scored.trial] = scored
        return replace(scored, order=self._shown(scored.trial, scored.step, scored.order))

    def _shown(self, trial: int, step: int, order: float | None) -> float | None:
        """Return the key of a trial; measured again, its score may be another, and then the first one counts."""
        if order is None or order == _NEVER:
            return order
        if trial not in self._shown_keys:
            self._shown_keys[trial] = self._key(self._generation(step), order)
        return self._shown_keys[trial]

    def _key(self, generation: int, order: float) -> float:
        """Return the key of a finite score among those of a generation."""
        if (generation, order) not in self._keys:
            if generation in self._orders:
                orders = self._orders[generation]
                at = bisect_right(orders, order)
                better, equal, among = len(orders) - at, at - bisect_left(orders, order), len(orders)
            else:
                better, equal = self._population.ahead(generation, order)
                among = self.scored_in(generation)
            # Measured again, a score may not be that of its trial; and one that jumped is not among them.
            self._keys[generation, order] = _share(better, among if equal else among + 1)
        return self._keys[generation, order]


def _rank(placed: _Placed) -> int:
    return placed.rank


def _share(better: int, among: int) -> float:
    """Return the share of scores that are not better than one of them, that one counted half."""
    return 1 - (better + 0.5) / among
