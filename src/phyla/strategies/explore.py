"""Explore rules: new hyperparameters derived from the ones taken over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast, final

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, Scored
from phyla.strategies.checks import check_rule
from phyla.strategies.protocol import Population
from phyla.strategies.strategy import Context


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """New hyperparameters.

    Attributes:
        params: flat, valid in the space.
        changes: parameter name to `{"from", "to", "by"}`, for the ones that changed.
        facts: what else the reason should tell.
    """

    params: JsonObject
    changes: Mapping[str, JsonObject] = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)


KEPT = "the constraints allow none of the changes that were tried"


class Explore(Protocol):
    """Derives hyperparameters from others."""

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        """Return new hyperparameters, or None to leave it to the next rule of a pipeline.

        Args:
            source: the trial whose hyperparameters are taken over; the child may start from other weights.
            population: the others.
            context: space, objective, randomness.
        """
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Perturb:
    """Each parameter is multiplied by one of the factors, or drawn afresh from its prior.

    Source: Jaderberg et al. 2017, section 4.1.1 (perturb by 1.2 or 0.8; resample). How each type of
    parameter moves is said in `Space.perturb`.

    Args:
        factors: what numbers are multiplied by, one drawn per parameter; all above 0.
        resample: probability, per parameter, of a fresh draw instead.

    Raises:
        ConfigurationError: a factor or the probability is out of range.
    """

    factors: Sequence[float] = (0.8, 1.2)
    resample: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", tuple(self.factors))
        if not self.factors or any(not 0 < f < float("inf") or f == 1 for f in self.factors):
            raise ConfigurationError(
                f"Perturb(factors={self.factors!r}): factors must be positive numbers other than 1, "
                "as in (0.8, 1.2)"
            )
        _check_probability(self.resample, "Perturb", "resample")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        """Perturb every active parameter."""
        new, changes = context.space.perturb(
            source.params, context.rng, factors=self.factors, resample=self.resample
        )
        kept = {"kept": KEPT} if not changes and context.space.constraints else {}
        return Explored(params=new, changes=cast("Mapping[str, JsonObject]", changes), facts=kept)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Resample:
    """With a probability, all parameters are drawn afresh; otherwise the next rule of a pipeline decides.

    Source: Orion's explore pipeline (resample with probability 0.2, else perturb).

    Args:
        probability: of resampling, in [0, 1].

    Raises:
        ConfigurationError: the probability is out of range.
    """

    probability: float = 1.0

    def __post_init__(self) -> None:
        _check_probability(self.probability, "Resample", "probability")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        """Draw from the prior, or decline."""
        if context.rng.random() >= self.probability:
            return None
        new, changes = context.space.resample(source.params, context.rng)
        return Explored(params=new, changes=cast("Mapping[str, JsonObject]", changes))


@final
@dataclass(frozen=True, slots=True)
class ExplorePipeline:
    """Explore rules in sequence; the first that does not decline wins (Orion's pipeline).

    Raises:
        ConfigurationError: no rule is given.
    """

    rules: Sequence[Explore]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        if not self.rules:
            raise ConfigurationError("ExplorePipeline([]): give at least one rule, or explore=None")
        for rule in self.rules:
            check_rule("ExplorePipeline", "rules", rule, "propose")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        """Ask each rule in turn."""
        for rule in self.rules:
            explored = rule.propose(source, population, context)
            if explored is not None:
                return explored
        return None


def _check_probability(value: float, rule: str, name: str) -> None:
    if not 0 <= value <= 1:
        raise ConfigurationError(f"{rule}({name}={value!r}): a probability lies between 0 and 1")
