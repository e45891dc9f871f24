"""Hyperparameters by a function of one's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from phyla.errors import ConfigurationError, SpaceError
from phyla.records import Json, Scored
from phyla.space import Params
from phyla.strategies.explore import Explored
from phyla.strategies.protocol import Population
from phyla.strategies.strategy import Context

ExploreFunction: TypeAlias = Callable[[Params, np.random.Generator], Mapping[str, Any] | None]


@final
@dataclass(frozen=True, slots=True)
class ExploreWith:
    """Hyperparameters are what a function makes of the ones taken over.

    Args:
        function: called as `function(params, rng)`; returns all hyperparameters, flat or nested and valid in the
            space, or None to leave it to the next rule of a pipeline. All its randomness has to come from
            `rng`. For worker processes it has to be a function of a file, no lambda.

    Raises:
        ConfigurationError: it is no function.
    """

    function: ExploreFunction

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigurationError(f"ExploreWith({self.function!r}): give a function of (params, rng)")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        """Ask the function.

        Raises:
            SpaceError: the space does not allow what it returned.
        """
        params = source.params
        name = getattr(self.function, "__name__", repr(self.function))
        made = self.function(Params(params), context.rng)
        if made is None:
            return None
        try:
            new = context.space.validate(made)
        except SpaceError as error:
            raise SpaceError(f"ExploreWith({name}) returned what the space does not allow: {error}") from error
        changes: dict[str, dict[str, Json]] = {
            key: {"from": params.get(key), "to": new.get(key), "by": name}
            for key in {**params, **new}
            if params.get(key) != new.get(key)
        }
        return Explored(params=new, changes=changes)
