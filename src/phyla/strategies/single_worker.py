"""Exploration by one member, one direction at a time."""

from dataclasses import dataclass
from typing import final

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, Member, Scored, TrialRecord
from phyla.space import Scalar, Space
from phyla.strategies.checks import check_integer
from phyla.strategies.decision import Decision, Start, Wait
from phyla.strategies.exploit import facts
from phyla.strategies.fitness import FitnessRule, Last
from phyla.strategies.from_suite import FromSuite
from phyla.strategies.keeps import Keeps
from phyla.strategies.protocol import Population
from phyla.strategies.starts import awaits_score, before, fresh, replaces, scored_trial
from phyla.strategies.strategy import Context, Strategy

_LAST = Last()
_PHASES = ("center", "one way", "the other way", "best of three")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SingleWorkerExplore(Strategy):
    """One member tries its hyperparameters, then mutated one way, then the other; and goes on with the best.

    A cycle has four trials. The first three start from the same checkpoint, the branch, and train for
    `explore_steps`: the center with the hyperparameters so far; then with every parameter moved up or down, as
    drawn; then with every one moved the opposite way. The best of the three, the earliest among equals, trains on
    for `exploit_steps`, and what that leaves is the next branch. All four count towards the budget. Choices
    are drawn afresh both ways.

    Source: the library learned_optimization (Metz et al.), single-worker exploration among its population
    mutators.

    Args:
        explore_steps: steps of each of the three.
        exploit_steps: steps of the best one, on top.
        total_steps: steps the member spends in all; the last trial may be shorter.
        factor: what a number is multiplied by on its way up, and divided by on its way down; above 1.
        fitness: how the reports of one trial become its fitness, or the suite that gives it (`FromSuite`).

    Raises:
        ConfigurationError: a number is out of range, or there are no steps left after the three.
    """

    explore_steps: int
    exploit_steps: int
    total_steps: int
    factor: float = 1.2
    fitness: FitnessRule | FromSuite = _LAST

    def __post_init__(self) -> None:
        for name in ("explore_steps", "exploit_steps", "total_steps"):
            check_integer("SingleWorkerExplore", name, getattr(self, name), 1)
        if self.total_steps <= 3 * self.explore_steps:
            raise ConfigurationError(
                f"SingleWorkerExplore(explore_steps={self.explore_steps}, total_steps={self.total_steps}): the "
                f"three ways take {3 * self.explore_steps} steps, so the best of them would never be trained on; "
                "lower explore_steps or raise total_steps"
            )
        if not 1 < self.factor < float("inf"):
            raise ConfigurationError(
                f"SingleWorkerExplore(factor={self.factor!r}): must be a number above 1, as in 1.2"
            )

    @property
    def population_size(self) -> int:
        """One member."""
        return 1

    @property
    def member_steps(self) -> int:
        """Steps the member spends."""
        return self.total_steps

    @property
    def keeps(self) -> Keeps:
        """The branch and the trials that started from it."""
        return Keeps(generations=3)

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Train the center, one way, the other way, or the best of the three."""
        phase = member.generation % 4
        wanted = self.exploit_steps if phase == 3 else self.explore_steps
        steps = min(wanted, self.total_steps - member.progress)
        if member.head is None:
            first = member.broken_trial is None
            params = context.space.sample(context.rng, member=member.index if first else None)
            return fresh(member, params, steps, {"decision": "start" if first else "replace"})
        if awaits_score(member):
            return Wait(reason={"why": "its evaluation"})
        reason: JsonObject = {"decision": "branch", "way": _PHASES[phase], **replaces(member)}
        if phase == 0:
            return _start(member.head, member.head.params, member.head, steps, reason)
        trials = [context.history.trial(member.head.trial)]
        while len(trials) < phase:
            trials.insert(0, before(trials[0], context.history))
        center = _scored(trials[0])
        if phase == 3:
            tried = [_scored(trial) for trial in trials]
            best = max(tried, key=_order)
            return _start(best, best.params, best, steps, {**reason, "tried": [facts(one) for one in tried]})
        space = context.space
        if phase == 1:
            up = [name for name in space.parameters if context.rng.random() < 0.5]
        else:
            drawn = trials[1].reason.get("up")
            one_way = drawn if isinstance(drawn, list | tuple) else ()
            up = [name for name in space.parameters if name not in one_way]
        # A way on which a trial was stopped, or broke twice, is gone half as far, and then half of that.
        factor = self.factor ** (0.5 ** max(member.stops, member.replacements - 1))
        params = _moved(center.params, factor, up, space, context)
        branch = None if trials[0].parent is None else _scored(context.history.trial(trials[0].parent))
        return _start(
            branch, params, center, steps, {**reason, "up": up, "changes": _changes(center.params, params)}
        )


def _moved(params: JsonObject, factor: float, up: list[str], space: Space, context: Context) -> dict[str, Scalar]:
    down = [name for name in space.parameters if name not in up]
    moved, _ = space.perturb(params, context.rng, factors=(factor,), names=up)
    moved, _ = space.perturb(moved, context.rng, factors=(1 / factor,), names=down)
    return moved


def _start(weights: Scored | None, params: JsonObject, source: Scored, steps: int, reason: JsonObject) -> Start:
    return Start(
        weights=weights, params=params, params_from=source.trial, steps=steps, reason=reason, exploited=True
    )


def _scored(trial: TrialRecord) -> Scored:
    scored = scored_trial(trial)
    assert scored is not None
    return scored


def _order(scored: Scored) -> float:
    return float("-inf") if scored.order is None else scored.order


def _changes(old: JsonObject, new: JsonObject) -> JsonObject:
    return {
        name: {"from": old.get(name), "to": new.get(name), "by": "moved"}
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    }
