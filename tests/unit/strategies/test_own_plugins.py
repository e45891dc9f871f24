"""Strategies and rules of a user: what they return is checked, and errors name them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from phyla.machine import TrainRules
from phyla.records import JobState, Maximize, StudyState, TrialRecord
from phyla.space import Float, Int, Space
from phyla.strategies import PBT, Explored, Start, Strategy
from simulation import Simulation

SPACE = Space(lr=Float(0.001, 1.0), width=Int(1, 9, default=4))


def ran(strategy: Any) -> tuple[str, list[TrialRecord]]:
    """Run a study in memory; return how it ended and its trials."""
    rules = TrainRules(space=SPACE, objective=Maximize("Q"), strategy=strategy)
    simulation = Simulation(rules, lambda parent, trial: (None, float(trial.member)))
    ended = simulation.run_serially()
    assert (ended.state is StudyState.FAILED) == (ended.message is not None)
    with simulation.store.reader(simulation.study.id) as reader:
        return ended.message or "", list(reader.trials())


def pbt(**rules: Any) -> PBT:
    return PBT(population_size=2, steps_per_trial=5, total_steps=10, **rules)


@dataclass(frozen=True)
class Scripted(Strategy):
    """Decides what it is told."""

    decision: Any
    population_size: int = 1
    total_steps: int = 5

    def decide(self, *_: object) -> Any:
        return self.decision


@dataclass(frozen=True)
class Proposes:
    """Proposes what it is told."""

    found: Any

    def propose(self, *_: object) -> Any:
        return self.found


def start(**given: Any) -> Start:
    return Start(
        **{"weights": None, "params": {"lr": 0.1}, "params_from": None, "steps": 5, "reason": {}, **given}
    )


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"lr": 99.0}, "lr: 99.0 is outside"),
        ({"lr": float("nan")}, "lr: the value of this Float must be finite, got nan"),
        ({"lr": 0.1, "width": 2.5}, "width: the value of this Int must be an integer, got 2.5"),
        ({"learning": 0.1}, "there is no parameter 'learning'; the names are 'lr', 'width'"),
        ({"width": 2}, "lr: has no value; give one from Float(0.001, 1.0)"),
    ],
)
def test_hyperparameters_that_the_space_does_not_allow_are_never_trained(params: Any, told: str) -> None:
    message, trials = ran(Scripted(start(params=params)))
    assert not trials
    assert f"SpaceError: Scripted() proposes what the space does not allow: {told}" in message
    assert ".py" not in message
    message, trials = ran(pbt(exploit=None, explore=Proposes(Explored(params=params))))
    assert {trial.state for trial in trials} == {JobState.COMPLETED}
    assert all(trial.reason["decision"] == "start" for trial in trials)
    assert "PBT(explore=Proposes(found=Explored(" in message
    assert told in message


def test_proposed_hyperparameters_are_stored_as_the_space_holds_them() -> None:
    message, (trial,) = ran(Scripted(start(params={"lr": np.float32(0.5), "width": np.int64(3)})))
    assert not message
    assert trial.params == {"lr": 0.5, "width": 3}
    assert ran(Scripted(start()))[1][0].params == {"lr": 0.1, "width": 4}
