"""Random search, grid search and fixed schedules."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from facts import raises
from phyla.configuration import check_extension
from phyla.errors import ConfigurationError, SpaceError
from phyla.machine import TrainRules
from phyla.records import JobState, Maximize, StudyState, TrialRecord
from phyla.space import Choice, Float, Int, Space
from phyla.strategies import FixedSchedule, GridSearch, RandomSearch, Strategy, describe
from simulation import Simulation

SPACE = Space(lr=Float(0.1, 1.0), width=Int(1, 9))


def ran(strategy: Strategy, space: Space = SPACE, *, failure_rate: float = 0.0) -> list[TrialRecord]:
    rules = TrainRules(space=space, objective=Maximize("Q"), strategy=strategy, max_attempts=3, max_broken=1000)
    simulation = Simulation(rules, lambda parent, trial: (None, float(trial.seed)))
    ended = simulation.run(2, np.random.default_rng(0), failure_rate=failure_rate)
    assert ended.state is StudyState.COMPLETED, ended.message
    with simulation.store.reader(simulation.study.id) as reader:
        return [trial for trial in reader.trials() if trial.state is JobState.COMPLETED]


def test_random_search_keeps_hyperparameters_and_weights() -> None:
    done = ran(RandomSearch(5, 12, steps_per_trial=5))
    for member in range(5):
        own = [trial for trial in done if trial.member == member]
        assert [(trial.start_step, trial.end_step) for trial in own] == [(0, 5), (5, 10), (10, 12)]
        assert [trial.parent for trial in own] == [None, own[0].id, own[1].id]
        assert len({str(trial.params) for trial in own}) == 1
    assert len({str(trial.params) for trial in done}) == 5


def test_random_search_uses_starting_points_and_draws_again_what_broke_at_once() -> None:
    space = Space(lr=Float(0.1, 1.0), initial=[{"lr": 0.5}])
    assert {t.params["lr"] for t in ran(RandomSearch(3, 4), space) if t.member == 0} == {0.5}
    again = [t for t in ran(RandomSearch(9, 4), space, failure_rate=0.7) if t.replaces is not None]
    assert again
    assert all(t.params["lr"] != 0.5 for t in again)
    assert all("in place of broken trial" in describe(t.reason) for t in again)


def test_every_point_of_a_grid_is_trained_by_one_member() -> None:
    strategy = GridSearch({"width": [3, 1], "lr": [0.1, 0.2, 0.3]}, 7)
    assert strategy.population_size == 6
    done = sorted(ran(strategy, failure_rate=0.3), key=lambda trial: trial.member)
    assert [(t.params["width"], t.params["lr"]) for t in done] == [
        (w, lr) for w in (3, 1) for lr in (0.1, 0.2, 0.3)
    ]
    assert {t.end_step for t in done} == {7}


def test_what_a_grid_does_not_name_is_drawn() -> None:
    space = Space(
        kind=Choice(["sgd", "adam"]),
        momentum=Float(0.0, 0.9, when={"kind": "sgd"}),
        lr=Float(0.1, 1.0, initial=0.3),
    )
    strategy = GridSearch({"kind": ["sgd"], "momentum": [0.0, 0.5]}, 1)
    done = sorted(ran(strategy, space), key=lambda trial: trial.member)
    assert [dict(t.params) for t in done] == [
        {"kind": "sgd", "momentum": 0.0, "lr": 0.3},
        {"kind": "sgd", "momentum": 0.5, "lr": 0.3},
    ]
    with raises(AssertionError, "SpaceError"):
        ran(GridSearch({"kind": ["adam"], "momentum": [0.5]}, 1), space)


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        (
            GridSearch({"lr": [0.5, 7.0]}, 1),
            r"GridSearch\(grid=...\): combination 1, {'lr': 7.0}",
        ),
        (
            FixedSchedule([(0, {"lr": 0.5, "width": 1}), (5, {"lr": 7.0, "width": 1})], 9),
            r"FixedSchedule\(schedule=...\): entry 1, from step 5 on, {'lr': 7.0, 'width': 1}",
        ),
    ],
    ids=["grid", "schedule"],
)
def test_the_first_entry_that_the_space_does_not_allow_is_named(strategy: Any, told: str) -> None:
    strategy.check_space(Space(lr=Float(0.1, 9.0), width=Int(1, 9)))
    with pytest.raises(SpaceError, match=told):
        strategy.check_space(SPACE)


def test_a_grid_may_be_nested_as_the_space_is() -> None:
    space = Space(opt={"lr": Float(0.1, 1.0), "kind": Choice(["sgd", "adam"])}, width=Int(1, 9))
    nested = GridSearch({"opt": {"lr": [0.1, 0.2], "kind": ["sgd"]}, "width": [3]}, 1)
    assert nested == GridSearch({"opt/lr": [0.1, 0.2], "opt/kind": ["sgd"], "width": [3]}, 1)
    done = sorted(ran(nested, space), key=lambda trial: trial.member)
    assert [trial.params["opt/lr"] for trial in done] == [0.1, 0.2]
    with raises(SpaceError, "GridSearch(grid=...)", "opt/lr"):
        GridSearch({"opt": {"lr": [0.1]}, "opt/lr": [0.2]}, 1)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([0.1, 0.2, 0.1], "0.1"),
        ([1, 1.0], "1.0"),
        (["a", "b", "a"], "a"),
        ([True, False, True], "True"),
        ([None, None], "None"),
        ([*range(1000), 7], "7 is listed twice"),
    ],
)
def test_a_value_that_is_listed_twice_is_refused(values: Any, told: str) -> None:
    with raises(ConfigurationError, *told.split()):
        GridSearch({"opt": {"x": values}}, 1)


def test_true_and_1_are_two_values() -> None:
    assert GridSearch({"x": [True, 1, False, 0]}, 1).population_size == 4


def test_a_fixed_schedule_switches_at_its_steps() -> None:
    strategy = FixedSchedule(
        [(0, {"lr": 0.1, "width": 1}), (10, {"lr": 0.5, "width": 1})], 25, members=2, steps_per_trial=8
    )
    done = ran(strategy, failure_rate=0.2)
    for member in range(2):
        own = [trial for trial in done if trial.member == member]
        assert [(t.start_step, t.end_step, t.params["lr"]) for t in own] == [
            (0, 8, 0.1),
            (8, 10, 0.1),
            (10, 18, 0.5),
            (18, 25, 0.5),
        ]
        assert [t.parent for t in own[1:]] == [t.id for t in own[:-1]]
        assert [t.params_from for t in own] == [None, own[0].id, None, own[2].id]
        assert describe(own[2].reason).startswith("continued; lr 0.1 to 0.5 (schedule)")
    assert len({t.seed for t in done}) == len(done)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomSearch(0, 1), "RandomSearch(members=0)"),
        (lambda: RandomSearch(1, 0), "RandomSearch(total_steps=0)"),
        (lambda: RandomSearch(1, 5, 6), "RandomSearch(steps_per_trial=6 total_steps=5"),
        (lambda: GridSearch({"lr": []}, 1), "GridSearch(lr="),
        (lambda: GridSearch([{"lr": [1]}], 1), "GridSearch(grid="),  # type: ignore[arg-type]
        (lambda: GridSearch({"kind": "sgd"}, 1), "GridSearch(kind= sgd"),
        (lambda: FixedSchedule([], 1), "starts with nothing"),
        (lambda: FixedSchedule([(1, {})], 5), "starts with 1"),
        (lambda: FixedSchedule([(0, {}), (0, {})], 5), "FixedSchedule(step=0) 1"),
        (lambda: FixedSchedule([(0, {}), (5, {})], 5), "step 5"),
        (lambda: FixedSchedule([{"lr": 1}], 5), "not a pair"),  # type: ignore[list-item]
    ],
)
def test_settings_that_make_no_sense(make: Callable[[], Any], message: str) -> None:
    with raises(ConfigurationError, *message.split()):
        make()


@pytest.mark.parametrize(
    "name", ["strategy.members", "strategy.grid", "strategy.grid.lr", "strategy.trials.3.seed"]
)
def test_the_number_of_members_of_a_study_stays(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        check_extension({name: (1, 2)}, {}, {}, RandomSearch(2, 20))
