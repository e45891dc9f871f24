"""Every study ends: exactly m x n trials with a quorum of 1, at most as many below; weights never grow too old."""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import covering, rarely, times
from phyla import plugins
from phyla.controller import StudyRecords
from phyla.integrations.optuna_search import Optuna
from phyla.machine import Ended, Failure, TrainRules
from phyla.records import Constrained, JobState, Maximize, Minimize, Pareto, StudyState, TrialRecord
from phyla.space import Float, Int, Params, Space
from phyla.strategies import (
    ASHA,
    PB2,
    PBT,
    Backtrack,
    BinaryTournament,
    Crossover,
    Exploit,
    ExploitPipeline,
    ExploreWith,
    FixedSchedule,
    GridSearch,
    InitiatorPBT,
    ParetoTournament,
    ParetoTruncation,
    Perturb,
    RandomSearch,
    SingleWorkerExplore,
    Strategy,
    Truncation,
    TTest,
    WinnerTakesAll,
)
from phyla.testing import check_strategy
from simulation import Simulation

FITNESSES: dict[str, Callable[[TrialRecord], float]] = {
    "peaked": lambda trial: -abs(trial.end_step - 30.0),
    "constant": lambda trial: 1.0,
    "noisy": lambda trial: float(np.random.default_rng(trial.seed).normal()),
    "nan": lambda trial: math.nan,
    "sometimes nan": lambda trial: math.inf if trial.seed % 3 == 0 else trial.seed % 100,
}


CREWS = tuple(product([1, 3, 9], [0.0, 0.3]))
"""How many workers, and how many of their trials fail."""


def with_crews(*values: Iterable[object]) -> list[tuple[object, ...]]:
    """Return all combinations of values, each with one of the crews in turn: no value meets only some of them."""
    return [(*chosen, *CREWS[number % len(CREWS)]) for number, chosen in enumerate(product(*values))]


@pytest.mark.parametrize(
    ("quorum", "copy", "fitness", "workers", "failure_rate"),
    covering(with_crews([0.0, 0.8, 1.0], ["both", "weights", "hyperparameters"], FITNESSES)),
)
def test_the_budget(fitness: str, quorum: float, workers: int, failure_rate: float, copy: str) -> None:
    members, trials = 6, 5
    strategy = PBT(
        population_size=members,
        steps_per_trial=10,
        total_steps=10 * trials,
        exploit=Truncation(0.34),
        quorum=quorum,
        copy=copy,  # type: ignore[arg-type]  # a literal, one of three
    )
    rules = TrainRules(
        space=Space(lr=Float(0.1, 1.0)),
        objective=Maximize("Q"),
        strategy=strategy,
        max_attempts=2,
        max_broken=100,
    )
    simulation = Simulation(rules, lambda parent, trial: (None, FITNESSES[fitness](trial)), seed=workers)
    ended = simulation.run(workers, np.random.default_rng(workers), failure_rate=failure_rate)
    assert ended.state is StudyState.COMPLETED
    with simulation.store.reader(simulation.study.id) as reader:
        done = [trial for trial in reader.trials() if trial.state is JobState.COMPLETED]
        spent = [member.progress for member in reader.members()]
        assert not reader.unfinished()
    assert spent == [10 * trials] * members
    check_trials(strategy, done, trials)
    if copy == "hyperparameters":
        assert len(done) == members * trials, "nobody takes over weights, so nobody gets ahead"


def check_trials(strategy: Strategy, done: list[TrialRecord], trials: int) -> None:
    """Nobody trained more trials than planned; with a quorum of 1 nobody trained fewer. No weights are too old."""
    total = strategy.member_steps
    assert total is not None
    of_members = Counter(trial.member for trial in done)
    for member in range(strategy.population_size):
        generations = sorted(trial.generation for trial in done if trial.member == member)
        assert generations == list(range(of_members[member]))
        assert of_members[member] <= trials
        if strategy.quorum == 1:
            assert of_members[member] == trials
    assert max(trial.age + trial.end_step - trial.start_step for trial in done) <= total


@given(
    members=st.integers(1, 8),
    steps=st.integers(1, 7),
    total=st.integers(7, 40),
    workers=st.integers(1, 10),
    quorum=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=times(6, 60))
def test_any_shape_of_study_ends(
    members: int, steps: int, total: int, workers: int, quorum: float, seed: int
) -> None:
    strategy = PBT(population_size=members, steps_per_trial=steps, total_steps=total, quorum=quorum)
    rules = TrainRules(space=Space(lr=Float(0.1, 1.0)), objective=Minimize("Q"), strategy=strategy)
    simulation = Simulation(rules, lambda parent, trial: (None, FITNESSES["noisy"](trial)), seed=seed)
    simulation.run(workers, np.random.default_rng(seed))
    with simulation.store.reader(simulation.study.id) as reader:
        assert [member.progress for member in reader.members()] == [total] * members
        done = list(reader.trials())
    assert {trial.state for trial in done} == {JobState.COMPLETED}
    check_trials(strategy, done, -(-total // steps))


def test_synchronous_studies_are_the_same_with_any_number_of_workers() -> None:
    def decisions(workers: int) -> list[tuple[object, ...]]:
        strategy = PBT(population_size=5, steps_per_trial=1, total_steps=8, quorum=1.0)
        rules = TrainRules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy)
        simulation = Simulation(rules, lambda parent, trial: (None, FITNESSES["noisy"](trial)))
        simulation.run(workers, np.random.default_rng(workers))
        with simulation.store.reader(simulation.study.id) as reader:
            rows = list(reader.trials())
        names = {row.id: (row.member, row.generation) for row in rows}
        return sorted(
            (row.member, row.generation, str(row.params), row.seed, names.get(row.parent or 0, (-1, -1)))
            for row in rows
        )

    assert decisions(1) == decisions(3) == decisions(7)


def pbt(exploit: Exploit, *, quorum: float = 0.0) -> PBT:
    return PBT(
        population_size=MEMBERS,
        steps_per_trial=10,
        total_steps=10 * TRIALS,
        exploit=exploit,
        quorum=quorum,
    )


def halved(params: Params, rng: np.random.Generator) -> dict[str, Any]:
    return {**params, "lr": max(0.1, params["lr"] / 2)}


def initiators(**settings: Any) -> InitiatorPBT:
    sizes = {"population_size": MEMBERS, "steps_per_trial": 10, "total_steps": 10 * TRIALS}
    return InitiatorPBT(**{**sizes, **settings})


MEMBERS, TRIALS = times(5, 6), times(4, 5)
STRATEGIES: dict[str, Strategy] = {
    "truncation": pbt(Truncation(0.34)),
    "t-test": pbt(TTest(window=3, alpha=0.5)),
    "t-test, synchronous": pbt(TTest(window=3, alpha=0.5), quorum=1.0),
    "binary tournament": pbt(BinaryTournament()),
    "binary tournament, synchronous": pbt(BinaryTournament(), quorum=1.0),
    "backtrack": pbt(Backtrack(quantile=0.5, pool=0.4)),
    "backtrack, synchronous": pbt(ExploitPipeline([Backtrack(quantile=0.3)]), quorum=1.0),
    "winner takes all": pbt(WinnerTakesAll(), quorum=1.0),
    "crossover": replace(pbt(Truncation(0.34)), explore=Crossover(quantile=0.5)),
    "a function explores, synchronous": replace(pbt(Truncation(0.34), quorum=1.0), explore=ExploreWith(halved)),
    "min scores": replace(pbt(Truncation(0.34)), min_scores=3),
    "min scores, synchronous": replace(pbt(Truncation(0.34), quorum=1.0), min_scores=2),
    "quorum": pbt(Truncation(0.34), quorum=0.8),
    "quorum, min scores": replace(pbt(Truncation(0.34), quorum=0.5), min_scores=2),
    "quorum, backtrack": pbt(Backtrack(quantile=0.5, pool=0.4), quorum=0.8),
    "quorum, t-test": pbt(TTest(window=3, alpha=0.5), quorum=0.8),
    "pb2": replace(pbt(Truncation(0.34)), explore=PB2()),
    "pb2, synchronous": replace(
        pbt(Truncation(0.34), quorum=1.0), explore=PB2(fallback=Perturb(resample=0.2), repeatable=True)
    ),
    "initiators with crossover": initiators(explore=Crossover(then=None)),
    "initiators": initiators(),
    "initiators, without gate": initiators(gate=False),
    "initiators, one generation": initiators(generations=1),
    "initiators, one generation, without gate": initiators(generations=1, gate=False),
    "initiators, weights alone": initiators(copy="weights"),
    "initiators, hyperparameters alone, without gate": initiators(copy="hyperparameters", gate=False),
    "initiators, one member": initiators(population_size=1),
    "single worker": SingleWorkerExplore(explore_steps=3, exploit_steps=10, total_steps=49),
    "pareto truncation": pbt(ParetoTruncation(0.34)),
    "pareto truncation, synchronous": pbt(ParetoTruncation(0.34), quorum=1.0),
    "pareto tournament": pbt(ParetoTournament()),
    "pareto tournament, synchronous": pbt(ExploitPipeline([ParetoTournament()]), quorum=1.0),
    "asha": ASHA(9, 20, 3, 2),
    "asha, one rung": ASHA(4, 5, 5),
    "successive halving": ASHA(9, 20, 3, 2, quorum=1.0),
    "optuna": Optuna(6, 20, settings={"n_startup_trials": 3}),
    "optuna, in pieces": Optuna(5, 25, steps_per_trial=6),
    "optuna, cma-es": Optuna(6, 20, "cma-es"),
    "random search": RandomSearch(4, 20),
    "random search, in pieces": RandomSearch(4, 25, steps_per_trial=6),
    "grid search": GridSearch({"lr": [0.1, 0.3], "width": [1, 2, 3]}, 25, steps_per_trial=5),
    "fixed schedule": FixedSchedule(
        [(0, {"lr": 0.1, "width": 1}), (7, {"lr": 0.5, "width": 2}), (9, {"lr": 0.2, "width": 2})],
        total_steps=20,
        members=3,
        steps_per_trial=4,
    ),
}
TRIALS_OF_A_MEMBER: dict[str, int] = {
    "optuna": 1,
    "optuna, cma-es": 1,
    "random search": 1,
    "single worker": 12,
    "fixed schedule": 6,
}
MORE = (
    *("t-test", "binary tournament", "backtrack", "min scores, synchronous", "quorum, min scores", "pb2"),
    *("quorum, t-test", "pareto truncation", "pareto tournament", "initiators, one generation", "asha, one rung"),
    *("initiators, one generation, without gate", "initiators, weights alone", "initiators, one member"),
    *("optuna, in pieces", "random search", "quorum, backtrack"),
    "initiators, hyperparameters alone, without gate",
)
"""Strategies whose parts other strategies have, in the same or another mode."""


SOME = (
    *("truncation", "backtrack, synchronous", "pb2, synchronous", "initiators", "single worker", "grid search"),
    *("successive halving", "optuna"),
)
"""One strategy of each class, and the parts of PBT that look at most of what is stored."""
CHOOSY = ("truncation", "quorum", "backtrack, synchronous", "initiators", "initiators, without gate", "asha")
"""Strategies that choose among different checkpoints: the newest, those of a time, the best, whole generations."""


def strategies(usually: Collection[str] = STRATEGIES) -> list[Any]:
    """Return names: on each change, some for each class and each mode; before a release, all."""
    return [name if name in usually and name not in MORE else rarely(name) for name in STRATEGIES]


def synchronous(usually: Collection[str]) -> list[Any]:
    """Return names of strategies that wait for whole generations; on each change, some of them.

    That these have the same decisions with any number of workers is part of the contract of all strategies.
    """
    names = [name for name, strategy in STRATEGIES.items() if strategy.quorum == 1]
    return [name if name in usually else rarely(name) for name in names]


SPACE = Space(lr=Float(0.1, 1.0), width=Int(1, 9))
SEVERAL = Constrained(Pareto(Maximize("Q"), Minimize("cost")), subject_to=["load < 0.8"])


def metrics(fitness: Callable[[TrialRecord], float], trial: TrialRecord) -> dict[str, float]:
    return {"Q": fitness(trial), "cost": trial.seed % 7 + 0.0, "load": trial.seed % 5 / 5}


def made(name: str, fitness: str, seed: int = 0, strategy: Strategy | None = None) -> Simulation:
    rules = TrainRules(
        space=SPACE,
        objective=SEVERAL if name.startswith("pareto") else Maximize("Q"),
        strategy=strategy or STRATEGIES[name],
        max_attempts=2,
        max_broken=100,
    )
    return Simulation(rules, lambda parent, trial: (None, metrics(FITNESSES[fitness], trial)), seed=seed)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "fitness", "workers", "failure_rate"), with_crews(STRATEGIES, FITNESSES))
def test_every_strategy_spends_its_budget(name: str, fitness: str, workers: int, failure_rate: float) -> None:
    simulation = made(name, fitness, seed=workers)
    ended = simulation.run(workers, np.random.default_rng(workers), failure_rate=failure_rate)
    assert ended.state is StudyState.COMPLETED
    strategy = STRATEGIES[name]
    with simulation.store.reader(simulation.study.id) as reader:
        done = [trial for trial in reader.trials() if trial.state is JobState.COMPLETED]
        spent = [member.progress for member in reader.members()]
        assert not reader.unfinished()
    assert all(simulation.rules.space.contains(trial.params) for trial in done)
    if isinstance(strategy, ASHA):
        # Members differ; how many reach which rung is tested with the strategy.
        rungs = Counter(trial.generation for trial in done)
        assert rungs[0] == strategy.population_size
        assert set(spent) <= set(strategy.rungs)
        return
    assert spent == [strategy.member_steps] * strategy.population_size
    of_a_member = TRIALS_OF_A_MEMBER.get(name, TRIALS)
    check_trials(strategy, done, of_a_member)
    if not isinstance(strategy, (PBT, InitiatorPBT)):
        assert len(done) == of_a_member * strategy.population_size


def decisions(simulation: Simulation) -> list[tuple[object, ...]]:
    with simulation.store.reader(simulation.study.id) as reader:
        rows = {row.id: row for row in reader.trials()}

    def place(trial: int | None) -> tuple[int, int] | None:
        return None if trial is None else (rows[trial].member, rows[trial].generation)

    def decided(row: TrialRecord) -> tuple[object, ...]:
        origin = place(row.parent), place(row.jump_from), place(row.params_from)
        return row.member, row.generation, *origin, str(row.params), row.seed

    return sorted(map(decided, rows.values()), key=lambda facts: (facts[0], facts[1]))


@pytest.mark.parametrize("name", synchronous({"initiators", "successive halving"}))
def test_waiting_for_whole_generations_makes_studies_the_same_with_any_number_of_workers(name: str) -> None:
    assert run_with(made(name, "noisy"), 1) == run_with(made(name, "noisy"), 9)


def run_with(simulation: Simulation, workers: int) -> list[tuple[object, ...]]:
    """Run a study to its end with some workers, which take turns at random; return its decisions."""
    simulation.run(workers, np.random.default_rng(workers))
    return decisions(simulation)


UNEVEN = [name for name, strategy in STRATEGIES.items() if isinstance(strategy, PBT) and strategy.quorum == 1]
SHORTER = {("t-test, synchronous", -6), ("backtrack, synchronous", -1), ("pb2, synchronous", -1)}


@pytest.mark.parametrize(
    ("name", "total"), [case if case in SHORTER else rarely(*case) for case in product(UNEVEN, (-1, -6))]
)
def test_the_last_trial_may_be_shorter_with_any_number_of_workers(name: str, total: int) -> None:
    strategy = STRATEGIES[name]
    assert isinstance(strategy, PBT)
    # With fewer, none of them goes back to older weights for its last trial.
    uneven = replace(strategy, population_size=6, total_steps=50 + total)
    alone = made(name, "peaked", strategy=uneven)
    assert run_with(alone, 1) == run_with(made(name, "peaked", strategy=uneven), 9)
    with alone.store.reader(alone.study.id) as reader:
        assert [member.progress for member in reader.members()] == [uneven.total_steps] * uneven.population_size


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("t-test, synchronous", "backtrack, synchronous", "winner takes all") else rarely(name)
        for name in UNEVEN
        if not name.startswith("pb2")
    ],
)
def test_trials_may_end_early_with_any_number_of_workers(name: str) -> None:
    def reached(trial: TrialRecord) -> int:
        return max(trial.start_step + 1, trial.end_step - max(0, trial.seed % 9 - 3))

    def study() -> Simulation:
        return replace(made(name, "noisy"), reached=reached)

    alone = study()
    assert run_with(alone, 1) == run_with(study(), 9)
    with alone.store.reader(alone.study.id) as reader:
        trials = [*reader.trials()]
    assert any(trial.reached_step != trial.end_step for trial in trials)
    assert any(trial.reason.get("decision") == "exploit" for trial in trials)


@pytest.mark.parametrize("name", strategies(SOME))
def test_serial_runs_repeat_also_with_a_controller_that_dies_between_any_two_calls(name: str) -> None:
    def rows(fresh_each_time: bool) -> list[tuple[object, ...]]:
        simulation = made(name, "noisy")
        while True:
            controller = simulation.new_controller() if fresh_each_time else simulation.controller
            claimed, _ = controller.claim("w")
            if not claimed:
                break
            controller = simulation.new_controller() if fresh_each_time else simulation.controller
            controller.complete([simulation.completion(claimed[0].trial)])
        return decisions(simulation)

    assert rows(False) == (again := rows(True))
    assert len(again) > 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_stored_as_json_under_its_registered_name(name: str) -> None:
    stored = json.loads(json.dumps(plugins.encode(STRATEGIES[name])))
    assert stored["plugin"].startswith("phyla.strategies/")
    assert plugins.decode(stored, plugins.resolve) == STRATEGIES[name]


@pytest.mark.parametrize("name", strategies())
def test_every_strategy_keeps_the_contract(name: str) -> None:
    check_strategy(STRATEGIES[name], SPACE, SEVERAL if name.startswith("pareto") else Maximize("Q"))


@pytest.mark.parametrize("name", strategies(CHOOSY))
def test_collection_never_takes_what_a_strategy_may_still_choose(name: str) -> None:
    workers = (3, 9, 1)[[*STRATEGIES].index(name) % 3]
    simulation = made(name, "noisy", seed=workers)
    controller, rng = simulation.controller, np.random.default_rng(workers)
    busy: dict[str, TrialRecord] = {}
    ended = False
    while busy or not ended:
        worker = f"w{rng.integers(workers)}"
        if worker not in busy:
            claimed, rest = controller.claim(worker)
            if claimed:
                busy[worker] = claimed[0].trial
            ended = ended or isinstance(rest, Ended)
        elif rng.random() < 0.1:
            trial = busy.pop(worker)
            controller.fail(Failure(job=trial.id, token=trial.token, error="simulated"))
        else:
            controller.complete([simulation.completion(busy.pop(worker))])
        look = controller.retention()
        assert len(look.kept) <= look.bound
        for gone in StudyRecords(simulation.store, simulation.study.id).mark_deleting(look.collectable):
            del simulation.weights[gone]
    with simulation.store.reader(simulation.study.id) as reader:
        assert reader.study().state is StudyState.COMPLETED
        reasons = [str(trial.reason) for trial in reader.trials()]
    assert not [reason for reason in reasons if "gone" in reason or "recover" in reason]
