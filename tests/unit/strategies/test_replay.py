"""The strategy that trains a chain of trials again."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from phyla import plugins
from phyla.errors import ConfigurationError
from phyla.machine import Ended, TrainRules
from phyla.records import JobState, Maximize, TrialRecord
from phyla.space import Float, Space
from phyla.strategies import PBT, Replay, Start, Truncation
from simulation import Simulation

SPACE = Space(lr=Float(0.01, 1.0, log=True))


def rules(strategy: Any) -> TrainRules:
    return TrainRules(space=SPACE, objective=Maximize("Q"), strategy=strategy, max_broken=100, max_attempts=1)


def train(parent: Any, trial: TrialRecord) -> tuple[Any, float]:
    """Weights that say everything that training could depend on."""
    lr: Any = trial.params["lr"]
    before = parent or ()
    return (*before, (trial.seed, lr, trial.start_step, trial.end_step)), len(before) + lr


def run(strategy: Any, *, failure_rate: float = 0.0, seed: int = 0) -> Simulation:
    simulation = Simulation(rules(strategy), train)
    simulation.run(3, np.random.default_rng(seed), failure_rate=failure_rate)
    return simulation


def completed(simulation: Simulation) -> list[TrialRecord]:
    with simulation.store.reader(simulation.study.id) as reader:
        return [row for row in reader.trials() if row.state is JobState.COMPLETED]


@pytest.mark.parametrize("failure_rate", [0.0, 0.3])
def test_every_chain_of_a_population_is_trained_again_alike(failure_rate: float) -> None:
    strategy = PBT(population_size=5, steps_per_trial=3, total_steps=20, exploit=Truncation(0.4))
    found = run(strategy)
    rows = {row.id: row for row in completed(found)}
    for last in rows.values():
        path = [last]
        while path[0].parent is not None:
            path.insert(0, rows[path[0].parent])
        again = run(Replay.along(path, of="simulated"), failure_rate=failure_rate)
        made = completed(again)
        assert len(made) == len(path)
        assert again.weights[made[-1].checkpoint or ""] == found.weights[last.checkpoint or ""]
        assert all(row.reason["trial"] == original.id for row, original in zip(made, path, strict=True))


def trial(**changes: Any) -> dict[str, Any]:
    return {"trial": 1, "start_step": 0, "end_step": 5, "seed": 3, "params": {"lr": 0.1}} | changes


def test_it_is_stored_and_made_again() -> None:
    strategy = Replay(trials=[trial(), trial(trial=4, start_step=5, end_step=9)], of="found")
    assert plugins.decode(plugins.encode(strategy)) == strategy
    assert strategy.member_steps == 9


def test_a_trial_that_stopped_early_is_asked_for_the_same_end() -> None:
    simulation = Simulation(rules(Replay(trials=[trial(), trial(trial=4, start_step=3, end_step=8)])), train)
    claimed, _ = simulation.controller.claim("a")
    done = replace(simulation.completion(claimed[0].trial), reached_step=3)
    simulation.controller.complete([done])
    claimed, _ = simulation.controller.claim("a")
    assert (claimed[0].trial.start_step, claimed[0].trial.end_step) == (3, 8)


def test_decisions_carry_a_seed_or_none() -> None:
    assert Start(weights=None, params={}, params_from=None, steps=1, reason={}).seed is None
    row = completed(run(Replay(trials=[trial(seed=12345)])))[0]
    assert row.seed == 12345


@pytest.mark.parametrize(
    ("trials", "match"),
    [
        ([], "at least one trial"),
        ("abc", "at least one trial"),
        ([3], "must have exactly trial, start_step"),
        ([{"trial": 1}], "must have exactly"),
        ([trial(seed=-1)], "seed=-1"),
        ([trial(start_step=5)], "end_step=5"),
        ([trial(params=3)], "params=3"),
        ([trial(), trial(trial=2, start_step=6, end_step=9)], r"trial 2 starts at step 6, .* from step 0 to 5"),
        ([trial(), trial(trial=2, start_step=0, end_step=9)], "trial 2 starts at step 0"),
    ],
)
def test_trials_that_make_no_sense(trials: Any, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Replay(trials=trials)


def test_hyperparameters_that_the_space_does_not_allow_are_refused() -> None:
    simulation = Simulation(rules(Replay(trials=[trial(params={"lr": 7.0})])), train)
    _, rest = simulation.controller.claim("a")
    assert isinstance(rest, Ended)
    assert "SpaceError: lr" in (rest.message or "")
