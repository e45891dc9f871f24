"""Initiator based evolution (Li et al. 2019, arXiv 1902.01894)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, Member, Scored, TrialRecord
from phyla.strategies.checks import check_integer, check_rule, check_steps
from phyla.strategies.copying import Copy, check_copy, taken_over
from phyla.strategies.decision import Decision, Start, Wait
from phyla.strategies.exploit import facts
from phyla.strategies.explore import Explore, Perturb
from phyla.strategies.fitness import FitnessRule, Last
from phyla.strategies.from_suite import FromSuite
from phyla.strategies.keeps import Keeps
from phyla.strategies.protocol import History, Population, lowest_generation
from phyla.strategies.starts import awaits_score, fresh, replaces, scored_trial
from phyla.strategies.strategy import Context, Strategy, steps_to_line

_PERTURB, _LAST = Perturb(), Last()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InitiatorPBT(Strategy):
    """Every completed trial initiates one binary tournament; the winner's mutated copy is trained next.

    The opponent is drawn uniformly from the other members' trials of the initiator's generation and of the one
    before; it has to be strictly better to win. So every trial has a child of its own or makes room for
    another's, exactly once, which keeps small populations going. The child of either is mutated. A child that
    breaks is replaced by another tournament of the same initiator.

    With the gate, reproduction starts once the initiator's generation is complete: the budget mode of the
    paper, for populations larger than the number of workers. Whole studies are then the same with any number
    of workers. Without it, members may be one generation ahead of the others, so that few workers wait; who is
    an opponent then depends on who has finished.

    Source: Li et al. 2019, A generalized framework for population based training, arXiv 1902.01894, sections 3
    and 4 (initiator based evolution, budget mode, mutation).

    Args:
        population_size: number of members, which is the number of trials of a generation.
        steps_per_trial: training steps of one trial.
        total_steps: steps each member spends in all; the last trial may be shorter.
        generations: how many generations opponents are drawn from: 1, only the initiator's, or 2.
        gate: whether a generation reproduces only when it is complete.
        explore: how the winner's hyperparameters mutate; None copies them unchanged.
        fitness: how the reports of one trial become its fitness, or the suite that gives it (`FromSuite`),
            which needs the gate.
        copy: what the loser of a tournament takes over: weights and hyperparameters, or only one of them.

    Raises:
        ConfigurationError: a number is out of range, or a suite gives the fitness and there is no gate.
    """

    population_size: int
    steps_per_trial: int
    total_steps: int
    generations: int = 2
    gate: bool = True
    explore: Explore | None = _PERTURB
    fitness: FitnessRule | FromSuite = _LAST
    copy: Copy = "both"

    def __post_init__(self) -> None:
        check_integer("InitiatorPBT", "population_size", self.population_size, 1)
        check_integer("InitiatorPBT", "steps_per_trial", self.steps_per_trial, 1)
        check_steps("InitiatorPBT", self.steps_per_trial, self.total_steps)
        check_copy("InitiatorPBT", self.copy)
        if self.explore is not None:
            check_rule("InitiatorPBT", "explore", self.explore, "propose")
        if self.generations not in (1, 2):
            raise ConfigurationError(f"InitiatorPBT(generations={self.generations!r}): choose 1 or 2")
        if isinstance(self.fitness, FromSuite) and not self.gate:
            raise ConfigurationError(
                "InitiatorPBT(gate=False, fitness=FromSuite(...)): a trial can initiate only when it has its "
                "score; use gate=True"
            )

    @property
    def quorum(self) -> float:
        """With the gate, a generation is complete before any of it reproduces."""
        return 1.0 if self.gate else 0.0

    def line(self, progress: int) -> int:
        """Return how many trials' worth of steps a member has come."""
        return progress // self.steps_per_trial

    @property
    def member_steps(self) -> int:
        """Steps each member spends in all."""
        return self.total_steps

    @property
    def keeps(self) -> Keeps:
        """Trials that are opponents, or may be."""
        return Keeps(generations=self.generations, lead=1 if self.gate else 2)

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Start fresh, or let the member's last trial initiate its tournament."""
        if member.head is None:
            first = member.broken_trial is None
            params = context.space.sample(context.rng, member=member.index if first else None)
            steps = steps_to_line(member.progress, self.steps_per_trial, self.total_steps)
            return fresh(member, params, steps, {"decision": "start" if first else "replace"})
        lowest = lowest_generation(population)
        if not self.gate and lowest is not None and lowest < member.generation - 1:
            return Wait(reason={"why": "the generation before"})
        if awaits_score(member):
            return Wait(reason={"why": "its evaluation"})
        head = member.head
        opponent = self._opponent(member, population, context)
        compared: JsonObject = {"rule": "initiator", "generation": member.generation - 1, "own": facts(head)}
        if opponent is not None:
            met: JsonObject = {**facts(opponent[0]), "generation": opponent[1]}
            compared = {**compared, "opponent": met}
        own = float("-inf") if head.order is None else head.order
        wins = opponent is None or opponent[0].order is None or opponent[0].order <= own
        winner = head if opponent is None or wins else opponent[0]
        if not wins:
            compared = {**compared, "donor": facts(winner)}
        weights, source = taken_over(head, winner, self.copy)
        explored = self.explore.propose(source, population, context) if self.explore else None
        return Start(
            weights=weights,
            params=explored.params if explored else source.params,
            params_from=source.trial,
            steps=steps_to_line(max(member.progress, weights.age), self.steps_per_trial, self.total_steps),
            reason={
                "decision": "explore" if wins else "exploit",
                **({} if wins else {"copied": self.copy}),
                "compared": compared,
                "changes": explored.changes if explored else {},
                **(explored.facts if explored else {}),
                **replaces(member),
            },
            exploited=True,
        )

    def _opponent(self, member: Member, population: Population, context: Context) -> tuple[Scored, int] | None:
        """Draw a finite trial of another member and of the right generation; None if there is none."""
        others = [other for other in population if other.index != member.index]
        for drawn in context.rng.permutation(self.generations * len(others)):
            back, place = divmod(int(drawn), len(others))
            wanted = member.generation - 1 - back
            for trial in _backwards(others[place], context.history, wanted):
                scored = scored_trial(trial) if trial.generation == wanted else None
                if scored is not None and scored.can_donate and scored.age < self.total_steps:
                    return scored, wanted
        return None


def _backwards(member: Member, history: History, least: int) -> Iterator[TrialRecord]:
    """Iterate over a member's completed trials, newest first, down to a generation."""
    at = member.head.trial if member.head and member.generation > least >= 0 else None
    while at is not None:
        trial = history.trial(at)
        if trial.generation < least:
            return
        yield trial
        at = trial.parent if trial.jump_from is None else trial.jump_from
