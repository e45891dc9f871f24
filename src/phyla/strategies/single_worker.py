"""Exploration by one member, one direction at a time."""

from dataclasses import dataclass
from itertools import islice
from typing import final

from phyla.records import JsonObject, Member, Scored
from phyla.strategies.exploit import facts
from phyla.strategies.explore import changes_of
from phyla.strategies.fitness import LAST, FitnessRule, FromSuite
from phyla.strategies.starts import replaces, sampled, scored_trial, true_ancestry
from phyla.strategies.strategy import Context, Decision, Population, Start, Strategy, Wait, sort_key
from phyla.validation import check, setting_error

_PHASES = ("center", "one way", "the other way", "best of three")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SingleWorkerExplore(Strategy):
    """One member tries its hyperparameters, then moves them one way, then the other, and continues with the best.

    A cycle has four trials. The first three start from the same checkpoint, the branch, and train for
    `explore_steps`: with the hyperparameters so far; with every parameter moved up or down, as drawn; with every
    one moved the opposite way. The best, the earliest among equals, trains on for `exploit_steps`, and leaves the
    next branch. All four count towards the budget. Choices are drawn afresh both ways.

    Source: the library learned_optimization (Metz et al.), single-worker exploration.

    Args:
        explore_steps: steps of each of the three.
        exploit_steps: steps of the best one, on top.
        total_steps: steps the member spends in all; the last trial may be shorter.
        factor: what a number is multiplied by on its way up, and divided by on its way down; above 1.
        fitness: where the fitness of a trial comes from: its reports, or a suite (`FromSuite`).
    """

    explore_steps: int
    exploit_steps: int
    total_steps: int
    factor: float = 1.2
    fitness: FitnessRule | FromSuite = LAST
    population_size = 1
    keeps_generations = 3  # the branch, and the trials that started from it

    def __post_init__(self) -> None:
        check(self, explore_steps=1, exploit_steps=1, total_steps=1, factor="(1, inf)")
        if self.total_steps <= 3 * self.explore_steps:
            why = f"the three ways take {3 * self.explore_steps} steps, which leaves none for the best of them"
            raise setting_error(self, "explore_steps total_steps", why)

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        phase = member.generation % 4
        wanted = self.exploit_steps if phase == 3 else self.explore_steps
        steps = min(wanted, self.total_steps - member.progress)
        if member.head is None:
            return sampled(member, steps, context)
        if not member.head.judged:
            return Wait(reason={"why": "its evaluation"})
        reason: JsonObject = {"decision": "branch", "way": _PHASES[phase], **replaces(member)}
        if phase == 0:
            return _start(member.head, member.head.params, member.head, steps, reason)
        # The trials of this cycle, the center first.
        trials = list(islice(true_ancestry(member.head.trial, context.history), phase))[::-1]
        center = scored_trial(trials[0])
        if phase == 3:
            tried = [scored_trial(trial) for trial in trials]
            best = max(tried, key=sort_key)
            return _start(best, best.params, best, steps, {**reason, "tried": [facts(state) for state in tried]})
        space = context.space
        if phase == 1:
            up = [name for name in space.parameters if context.rng.random() < 0.5]
        else:
            drawn = trials[1].reason.get("up")
            one_way = drawn if isinstance(drawn, list | tuple) else ()
            up = [name for name in space.parameters if name not in one_way]
        # If a trial in this direction was stopped, or broke twice, the next moves half as far, then a quarter.
        factor = self.factor ** (0.5 ** max(member.stops, member.replacements - 1))
        down = [name for name in space.parameters if name not in up]
        moved, _ = space.perturb(center.params, context.rng, factors=(factor,), names=up)
        params, _ = space.perturb(moved, context.rng, factors=(1 / factor,), names=down)
        branch = None if trials[0].parent is None else scored_trial(context.history.trial(trials[0].parent))
        changes = changes_of(center.params, params, "moved")
        return _start(branch, params, center, steps, {**reason, "up": up, "changes": changes})


def _start(weights: Scored | None, params: JsonObject, source: Scored, steps: int, reason: JsonObject) -> Start:
    return Start(
        weights=weights, params=params, params_from=source.trial, steps=steps, reason=reason, exploited=True
    )
