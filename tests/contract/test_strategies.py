"""Strategies that look back decide alike on every store."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from effort import covering
from phyla.integrations.optuna_search import Optuna
from phyla.machine import TrainRules
from phyla.records import Maximize, StudyState, TrialRecord
from phyla.space import Float, Int, Space
from phyla.store import open_store
from phyla.strategies import ASHA, PB2, PBT, Backtrack, Strategy, Truncation
from simulation import Simulation

STRATEGIES: dict[str, Strategy] = {
    "asha": ASHA(9, 18, 2),
    "successive halving": ASHA(9, 18, 2, quorum=1.0),
    "optuna, in pieces": Optuna(6, 12, settings={"n_startup_trials": 2}, steps_per_trial=6),
    "optuna, cma-es": Optuna(9, 10, "cma-es"),
    "backtrack, quorum": PBT(
        population_size=5,
        steps_per_trial=2,
        total_steps=10,
        exploit=Backtrack(quantile=0.5, pool=0.4),
        quorum=0.8,
    ),
    "pb2": PBT(
        population_size=5,
        steps_per_trial=2,
        total_steps=10,
        exploit=Truncation(0.4),
        explore=PB2(),
        min_scores=2,
        quorum=0.8,
    ),
}


def train(parent: object, trial: TrialRecord) -> tuple[object, float]:
    # Few values, so that there are ties.
    return None, float(np.random.default_rng(trial.seed).integers(6))


def on(url: str, strategy: Strategy, workers: int) -> list[tuple[object, ...]]:
    space = Space(lr=Float(0.1, 1.0, log=True), width=Int(1, 9))
    rules = TrainRules(space=space, objective=Maximize("Q"), strategy=strategy, max_attempts=1, max_broken=100)
    simulation = Simulation(rules, train)
    simulation.store = open_store(url, clock=simulation.clock)
    simulation.study = simulation.store.create_study("s", {}, 3, strategy.population_size)
    simulation.controller = simulation.new_controller()
    if workers == 1:
        assert simulation.run_serially().state is StudyState.COMPLETED
    else:
        ended = simulation.run(workers, np.random.default_rng(0), failure_rate=0.2)
        assert ended.state is StudyState.COMPLETED, ended.message
    with simulation.store.reader(simulation.study.id) as reader:
        trials = list(reader.trials())
    simulation.store.close()
    return [(t.member, t.generation, str(t.params), t.state, t.fitness) for t in trials]


@pytest.mark.parametrize(("name", "workers"), covering(product(STRATEGIES, [4, 1])))
def test_all_stores_give_the_same_study(
    name: str, workers: int, tmp_path: Path, make_postgres_url: Callable[[], str]
) -> None:
    strategy = STRATEGIES[name]
    in_memory = on("memory://", strategy, workers)
    assert len(in_memory) > strategy.population_size - 1
    assert on(f"sqlite:///{tmp_path / 's.db'}", strategy, workers) == in_memory
    on_postgres = on(make_postgres_url(), strategy, workers)
    # There, time goes on by itself; who finished when is the same all the same.
    assert on_postgres == in_memory
