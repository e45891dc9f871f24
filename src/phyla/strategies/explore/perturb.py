"""Explore rules that move hyperparameters by chance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from phyla.arguments import check, refused
from phyla.records import Scored
from phyla.strategies.explore import Explored
from phyla.strategies.strategy import Context, Population

KEPT = "the constraints allow none of the changes that were tried"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Perturb:
    """Each parameter is multiplied by one of the factors, or drawn afresh from its prior; see `Space.perturb`.

    Source: Jaderberg et al. 2017, section 4.1.1 (perturb by 1.2 or 0.8; resample).

    Args:
        factors: what numbers are multiplied by, one drawn per parameter; all above 0.
        resample: probability, per parameter, of a fresh draw instead.
    """

    factors: Sequence[float] = (0.8, 1.2)
    resample: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", tuple(self.factors))
        if not self.factors or any(not 0 < f < float("inf") or f == 1 for f in self.factors):
            raise refused(self, "factors", "must be positive numbers other than 1, as in (0.8, 1.2)")
        check(self, resample="[0, 1]")

    def propose(self, source: Scored, population: Population, context: Context) -> Explored | None:
        new, changes = context.space.perturb(
            source.params, context.rng, factors=self.factors, resample=self.resample
        )
        kept = {"kept": KEPT} if not changes and context.space.constraints else {}
        return Explored(params=new, changes=changes, facts=kept)


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
