"""Scores as where they stand among those at equal progress."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import final

from phyla.population.protocol import Population
from phyla.records import Member, Scored, TrialRecord, replace


@final
class EqualProgress:
    """A population whose sort keys say where a score stands among scores of equally old weights.

    The key is the share of them that are not better, itself counted half: the best of many is near 1, the worst
    near 0, and one that nobody can be compared with is at one half. Scores that are no finite number stay
    worst. What stands for equally old weights is the generation that ends at their age; so a member that took
    over older weights is compared with the scores of older ones.

    Everything that an exploit rule sees is in these keys, members, elites and trials; fitness is as it was.

    Args:
        population: whose scores they are.
        steps_per_trial: steps of one generation.
    """

    def __init__(self, population: Population, steps_per_trial: int) -> None:
        self._population = population
        self._steps = steps_per_trial
        self._real: dict[int, Scored] = {}
        self._keys: dict[int, float | None] = {}
        self._orders: dict[int, Sequence[float]] = {}
        self._ranked: list[Member] | None = None

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
        """Return how many members stand better; ties as for members."""
        return next(rank for rank, other in enumerate(self._standings()) if other.index == member.index)

    def at_rank(self, rank: int) -> Member:
        """Return the member at a rank."""
        return self._standings()[rank]

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

    def elites(self) -> int:
        """Return how many members have an elite."""
        return self._population.elites()

    def elite_at_rank(self, rank: int) -> Scored:
        """Return the elite at a rank; each is the state with its member's best fitness."""
        elites = [self._placed(self._population.elite_at_rank(at)) for at in range(self.elites())]
        return sorted(elites, key=lambda one: (one.order or 0.0, one.member), reverse=True)[rank]

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a trial."""
        trial = self._population.trial(trial_id)
        if trial.reached_step is None:
            return trial
        return replace(trial, order=self._key(trial.id, trial.reached_step, trial.order))

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        """Return the trials that completed last."""
        return [self.trial(trial.id) for trial in self._population.last_completed(count)]

    def unfinished(self) -> Sequence[TrialRecord]:
        """Return the trials that are running or queued for a retry."""
        return self._population.unfinished()

    def orders(self, generation: int) -> Sequence[float]:
        """Return the sort keys of a generation; here they are those of the scores themselves."""
        return self._population.orders(generation)

    def standing(self, generation: int, order: float) -> tuple[int, int]:
        """Return how many of a generation are better; here the sort key is the one of the score itself."""
        return self._population.standing(generation, order)

    def _standings(self) -> list[Member]:
        if self._ranked is None:
            known = [
                one for one in self.members() if one.published is not None and one.published.order is not None
            ]
            self._ranked = sorted(known, key=self._place, reverse=True)
        return self._ranked

    def _place(self, member: Member) -> tuple[float, float, int]:
        assert member.published is not None
        real = self.real(member.published).order
        return member.published.order or 0.0, real or 0.0, member.index

    def _placed(self, scored: Scored) -> Scored:
        self._real[scored.trial] = scored
        return replace(scored, order=self._key(scored.trial, scored.step, scored.order))

    def _key(self, trial: int, step: int, order: float | None) -> float | None:
        if order is None or order == float("-inf"):
            return order
        if trial not in self._keys:
            generation = max(0, -(-step // self._steps) - 1)
            if generation not in self._orders:
                self._orders[generation] = self._population.orders(generation)
            orders = self._orders[generation]
            at = bisect_right(orders, order)
            # Measured again, a score may have another key than its trial; and one that jumped is not among them.
            is_there = at > 0 and orders[at - 1] == order
            among = len(orders) + (not is_there)
            self._keys[trial] = 1 - (len(orders) - at + 0.5) / among
        return self._keys[trial]
