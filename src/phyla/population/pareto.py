"""Exploit rules for several goals that are traded off."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from phyla.errors import ConfigurationError
from phyla.population.exploit import Exploited, facts, unfit
from phyla.population.fronts import crowding, dominates, front_ranks
from phyla.population.keeps import NOTHING, Keeps
from phyla.population.protocol import Population
from phyla.population.strategy import Context
from phyla.records import WORST, JsonObject, Member, Scored, json_number


@final
class _Standing:
    """Members with a published score, compared as NSGA-II does: by front, then by how crowded it is there."""

    def __init__(self, members: Sequence[Member]) -> None:
        shown = [member.published for member in members if member.published is not None]
        self.scored: list[Scored] = [one for one in shown if one.order is not None]
        fit = np.asarray([one.can_donate for one in self.scored], dtype=np.bool_)
        vectors = np.asarray([_orders(one) for one, good in zip(self.scored, fit, strict=True) if good])
        self.front: npt.NDArray[np.intp] = np.full(len(self.scored), len(self.scored), dtype=np.intp)
        self.distance: npt.NDArray[np.float64] = np.zeros(len(self.scored))
        if len(vectors):
            fronts = front_ranks(vectors)
            self.front[fit], self.distance[fit] = fronts, crowding(vectors, fronts)
        # Best first; among equals the lower index.
        self.ranked: npt.NDArray[np.intp] = np.lexsort((-self.distance, self.front))

    def place(self, member: int) -> int:
        """Return where in `scored` a member is."""
        return next(place for place, one in enumerate(self.scored) if one.member == member)

    def better(self, one: int, other: int) -> bool:
        """Return whether one is strictly better; equal vectors never are."""
        if not self.scored[one].can_donate or not self.scored[other].can_donate:
            return self.scored[one].can_donate
        if _orders(self.scored[one]) == _orders(self.scored[other]):
            return False
        mine, theirs = (self.front[one], -self.distance[one]), (self.front[other], -self.distance[other])
        return bool(mine < theirs)

    def told(self, place: int) -> JsonObject:
        """Return what a reason says about a member that was compared."""
        if not self.scored[place].can_donate:
            return facts(self.scored[place])
        standing: JsonObject = {
            "front": int(self.front[place]),
            "crowding": json_number(float(self.distance[place])),
        }
        return {**facts(self.scored[place]), **standing}


@final
@dataclass(frozen=True, slots=True)
class ParetoTruncation:
    """A member in the bottom quantile copies a uniform draw from the top quantile, where several goals count.

    Members are sorted by non-dominated front, and within a front by crowding distance, the least crowded first;
    infeasible ones, and those with a goal that is nan or infinite, come last. The donor has to be strictly
    better: on a better front, or on the same one where it is less crowded. Equal vectors are a tie, and a tie is
    no reason to move. Reads all members at each decision.

    Source: Deb et al. 2002 (NSGA-II, crowded-comparison operator); Jaderberg et al. 2017, section 4.1.1
    (truncation selection).

    Args:
        quantile: share of the members that have a fitness, in (0, 0.5]; rounded down, at least one member.

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
    def keeps(self) -> Keeps:
        """Nothing besides what members are at and what they published."""
        return NOTHING

    @property
    def pareto(self) -> bool:
        """Yes."""
        return True

    def choose(self, member: Member, population: Population, context: Context) -> Exploited:
        """Decide about one member."""
        reason: JsonObject = {"rule": "pareto-truncation"}
        mine = member.published
        scored = population.scored()
        if mine is None or mine.order is None or scored < 2:
            return Exploited(donor=None, reason={**reason, "why": "too few scores", "scored": scored})
        standing = _Standing(population.members())
        own = standing.place(member.index)
        share = max(1, int(self.quantile * scored + 1e-9))
        rank = int(np.flatnonzero(standing.ranked == own)[0])
        reason = {**reason, "rank": rank + 1, "of": scored, "share": share, "own": standing.told(own)}
        if rank < scored - share:
            return Exploited(donor=None, reason={**reason, "why": "not in the bottom"})
        donor = int(standing.ranked[int(context.rng.integers(share))])
        if not standing.better(donor, own):
            return Exploited(donor=None, reason={**reason, "why": "nobody in the top is better"})
        return Exploited(donor=standing.scored[donor], reason={**reason, "donor": standing.told(donor)})


@final
@dataclass(frozen=True, slots=True)
class ParetoTournament:
    """A member is compared with one other, drawn uniformly, and copies it if that is strictly better.

    Better is who dominates the other. If neither does, it is who is on the better non-dominated front of the
    population, and on the same front who is less crowded. Equal vectors are a tie, and a tie is no reason to
    move. Others without a score are drawn, too; then nothing is copied. Reads all members only where neither
    dominates.

    Source: Deb et al. 2002 (NSGA-II, binary tournament with the crowded-comparison operator).

    Args:
        crowded: compare fronts and crowding where neither dominates; False copies only what dominates, which
            moves members less and keeps the population more diverse.
    """

    crowded: bool = True

    @property
    def keeps(self) -> Keeps:
        """Nothing besides what members are at and what they published."""
        return NOTHING

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
        if population.size < 2:
            return Exploited(donor=None, reason={**reason, "why": "it is the only member"})
        drawn = int(context.rng.integers(population.size - 1))
        other = population.member(drawn + (drawn >= member.index))
        theirs = other.published
        if theirs is None or theirs.order is None:
            return Exploited(donor=None, reason={**reason, "opponent": other.index, "why": "no score to compare"})
        met: JsonObject = {**reason, "own": facts(mine), "opponent": facts(theirs)}
        if not theirs.can_donate:
            return Exploited(donor=None, reason={**met, "why": "the opponent is not better"})
        if not mine.can_donate:
            return Exploited(donor=theirs, reason={**met, "donor": facts(theirs), "why": unfit(mine)})
        if dominates(_orders(theirs), _orders(mine)):
            return Exploited(donor=theirs, reason={**met, "donor": facts(theirs), "why": "it dominates"})
        if dominates(_orders(mine), _orders(theirs)) or not self.crowded:
            return Exploited(donor=None, reason={**met, "why": "the opponent does not dominate"})
        standing = _Standing(population.members())
        own, opponent = standing.place(member.index), standing.place(other.index)
        met = {**reason, "own": standing.told(own), "opponent": standing.told(opponent)}
        if not standing.better(opponent, own):
            return Exploited(donor=None, reason={**met, "why": "the opponent is not better"})
        return Exploited(donor=theirs, reason={**met, "donor": standing.told(opponent)})


def _orders(scored: Scored) -> tuple[float, ...]:
    """Return the sort keys of the goals; of an objective that makes one number, that one."""
    goals = () if scored.criteria is None else scored.criteria.orders
    return goals or (WORST if scored.order is None else scored.order,)
