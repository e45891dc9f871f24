"""What a study's decisions go by."""

from dataclasses import dataclass
from typing import final

from phyla.errors import ConfigurationError
from phyla.evaluation import Suite, suite_named
from phyla.population import FromSuite, StoppingRule, Strategy, check_rule
from phyla.records import Objective
from phyla.space import Space

RECENT = 10
"""Fitness values a member carries along; the t-test of Jaderberg et al. 2017 uses the last 10."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Everything about a study that is not a fact in its store.

    Args:
        space: the search space.
        objective: what is maximised or minimised.
        strategy: decides what members do next.
        lease_s: seconds a claim lasts unless renewed.
        max_attempts: attempts of one trial that may fail before it is quarantined.
        max_claims: claims of one trial, preempted ones included, before it is quarantined.
        max_broken: quarantined trials in a row, with no completed one between, that stop the study.
        keep_best: best checkpoints that are kept besides those in use.
        keep_every_steps: also keep checkpoints whose step is a multiple of this; None keeps no milestones.
        suites: what is evaluated on every checkpoint that a trial leaves.
        stopping: rules that may stop a running trial early, in the order in which they are asked.
        max_stops: how often a member is stopped within one generation; after that its trial is left to run.

    Raises:
        ConfigurationError: a number is out of range, or the strategy's fitness names a suite that is not there.
    """

    space: Space
    objective: Objective
    strategy: Strategy
    lease_s: float = 60.0
    max_attempts: int = 3
    max_claims: int = 30
    max_broken: int = 10
    keep_best: int = 1
    keep_every_steps: int | None = None
    suites: tuple[Suite, ...] = ()
    stopping: tuple[StoppingRule, ...] = ()
    max_stops: int = 3

    def __post_init__(self) -> None:
        for name in ("lease_s", "max_attempts", "max_claims", "max_broken", "keep_best", "max_stops"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise ConfigurationError(f"{name}={value!r}: must be above 0")
        if self.keep_every_steps is not None and self.keep_every_steps < 1:
            raise ConfigurationError(f"keep_every_steps={self.keep_every_steps!r}: must be at least 1 step")
        object.__setattr__(self, "suites", tuple(self.suites))
        object.__setattr__(self, "stopping", tuple(self.stopping))
        for rule in self.stopping:
            check_rule(rule)
        names = [suite.name for suite in self.suites]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"suites: each needs a name of its own, there are {', '.join(names)}")
        if self.suite_fitness is not None:
            suite_named(self.suites, self.suite_fitness.suite)

    @property
    def suite_fitness(self) -> FromSuite | None:
        """Where fitness comes from when it comes from a suite; None when training reports it."""
        rule = self.strategy.fitness
        return rule if isinstance(rule, FromSuite) else None

    @property
    def reported_metric(self) -> str | None:
        """The metric that training has to report; None when fitness comes from a suite."""
        return None if self.suite_fitness is not None else self.objective.metric
