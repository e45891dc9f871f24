"""Population based bandits: what the model is told, and what it proposes."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from effort import times
from facts import raises
from phyla.errors import ConfigurationError
from phyla.machine import TrainRules
from phyla.records import Goal, JobState, JsonObject, Maximize, Minimize, Scored, TrialRecord
from phyla.space import Choice, Float, Int, Ordinal, Params, Space
from phyla.strategies import PB2, PBT, Explore, Explored, Perturb, Truncation, describe
from phyla.strategies.explore.pb2 import kappa, standardise, without_outliers
from populations import Listed, context
from simulation import Simulation

RNG = np.random.default_rng
EVERYWHERE = PB2(radius=1.0)
LR = Space(lr=Float(0.0, 1.0))


def chains(
    objective: Goal, gain: Any, *, space: Space = LR, members: int = 6, generations: int = 10, seed: int = 0
) -> Listed:
    """Members that train on with other hyperparameters in each trial; `gain(params, generation, rng)` is what
    each adds."""
    listed, rng = Listed(*([] for _ in range(members)), objective=objective), RNG(seed)
    last: dict[int, tuple[int, float]] = {}
    for generation in range(generations):
        for member in range(members):
            parent, fitness = last.get(member, (None, 0.0))
            params = space.sample(rng)
            fitness += gain(params, generation, rng) if generation else 0.0
            last[member] = listed.add(member, generation, fitness, parent, params=params), fitness
    listed.slots = [replace(slot, generation=generations) for slot in listed.slots]
    return listed


def newest(listed: Listed) -> Scored:
    return listed.scored_trial(max(listed.trials))


def ask(listed: Listed, seed: int = 0, space: Space = LR, rule: PB2 | None = None, **more: Any) -> Explored:
    explored = (rule or replace(EVERYWHERE, **more)).propose(
        newest(listed), listed, context(seed, space=space, history=listed)
    )
    assert explored is not None
    return explored


def quadratic(params: JsonObject, generation: int, rng: np.random.Generator) -> float:
    lr: Any = params["lr"]
    return float(-((lr - 0.7) ** 2) + rng.normal(0, 0.01))


def test_kappa_has_the_values_of_the_paper_and_is_0_where_the_logarithm_is_negative() -> None:
    assert [kappa(n) for n in (1, 2)] == [0.0, 0.0]
    assert [round(kappa(n), 3) for n in (3, 8, 100)] == [0.191, 0.482, 0.859]


def test_gains_are_standardised_and_clipped() -> None:
    gains = np.array([0.0] * 50 + [1.0] * 50 + [1000.0])
    targets, center, spread = standardise(gains)
    assert (targets.max(), targets.min() > -2) == (2.0, True)
    assert center + spread * targets[0] == pytest.approx(0.0)
    flat, center, _ = standardise(np.full(5, 3.0))
    assert (flat.tolist(), center) == ([0.0] * 5, 3.0)


def test_it_goes_where_gains_are_and_says_what_it_expects() -> None:
    listed = chains(Maximize("Q"), quadratic)
    explored = ask(listed)
    assert explored.params["lr"] == pytest.approx(0.7, abs=0.1)
    assert explored.changes["lr"]["by"] == "pb2"
    model: Any = explored.facts["model"]
    assert model["kappa"] == pytest.approx(kappa(54))
    assert model["rows"] == 54
    assert model["mean"] == pytest.approx(0.0, abs=0.02)
    assert 0 < model["std"] < 0.1
    reason: JsonObject = {"decision": "explore", "changes": explored.changes, **explored.facts}
    assert "(pb2)" in describe(reason)


def test_a_minimised_objective_is_maximised_upside_down() -> None:
    up = chains(Maximize("Q"), quadratic)
    down = chains(Minimize("loss"), lambda *args: -quadratic(*args))
    assert ask(down).params["lr"] == pytest.approx(ask(up).params["lr"], abs=1e-6)
    assert ask(down).facts["model"] == ask(up).facts["model"]


def test_gain_is_over_the_trial_whose_weights_were_taken_over_and_per_step() -> None:
    listed = Listed([], [])
    best, worst, donor = (listed.add(0, 0, fitness, None, params={"lr": 0.5}) for fitness in (10.0, 0.0, 5.0))
    for index in range(24):
        lr = index / 23
        good = lr > 0.5
        fitness, jump = (6.0, best) if good else (4.0, worst)
        listed.add(0, 1, fitness + 0.01 * lr, donor, jump=jump, params={"lr": lr})
    chosen: Any = ask(listed).params["lr"]
    assert chosen > 0.5


def test_running_trials_keep_children_apart() -> None:
    # Gains that tell nothing: only the deviation is left to go by.
    listed = chains(Maximize("Q"), lambda *_: 1.0, members=3, generations=4)
    alone: Any = ask(listed, seed=3).params["lr"]
    expected: Any = ask(listed, seed=3).facts["model"]
    parent = max(listed.trials)
    for _ in range(5):
        running = listed.add(1, 5, 0.0, parent, params={"lr": alone})
        listed.trials[running] = replace(
            listed.trials[running], state=JobState.RUNNING, order=None, fitness=None, reached_step=None
        )
    source = listed.scored_trial(parent)
    explored = EVERYWHERE.propose(source, listed, context(3, space=LR, history=listed))
    assert explored is not None
    model: Any = explored.facts["model"]
    assert model["pending"] == 5
    assert model["mean"] == expected["mean"]
    assert abs(float(explored.params["lr"]) - alone) > 0.1  # type: ignore[arg-type]  # lr is a number
    apart = PB2(repeatable=True).propose(source, listed, context(3, space=LR, history=listed))
    assert apart is not None
    assert '"pending": 0' in json.dumps(apart.facts)


def test_a_trial_that_ended_at_nan_counts_as_the_worst() -> None:
    def proposed(edge: float) -> float:
        listed = Listed([])
        parent = listed.add(0, 0, 0.0, None, params={"lr": 0.5})
        for index in range(30):
            lr = index / 29
            listed.add(0, 1, lr / 10 if lr <= edge else math.nan, parent, params={"lr": lr})
        explored = EVERYWHERE.propose(listed.scored_trial(parent), listed, context(space=LR, history=listed))
        assert explored is not None
        assert "kappa" in str(explored.facts)
        return float(explored.params["lr"])  # type: ignore[arg-type]  # lr is a number

    assert proposed(1.0) > 0.95
    assert 0.4 < proposed(0.7) < 0.72


@pytest.mark.parametrize("how", ["broken", "stopped"])
def test_it_leaves_where_trials_break_or_are_stopped(how: str) -> None:
    listed = Listed([])
    parent = listed.add(0, 0, 0.0, None, params={"lr": 0.5})
    for index in range(30):
        lr = index / 29
        trial = listed.add(0, 1, lr / 10, parent, params={"lr": lr})
        if lr > 0.7:
            change: Any = {"state": JobState.FAILED}
            if how == "stopped":
                change = {"state": JobState.CANCELLED, "stop_reason": {"rule": "divergence"}}
            listed.trials[trial] = replace(
                listed.trials[trial], order=None, fitness=None, reached_step=None, **change
            )
    explored = EVERYWHERE.propose(listed.scored_trial(parent), listed, context(space=LR, history=listed))
    assert explored is not None
    assert 0.4 < float(str(explored.params["lr"])) < 0.72


@pytest.mark.parametrize("score", [-1e3, -1e30, -1e200])
def test_one_score_does_not_hide_the_others(score: float) -> None:
    listed = chains(Maximize("Q"), quadratic)
    good = newest(listed)
    # Whatever it is worth, and what was trained from there.
    bad = listed.add(0, 10, score, good.trial, params={"lr": 0.2})
    listed.add(0, 11, score, bad, params={"lr": 0.4})
    explored = EVERYWHERE.propose(good, listed, context(space=LR, history=listed))
    assert explored is not None
    assert explored.params["lr"] == pytest.approx(0.7, abs=0.1)
    assert all(math.isfinite(value) for value in explored.facts["model"].values() if isinstance(value, float))  # type: ignore[union-attr]


def test_children_stay_near_the_parent_and_stepped_numbers_can_always_move() -> None:
    space = Space(lr=Float(1e-4, 1.0, log=True), layers=Int(1, 3), drop=Float(0.0, 1.0, step=0.25))

    def gain(params: JsonObject, generation: int, rng: np.random.Generator) -> float:
        lr: Any = params["lr"]
        layers: Any = params["layers"]
        drop: Any = params["drop"]
        return float(-math.log10(lr) + layers + 4 * drop + rng.normal(0, 0.01))

    listed = chains(Maximize("Q"), gain, space=space, members=8)
    params: JsonObject = {"lr": 0.1, "layers": 1, "drop": 0.25}
    source = listed.scored_trial(listed.add(0, 11, 20.0, 1, params=params))

    def proposed(rule: PB2) -> list[Any]:
        explored = rule.propose(source, listed, context(space=space, history=listed))
        assert explored is not None
        return [explored.params[name] for name in params]

    assert proposed(PB2()) == [pytest.approx(10 ** (-1 - 4 * 0.15), rel=0.01), 2, 0.5]
    assert proposed(EVERYWHERE) == [pytest.approx(1e-4, rel=0.01), 3, 1.0]


def test_it_follows_an_optimum_that_moves_better_than_chance() -> None:
    def moving(params: JsonObject, generation: int, rng: np.random.Generator) -> float:
        best = 0.2 + 0.6 * generation / 20
        x: Any = params["x"]
        y: Any = params["y"]
        return float(1 - (x - best) ** 2 - (y - best) ** 2 + rng.normal(0, 0.05))

    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    chosen: list[float] = []
    drawn: list[float] = []
    for seed in range(4):
        listed = chains(Maximize("Q"), moving, space=space, members=8, generations=20, seed=seed)
        for values, into in ((ask(listed, seed, space).params, chosen), (space.sample(RNG(seed)), drawn)):
            into.append(math.hypot(values["x"] - 0.8, values["y"] - 0.8))  # type: ignore[operator]
    assert np.mean(chosen) < 0.2
    assert np.mean(chosen) < 0.5 * np.mean(drawn)


@pytest.mark.thorough  # above: each step of the choice, against its formulas
def test_a_population_gets_further_than_by_perturbing() -> None:
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))

    def train(score: Any, trial: TrialRecord) -> tuple[float, float]:
        x: Any = trial.params["x"]
        y: Any = trial.params["y"]
        best = 0.15 + 0.7 * trial.start_step / 25
        after = float((score or 0.0) + 1 - 6 * (x - best) ** 2 - 6 * (y - 1 + best) ** 2)
        return after, after

    def reached(explore: Explore, seed: int) -> float:
        strategy = PBT(
            population_size=8,
            steps_per_trial=1,
            total_steps=25,
            exploit=Truncation(0.25),
            explore=explore,
            quorum=1.0,
        )
        simulation = Simulation(
            TrainRules(space=space, objective=Maximize("Q"), strategy=strategy), train, seed=seed
        )
        simulation.run_serially()
        with simulation.store.reader(simulation.study.id) as reader:
            return max(trial.fitness for trial in reader.trials() if trial.fitness is not None)

    by_model = [reached(PB2(), seed) for seed in range(times(1, 2))]
    by_chance = [reached(Perturb(), seed) for seed in range(4)]
    assert np.mean(by_model) > np.mean(by_chance) + 1.0
    assert min(by_model) > 20


@pytest.mark.parametrize("values", [["a", "b", "c"], [False, None, 0.5], [*range(4)]], ids=str)
def test_a_choice_is_modelled_with_the_numbers(values: list[Any]) -> None:
    space = Space(lr=Float(0.0, 1.0), kind=Choice(values), other=Choice(["x", "y"]))
    best = values[1]

    def gain(params: JsonObject, generation: int, rng: np.random.Generator) -> float:
        lr: Any = params["lr"]
        right = repr(params["kind"]) == repr(best)
        gained = 0.3 * right - (lr - (0.3 if right else 0.7)) ** 2 + 0.2 * (params["other"] == "y")
        return float(gained + rng.normal(0, 0.02))

    listed = chains(Maximize("Q"), gain, space=space, members=12, generations=12)

    def chosen(kind: Any, other: str) -> JsonObject:
        source = listed.scored_trial(listed.add(0, 13, 20.0, 1, params={"lr": 0.5, "kind": kind, "other": other}))
        explored = PB2(resample=1.0).propose(source, listed, context(space=space, history=listed))
        assert explored is not None
        moved = {name for name, value in explored.params.items() if value != source.params[name]}
        assert {name: change["by"] for name, change in explored.changes.items()} == dict.fromkeys(moved, "pb2")
        return explored.params

    # One choice changes at a time, that which gains more; numbers go where the choice wants them.
    changed = chosen(values[0], "x")
    assert (repr(changed["kind"]), changed["other"]) == (repr(best), "x")
    again = chosen(best, "x")
    assert (repr(again["kind"]), again["other"]) == (repr(best), "y")
    assert again["lr"] == pytest.approx(0.35, abs=0.06)
    kept = chosen(best, "y")
    assert (repr(kept["kind"]), kept["other"]) == (repr(best), "y")


def narrow(params: Params) -> bool:
    return bool(params["lr"] * params["width"] <= 0.5)


def test_bounds_log_scales_integers_choices_and_constraints_are_respected() -> None:
    space = Space(
        lr=Float(1e-4, 1.0, log=True),
        width=Int(1, 8),
        step=Float(0.0, 1.0, step=0.25),
        kind=Choice(["a", "b"]),
        momentum=Float(0.0, 0.9, when={"kind": "a"}),
        constraints=[narrow],
    )

    def gain(params: JsonObject, generation: int, rng: np.random.Generator) -> float:
        lr: Any = params["lr"]
        return math.log10(lr) + float(rng.normal(0, 0.1))

    listed = chains(Maximize("Q"), gain, space=space, generations=12)
    used, kinds = 0, set()
    for seed in range(12):
        source = listed.scored_trial(1 + RNG(seed).integers(len(listed.trials)).item())
        explored = PB2(resample=0.5).propose(source, listed, context(seed, space=space, history=listed))
        assert explored is not None
        assert space.contains(explored.params)
        assert {n for n in explored.params if explored.params[n] != source.params.get(n)} <= set(explored.changes)
        used += "kappa" in str(explored.facts["model"])
        kinds.add((source.params["kind"], explored.params["kind"]))
    assert used > 6
    assert len(kinds) == 4
    kept = PB2(resample=0.0).propose(newest(listed), listed, context(space=space, history=listed))
    assert kept is not None
    assert kept.params["kind"] == newest(listed).params["kind"]


def test_without_a_model_the_fallback_decides_and_the_reason_says_why() -> None:
    def why(listed: Listed, source: Scored, space: Space = LR) -> str:
        explored = PB2(fallback=Perturb()).propose(source, listed, context(space=space, history=listed))
        assert explored is not None
        model: Any = explored.facts["model"]
        return str(model["not_used"])

    few = chains(Maximize("Q"), quadratic, members=3, generations=2)
    assert why(few, newest(few)) == "3 of the 4 rows that a model needs"
    many = chains(Maximize("Q"), quadratic)
    broken = many.scored_trial(many.add(0, 11, math.nan, 1, params={"lr": 0.5}))
    assert why(many, broken) == "the parent has no finite fitness"
    ordered = Space(size=Ordinal([1, 2]))
    only = chains(Maximize("Q"), lambda *_: 1.0, space=ordered)
    assert why(only, newest(only), ordered) == "nothing to model"


def test_bounds_beyond_what_a_float_holds_move_no_value() -> None:
    values = np.array([1.5e308, 1.6e308, 1.7e308])
    assert without_outliers(values).tolist() == values.tolist()


def test_the_same_decision_is_the_same_again() -> None:
    listed = chains(Maximize("Q"), quadratic)
    assert ask(listed, 5) == ask(listed, 5)
    # The first place to climb from is the parent's, whatever is drawn.
    assert ask(listed, 5, restarts=1) == ask(listed, 6, restarts=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": 1},
        {"least_rows": 1},
        {"restarts": 0},
        {"resample": 2.0},
        {"radius": 0.0},
        {"rows": 3, "least_rows": 4},
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with raises(ConfigurationError, "PB2("):
        PB2(**settings)
