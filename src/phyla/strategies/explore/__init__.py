"""Explore rules: new hyperparameters derived from the ones taken over. One file a rule.

A new rule is a frozen dataclass with `propose`; `perturb.py` is an example. `ExploreWith` takes a
function instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, final

import numpy as np

from phyla.arguments import refused
from phyla.errors import SpaceError
from phyla.records import JsonObject, Scored
from phyla.space import Params
from phyla.strategies.checks import check_rules, returned
from phyla.strategies.strategy import Context, Population


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """New hyperparameters.

    Attributes:
        params: flat, valid in the space.
        changes: parameter name to `{"from", "to", "by"}`, for the ones that changed; by default found by
            comparing, with the name of the rule as `by`.
        facts: what else the reason should tell.
    """

    params: JsonObject
    changes: Mapping[str, JsonObject] = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)


class Explore(Protocol):
    """Derives hyperparameters from others."""

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        """Return new hyperparameters, or None to leave it to the next rule of a pipeline.

        The source is the trial whose hyperparameters are taken over; the child may start from other weights.
        """
        ...


def proposed(rule: Explore, source: Scored, population: Population, context: Context) -> Explored | None:
    """Return what a rule proposes; `ConfigurationError` if it returned anything else."""
    return returned(rule, "propose", rule.propose(source, population, context), Explored, type(None))


def changes_of(old: JsonObject, new: JsonObject, by: str | Mapping[str, str]) -> dict[str, JsonObject]:
    """Return what changed between hyperparameters, as `Explored.changes` has it: `by` one way, or by name."""
    names = [name for name in ({**old, **new} if isinstance(by, str) else by) if old.get(name) != new.get(name)]
    ways = dict.fromkeys(names, by) if isinstance(by, str) else by
    return {name: {"from": old.get(name), "to": new.get(name), "by": ways[name]} for name in names}


@final
@dataclass(frozen=True, slots=True)
class ExplorePipeline:
    """Explore rules in sequence; the first that does not decline wins (Orion's pipeline)."""

    rules: Sequence[Explore]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        if not self.rules:
            raise refused(self, "rules", "give at least one rule, or explore=None")
        check_rules(self, "propose", "rules")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        proposals = (proposed(rule, source, population, context) for rule in self.rules)
        return next((explored for explored in proposals if explored is not None), None)


ExploreFunction: TypeAlias = Callable[[Params, np.random.Generator], Mapping[str, Any] | None]


@final
@dataclass(frozen=True, slots=True)
class ExploreWith:
    """Hyperparameters are what a function makes of the ones taken over.

    Args:
        function: called as `function(params, rng)`, with all its randomness from `rng`; returns all
            hyperparameters, flat or nested, or None to leave it to the next rule. Worker processes need a function
            of a file.
    """

    function: ExploreFunction

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise refused(self, "function", "give a function of (params, rng)")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        name = getattr(self.function, "__name__", repr(self.function))
        made = self.function(Params(source.params), context.rng)
        if made is None:
            return None
        try:
            new = context.space.validate(made)
        except SpaceError as error:
            raise SpaceError(f"ExploreWith({name}) returned what the space does not allow: {error}") from error
        return Explored(params=new, changes=changes_of(source.params, new, name))
