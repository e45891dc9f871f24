"""Returning to what was good once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from phyla.errors import ConfigurationError
from phyla.machine import Failure, Rules
from phyla.records import Maximize, TrialRecord
from phyla.space import Float, Space
from phyla.strategies import PBT, Backtrack, ExploitPipeline, Truncation, ranked_best
from populations import Listed, context
from simulation import Simulation

RNG = np.random.default_rng


def chosen(population: Listed, member: int, **settings: float) -> set[int | None]:
    rule, rng = Backtrack(**settings), RNG(0)
    donors = [rule.choose(population.member(member), population, context(rng)).donor for _ in range(50)]
    return {donor.trial if donor else None for donor in donors}


def test_a_member_is_compared_with_the_best_of_every_path() -> None:
    # Trials 1, 2 of member 0; 3, 4 of member 1; and so on. Elites: 9 (trial 7), 8 (5), 7 (3), 6 (1).
    population = Listed([6.0, 1.0], [7.0, 7.0], [8.0, 2.0], [9.0, 6.5])
    assert [elite.trial for elite in ranked_best(population)] == [7, 5, 3, 1]
    assert chosen(population, 0) == chosen(population, 2) == {7}
    assert chosen(population, 1) == chosen(population, 3) == {None}
    assert chosen(population, 0, pool=0.5) == {7, 5}
    assert chosen(population, 3, quantile=0.5) == {7}


def test_a_population_that_got_worse_as_a_whole_goes_back() -> None:
    def train(parent: Any, trial: TrialRecord) -> tuple[Any, float]:
        # Everything diverges past age 5.
        return None, float(trial.end_step) if trial.end_step <= 5 else -float(trial.end_step)

    def best_of_the_last(exploit: Any) -> float:
        strategy = PBT(population_size=4, steps_per_trial=1, total_steps=40, exploit=exploit, explore=None)
        rules = Rules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy)
        simulation = Simulation(rules, train)
        simulation.run_serially()
        with simulation.store.reader(simulation.study.id) as reader:
            return min(member.head.fitness or 0.0 for member in reader.members() if member.head)

    assert best_of_the_last(Truncation(0.5)) < -30
    assert best_of_the_last(Backtrack()) >= -6


def test_nan_is_no_elite_and_goes_back() -> None:
    population = Listed([float("nan")], [1.0, float("nan")])
    assert len(ranked_best(population)) == 1
    assert chosen(population, 0) == chosen(population, 1) == {2}
    assert chosen(Listed([float("nan")], []), 0) == chosen(Listed([1.0], []), 1) == {None}


def test_a_pipeline_keeps_what_any_of_its_rules_may_choose() -> None:
    strategy = PBT(population_size=4, steps_per_trial=1, total_steps=4)
    assert not strategy.keeps_best
    assert not replace(strategy, exploit=None).keeps_best
    piped = ExploitPipeline([Truncation(), Backtrack()])
    assert replace(strategy, exploit=piped).keeps_best


def test_an_elite_whose_checkpoint_is_lost_is_forgotten() -> None:
    strategy = PBT(population_size=1, steps_per_trial=1, total_steps=9, exploit=Backtrack(), explore=None)
    rules = Rules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy, max_attempts=1)
    simulation = Simulation(rules, lambda parent, trial: (None, 1.0 if trial.generation == 0 else 0.0))
    controller = simulation.controller
    for _ in range(2):
        claimed, _ = controller.claim("w")
        controller.complete([simulation.completion(claimed[0].trial)])
    (back,), _ = controller.claim("w")
    with simulation.store.reader(simulation.study.id) as reader:
        elite = reader.member(0).states[1]
        assert elite.checkpoint in reader.held_checkpoints()
    assert back.trial.parent == elite.trial
    controller.fail(
        Failure(trial=back.trial.id, token=1, error="lost", retryable=False, parent_gone=elite.checkpoint)
    )
    with simulation.store.reader(simulation.study.id) as reader:
        assert [state.trial for state in reader.member(0).states] == [2]
    (again,), _ = controller.claim("w")
    assert again.trial.parent == 2


@pytest.mark.parametrize(("name", "value"), [("quantile", 0.0), ("quantile", 1.0), ("pool", 0.0), ("pool", 1.1)])
def test_numbers_that_make_no_sense(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=rf"Backtrack\({name}={value}\)"):
        Backtrack(**{name: value})
