"""The ready interval and the burn-in, in steps of a member's progress."""

from typing import Any

import numpy as np
import pytest

from facts import raises
from phyla.errors import ConfigurationError
from phyla.machine import TrainRules
from phyla.records import JobState, Maximize, TrialRecord
from phyla.space import Float, Space
from phyla.strategies import PBT, MultiFrequency, Truncation
from simulation import Simulation

SPACE = Space(lr=Float(0.1, 1.0))


def pbt(**given: Any) -> PBT:
    sizes = {"population_size": 4, "steps_per_trial": 1, "total_steps": 12, "exploit": Truncation(0.5)}
    return PBT(**{**sizes, **given})


def history(strategy: PBT) -> list[TrialRecord]:
    """Return the trials of a study whose scores are noise, by member and generation."""

    def train(_parent: object, trial: TrialRecord) -> tuple[object, float]:
        return trial.id, float(np.random.default_rng(trial.seed).normal())

    run = Simulation(TrainRules(space=SPACE, objective=Maximize("Q"), strategy=strategy), train)
    run.run(3, np.random.default_rng(0))
    with run.store.reader(run.study.id) as reader:
        rows = [trial for trial in reader.trials() if trial.state is JobState.COMPLETED]
    return sorted(rows, key=lambda row: (row.member, row.generation))


@pytest.mark.parametrize("quorum", [0.0, 0.8, 1.0])
def test_a_member_trains_the_ready_interval_before_it_takes_over_again(quorum: float) -> None:
    since = 0
    for row in history(pbt(quorum=quorum, ready_interval=3)):
        since = 0 if row.generation == 0 else since + 1
        assert (row.reason.get("compared") == {"why": "not ready"}) == (0 < since < 3)
        if row.exploited:
            assert since >= 3
            since = 0


def test_nobody_takes_over_before_the_end_of_burn_in() -> None:
    rows = history(pbt(burn_in=6))
    assert min(row.generation for row in rows if row.exploited) == 6


@pytest.mark.parametrize("name", ["burn_in", "ready_interval"])
@pytest.mark.parametrize("exploit", [Truncation(), None])
def test_a_population_that_would_never_exploit_is_refused(name: str, exploit: Truncation | None) -> None:
    for steps in (12, 100):
        with raises(ConfigurationError, f"PBT({name}={steps}", "total_steps=12"):
            pbt(exploit=exploit, **{name: steps})
    assert getattr(pbt(exploit=exploit, **{name: 11}), name) == 11


@pytest.mark.parametrize("interval", [0, 2.5, True])
def test_steps_that_make_no_sense(interval: Any) -> None:
    with raises(ConfigurationError, "PBT(ready_interval=", "1"):
        pbt(ready_interval=interval)


@pytest.mark.parametrize(
    "at_most",
    [
        {"burn_in": 10},
        {"ready_interval": 10},
        {"min_scores": 2},
        {"population_size": 8, "exploit": MultiFrequency((1, 2)), "quorum": 1.0},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_the_last_setting_that_is_taken_lets_some_member_take_over(at_most: dict[str, Any]) -> None:
    rows = history(pbt(steps_per_trial=5, total_steps=12, **at_most))
    assert any(row.exploited and row.start_step == 10 for row in rows)
