"""What is simulated is what can be worked out by hand."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from effort import rarely, times
from facts import check_facts
from invariants import run_checked
from phyla.errors import ConfigurationError
from phyla.evaluation import EvalTask, Policy, Suite
from phyla.machine import TrainRules
from phyla.records import JsonObject, Maximize, Minimize, StudyState, WorkKind
from phyla.space import Choice, Float, Int, Space
from phyla.strategies import (
    PBT,
    Backtrack,
    FromSuite,
    InitiatorPBT,
    RandomSearch,
    Strategy,
    Truncation,
    TTest,
)
from phyla.testing import LearningCurve, SimulatedRun
from phyla.testing.conditions import Conditions, Fitness
from phyla.testing.simulator import Simulator

SPACE = Space(rate=Float(1e-3, 1.0, log=True), width=Int(1, 9), kind=Choice(["a", "b"]))
TRAIN, EVALUATE = frozenset({WorkKind.TRAIN}), frozenset({WorkKind.EVALUATE})
STEPS = 10


def nothing(_evaluation: object) -> None:
    """Stand in for an evaluation function that is never called."""


def pbt(size: int, trials: int, **settings: Any) -> PBT:
    return PBT(population_size=size, steps_per_trial=STEPS, total_steps=STEPS * trials, **settings)


def simulated(
    strategy: Strategy,
    workers: int = 1,
    *,
    fitness: Fitness | None = None,
    suites: tuple[Suite, ...] = (),
    space: Space = SPACE,
    seed: int = 0,
    options: Mapping[str, Any] = MappingProxyType({}),
    **conditions: Any,
) -> SimulatedRun:
    rules = TrainRules(space=space, objective=Maximize("Q"), strategy=strategy, suites=suites, **options)
    if "step_s" not in conditions:
        conditions.setdefault("trial_s", 30.0)
    return run_checked(
        Simulator(
            rules,
            seed,
            Conditions(workers=workers, **conditions),
            fitness=fitness or LearningCurve(space, rules.objective, strategy.member_steps or 100),
            rng=np.random.default_rng(seed),
        )
    )


def suite(**settings: Any) -> Suite:
    tasks = (EvalTask("a", nothing, shards=2), EvalTask("b", nothing))
    return Suite("held", tasks, objective=Maximize("q_mean"), **settings)


def shares(run: SimulatedRun) -> dict[str, float]:
    return {name: seconds / sum(run.seconds.values()) for name, seconds in run.seconds.items()}


# Without chance


def test_members_that_never_wait_keep_all_workers_busy() -> None:
    run = simulated(pbt(4, 5), 4, step_s=3.0)
    assert run.state is StudyState.COMPLETED
    assert run.wall_s == 5 * STEPS * 3.0
    assert shares(run) == {"training": 1.0, "evaluating": 0, "moving": 0, "waiting": 0, "lost": 0}
    assert (run.completed, run.attempts, run.failed) == (20, 20, 0)
    assert sum(run.steps.values()) == 200


def test_workers_without_a_member_wait() -> None:
    run = simulated(pbt(3, 4), 4)
    assert run.wall_s == 4 * 30.0
    assert run.seconds["waiting"] == run.wall_s


def test_a_generation_takes_as_many_rounds_as_it_needs() -> None:
    run = simulated(pbt(3, 4, quorum=1.0), 2)
    assert run.wall_s == 4 * 2 * 30.0
    assert shares(run)["waiting"] == pytest.approx(1 / 4)
    assert simulated(pbt(3, 4), 2).wall_s == 6 * 30.0


def test_the_first_trials_load_nothing_and_all_are_saved() -> None:
    run = simulated(pbt(1, 5), trial_s=30.0, load_s=4.0, save_s=2.0)
    assert run.wall_s == 5 * 32.0 + 4 * 4.0
    assert run.seconds["moving"] == 5 * 2.0 + 4 * 4.0


def test_steps_that_no_member_descends_from_were_abandoned() -> None:
    space = Space(x=Float(0.0, 1.0), initial=({"x": 0.0}, {"x": 1.0}))
    strategy = pbt(2, 5, quorum=1.0, exploit=Truncation(0.5), explore=None)
    run = simulated(strategy, space=space, fitness=lambda params, step, rng: float(params["x"]))
    # Member 0 takes over member 1 after its first trial; from then on they are equal.
    assert (run.steps["kept"], run.steps["abandoned"]) == (9 * STEPS, STEPS)
    alone = simulated(pbt(3, 5, exploit=None), 2)
    assert (alone.steps["kept"], alone.steps["abandoned"]) == (15 * STEPS, 0)


def test_an_eval_task_is_split_over_workers_and_its_checkpoint_loaded_once_by_each() -> None:
    durations: dict[str, Any] = {"trial_s": 100.0, "load_s": 1.0, "eval_s": 20.0}
    run = simulated(pbt(1, 3), workers=1, evaluators=2, kinds=TRAIN, **durations, suites=(suite(),))
    # Half of a each, then b: loaded once, 10 s and 20 s.
    lag = run.lag["held"]
    assert (lag.complete, lag.others, lag.median_s, lag.longest_s) == (3, 0, 31.0, 31.0)
    assert run.wall_s == 100 + 101 + 101 + 31
    assert run.seconds["evaluating"] == 3 * 40.0


def test_fitness_from_a_suite_is_waited_for() -> None:
    durations: dict[str, Any] = {"trial_s": 10.0, "eval_s": 10.0}
    strategy = pbt(1, 5, fitness=FromSuite("held", "q_mean", max_lag=0))
    run = simulated(strategy, **durations, suites=(Suite("held", [EvalTask("a", nothing)]),))
    assert run.wall_s == 5 * 20.0
    assert shares(run)["evaluating"] == pytest.approx(0.5)


def test_what_may_start_only_later_is_waited_for() -> None:
    late = suite(policy=Policy(start_delay_s=100.0))
    run = simulated(pbt(1, 2), suites=(late,))
    assert run.wall_s == 2 * 30.0 + 100.0
    assert run.lag["held"].longest_s == 100.0


# With chance: means that are known


def test_a_barrier_costs_the_mean_of_the_slowest() -> None:
    spread, generations = 0.5, times(75, 150)
    durations: dict[str, Any] = {"trial_s": 1.0, "spread": spread}
    run = simulated(pbt(2, generations, quorum=1.0), 2, **durations)
    # The mean of the larger of two log-normal draws of mean 1 is 2 Phi(spread / sqrt(2)).
    slowest = 1 + math.erf(spread / 2)
    assert run.wall_s / generations == pytest.approx(slowest, rel=0.08)
    assert shares(run)["waiting"] == pytest.approx(1 - 1 / slowest, abs=0.03)
    free = simulated(pbt(2, generations, quorum=0), 2, **durations)
    assert shares(free)["waiting"] < 0.06  # at the end, for the slower member


def test_preemption_wastes_what_is_expected() -> None:
    trials, trial_s, per_hour = times(150, 300), 600.0, 2.0
    hazards: dict[str, Any] = {"preempt_per_hour": per_hour, "restart_s": 0.0}
    run = simulated(pbt(1, trials), trial_s=trial_s, **hazards, seed=6)
    assert run.completed == trials
    # A trial that begins anew after each interruption takes (exp(r t) - 1) / r.
    rate = per_hour / 3600
    assert run.wall_s / trials == pytest.approx(math.expm1(rate * trial_s) / rate, rel=0.05)
    assert run.attempts - run.completed == pytest.approx(rate * run.wall_s, rel=0.1)
    lost_steps = run.seconds["lost"] / trial_s * STEPS
    # Steps are counted when they are done, which loses half a step each time.
    assert run.steps["preempted"] == pytest.approx(lost_steps - (run.attempts - trials) / 2, rel=0.05)


def test_workers_that_never_stay_long_enough_end_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.testing.simulator.IN_VAIN", 200)
    run = simulated(pbt(3, 2), 2, trial_s=3600.0, preempt_per_hour=200.0)
    assert (run.state, run.completed) == (StudyState.RUNNING, 0)
    check_facts(run.message, "200 times")


def test_workers_that_come_and_go_do_not_keep_up_what_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.testing.simulator.IN_VAIN", 200)
    strategy = pbt(2, 4, fitness=FromSuite("held", "q_mean"))
    run = simulated(strategy, workers=2, kinds=TRAIN, suites=(suite(),), preempt_per_hour=20.0)
    assert run.state is StudyState.RUNNING
    assert run.message is not None
    assert run.message.startswith("it stands still: training waits for evaluations")


def test_a_worker_that_is_told_to_leave_is_away_until_it_is_back() -> None:
    hazards: dict[str, Any] = {"preempt_per_hour": 20.0, "restart_s": 90.0}
    run = simulated(pbt(2, 60), 2, **hazards)
    away = (run.attempts - run.completed) * 90.0
    assert sum(run.seconds.values()) == pytest.approx(2 * run.wall_s)
    assert run.seconds["lost"] > away
    assert run.state is StudyState.COMPLETED


def test_a_crash_is_found_when_its_lease_has_run_out() -> None:
    hazards: dict[str, Any] = {"crash_per_hour": 3.0, "restart_s": 0.0}
    run = simulated(pbt(1, 60), trial_s=300.0, **hazards, options={"lease_s": 60.0})
    crashes = run.attempts - run.completed
    assert crashes > 10
    # It renewed its lease every 20 s, and whoever asks looks at most once a second.
    assert 40.0 * crashes < run.seconds["waiting"] < 61.0 * crashes + 1e-6


def test_failures_cost_what_is_expected_and_the_budget_stays_exact() -> None:
    trials, fail = times(75, 150), 0.25
    run = simulated(pbt(2, trials, exploit=None), 2, fail=fail, seed=1)
    assert run.completed == 2 * trials
    assert run.failed > 0
    assert run.attempts == pytest.approx(2 * trials / (1 - fail), rel=0.1)
    assert run.seconds["lost"] == pytest.approx((run.attempts - run.completed) * 15.0, rel=0.05)
    assert run.steps["kept"] == 2 * trials * STEPS


# Everything at once


def test_a_seed_gives_the_same_run() -> None:
    def once(seed: int) -> SimulatedRun:
        hazards: dict[str, Any] = {"preempt_per_hour": 5, "crash_per_hour": 2, "restart_s": 20, "fail": 0.05}
        return simulated(pbt(4, 6), 3, step_s=2, spread=0.4, **hazards, seed=seed)

    run = once(3)
    assert run == once(3)
    assert run.wall_s != once(4).wall_s


WORKERS = (4, 1, 9)
LIKE_OTHERS = ("backtrack", "no gate", "random")
"""Strategies that differ from others in nothing that faults touch; test_conditions.py draws them, too."""


def with_workers(names: Iterable[str]) -> list[Any]:
    """Return names with numbers of workers: on each change one each in turn, for some; before a release all."""
    return [
        (name, workers) if number % len(WORKERS) == place and name not in LIKE_OTHERS else rarely(name, workers)
        for number, name in enumerate(names)
        for place, workers in enumerate(WORKERS)
    ]


STRATEGIES: dict[str, tuple[Strategy, int]] = {
    "pbt": (pbt(6, 6), 36),
    "synchronous": (pbt(6, 6, quorum=1.0), 36),
    "t-test": (pbt(6, 6, exploit=TTest()), 36),
    "backtrack": (pbt(6, 6, exploit=Backtrack()), 36),
    "initiator": (InitiatorPBT(population_size=6, steps_per_trial=STEPS, total_steps=6 * STEPS), 36),
    "no gate": (InitiatorPBT(population_size=6, steps_per_trial=STEPS, total_steps=6 * STEPS, gate=False), 36),
    "random": (RandomSearch(members=6, total_steps=STEPS), 6),
}


@pytest.mark.parametrize(("name", "workers"), with_workers(STRATEGIES))
def test_every_strategy_keeps_its_budget_whatever_happens(name: str, workers: int) -> None:
    strategy, trials = STRATEGIES[name]
    hazards: dict[str, Any] = {"preempt_per_hour": 10, "crash_per_hour": 4, "restart_s": 45, "fail": 0.1}
    durations: dict[str, Any] = {"trial_s": 30, "load_s": 2, "save_s": 3, "spread": 0.5}
    run = simulated(strategy, workers, **durations, **hazards, seed=workers)
    assert run.state is StudyState.COMPLETED, run.message
    assert run.completed == trials
    assert run.steps["kept"] + run.steps["abandoned"] == trials * STEPS
    assert sum(run.seconds.values()) == pytest.approx(workers * run.wall_s)


@pytest.mark.parametrize(
    "strategy",
    [
        pbt(4, 5, fitness=FromSuite("held", "q_mean", max_lag=1, remeasure=2)),
        pbt(4, 5, fitness=FromSuite("held", "q_mean"), quorum=1.0),
        InitiatorPBT(
            population_size=4, steps_per_trial=STEPS, total_steps=5 * STEPS, fitness=FromSuite("held", "q_mean")
        ),
    ],
    ids=["remeasure", "synchronous", "initiator"],
)
@pytest.mark.parametrize(
    "crew", [rarely({"workers": 3}), {"workers": 2, "evaluators": 2, "kinds": TRAIN}], ids=["pool", "apart"]
)
def test_fitness_from_a_suite_keeps_its_budget_whatever_happens(strategy: Strategy, crew: dict[str, Any]) -> None:
    run = simulated(
        strategy,
        **crew,
        trial_s=20,
        load_s=1,
        eval_s=8,
        spread=0.5,
        preempt_per_hour=15,
        crash_per_hour=5,
        restart_s=30,
        fail=0.1,
        suites=(suite(),),
    )
    assert run.state is StudyState.COMPLETED, run.message
    assert run.completed == 20
    assert run.lag["held"].complete >= 20
    assert sum(run.seconds.values()) == pytest.approx((crew["workers"] + crew.get("evaluators", 0)) * run.wall_s)


def test_it_says_when_nothing_can_go_on() -> None:
    strategy = pbt(2, 5, fitness=FromSuite("held", "q_mean", max_lag=1))
    run = simulated(strategy, workers=2, kinds=TRAIN, suites=(suite(),))
    assert run.state is StudyState.RUNNING
    assert run.message == "it stands still: training waits for evaluations"
    assert run.completed == 4


def test_it_says_when_the_study_stops_itself() -> None:
    run = simulated(pbt(2, 5), 2, fail=1.0)
    assert run.state is StudyState.FAILED
    assert run.message is not None
    assert "trials in a row failed" in run.message
    assert (run.completed, run.steps["kept"]) == (0, 0)
    assert math.isnan(run.best)


def test_the_fitness_is_asked_with_hyperparameters_and_age() -> None:
    asked: list[tuple[set[str], int]] = []

    def fitness(params: Any, step: int, rng: np.random.Generator) -> float:
        asked.append((set(params), step))
        return float(step)

    assert simulated(pbt(1, 3), fitness=fitness).best == 30.0
    assert asked == [({"rate", "width", "kind"}, step) for step in (10, 20, 30)]


def test_the_synthetic_curve_rises_and_turns_around_for_a_minimum() -> None:
    rng = np.random.default_rng(0)
    curve = LearningCurve(SPACE, Maximize("Q"), 100, noise=0.0)
    best: JsonObject = {"rate": 10 ** (-3 * 0.3), "width": 7, "kind": "b"}
    worse: JsonObject = {"rate": 1e-3, "width": 1, "kind": "a"}
    assert 0.8 < curve(best, 100, rng) < 1
    assert curve(best, 10, rng) < curve(best, 50, rng) < curve(best, 100, rng)
    assert curve(worse, 100, rng) < curve(best, 100, rng)
    turned = LearningCurve(SPACE, Minimize("loss"), 100, noise=0.0)
    assert turned(best, 100, rng) == 1 - curve(best, 100, rng)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Conditions(),
        lambda: Conditions(step_s=1.0, trial_s=1.0),
        lambda: Conditions(trial_s=-1.0),
        lambda: Conditions(trial_s=1.0, spread=math.nan),
        lambda: Conditions(trial_s=1.0, fail=1.5),
        lambda: Conditions(trial_s=1.0, preempt_per_hour=-1),
        lambda: Conditions(trial_s=1.0, workers=0),
        lambda: Conditions(trial_s=1.0, kinds=EVALUATE),
    ],
)
def test_what_makes_no_sense_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError):
        bad()
