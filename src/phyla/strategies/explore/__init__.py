"""Explore rules: new hyperparameters derived from those of the donor. One file per rule.

A new rule is a frozen dataclass with `propose`; `perturb.py` is an example. `ExploreWith` takes a
function instead. A rule that never declines has `always = True`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from phyla.records import JsonObject, Scored
from phyla.strategies.checks import check_mapping, check_returned, check_rules
from phyla.strategies.strategy import Context, Population
from phyla.validation import setting_error


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """New hyperparameters.

    Attributes:
        params: flat, valid in the space.
        changes: parameter name to `{"from", "to", "by"}`, for the ones that changed; by default found by
            comparing, with the name of the rule as `by`.
        facts: further facts for the reason.
    """

    params: JsonObject
    changes: Mapping[str, JsonObject] = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("params", "changes", "facts"):
            check_mapping(self, name)


class Explore(Protocol):
    """Derives hyperparameters from others."""

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        """Return new hyperparameters, or None to leave it to the next rule of a pipeline.

        The source is the trial whose hyperparameters are taken over; the child may start from other weights.
        """
        ...


def propose_params(rule: Explore, source: Scored, population: Population, context: Context) -> Explored | None:
    """Return the proposal of a rule; `ConfigurationError` if it is not of the right type."""
    return check_returned(rule, "propose", rule.propose(source, population, context), Explored, type(None))


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
            raise setting_error(self, "rules", "give at least one rule, or explore=None")
        check_rules(self, "propose", "rules")
        for rule in self.rules[:-1]:
            if getattr(rule, "always", False) and not isinstance(rule, type):
                name = type(rule).__name__
                why = (
                    f"{name} never declines, so no rule after it is asked; put it last. To correct what it gives: "
                )
                raise setting_error(self, "rules", f"{why}ExploreWith(function, after={name}(...))")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        proposals = (propose_params(rule, source, population, context) for rule in self.rules)
        return next((explored for explored in proposals if explored is not None), None)
