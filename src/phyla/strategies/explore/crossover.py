"""Hyperparameters from two parents."""

from dataclasses import dataclass, replace
from typing import final

from phyla.errors import SpaceError
from phyla.records import Json, Scored
from phyla.strategies.checks import check_rules
from phyla.strategies.exploit import facts
from phyla.strategies.explore import Explore, Explored, changes_of, propose_params
from phyla.strategies.explore.perturb import PERTURB
from phyla.strategies.strategy import Context, Population, ranked
from phyla.validation import check


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Each parameter comes from the hyperparameters taken over or from a second good member; then they mutate.

    The second parent is drawn uniformly from the top quantile; it may be the first one. If constraints allow no
    mixture, the first parent is kept and the reason says so. Weights come from the first parent alone. See also
    `Space.cross`. Source: Li et al. 2019, arXiv 1902.01894, section 3.

    Args:
        quantile: share of the population, best first, that second parents are drawn from; in (0, 1], at least one.
        share: probability, per parameter, that it comes from the second parent; in [0, 1].
        then: how the result mutates; None leaves it as it is.
    """

    quantile: float = 0.2
    share: float = 0.5
    then: Explore | None = PERTURB
    always = True

    def __post_init__(self) -> None:
        check_rules(self, "propose", "then", optional=True)
        check(self, quantile="(0, 1]", share="[0, 1]")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        scores = ranked(population)
        top = max(1, int(self.quantile * len(scores) + 1e-9))
        mate = scores[int(context.rng.integers(top))] if scores else None
        params, by, details = source.params, dict[str, str](), dict[str, Json]()
        if mate is not None and mate.can_donate:
            details = {"mate": facts(mate)}
            try:
                params, changed = context.space.cross(params, mate.params, context.rng, share=self.share)
            except SpaceError as error:
                # Two allowed parents need have no allowed child but themselves.
                details = {**details, "not_crossed": str(error)}
            else:
                ways = {"crossed": f"member {mate.member}"}
                by = {name: ways.get(str(change["by"]), str(change["by"])) for name, change in changed.items()}
        child = replace(source, params=params)
        mutated = propose_params(self.then, child, population, context) if self.then else None
        if mutated is not None:
            params, details = mutated.params, {**mutated.facts, **details}
            for name, change in mutated.changes.items():
                by[name] = f"{by[name]}, {change['by']}" if name in by else str(change["by"])
        return Explored(params=params, changes=changes_of(source.params, params, by), facts=details)
