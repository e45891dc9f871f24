"""An explore rule that keeps most hyperparameters, and moves the others far."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from phyla.errors import SpaceError
from phyla.records import JsonObject, Scored
from phyla.space import Space
from phyla.space.ranges import NEAR_ONE
from phyla.strategies.explore import Explored
from phyla.strategies.strategy import Context, Population
from phyla.validation import check, plain, setting_error


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mutate:
    """Each parameter changes with a probability, by a factor drawn from a range, or by its inverse.

    Each moves as `Space.perturb` moves it, on its own scale, and so up more often than down on a linear one.
    Discounts move by their distance from 1. Where constraints do not allow a change, that parameter is kept.

    Source: PBT of Isaac Lab and of RL-Games (`rl_games.common.pbt`), from DexPBT (Petrenko et al. 2023).

    Args:
        mutation_rate: probability, per parameter, that it changes.
        change_range: least and greatest factor, both above 1.
        discounts: names of parameters such as `gamma`, between 0 and 1 and without steps.
        discount_range: least and greatest factor of the distance of a discount from 1, both above 1.
    """

    mutation_rate: float = 0.25
    change_range: Sequence[float] = (1.1, 2.0)
    discounts: Sequence[str] = ()
    discount_range: Sequence[float] = (1.1, 1.2)
    always = True

    def __post_init__(self) -> None:
        check(self, mutation_rate="[0, 1]")
        for name in ("change_range", "discount_range"):
            bounds: Any = tuple(map(plain, getattr(self, name)))
            object.__setattr__(self, name, bounds)
            if len(bounds) != 2 or not 1 < bounds[0] <= bounds[1] <= sys.float_info.max:
                raise setting_error(
                    self, name, "must be two numbers above 1, the lower one first, as in (1.1, 2.0)"
                )
        if isinstance(self.discounts, str):
            raise setting_error(self, "discounts", f"must be a list of names, as in [{self.discounts!r}]")
        object.__setattr__(self, "discounts", tuple(self.discounts))

    def check_space(self, space: Space) -> None:
        """Reject discounts that are not numbers between 0 and 1, without steps, in the space."""
        for name in self.discounts:
            parameter = space.parameters.get(name)
            low, high = getattr(parameter, "low", -1), getattr(parameter, "high", 2)
            # The scale of the distance from 1 has no steps.
            if not 0 < low < high < 1 or getattr(parameter, "step", None) is not None:
                raise SpaceError(
                    f"Mutate(discounts=[{name!r}]): must be a Float within (0, 1), without steps, such as "
                    f"Float(0.9, 0.999); the space has {parameter!r}"
                )

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        rng, params, space = context.rng, source.params, self._scale_space(context.space)
        changes: dict[str, JsonObject] = {}
        for name in space.parameters:
            if rng.random() >= self.mutation_rate or name not in params:
                continue
            low, high = self.discount_range if name in self.discounts else self.change_range
            by = float(rng.uniform(low, high))
            params, changed = space.perturb(params, rng, factors=(by, 1 / by), names=[name])
            changes.update(changed)
        return Explored(params=params, changes=changes)

    def _scale_space(self, space: Space) -> Space:
        """Return the space with the discounts on the scale of their distance from 1."""
        if not self.discounts:
            return space
        parameters: dict[str, Any] = dict(space.parameters)
        for name in self.discounts:
            parameters[name] = replace(parameters[name], log=NEAR_ONE)
        return Space(parameters, constraints=space.constraints)
