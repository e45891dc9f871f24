"""The strategies that are compared, one line each, and the knobs that are tuned.

Populations wait for each other after every trial, as they would with a worker for each member; with a single
worker that does not wait, weights get ahead of their members (see docs/results.md), so that is a contender of
its own. Each has the same number of training steps in all. The first option of each is its default; the others
are tried on the tuning seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from comparing import Budget, Outcome

import phyla
from phyla.strategies import Strategy

Make = Callable[[Budget], Strategy]
BASELINE = "PBT, truncation"
TUNING_SEEDS = tuple(range(100, 104))


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A strategy, and how its knobs may be set.

    Attributes:
        label: in tables.
        options: by how each is called in the tables; the first is the default.
    """

    label: str
    options: dict[str, Make]

    @property
    def default(self) -> Make:
        """The first option."""
        return next(iter(self.options.values()))


EXPLORE: dict[str, Any] = {
    "x0.8, x1.2": phyla.Perturb(),
    "x0.8, x1.2, a quarter resampled": phyla.Perturb(resample=0.25),
    "x0.5, x2": phyla.Perturb(factors=(0.5, 2.0)),
}
CROSSED: dict[str, Any] = {name: phyla.strategies.Crossover(then=explore) for name, explore in EXPLORE.items()}


def pbt(budget: Budget, **settings: Any) -> phyla.PBT:
    """Make population based training, with everything that is not given as in the paper."""
    sizes: dict[str, Any] = {
        "population_size": budget.members,
        "steps_per_trial": budget.steps_per_trial,
        "total_steps": budget.total_steps,
        "quorum": 1.0,
    }
    return phyla.PBT(**{**sizes, **settings})


def initiator(budget: Budget, explore: Any) -> phyla.InitiatorPBT:
    """Make the initiator based evolution."""
    return phyla.InitiatorPBT(
        population_size=budget.members,
        steps_per_trial=budget.steps_per_trial,
        total_steps=budget.total_steps,
        explore=explore,
    )


def single(budget: Budget, factor: float) -> phyla.strategies.SingleWorkerExplore:
    """One member that spends the steps of all."""
    steps = budget.steps_per_trial
    return phyla.strategies.SingleWorkerExplore(
        explore_steps=steps, exploit_steps=steps, total_steps=budget.all_steps, factor=factor
    )


def _evolved(label: str, make: Callable[[Budget, Any], Strategy], explore: dict[str, Any] = EXPLORE) -> Contender:
    def option(rule: Any) -> Make:
        return lambda budget: make(budget, rule)

    return Contender(label=label, options={name: option(rule) for name, rule in explore.items()})


def asha(budget: Budget, reduction_factor: int) -> phyla.ASHA:
    """Successive halving with as many members as the steps of all suffice for.

    The first rung lies at the end of one trial, or of several where fewer would let no member finish.
    """
    trial, total = budget.steps_per_trial, budget.total_steps
    settings: dict[str, Any] = {"total_steps": total, "reduction_factor": reduction_factor, "quorum": 1.0}
    for least in (*range(trial, total, trial), total):
        rungs = phyla.ASHA(members=10**6, min_steps=least, **settings).rungs
        members = _affordable(budget.all_steps, rungs, reduction_factor)
        if members >= reduction_factor ** (len(rungs) - 1):
            break
    return phyla.ASHA(members=members, min_steps=least, **settings)


def _affordable(steps: int, rungs: Sequence[int], reduction_factor: int) -> int:
    """Return how many members may start with so many steps for all of them."""

    def spent(members: int) -> int:
        pairs = zip(rungs, (0, *rungs), strict=False)
        return sum((members // reduction_factor**at) * (to - start) for at, (to, start) in enumerate(pairs))

    return max(m for m in range(1, steps + 1) if spent(m) <= steps)


def _optuna(sampler: str) -> Contender:
    def make(budget: Budget) -> phyla.Optuna:
        return phyla.Optuna(
            budget.members, budget.total_steps, sampler=sampler, steps_per_trial=budget.steps_per_trial
        )

    return Contender(label=f"Optuna, {sampler}", options={"": make})


CONTENDERS: tuple[Contender, ...] = (
    _evolved(BASELINE, lambda b, explore: pbt(b, explore=explore)),
    _evolved("PBT, t-test", lambda b, explore: pbt(b, explore=explore, exploit=phyla.strategies.TTest())),
    _evolved(
        "PBT, binary tournament",
        lambda b, explore: pbt(b, explore=explore, exploit=phyla.strategies.BinaryTournament()),
    ),
    _evolved(
        "PBT, winner takes all",
        lambda b, explore: pbt(b, explore=explore, exploit=phyla.strategies.WinnerTakesAll()),
    ),
    _evolved("PBT, backtrack", lambda b, explore: pbt(b, explore=explore, exploit=phyla.strategies.Backtrack())),
    _evolved("PBT, crossover", lambda b, explore: pbt(b, explore=explore), CROSSED),
    _evolved("PBT, truncation, one worker that does not wait", lambda b, e: pbt(b, explore=e, quorum=0.0)),
    _evolved("initiator PBT", initiator),
    Contender(
        label="single worker explores",
        options={"factor 1.2": lambda b: single(b, 1.2), "factor 2": lambda b: single(b, 2.0)},
    ),
    Contender(
        label="random search",
        options={"": lambda b: phyla.RandomSearch(b.members, b.total_steps, b.steps_per_trial)},
    ),
    Contender(
        label="grid search",
        options={"": lambda b: phyla.GridSearch(b.grid, b.total_steps, b.steps_per_trial)},
    ),
    Contender(label="PBT, PB2 explores", options={"": lambda b: pbt(b, explore=phyla.strategies.PB2())}),
    Contender(
        label="ASHA", options={"one in 3 goes on": lambda b: asha(b, 3), "one in 2 goes on": lambda b: asha(b, 2)}
    ),
    _optuna("tpe"),
    _optuna("gp"),
    _optuna("cma-es"),
)


def tuned(contender: Contender, outcomes: Sequence[Outcome], *, maximize: bool) -> str:
    """Return the option with the best median over the tuning seeds of `tune`; of equals the earlier.

    Args:
        contender: whose options.
        outcomes: of all its options on the tuning seeds, labelled by option.
        maximize: whether high values are good.
    """

    def median(option: str) -> float:
        values = sorted(one["final"]["tune"] for one in outcomes if one["label"] == option)
        middle = len(values) // 2
        value = (values[middle] + values[~middle]) / 2
        return float(-value if maximize else value)

    return min(contender.options, key=median)
