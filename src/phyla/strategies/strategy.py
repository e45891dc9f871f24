"""The contract of a strategy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

import numpy as np

from phyla.records import Json, Member, Objective
from phyla.space import Space
from phyla.strategies.decision import Decision
from phyla.strategies.fitness import FitnessRule, Last
from phyla.strategies.from_suite import FromSuite
from phyla.strategies.keeps import NOTHING, Keeps
from phyla.strategies.protocol import History, Population

_LAST = Last()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a decision may use besides the population.

    Attributes:
        space: the search space.
        objective: what is selected for.
        rng: seeded by (study seed, member, generation, replacement), never by arrival order.
        now: seconds since the epoch by the database's clock.
        history: the study's trials.
        state: the strategy's own JSON state, as it last committed it; None at first.
    """

    space: Space
    objective: Objective
    rng: np.random.Generator
    now: float
    history: History
    state: Json = None


class Strategy(Protocol):
    """Decides what each member does next. Frozen, pure, and sees no database.

    A strategy is a frozen dataclass that derives from this class, with `population_size` and `decide`; everything
    else has a default. Register it under the entry point group `phyla.strategies` to store it by name. It may also
    have `check_space(space)`, see `phyla.strategies.check_space`.
    """

    if TYPE_CHECKING:

        @property
        def population_size(self) -> int:
            """Number of members."""
            ...

    @property
    def quorum(self) -> float:
        """Share of the population that must have come as far as a member before it may decide.

        Between 0 (nobody waits, and members are compared at their newest scores, however far they have come) and
        1 (everybody waits for the slowest, and a study is the same with any number of workers).
        """
        return 0.0

    @property
    def exclusive(self) -> bool:
        """Whether two decisions of one study may never be made at the same moment.

        Needed by strategies that keep state, or that wait for what others have decided; it costs concurrency on
        PostgreSQL.
        """
        return False

    @property
    def fitness(self) -> FitnessRule | FromSuite:
        """How the reports of one trial become its fitness, or which suite gives it."""
        return _LAST

    @property
    def member_steps(self) -> int | None:
        """Steps that each member trains in all, for progress and time left; None if unknown."""
        return None

    @property
    def keeps(self) -> Keeps:
        """Which checkpoints must not be collected because decisions may still choose them; mostly `NOTHING`."""
        return NOTHING

    @property
    def pareto(self) -> bool:
        """Whether it works without a single number that says which trial is better."""
        return False

    def line(self, progress: int) -> int:
        """Return how many grid lines a member has passed; members are compared at the same line."""
        return progress

    def finished(self, member: Member) -> bool:
        """Return whether the member has nothing more to do."""
        return self.member_steps is not None and member.progress >= self.member_steps

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Decide about a ready member that is not finished.

        Args:
            member: the member.
            population: those that it is compared with, itself included, each with one published state: all
                members when the quorum is 0, else those that have come as far.
            context: space, objective, randomness, history.
        """
        ...


def steps_to_line(start: int, steps_per_trial: int | None, total_steps: int) -> int:
    """Return how many steps a trial trains that starts at a progress, so that it ends at the next grid line.

    Args:
        start: progress at the start.
        steps_per_trial: distance of the grid lines; None for a single trial.
        total_steps: where training ends.
    """
    left = max(1, total_steps - start)
    return left if steps_per_trial is None else min(steps_per_trial - start % steps_per_trial, left)
