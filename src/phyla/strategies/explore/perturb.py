"""Explore rules that move hyperparameters at random, and a function that corrects their proposals."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias, final

import numpy as np

from phyla.errors import SpaceError
from phyla.records import Scored
from phyla.space import Params, Space, run_check
from phyla.space.declaration import refuse_unknown
from phyla.strategies.checks import check_arguments, check_rules
from phyla.strategies.explore import Explore, Explored, changes_of, propose_params
from phyla.strategies.strategy import Context, Population
from phyla.validation import check, plain, setting_error

KEPT = "the constraints allow none of the attempted changes"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Perturb:
    """Each parameter moves on its scale by one of the factors, or is drawn afresh; see `Space.perturb`.

    Numbers are multiplied; in narrow ranges they move by a share of the range, a tenth or so. A move that would
    pass an end turns back, so that no part of a range is preferred, if factors are near 1 and lead about as far up
    as down.

    Source: Jaderberg et al. 2017, section 4.1.1 (perturb by 1.2 or 0.8; resample). With `clip=True` numbers are
    multiplied and clipped whatever their scale, as there and in Ray Tune; narrow ranges are left with their ends.

    Args:
        factors: how far numbers move, one drawn per parameter; all above 0.
        resample: probability, per parameter, of a fresh draw instead.
        names: full names of the parameters that change; None for all. The others stay those of the donor.
        clip: multiply by the factor itself, and clip into the range.
    """

    factors: Sequence[float] = (0.8, 1.2)
    resample: float = 0.0
    names: Sequence[str] | None = None
    clip: bool = False
    always = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", tuple(map(plain, self.factors)))
        if not self.factors or any(not 0 < f <= sys.float_info.max or f == 1 for f in self.factors):
            raise setting_error(self, "factors", "must be positive numbers other than 1, as in (0.8, 1.2)")
        check(self, resample="[0, 1]", clip=(True, False))
        if self.names is not None:
            if isinstance(self.names, str) or not self.names:
                raise setting_error(self, "names", "must be a list of at least one name, as in ['lr']")
            object.__setattr__(self, "names", tuple(self.names))

    def check_space(self, space: Space) -> None:
        """Reject names that are not parameters of the space."""
        run_check(
            partial(refuse_unknown, known=space.parameters), self.names or (), f"Perturb(names={self.names!r})"
        )

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        new, changes = context.space.perturb(
            source.params,
            context.rng,
            factors=self.factors,
            resample=self.resample,
            names=self.names,
            clip=self.clip,
        )
        facts = {"kept": KEPT} if not changes and context.space.constraints else {}
        return Explored(params=new, changes=changes, facts=facts)


PERTURB: Final = Perturb()


@final
@dataclass(frozen=True, slots=True)
class Resample:
    """With `probability`, all parameters are drawn afresh; otherwise the next rule of a pipeline decides.

    Source: Orion's explore pipeline (resample with probability 0.2, else perturb).
    """

    probability: float = 1.0

    def __post_init__(self) -> None:
        check(self, probability="[0, 1]")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        if context.rng.random() >= self.probability:
            return None
        new, changes = context.space.resample(source.params, context.rng)
        return Explored(params=new, changes=changes)


ExploreFunction: TypeAlias = Callable[[Params, np.random.Generator], Mapping[str, Any] | None]


@final
@dataclass(frozen=True, slots=True)
class ExploreWith:
    """A function corrects what another rule proposes, as `custom_explore_fn` of Ray Tune does.

    Args:
        function: called as `function(params, rng)`, with all its randomness from `rng`; returns all
            hyperparameters, flat or nested, or None to leave it to the next rule. Worker processes need a function
            of a file.
        after: the rule that explores first. With None the function gets the hyperparameters taken over, and does
            all exploring itself.
    """

    function: ExploreFunction
    after: Explore | None = PERTURB

    def __post_init__(self) -> None:
        check_arguments(self, "function", "params", "rng")
        check_rules(self, "propose", "after", optional=True)

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        name = getattr(self.function, "__name__", repr(self.function))
        before = propose_params(self.after, source, population, context) if self.after else None
        before = before or Explored(params=source.params)
        values = self.function(Params(before.params), context.rng)
        if values is None:
            return None
        try:
            new = context.space.validate(values)
        except SpaceError as error:
            raise SpaceError(f"ExploreWith({name}) returned values outside the space: {error}") from error
        by = {parameter: str(change["by"]) for parameter, change in before.changes.items()}
        for parameter in changes_of(before.params, new, name):
            by[parameter] = f"{by[parameter]}, {name}" if parameter in by else name
        return replace(before, params=new, changes=changes_of(source.params, new, by))
