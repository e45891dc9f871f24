"""Hyperparameters from two parents."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast, final

from phyla.errors import ConfigurationError, SpaceError
from phyla.records import Json, JsonObject, Scored
from phyla.strategies.checks import check_rule
from phyla.strategies.exploit import facts
from phyla.strategies.explore import Explore, Explored, Perturb
from phyla.strategies.protocol import Population, ranked
from phyla.strategies.strategy import Context

_PERTURB = Perturb()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Each parameter comes from the hyperparameters taken over or from a second good member; then they mutate.

    The second parent is drawn uniformly from the top quantile; it may be the first one, and then only mutation
    changes something. If constraints allow no mixture, the first parent is kept and the reason says so. Weights
    come from the first parent alone. How parameters combine that only one parent
    has is said in `Space.cross`.

    Source: Li et al. 2019, arXiv 1902.01894, section 3 (a child is a copy of its parent after mutation and
    crossover).

    Args:
        quantile: share of the population, best first, that second parents are drawn from; in (0, 1], at least
            one member.
        share: probability, per parameter, that it comes from the second parent; in [0, 1].
        then: how the result mutates; None leaves it as it is.

    Raises:
        ConfigurationError: a number is out of range.
    """

    quantile: float = 0.2
    share: float = 0.5
    then: Explore | None = _PERTURB

    def __post_init__(self) -> None:
        if self.then is not None:
            check_rule("Crossover", "then", self.then, "propose")
        if not 0 < self.quantile <= 1:
            raise ConfigurationError(f"Crossover(quantile={self.quantile!r}): must be above 0 and at most 1")
        if not 0 <= self.share <= 1:
            raise ConfigurationError(f"Crossover(share={self.share!r}): a probability lies between 0 and 1")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        """Cross with a member that is drawn, then mutate."""
        scores = ranked(population)
        top = max(1, int(self.quantile * len(scores) + 1e-9))
        mate = scores[int(context.rng.integers(top))] if scores else None
        params = source.params
        crossed, changes, what = params, dict[str, JsonObject](), dict[str, Json]()
        if mate is not None and mate.can_donate:
            what = {"mate": facts(mate)}
            try:
                crossed, changed = context.space.cross(params, mate.params, context.rng, share=self.share)
            except SpaceError as error:
                # Two allowed parents need have no allowed child but themselves.
                what = {**what, "not_crossed": str(error)}
            else:
                changes = {
                    name: {
                        "from": change["from"],
                        "to": change["to"],
                        "by": f"member {mate.member}" if change["by"] == "crossed" else change["by"],
                    }
                    for name, change in changed.items()
                }
        mutated = self.then.propose(replace(source, params=crossed), population, context) if self.then else None
        if mutated is None:
            return Explored(params=crossed, changes=changes, facts=what)
        return Explored(
            params=mutated.params,
            changes=_joined(changes, mutated.changes, params, mutated.params),
            facts={**mutated.facts, **what},
        )


def _joined(
    first: Mapping[str, JsonObject], second: Mapping[str, JsonObject], old: JsonObject, new: JsonObject
) -> Mapping[str, JsonObject]:
    joined: dict[str, JsonObject] = {}
    for name in {**first, **second}:
        if old.get(name) != new.get(name):
            ways = [cast("str", change[name]["by"]) for change in (first, second) if name in change]
            joined[name] = {"from": old.get(name), "to": new.get(name), "by": ", ".join(ways)}
    return joined
