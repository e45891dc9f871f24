"""Exploit rules for several goals that are traded off."""

from dataclasses import dataclass
from typing import final

import numpy as np

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, Member, Scored, json_number
from phyla.strategies.exploit import Exploit, Exploited, facts, quantile_of, unfit
from phyla.strategies.fronts import crowding, dominates, front_ranks
from phyla.strategies.protocol import Population, rank_of, ranked
from phyla.strategies.strategy import Context
from phyla.strategies.tournament import opponent_of


@final
class _Standing:
    """Members that may donate, compared as NSGA-II does: by front, then by how crowded it is there."""

    def __init__(self, population: Population) -> None:
        self._states = [one.published for one in population if one.published and one.published.can_donate]
        self._indices = [state.member for state in self._states]
        self._vectors = np.asarray([state.orders for state in self._states], dtype=np.float64)
        if not self._states:
            return
        self._front = front_ranks(self._vectors)
        self._distance = crowding(self._vectors, self._front)
        # Best first; among equals the lower index.
        self._ranked = np.lexsort((-self._distance, self._front))

    def __len__(self) -> int:
        return len(self._indices)

    def place(self, member: Member) -> int | None:
        """Return where a member is; None if it may not donate."""
        return self._indices.index(member.index) if member.index in self._indices else None

    def rank(self, place: int) -> int:
        """Return how many rank before a place."""
        return int(np.flatnonzero(self._ranked == place)[0])

    def at_rank(self, rank: int) -> tuple[int, Scored]:
        """Return the place at a rank, and the state there."""
        place = int(self._ranked[rank])
        return place, self._states[place]

    def better(self, one: int, other: int) -> bool:
        """Return whether one place is strictly better; equal vectors never are."""
        if (self._vectors[one] == self._vectors[other]).all():
            return False
        mine, theirs = (self._front[one], -self._distance[one]), (self._front[other], -self._distance[other])
        return bool(mine < theirs)

    def told(self, place: int) -> JsonObject:
        """Return what a reason says about a place."""
        return {"front": int(self._front[place]), "crowding": json_number(float(self._distance[place]))}


@final
@dataclass(frozen=True, slots=True)
class ParetoTruncation(Exploit):
    """A member in the bottom quantile copies a uniform draw from the top quantile, where several goals count.

    Members are sorted by non-dominated front, and within a front by crowding distance, the least crowded first;
    infeasible ones, and those with a goal that is nan or infinite, come last. The donor has to be strictly
    better: on a better front, or on the same one where it is less crowded. Equal vectors are a tie, and a tie is
    no reason to move. Reads the scores of all members at each decision.

    Source: Deb et al. 2002 (NSGA-II, crowded-comparison operator); Jaderberg et al. 2017, section 4.1.1
    (truncation selection).

    Args:
        quantile: share of the members that have a fitness, in (0, 0.5]; rounded up, at most half of them.

    Raises:
        ConfigurationError: the quantile is out of range.
    """

    quantile: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 0.5:
            raise ConfigurationError(
                f"ParetoTruncation({self.quantile!r}): the quantile must be above 0 and at most 0.5, or the "
                "bottom would overlap the top"
            )

    @property
    def pareto(self) -> bool:
        """Yes."""
        return True

    def choose(self, member: Member, population: Population, context: Context) -> Exploited:
        """Decide about one member."""
        reason: JsonObject = {"rule": "pareto-truncation"}
        mine = member.published
        scores = ranked(population)
        scored = len(scores)
        if mine is None or mine.order is None or scored < 2:
            return Exploited(donor=None, reason={**reason, "why": "too few scores", "scored": scored})
        standing = _Standing(population)
        own = standing.place(member)
        share = quantile_of(self.quantile, scored)
        # Those that may not donate come last.
        rank = rank_of(member, scores) if own is None else standing.rank(own)
        told: JsonObject = facts(mine) if own is None else {**facts(mine), **standing.told(own)}
        reason = {**reason, "rank": rank + 1, "of": scored, "share": share, "own": told}
        if rank < scored - share:
            return Exploited(donor=None, reason={**reason, "why": "not in the bottom"})
        drawn = int(context.rng.integers(share))
        nobody = Exploited(donor=None, reason={**reason, "why": "nobody in the top is better"})
        if drawn >= len(standing):
            return nobody
        place, donor = standing.at_rank(drawn)
        if own is not None and not standing.better(place, own):
            return nobody
        return Exploited(donor=donor, reason={**reason, "donor": {**facts(donor), **standing.told(place)}})


@final
@dataclass(frozen=True, slots=True)
class ParetoTournament(Exploit):
    """A member is compared with one other, drawn uniformly, and copies it if that is strictly better.

    Better is who dominates the other. If neither does, it is who is on the better non-dominated front of the
    population, and on the same front who is less crowded. Equal vectors are a tie, and a tie is no reason to
    move. Others without a score are drawn, too; then nothing is copied. Reads the scores of all members only where
    neither dominates.

    Source: Deb et al. 2002 (NSGA-II, binary tournament with the crowded-comparison operator).

    Args:
        crowded: compare fronts and crowding where neither dominates; False copies only what dominates, so members
            move seldom.
    """

    crowded: bool = True

    @property
    def pareto(self) -> bool:
        """Yes."""
        return True

    def choose(self, member: Member, population: Population, context: Context) -> Exploited:
        """Decide about one member."""
        reason: JsonObject = {"rule": "pareto-tournament"}
        mine = member.published
        if mine is None or mine.order is None:
            return Exploited(donor=None, reason={**reason, "why": "it has no score yet"})
        other = opponent_of(member, population, context)
        if other is None:
            return Exploited(donor=None, reason={**reason, "why": "it is the only member"})
        theirs = other.published
        if theirs is None or theirs.order is None:
            return Exploited(donor=None, reason={**reason, "opponent": other.index, "why": "no score to compare"})
        met: JsonObject = {**reason, "own": facts(mine), "opponent": facts(theirs)}
        if not theirs.can_donate:
            return Exploited(donor=None, reason={**met, "why": "the opponent is not better"})
        if not mine.can_donate:
            return Exploited(donor=theirs, reason={**met, "donor": facts(theirs), "why": unfit(mine)})
        if dominates(theirs.orders, mine.orders):
            return Exploited(donor=theirs, reason={**met, "donor": facts(theirs), "why": "it dominates"})
        if dominates(mine.orders, theirs.orders) or not self.crowded:
            return Exploited(donor=None, reason={**met, "why": "the opponent does not dominate"})
        standing = _Standing(population)
        own, opponent = standing.place(member), standing.place(other)
        if own is None or opponent is None or not standing.better(opponent, own):
            return Exploited(donor=None, reason={**met, "why": "the opponent is not better"})
        met = {**met, "own": {**facts(mine), **standing.told(own)}}
        return Exploited(donor=theirs, reason={**met, "donor": {**facts(theirs), **standing.told(opponent)}})
