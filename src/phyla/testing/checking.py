"""Check the contract of any strategy on a virtual clock."""

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, zip_longest
from typing import Any

import numpy as np

from phyla import plugins
from phyla.errors import PhylaError
from phyla.evaluation import Suite
from phyla.machine import TrainRules
from phyla.machine.claim import DONOR_GONE
from phyla.records import Maximize, Member, Objective, StudyState, TrialRecord, strict
from phyla.space import Choice, Float, Int, Space
from phyla.strategies import Strategy, check_space
from phyla.testing.conditions import DEFAULT_STEPS, Conditions, Fitness, LearningCurve
from phyla.testing.requirements import require
from phyla.testing.simulator import Simulator

SPACE = Space(rate=Float(1e-5, 1.0, log=True), width=Int(1, 64), kind=Choice(["a", "b", "c"]))
ODD: tuple[Fitness, ...] = (
    lambda params, step, rng: math.nan,
    lambda params, step, rng: float(rng.choice([math.nan, math.inf, -math.inf, 1.0, rng.random()])),
)


FAIL = 0.2
"""Probability that a trial breaks."""


def check_strategy(
    strategy: Strategy,
    space: Space | None = None,
    objective: Objective | None = None,
    *,
    suites: Sequence[Suite] = (),
    seed: int = 0,
    most_trials: int = 2000,
) -> None:
    """Run small studies with a strategy in which nothing is trained, and check the contract of any strategy.

    - Its settings survive JSON.
    - Studies end after exactly `member_steps`, even with broken trials and scores that are nan or infinite.
    - Each decision has a reason, as JSON.
    - Its hyperparameters are in the space, and its `params_from`, if any, is an earlier trial.
    - It starts from no checkpoint that was deleted, see `keeps_generations` and `keeps_best`.
    - A second study with the same seed has the same decisions; with `quorum=1.0` so has one with more workers.

    Args:
        strategy: the strategy, with a small budget.
        space: the search space; by default of a Float, an Int and a Choice.
        objective: by default `Maximize("score")`.
        suites: for fitness from a suite. Their functions are not called.
        seed: of the studies.
        most_trials: trials by which a study has to have ended.

    Raises:
        AssertionError: it breaks the contract; the message says how.
    """
    goal = objective or Maximize("score")
    try:
        _check_settings(strategy)
        rules = TrainRules(
            space=space or SPACE,
            objective=goal,
            strategy=strategy,
            max_attempts=1,
            max_broken=most_trials,
            suites=tuple(suites),
        )
        check_space(strategy, rules.space)
    except PhylaError as error:
        raise AssertionError(str(error)) from error
    study = partial(_decisions, rules, most_trials)
    curve: Fitness = LearningCurve(rules.space, goal, strategy.member_steps or DEFAULT_STEPS, noise=0.0)
    again = "in a second study with the same seed: draw from context.rng only, and keep nothing but `state`"
    _require_same(study(curve, seed), study(curve, seed), again)
    several, *_ = [study(fitness, seed + n, workers=4, fail=FAIL) for n, fitness in enumerate((curve, *ODD))]
    if strategy.quorum == 1 and (rules.suite_fitness is None or not rules.suite_fitness.max_lag):
        alone = study(curve, seed, fail=FAIL)
        _require_same(alone, several, "with 4 workers than with 1, although its quorum is 1")


def _require_same(first: list[str], second: list[str], when: str) -> None:
    for decision, other in zip_longest(first, second):
        require(decision == other, f"it decides differently {when}. First: {decision}; then: {other}")


def _check_settings(strategy: Strategy) -> None:
    names: dict[str, Callable[..., Any]] = {}

    def name_of(target: Callable[..., Any]) -> str:
        name = plugins.reference_here(target)
        names[name] = target
        return name

    stored = plugins.encode(strategy, name_of)
    again = plugins.decode(json.loads(json.dumps(stored)), names.__getitem__)
    why = "JSON has lists, but no tuples and no sets: convert such settings in __post_init__"
    require(again == strategy, f"{strategy!r} comes back from JSON as {again!r}; {why}")


def _decisions(
    rules: TrainRules, most: int, fitness: Fitness, seed: int, *, workers: int = 1, fail: float = 0.0
) -> list[str]:
    """Run a study to its end, check it, and return its decisions."""
    measured = count(1)

    def limited(params: Any, step: int, rng: np.random.Generator) -> float:
        require(next(measured) <= most, f"a study has not ended after {most} trials; see `finished` and Stop")
        return fitness(params, step, rng)

    conditions = Conditions(workers=workers, trial_s=1.0, spread=0.5, fail=fail)
    simulator = Simulator(rules, seed, conditions, fitness=limited, rng=np.random.default_rng(seed))
    run = simulator.run()
    require(run.state is StudyState.COMPLETED, f"a study does not complete: {run.message}")
    with simulator.store.reader(simulator.study) as reader:
        trials, members = [*reader.trials()], [*reader.members()]
    for trial in trials:
        _check_reason(trial)
        deleted = trial.reason.get("compared") == {"why": DONOR_GONE}
        require(
            not deleted, f"{trial!r} should start from a deleted checkpoint; set keeps_generations or keeps_best"
        )
    known = {trial.id for trial in trials}
    for trial in trials:
        there = trial.params_from is None or (trial.params_from in known and trial.params_from < trial.id)
        require(there, f"{trial!r} has params_from={trial.params_from}, which is no earlier trial")
    if rules.strategy.member_steps is not None and run.message is None:
        _check_budget(rules.strategy.member_steps, trials, members)
    return _in_words(trials)


def _check_reason(trial: TrialRecord) -> None:
    require(trial.reason, f"{trial!r} was decided without a reason; give one as a dict")
    require(
        strict(trial.reason) == trial.reason,
        f"the reason of {trial!r} has a number that JSON has not; give nan and infinities as text, or None",
    )


def _check_budget(total: int, trials: Sequence[TrialRecord], members: Sequence[Member]) -> None:
    for trial in trials:
        age = trial.age + trial.end_step - trial.start_step
        require(age <= total, f"{trial!r} trains weights to an age of {age} steps; member_steps is {total}")
    for member in members:
        # Members whose trials broke repeatedly are given up.
        ended = f"member {member.index} ended after {member.progress} steps; member_steps is {total}"
        require(
            member.progress == total or member.broken_trial,
            f"{ended}, and has to be None where members may stop earlier",
        )


def _in_words(trials: Sequence[TrialRecord]) -> list[str]:
    """Return decisions in the order of members, without ids, which depend on who asked first."""
    places = {trial.id: f"trial {trial.generation} of member {trial.member}" for trial in trials}
    return [
        f"{places[trial.id]}: {trial.kind} to step {trial.end_step} with {trial.params} and seed {trial.seed}, "
        f"weights of {places.get(trial.parent or 0)}, hyperparameters of {places.get(trial.params_from or 0)}"
        for trial in sorted(trials, key=lambda trial: (trial.member, trial.generation, trial.id))
    ]
