"""Figure 2 of Jaderberg et al. 2017 with Gaussian steps and weights alone copied, in numbers, and its trap.

The reference is the mean and standard deviation of the best Q over 200 runs of a program written for it. Where
nothing is random it is met to the last digit, with 3/4 in what is ascended, too, and members that wait for each
other. Who explores when, and within which bounds, is not known there, and moves the means by 0.01 and more. So
those have to agree to within that and three standard errors.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from effort import rarely, times
from phyla.machine import TrainRules
from phyla.records import Maximize, TrialRecord
from phyla.space import Float, Params, Space
from phyla.strategies import PBT, ExploreWith, Truncation
from simulation import Simulation

SEEDS, THEIRS = times(10, 50), 200
DETAILS = 0.01
SPACE = Space(
    h0=Float(-10.0, 10.0), h1=Float(-10.0, 10.0), initial=[{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}]
)
SIZES: dict[str, Any] = {"population_size": 2, "steps_per_trial": 4, "total_steps": 200}


def gaussian(params: Params, rng: np.random.Generator) -> Mapping[str, Any]:
    return {name: float(np.clip(params[name] + rng.normal(0.0, 0.1), -10.0, 10.0)) for name in ("h0", "h1")}


EXPLORE = ExploreWith(gaussian, after=None)


def best(strategy: PBT, seed: int, first: float = 0.75) -> float:
    def train(parent: Any, trial: TrialRecord) -> tuple[Any, float]:
        theta = np.array([0.9, 0.9]) if parent is None else parent
        h = np.array([trial.params["h0"], trial.params["h1"]], dtype=float)
        theta = theta * (1 - 0.01 * 2 * h * (first, 1.0)) ** (trial.end_step - trial.start_step)
        return theta, 1.2 - (first * theta[0] ** 2 + theta[1] ** 2)

    simulation = Simulation(TrainRules(space=SPACE, objective=Maximize("Q"), strategy=strategy), train, seed)
    simulation.run_serially()
    with simulation.store.reader(simulation.study.id) as reader:
        return max(trial.fitness for trial in reader.trials() if trial.fitness is not None)


@pytest.mark.thorough  # test_published.py: PBT and explore only on the same function
@pytest.mark.parametrize(
    ("exploit", "mean", "deviation"),
    [(Truncation(0.5), 1.160, 0.046), rarely(None, 0.980, 0.206)],
    ids=["PBT", "explore only"],
)
def test_with_gaussian_steps(exploit: Truncation | None, mean: float, deviation: float) -> None:
    strategy = PBT(**SIZES, exploit=exploit, explore=EXPLORE, copy="weights", quorum=1.0)
    found = np.array([best(strategy, seed) for seed in range(SEEDS)])
    error = math.sqrt(deviation**2 / THEIRS + found.var(ddof=1) / SEEDS)
    assert found.mean() == pytest.approx(mean, abs=DETAILS + 3 * error)


def test_weights_that_are_passed_on_do_better_than_any_that_are_not() -> None:
    passed = PBT(**SIZES, exploit=Truncation(0.5), explore=None, copy="weights", quorum=1.0)
    assert best(passed, 0) == pytest.approx(1.157, abs=5e-4)
    alone = PBT(**SIZES, exploit=None, explore=None, quorum=1.0)
    assert best(alone, 0) == pytest.approx(0.592, abs=5e-4)


def test_members_that_tie_exactly_never_copy_each_other() -> None:
    """The trap of the symmetric Q: both members always tie, and a tie is no reason to move."""
    strategy = PBT(**SIZES, exploit=Truncation(0.5), explore=EXPLORE, copy="weights", quorum=1.0)
    grid = PBT(**SIZES, exploit=None, explore=None)
    assert best(strategy, 0, first=1.0) == best(grid, 0, first=1.0) == pytest.approx(1.2 - 0.81, abs=5e-4)
    assert best(strategy, 0) > 0.9
