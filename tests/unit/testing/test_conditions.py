"""Studies of all kinds under all kinds of conditions: nothing ever happens that never may."""

import numpy as np
import pytest

from effort import times
from invariants import run_checked
from phyla.evaluation import EvalTask, Policy, Suite
from phyla.machine import TrainRules
from phyla.records import Maximize
from phyla.space import Float, Space
from phyla.strategies import (
    PBT,
    Backtrack,
    BinaryTournament,
    FromSuite,
    InitiatorPBT,
    Last,
    RandomSearch,
    Strategy,
    Truncation,
    TTest,
    WinnerTakesAll,
)
from phyla.testing import LearningCurve
from phyla.testing.conditions import Conditions
from phyla.testing.simulator import Simulator

STEPS = 10
SPACE = Space(rate=Float(1e-3, 1.0, log=True), momentum=Float(0.0, 1.0))
EXPLOITS = (Truncation(0.3), TTest(), BinaryTournament(), WinnerTakesAll(), Backtrack(), None)
POLICIES = (
    Policy(),
    Policy(latest=True),
    Policy(skip_if_busy=True),
    Policy(every=3, throttle_s=50.0, start_delay_s=20.0),
)


def nothing(_evaluation: object) -> None:
    """Stand in for an evaluation function that is never called."""


def drawn_strategy(rng: np.random.Generator, size: int, trials: int) -> Strategy:
    total = STEPS * trials
    suite = FromSuite("held", "q_mean", max_lag=int(rng.integers(3)), remeasure=int(rng.integers(3)))
    fitness = suite if rng.random() < 0.5 else Last()
    match int(rng.integers(5)):
        case 0:
            return RandomSearch(members=size, total_steps=total, steps_per_trial=STEPS, fitness=fitness)
        case 1:
            gate = fitness is suite or rng.random() < 0.5
            generations = int(rng.integers(1, 3))
            return InitiatorPBT(
                population_size=size,
                steps_per_trial=STEPS,
                total_steps=total,
                generations=generations,
                gate=gate,
                fitness=fitness,
            )
        case kind:
            return PBT(
                population_size=size,
                steps_per_trial=STEPS,
                total_steps=total,
                exploit=EXPLOITS[int(rng.integers(len(EXPLOITS)))],
                quorum=(0.0, 0.8, 1.0)[kind - 2],
                fitness=fitness,
            )


@pytest.mark.parametrize("seed", range(times(5, 36)))
def test_the_budget_is_kept_under_any_conditions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, trials = int(rng.integers(1, 8)), int(rng.integers(1, 12))
    strategy = drawn_strategy(rng, size, trials)
    waits = isinstance(strategy.fitness, FromSuite)
    policy = POLICIES[0 if waits else int(rng.integers(len(POLICIES)))]
    tasks = (EvalTask("a", nothing, shards=2), EvalTask("b", nothing))
    held = Suite("held", tasks, objective=Maximize("q_mean"), policy=policy)
    suites = (held,) if waits or rng.random() < 0.4 else ()
    rules = TrainRules(space=SPACE, objective=Maximize("Q"), strategy=strategy, suites=suites)
    conditions = Conditions(
        workers=int(rng.integers(1, 9)),
        evaluators=int(rng.integers(3)) if suites else 0,
        trial_s=float(rng.choice([0.01, 5.0, 50.0, 300.0])),
        load_s=float(rng.choice([0.0, 3.0])),
        eval_s=float(rng.choice([0.0, 10.0, 100.0])),
        spread=float(rng.choice([0.0, 0.5, 1.0])),
        preempt_per_hour=float(rng.choice([0.0, 1.0, 10.0])),
        crash_per_hour=float(rng.choice([0.0, 1.0, 5.0])),
        restart_s=float(rng.choice([0.0, 30.0, 600.0])),
        fail=float(rng.choice([0.0, 0.05, 0.3])),
    )
    curve = LearningCurve(SPACE, rules.objective, STEPS * trials)
    run = run_checked(Simulator(rules, seed, conditions, fitness=curve, rng=rng))
    assert run.state == "completed", run.message
    # A member that takes over longer trained weights has fewer steps left; nobody is ahead in a whole generation.
    assert run.completed == size * trials or (strategy.quorum < 1 and run.completed < size * trials)
    assert run.steps["kept"] + run.steps["abandoned"] == run.completed * STEPS
    assert sum(run.seconds.values()) == pytest.approx((conditions.workers + conditions.evaluators) * run.wall_s)
