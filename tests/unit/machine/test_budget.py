"""Every study of m members and n trials each runs exactly m x n completed trials."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phyla.machine import Rules
from phyla.population import PBT, Truncation
from phyla.records import Maximize, Minimize, StudyState, TrialRecord, TrialState
from phyla.space import Float, Space
from simulation import Simulation

FITNESSES: dict[str, Callable[[TrialRecord], float]] = {
    "peaked": lambda trial: -abs(trial.end_step - 30.0),
    "constant": lambda trial: 1.0,
    "noisy": lambda trial: float(np.random.default_rng(trial.seed).normal()),
    "nan": lambda trial: math.nan,
    "sometimes nan": lambda trial: math.inf if trial.seed % 3 == 0 else trial.seed % 100,
}


@pytest.mark.parametrize("fitness", FITNESSES)
@pytest.mark.parametrize("synchronous", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("workers", [1, 3, 6, 9])
@pytest.mark.parametrize("failure_rate", [0.0, 0.3])
@pytest.mark.parametrize("copy", ["both", "weights", "hyperparameters"])
def test_exactly_the_budget(fitness: str, synchronous: bool, workers: int, failure_rate: float, copy: str) -> None:
    members, trials = 6, 5
    strategy = PBT(
        population_size=members,
        steps_per_trial=10,
        total_steps=10 * trials,
        exploit=Truncation(0.34),
        synchronous=synchronous,
        copy=copy,  # type: ignore[arg-type]  # a literal, one of three
    )
    rules = Rules(
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
        done = [trial for trial in reader.trials() if trial.state is TrialState.COMPLETED]
        spent = [member.spent_steps for member in reader.members()]
        assert not reader.has_unfinished_trials()
    assert len(done) == members * trials
    assert Counter(trial.member for trial in done) == dict.fromkeys(range(members), trials)
    assert spent == [10 * trials] * members
    assert sorted({(trial.member, trial.generation) for trial in done}) == [
        (member, generation) for member in range(members) for generation in range(trials)
    ]


@given(
    members=st.integers(1, 8),
    steps=st.integers(1, 7),
    total=st.integers(7, 40),
    workers=st.integers(1, 10),
    synchronous=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_any_shape_of_study_ends(
    members: int, steps: int, total: int, workers: int, synchronous: bool, seed: int
) -> None:
    strategy = PBT(population_size=members, steps_per_trial=steps, total_steps=total, synchronous=synchronous)
    rules = Rules(space=Space(lr=Float(0.1, 1.0)), objective=Minimize("Q"), strategy=strategy)
    simulation = Simulation(rules, lambda parent, trial: (None, FITNESSES["noisy"](trial)), seed=seed)
    simulation.run(workers, np.random.default_rng(seed))
    with simulation.store.reader(simulation.study.id) as reader:
        assert [member.spent_steps for member in reader.members()] == [total] * members
        assert reader.counts() == {"completed": members * -(-total // steps)}


def test_synchronous_studies_are_the_same_with_any_number_of_workers() -> None:
    def decisions(workers: int) -> list[tuple[object, ...]]:
        strategy = PBT(population_size=5, steps_per_trial=1, total_steps=8, synchronous=True)
        rules = Rules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy)
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


def test_serial_runs_repeat_also_with_a_controller_that_dies_between_any_two_calls() -> None:
    def rows(fresh_each_time: bool) -> list[tuple[object, ...]]:
        strategy = PBT(population_size=4, steps_per_trial=1, total_steps=10)
        rules = Rules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy)
        simulation = Simulation(rules, lambda parent, trial: (None, FITNESSES["noisy"](trial)))
        while True:
            controller = simulation.new_controller() if fresh_each_time else simulation.controller
            claimed, _ = controller.claim("w")
            if not claimed:
                break
            controller = simulation.new_controller() if fresh_each_time else simulation.controller
            controller.complete([simulation.completion(claimed[0].trial)])
        with simulation.store.reader(simulation.study.id) as reader:
            return [
                (t.member, t.generation, t.parent, t.jump_from, str(t.params), t.seed) for t in reader.trials()
            ]

    assert rows(False) == rows(True)
