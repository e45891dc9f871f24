"""The rules of a study's decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, final

from phyla.errors import ConfigurationError
from phyla.evaluation import Suite
from phyla.evaluation.suite import suite_named
from phyla.machine.retention import Keeping
from phyla.records import Objective, require_objective
from phyla.space import Space
from phyla.strategies import BestOfLast, Final, FromSuite, StoppingRule, Strategy, check_rule, require_strategy
from phyla.validation import MOST_SECONDS, check_integer, plain

MOST = 2**31 - 1
"""The most attempts, and the most kept checkpoints."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRules:
    """Rules of a study without a population.

    Args:
        suites: the suites to run on every checkpoint.
        lease_s: seconds a claim lasts unless renewed.
        max_claims: claims of one job before it is given up.
    """

    suites: tuple[Suite, ...]
    lease_s: float = 60.0
    max_claims: int = 30


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRules:
    """The declared settings of a study with a population.

    Args:
        space: the search space.
        objective: the objective of selection.
        strategy: decides the next trials of members.
        lease_s: seconds a claim lasts unless renewed.
        max_attempts: attempts of one trial that may fail before it is quarantined.
        max_claims: claims of one trial or eval job, preempted ones included, before it is given up.
        max_broken: consecutive quarantined trials that stop the study; the count restarts when it is resumed.
        keep_best: best checkpoints that are kept besides those in use.
        keep_front: with a Pareto objective, checkpoints of its front that are kept at most; of a larger front the
            most crowded go.
        keep_every_steps: also keep checkpoints whose step is a multiple of this; None keeps no milestones.
        suites: the suites to run on every checkpoint that a trial leaves.
        stopping: rules that may stop a running trial early, in order.
        max_stops: how often rules may stop a member within one generation.
        final: measures the best candidates again when training has ended; None takes the best by estimate.

    Raises:
        ConfigurationError: a number is out of range, there is no strategy or a class in place of an object, the
            strategy's fitness names a suite that is not there, or the strategy, a stopping rule or the final
            cannot work with the objective.
    """

    space: Space
    objective: Objective
    strategy: Strategy
    lease_s: float = 60.0
    max_attempts: int = 3
    max_claims: int = 30
    max_broken: int = 10
    keep_best: int = 1
    keep_front: int = 100
    keep_every_steps: int | None = None
    suites: tuple[Suite, ...] = ()
    stopping: tuple[StoppingRule, ...] = ()
    max_stops: int = 3
    final: Final | None = None
    suite_fitness: FromSuite | None = field(init=False, repr=False, compare=False)
    """The suite and aggregate that give fitness; None if training reports it."""
    reported_metrics: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The metrics that training has to report; none when fitness comes from a suite."""

    def __post_init__(self) -> None:
        require_strategy(self.strategy)
        for name in ("max_attempts", "max_claims", "max_broken", "keep_best", "keep_front", "max_stops"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), most=MOST))
        if self.keep_every_steps is not None:
            object.__setattr__(self, "keep_every_steps", check_integer("keep_every_steps", self.keep_every_steps))
        lease_s = plain(self.lease_s)
        if isinstance(lease_s, bool) or not isinstance(lease_s, int | float) or not 0 < lease_s <= MOST_SECONDS:
            raise ConfigurationError(f"lease_s={lease_s!r}: must be above 0, and at most {MOST_SECONDS:,}")
        object.__setattr__(self, "suites", tuple(self.suites))
        object.__setattr__(self, "stopping", tuple(self.stopping))
        if self.final is not None and not isinstance(self.final, Final):
            raise ConfigurationError(f"final={self.final!r}: give phyla.Final(...), or None for no final")
        for rule in self.stopping:
            check_rule(rule)
            rule.check_strategy(self.strategy)
        names = [suite.name for suite in self.suites]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"suites: each needs a name of its own, there are {', '.join(names)}")
        # Used several times in each transaction.
        fitness = self.strategy.fitness
        object.__setattr__(self, "suite_fitness", fitness if isinstance(fitness, FromSuite) else None)
        if self.suite_fitness is not None:
            suite_named(self.suites, self.suite_fitness.suite)
        self._check_objective()
        reported = () if self.suite_fitness is not None else tuple(goal.metric for goal in self.objective.goals)
        object.__setattr__(self, "reported_metrics", reported)

    @property
    def keeping(self) -> Keeping:
        """The rules of retention."""
        fitness, strategy = self.suite_fitness, self.strategy
        apart = strategy.quorum < 1 and strategy.population_size > 1
        return Keeping(
            population_size=strategy.population_size,
            generations=strategy.keeps_generations,
            elites=strategy.keeps_best,
            lead=2 if apart else 1,
            keep_best=self.keep_best,
            keep_front=self.keep_front,
            keep_every_steps=self.keep_every_steps,
            tradeoffs=bool(self.objective.tradeoffs),
            suites=len(self.suites),
            suite=None if fitness is None else fitness.suite,
            max_lag=0 if fitness is None else fitness.max_lag,
        )

    @property
    def exclusive(self) -> bool:
        """Whether decisions of the study must never be concurrent."""
        return self.strategy.exclusive or self.suite_fitness is not None

    @property
    def aggregates(self) -> Mapping[str, str]:
        """Where fitness comes from a suite, its aggregates by the metric of the objective; else none."""
        if self.suite_fitness is None:
            return {}
        named = self.suite_fitness.metric
        return {goal.metric: named or goal.metric for goal in self.objective.goals}

    def _check_objective(self) -> None:
        """Reject settings that are incompatible with an objective of several metrics."""
        require_objective(self.objective)
        goals, fitness = self.objective.goals, self.strategy.fitness
        names = ", ".join(goal.metric for goal in goals)
        if len(goals) > 1 and isinstance(fitness, BestOfLast):
            raise ConfigurationError(
                f"BestOfLast with an objective of several metrics ({names}): the best of each would belong to "
                "different weights; use Last or MeanOfLast"
            )
        if len(goals) > 1 and isinstance(fitness, FromSuite) and fitness.metric is not None:
            raise ConfigurationError(
                f"FromSuite({fitness.suite!r}, {fitness.metric!r}) gives one number, and the objective needs "
                f"{names}; leave the metric out: FromSuite({fitness.suite!r}) takes the aggregates that the "
                "objective names"
            )
        if self.objective.tradeoffs and self.final is not None:
            raise ConfigurationError(
                f"final={self.final!r} with {type(self.objective).__name__}: a final needs single numbers to "
                "compare, and a Pareto front has none; leave it out, or use WeightedSum"
            )
        judging = next((rule for rule in self.stopping if not rule.pareto), None)
        if self.objective.tradeoffs and judging is not None:
            raise ConfigurationError(
                f"stopping={judging!r} with {type(self.objective).__name__}: it compares single numbers, and a "
                "Pareto front has none; leave it out, or use WeightedSum"
            )
        if self.objective.tradeoffs and not self.strategy.pareto:
            raise ConfigurationError(
                f"{type(self.strategy).__name__} with {type(self.objective).__name__}: it compares single numbers,"
                " and a Pareto front has none. Use PBT with exploit=ParetoTruncation() or ParetoTournament(), a "
                "strategy without evolution, or an objective that makes one number: WeightedSum, or Constrained "
                "with limits on all metrics but one"
            )


Rules: TypeAlias = TrainRules | WatchRules
