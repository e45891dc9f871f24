"""An exploit rule that may return to what was good once."""

from dataclasses import dataclass
from typing import final

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, Member
from phyla.strategies.exploit import Exploit, Exploited, facts
from phyla.strategies.keeps import Keeps
from phyla.strategies.protocol import Population, ranked_best
from phyla.strategies.strategy import Context


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Backtrack(Exploit):
    """A member that is worse than most lineages ever were copies one of the best states there ever were.

    The elite of a lineage is the best trial on the path that a member actually took. A member whose present
    state is worse than the elite at the quantile, best first, copies a uniform draw from the best of the
    elites, if that is strictly better. It may be an earlier state of its own. So a population that got worse
    as a whole can go back, which comparing present states never does. The checkpoints of elites are kept, one
    more for each member.

    Source: Orion, pull request 705 (BacktrackExploit: quantile 0.9, pool 0.2).

    Args:
        quantile: where among the elites, best first, the line is drawn; in (0, 1).
        pool: share of the elites, best first, that are drawn from; in (0, 1], at least one.

    Raises:
        ConfigurationError: a number is out of range.
    """

    quantile: float = 0.9
    pool: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ConfigurationError(f"Backtrack(quantile={self.quantile!r}): must be between 0 and 1, as in 0.9")
        if not 0 < self.pool <= 1:
            raise ConfigurationError(f"Backtrack(pool={self.pool!r}): must be above 0 and at most 1, as in 0.2")

    @property
    def keeps(self) -> Keeps:
        """The elites."""
        return Keeps(elites=True)

    def choose(self, member: Member, population: Population, context: Context) -> Exploited:
        """Decide about one member."""
        mine = member.published
        elites = ranked_best(population)
        reason: JsonObject = {"rule": "backtrack", "elites": len(elites)}
        if mine is None or mine.order is None or not elites:
            return Exploited(donor=None, reason={**reason, "why": "too few scores"})
        line = elites[int(self.quantile * len(elites) + 1e-9)]
        reason = {**reason, "own": facts(mine), "line": facts(line)}
        if line.order is None or mine.order >= line.order:
            return Exploited(donor=None, reason={**reason, "why": "not worse than the elites"})
        donor = elites[int(context.rng.integers(max(1, int(self.pool * len(elites) + 1e-9))))]
        if donor.order is None or donor.order <= mine.order:
            return Exploited(donor=None, reason={**reason, "why": "no elite is better"})
        return Exploited(donor=donor, reason={**reason, "donor": facts(donor)})
