"""One member that explores one direction at a time."""

from typing import Any

import numpy as np
import pytest

from facts import raises
from phyla.errors import ConfigurationError
from phyla.machine import Ended, Failure, TrainRules
from phyla.records import JobState, Maximize, StudyState, TrialRecord
from phyla.space import Choice, Float, Space
from phyla.strategies import SingleWorkerExplore, describe
from simulation import Simulation

SPACE = Space(lr=Float(1e-6, 1e6, initial=1.0), decay=Float(1e-6, 1e6, initial=1.0), kind=Choice(["a", "b"]))


def test_a_way_that_cannot_be_trained_is_gone_half_as_far() -> None:
    strategy = SingleWorkerExplore(explore_steps=1, exploit_steps=1, total_steps=4, factor=4.0)
    space = Space(lr=Float(1e-3, 1e3, log=True, initial=1.0))
    rules = TrainRules(space=space, objective=Maximize("Q"), strategy=strategy, max_attempts=1)
    simulation = Simulation(rules, lambda parent, trial: (None, 0.0))
    tried: list[float] = []
    rest = None
    while not isinstance(rest, Ended):
        claimed, rest = simulation.controller.claim("w")
        for work in claimed:
            lr = float(str(work.trial.params["lr"]))
            if lr > 1.5:
                tried.append(lr)
                simulation.controller.fail(Failure(job=work.trial.id, token=1, error="diverged"))
            else:
                simulation.controller.complete([simulation.completion(work.trial)])
    assert rest.state is StudyState.COMPLETED
    assert tried == pytest.approx([4.0, 4.0, 2.0])


def ran(total: int, *, failure_rate: float = 0.0) -> list[TrialRecord]:
    strategy = SingleWorkerExplore(explore_steps=2, exploit_steps=5, total_steps=total, factor=2.0)
    rules = TrainRules(space=SPACE, objective=Maximize("Q"), strategy=strategy, max_attempts=1, max_broken=1000)

    def train(parent: object, trial: TrialRecord) -> tuple[None, float]:
        return None, float(trial.params["lr"]) - float(trial.params["decay"])  # type: ignore[arg-type]

    simulation = Simulation(rules, train)
    simulation.run(2, np.random.default_rng(1), failure_rate=failure_rate)
    with simulation.store.reader(simulation.study.id) as reader:
        return [trial for trial in reader.trials() if trial.state is JobState.COMPLETED]


@pytest.mark.parametrize("failure_rate", [0.0, 0.1])
def test_three_start_from_one_branch_and_the_best_goes_on(failure_rate: float) -> None:
    done = ran(11 * 10, failure_rate=failure_rate)
    assert len(done) == 40
    branch: TrialRecord | None = None
    for at in range(0, 40, 4):
        center, one, other, best = done[at : at + 4]
        assert {trial.parent for trial in (center, one, other)} == {branch.id if branch else None}
        assert [trial.end_step - trial.start_step for trial in (center, one, other, best)] == [2, 2, 2, 5]
        if branch is not None:
            assert (center.params, center.params_from, center.exploited) == (branch.params, branch.id, True)
        assert {trial.params_from for trial in (one, other)} == {center.id}
        assert all(trial.exploited for trial in (one, other, best))
        up, back_up = _names(one.reason["up"]), _names(other.reason["up"])
        assert up | back_up == set(SPACE.parameters)
        assert not up & back_up
        changes: Any = one.reason["changes"]
        for name in ("lr", "decay"):
            assert (_number(one.params[name]) > _number(center.params[name])) == (name in up)
            assert changes[name]["from"] == center.params[name]
            assert changes[name]["to"] == one.params[name]
        for name in ("lr", "decay"):
            here, there, back = (_number(trial.params[name]) for trial in (center, one, other))
            assert there / here in (pytest.approx(0.5), pytest.approx(2.0))
            assert there / here == pytest.approx(here / back)
        winner = max((center, one, other), key=lambda trial: trial.fitness or 0.0)
        assert (best.parent, best.params, best.params_from) == (winner.id, winner.params, winner.id)
        tried: Any = best.reason["tried"]
        assert [each["trial"] for each in tried] == [center.id, one.id, other.id]
        ways = [trial.reason.get("way") for trial in (center, one, other, best)]
        assert ways == ["center" if branch else None, "one way", "the other way", "best of three"]
        branch = best
    assert _number(done[-1].params["lr"]) > _number(done[-1].params["decay"])
    words = [describe(trial.reason).partition(";")[0].partition(",")[0] for trial in done[4:8]]
    assert words == ["tried center", "tried one way", "tried the other way", "went on with the best"]


def _names(value: Any) -> set[str]:
    return set(value)


def _number(value: Any) -> float:
    return float(value)


@pytest.mark.parametrize("total", range(7, 24))
def test_the_budget_may_end_anywhere_in_a_cycle(total: int) -> None:
    assert sum(trial.end_step - trial.start_step for trial in ran(total)) == total


@pytest.mark.parametrize(
    ("name", "value"), [("explore_steps", 0), ("exploit_steps", 0), ("total_steps", 0), ("factor", 1.0)]
)
def test_numbers_that_make_no_sense(name: str, value: Any) -> None:
    settings: dict[str, Any] = {"explore_steps": 1, "exploit_steps": 1, "total_steps": 4, name: value}
    with raises(ConfigurationError, f"SingleWorkerExplore({name}={value})"):
        SingleWorkerExplore(**settings)


def test_a_budget_without_a_best_of_three_is_refused() -> None:
    with raises(ConfigurationError, "explore_steps=5", "total_steps=15", "15 steps"):
        SingleWorkerExplore(explore_steps=5, exploit_steps=5, total_steps=15)
    SingleWorkerExplore(explore_steps=5, exploit_steps=5, total_steps=16)
    SingleWorkerExplore(explore_steps=1, exploit_steps=1, total_steps=4)
