"""The contract of a strategy."""

from dataclasses import dataclass
from typing import Protocol, final

import numpy as np

from phyla.population.decision import Decision
from phyla.population.fitness import FitnessRule
from phyla.population.from_suite import FromSuite
from phyla.population.keeps import Keeps
from phyla.population.protocol import Population
from phyla.records import Json, Member, Objective, drafted
from phyla.space import Space


@final
@drafted
@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a decision may use besides the population.

    Attributes:
        space: the search space.
        objective: what is selected for.
        rng: seeded by (study seed, member, generation, replacement), never by arrival order.
        now: seconds since the epoch by the database's clock.
        state: the strategy's own JSON state, as it last committed it; None at first.
    """

    space: Space
    objective: Objective
    rng: np.random.Generator
    now: float
    state: Json = None


class Strategy(Protocol):
    """Decides what each member does next. Frozen, pure, and sees no database.

    A plug-in is a frozen dataclass with these members, registered under the entry point group
    `phyla.strategies`. It may also have `check_space(space)`, see `phyla.population.check_space`.
    """

    @property
    def population_size(self) -> int:
        """Number of members."""
        ...

    @property
    def synchronous(self) -> bool:
        """Whether members wait for each other after every trial, and see only complete generations."""
        ...

    @property
    def exclusive(self) -> bool:
        """Whether two decisions of one study may never be taken at the same moment.

        Needed by synchronous strategies and by those that wait or keep state; it costs concurrency on
        PostgreSQL.
        """
        ...

    @property
    def fitness(self) -> FitnessRule | FromSuite:
        """How the reports of one trial become its fitness, or which suite gives it."""
        ...

    @property
    def member_steps(self) -> int | None:
        """Steps that each member is to spend in all, for progress and time left; None if unknown."""
        ...

    @property
    def keeps(self) -> Keeps:
        """Which checkpoints must not be collected because decisions may still choose them; mostly `NOTHING`."""
        ...

    @property
    def pareto(self) -> bool:
        """Whether it can do without a single number that says which trial is better."""
        ...

    def finished(self, member: Member) -> bool:
        """Return whether the member has nothing more to do."""
        ...

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Decide about a ready member that is not finished."""
        ...
