"""Initiator based evolution (Li et al. 2019, arXiv 1902.01894)."""

from dataclasses import dataclass
from typing import final

from phyla.records import JobState, JsonObject, Member, Scored
from phyla.strategies.checks import check_rules, check_steps
from phyla.strategies.exploit import Exploited, facts
from phyla.strategies.explore import Explore
from phyla.strategies.explore.perturb import PERTURB
from phyla.strategies.fitness import LAST, FitnessRule, FromSuite
from phyla.strategies.starts import (
    COPIES,
    Copy,
    explore_from,
    sampled,
    scored_trial,
    steps_to_line,
    true_ancestry,
)
from phyla.strategies.strategy import Context, Decision, Population, Strategy, Wait, lowest_generation, sort_key
from phyla.validation import check, setting_error


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InitiatorPBT(Strategy):
    """Every completed trial initiates one binary tournament; the winner's mutated copy is trained next.

    The opponent is drawn uniformly from the other members' trials of the initiator's generation and of the one
    before, and has to be strictly better to win. So every trial has a child of its own or makes room for
    another's, exactly once, which keeps small populations going. A child that breaks is replaced by another
    tournament of the same initiator.

    Source: Li et al. 2019, arXiv 1902.01894, sections 3 and 4 (initiator based evolution, budget mode, mutation).

    Args:
        population_size: number of members, which is the number of trials of a generation.
        steps_per_trial: training steps of one trial.
        total_steps: steps each member spends in all; the last trial may be shorter.
        generations: how many generations opponents are drawn from: 1, only the initiator's, or 2.
        gate: whether a generation reproduces only when it is complete, as in the paper's budget mode: whole
            studies are then the same with any number of workers. Else members may be one generation ahead of the
            others.
        explore: how the winner's hyperparameters mutate; None copies them unchanged.
        fitness: where the fitness of a trial comes from; `FromSuite` needs the gate.
        copy: what the loser of a tournament takes over: weights and hyperparameters, or only one of them.
    """

    population_size: int
    steps_per_trial: int
    total_steps: int
    generations: int = 2
    gate: bool = True
    explore: Explore | None = PERTURB
    fitness: FitnessRule | FromSuite = LAST
    copy: Copy = "both"

    def __post_init__(self) -> None:
        check(self, population_size=1, copy=COPIES, generations=(1, 2))
        check_steps(self)
        check_rules(self, "propose", "explore", optional=True)
        if isinstance(self.fitness, FromSuite) and not self.gate:
            raise setting_error(
                self, "gate fitness", "a trial can initiate only when it has its score; use gate=True"
            )

    @property
    def quorum(self) -> float:
        return 1.0 if self.gate else 0.0

    @property
    def keeps_generations(self) -> int:
        return self.generations

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        if member.head is None:
            return sampled(member, steps_to_line(member.progress, self.steps_per_trial, self.total_steps), context)
        lowest = lowest_generation(population)
        if not self.gate and lowest is not None and lowest < member.generation - 1:
            return Wait(reason={"why": "the generation before"})
        if not member.head.judged:
            return Wait(reason={"why": "its evaluation"})
        head, generation = member.head, member.generation - 1
        compared: JsonObject = {"rule": "initiator", "generation": generation, "own": facts(head)}
        donor = None
        met = self._opponent(member, population, context)
        if met is not None:
            opponent, back = met
            compared = {**compared, "opponent": {**facts(opponent), "generation": generation - back}}
            if sort_key(opponent) > sort_key(head):
                donor = opponent
        return explore_from(self, member, Exploited(donor=donor, reason=compared), population, context)

    def _opponent(self, member: Member, population: Population, context: Context) -> tuple[Scored, int] | None:
        """Draw a finite trial of another member, and how many generations back it is; None if there is none."""
        opponents = [other for other in population if other.index != member.index]
        for drawn in context.rng.permutation(self.generations * len(opponents)):
            back, place = divmod(int(drawn), len(opponents))
            scored = _of_generation(opponents[place], context, member.generation - 1 - back)
            if scored is not None and scored.can_donate and scored.age < self.total_steps:
                return scored, back
        return None


def _of_generation(member: Member, context: Context, generation: int) -> Scored | None:
    """Return the trial of a member at a generation; None if it has not completed that yet."""
    if member.head is None or member.generation <= generation or generation < 0:
        return None
    for trial in true_ancestry(member.head.trial, context.history):
        if trial.generation <= generation:
            completed = trial.generation == generation and trial.state is JobState.COMPLETED
            return scored_trial(trial) if completed else None
    return None
