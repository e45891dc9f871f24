"""Population based training (Jaderberg et al. 2017, arXiv 1711.09846, algorithm 1)."""

from dataclasses import dataclass
from typing import Literal, final

from phyla.errors import ConfigurationError
from phyla.population.checks import check_integer, check_steps
from phyla.population.decision import Decision, Measure, Start
from phyla.population.exploit import Exploit, Truncation
from phyla.population.explore import Explore, Perturb
from phyla.population.fitness import FitnessRule, Last
from phyla.population.from_suite import FromSuite
from phyla.population.keeps import NOTHING, Keeps
from phyla.population.protocol import Population
from phyla.population.starts import replaces
from phyla.population.strategy import Context
from phyla.records import JsonObject, Member, Scored

Copy = Literal["both", "weights", "hyperparameters"]


_TRUNCATION, _PERTURB, _LAST = Truncation(), Perturb(), Last()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PBT:
    """Train a population; from time to time bad members take over good ones and explore from there.

    Args:
        population_size: number of members; may be larger than the number of workers.
        steps_per_trial: training steps between two decisions about a member.
        total_steps: steps each member spends in all; the last trial may be shorter.
        exploit: who abandons its state for whose; None never does, and then hyperparameters are explored at
            every ready interval.
        explore: how hyperparameters change after an exploit; None copies them unchanged.
        fitness: how the reports of one trial become its fitness, or the suite that gives it (`FromSuite`).
        ready_interval: steps a member must spend after taking over a state before it may do so again; the
            default is `steps_per_trial`.
        burn_in: no exploit before a member has spent this many steps.
        synchronous: members wait for each other after every trial; whole studies are then reproducible with
            any number of workers, at the price of idle ones.
        copy: what exploit takes over: weights and hyperparameters, or only one of them.

    Raises:
        ConfigurationError: a number is out of range.
    """

    population_size: int
    steps_per_trial: int
    total_steps: int
    exploit: Exploit | None = _TRUNCATION
    explore: Explore | None = _PERTURB
    fitness: FitnessRule | FromSuite = _LAST
    ready_interval: int | None = None
    burn_in: int = 0
    synchronous: bool = False
    copy: Copy = "both"

    def __post_init__(self) -> None:
        for name, least in (
            ("population_size", 1),
            ("steps_per_trial", 1),
            ("total_steps", 1),
            ("burn_in", 0),
        ):
            check_integer("PBT", name, getattr(self, name), least)
        check_steps("PBT", self.steps_per_trial, self.total_steps)
        if self.ready_interval is not None and self.ready_interval < 1:
            raise ConfigurationError(f"PBT(ready_interval={self.ready_interval!r}): must be at least 1 step")
        if self.copy not in ("both", "weights", "hyperparameters"):
            raise ConfigurationError(f"PBT(copy={self.copy!r}): choose 'both', 'weights' or 'hyperparameters'")

    @property
    def exclusive(self) -> bool:
        """Only barriers, and waiting for evaluations, need decisions one after the other."""
        return self.synchronous or isinstance(self.fitness, FromSuite)

    @property
    def member_steps(self) -> int:
        """Steps each member spends in all."""
        return self.total_steps

    @property
    def keeps(self) -> Keeps:
        """What the exploit rule may choose."""
        return NOTHING if self.exploit is None else self.exploit.keeps

    @property
    def pareto(self) -> bool:
        """Whether the exploit rule can compare without a single number."""
        return self.exploit is None or self.exploit.pareto

    def finished(self, member: Member) -> bool:
        """Return whether the member has spent its steps."""
        return member.spent_steps >= self.total_steps

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Start fresh, continue, or take over a better member's state and explore."""
        steps = min(self.steps_per_trial, self.total_steps - member.spent_steps)
        if member.head is None:
            first = member.broken_trial is None
            params = context.space.sample(context.rng, member=member.index if first else None)
            return Start(
                weights=None,
                params=params,
                params_from=None,
                steps=steps,
                reason={"decision": "start" if first else "replace", **replaces(member)},
            )
        head = member.head
        compared: JsonObject = {"why": "not ready"}
        if self._ready(member):
            if self.exploit is None:
                return self._explored(member, population, None, steps, context, {"rule": "none"})
            choice = self.exploit.choose(member, population, context)
            if choice.donor is not None and choice.donor.trial != head.trial:
                wanted = self.fitness.remeasure + 1 if isinstance(self.fitness, FromSuite) else 1
                if choice.donor.measurements < wanted:
                    return Measure(
                        times=wanted - choice.donor.measurements,
                        subject=choice.donor,
                        reason={"decision": "measure", "compared": choice.reason},
                    )
                return self._explored(member, population, choice.donor, steps, context, choice.reason)
            compared = choice.reason
        if member.broken_trial is not None:
            return self._explored(
                member, population, None, steps, context, {"why": "the same work broke or was stopped before"}
            )
        return Start(
            weights=head,
            params=head.params,
            params_from=head.trial,
            steps=steps,
            reason={"decision": "continue", "compared": compared},
        )

    def _ready(self, member: Member) -> bool:
        interval = self.ready_interval or self.steps_per_trial
        spent = member.spent_steps
        return spent >= self.burn_in and spent - member.decided_steps >= min(interval, self.total_steps)

    def _explored(
        self,
        member: Member,
        population: Population,
        donor: Scored | None,
        steps: int,
        context: Context,
        compared: JsonObject,
    ) -> Start:
        head = member.head
        assert head is not None
        weights = donor if donor and self.copy != "hyperparameters" else head
        source = donor if donor and self.copy != "weights" else head
        explored = self.explore.propose(source, population, context) if self.explore else None
        reason: JsonObject = {
            "decision": "exploit" if donor else "explore",
            **({"copied": self.copy} if donor else {}),
            "compared": compared,
            "changes": explored.changes if explored else {},
            **(explored.facts if explored else {}),
            **replaces(member),
        }
        return Start(
            weights=weights,
            params=explored.params if explored else source.params,
            params_from=source.trial,
            steps=steps,
            reason=reason,
            exploited=True,
        )
