"""Several metrics that are traded off against each other."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from phyla.errors import ConfigurationError
from phyla.records.objective import WORST, Goal, Judgement, Maximize, Minimize


@final
@dataclass(frozen=True, slots=True, init=False)
class Pareto:
    """Select for the Pareto front: the trials that no other trial beats in everything.

    A trial *dominates* another if it is at least as good in every goal and better in one. The trials that no other
    trial dominates are the front. The fitness that tables show is the first goal's; `results.front()` has them
    all. With a goal that is nan or infinite a trial is never on the front and never donates.

    Needs an exploit rule that can compare trials without a single number: `ParetoTruncation` or
    `ParetoTournament`.

    Source: Li et al. 2019, arXiv 1902.01894, section 3 (fitness from several criteria by Pareto improvement);
    Deb et al. 2002, A fast and elitist multiobjective genetic algorithm: NSGA-II.

    Args:
        *each: two or more `Maximize` and `Minimize`, of different metrics.
        goals: the same as a list, as stored configurations give it.

    Raises:
        ConfigurationError: there are fewer than two goals, or two of one metric, or something else.
    """

    goals: tuple[Goal, ...]

    def __init__(self, *each: Goal, goals: Iterable[Goal] = ()) -> None:
        combined = (*each, *goals)
        for goal in combined:
            if not isinstance(goal, Maximize | Minimize):
                raise ConfigurationError(
                    f"Pareto({goal!r}): give goals, as in Pareto(Maximize('accuracy'), Minimize('latency_ms')); "
                    "limits go around it: Constrained(Pareto(...), subject_to=['latency_ms <= 20'])"
                )
            if goal.stop_at is not None:
                raise ConfigurationError(f"Pareto({goal!r}): a front is never reached; leave out stop_at")
        names = [goal.metric for goal in combined]
        if len(names) < 2:
            raise ConfigurationError(
                f"Pareto({', '.join(names)}): a front needs two or more goals; for one use Maximize or Minimize"
            )
        if len(set(names)) < len(names):
            raise ConfigurationError(f"Pareto({', '.join(names)}): each goal needs a metric of its own")
        object.__setattr__(self, "goals", combined)

    @property
    def tradeoffs(self) -> tuple[Goal, ...]:
        """All goals."""
        return self.goals

    @property
    def name(self) -> str:
        """The first goal's metric."""
        return self.goals[0].metric

    @property
    def maximize(self) -> bool:
        """Whether the first goal is maximized."""
        return self.goals[0].maximize

    @property
    def description(self) -> str:
        """Description of the goals."""
        return " and ".join(goal.description for goal in self.goals)

    def judge(self, values: Mapping[str, float]) -> Judgement:
        """Judge one trial: a sort key for each goal, and that of the first for everything else."""
        orders = tuple(goal.order(values[goal.metric]) for goal in self.goals)
        order = orders[0] if all(map(math.isfinite, orders)) else WORST
        return Judgement(fitness=values[self.goals[0].metric], order=order, orders=orders)
