"""Numbers of NumPy are taken wherever Python's are, and are Python's own afterwards."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phyla
from facts import raises
from phyla import plugins, strategies
from phyla.errors import ConfigurationError
from phyla.records import StartFrom
from phyla.study.repeating.replicates import replicates
from phyla.testing import simulate

WHOLE: tuple[Any, Any] = (np.int64, int)
PBT: Any = phyla.PBT
RandomSearch: Any = phyla.RandomSearch
Perturb: Any = phyla.Perturb
SPACE = phyla.Space(lr=phyla.Float(0.1, 1.0))
ENTRY = {"trial": 3, "start_step": 0, "end_step": 4, "seed": 7, "params": {"lr": 0.5}}

MADE: dict[str, Callable[[Any, Any], Any]] = {
    "PBT": lambda i, f: phyla.PBT(
        population_size=i(4),
        steps_per_trial=i(2),
        total_steps=i(20),
        ready_interval=i(3),
        burn_in=i(0),
        quorum=f(0.5),
        min_scores=i(2),
        exploit=phyla.Truncation(f(0.25), donors=f(0.125)),
        explore=phyla.Perturb(factors=(f(0.5), f(2.0)), resample=f(0.25)),
        fitness=strategies.MeanOfLast(i(3)),
    ),
    "RandomSearch": lambda i, f: phyla.RandomSearch(i(4), i(10), i(5)),
    "GridSearch": lambda i, f: phyla.GridSearch({"lr": [f(0.5), i(1)]}, i(10)),
    "grid of an array": lambda i, f: phyla.GridSearch({"lr": [*map(f, (0.25, 0.5))]}, total_steps=i(10)),
    "ASHA": lambda i, f: phyla.ASHA(i(9), i(27), i(3), i(3), quorum=f(1.0)),
    "InitiatorPBT": lambda i, f: phyla.InitiatorPBT(population_size=i(4), steps_per_trial=i(2), total_steps=i(8)),
    "SingleWorkerExplore": lambda i, f: strategies.SingleWorkerExplore(
        explore_steps=i(2), exploit_steps=i(4), total_steps=i(20), factor=f(1.5)
    ),
    "FixedSchedule": lambda i, f: strategies.FixedSchedule(
        [(i(0), {"lr": f(0.5)}), (i(5), {"lr": f(0.25)})], i(10), members=i(2)
    ),
    "Replay": lambda i, f: strategies.Replay(
        trials=[{**ENTRY, **{name: i(ENTRY[name]) for name in ("trial", "start_step", "end_step", "seed")}}]
    ),
    "Mutate": lambda i, f: strategies.Mutate(mutation_rate=f(0.5), change_range=(f(1.5), f(2.0))),
    "PB2": lambda i, f: strategies.PB2(rows=i(20), least_rows=i(5), restarts=i(2), resample=f(0.5)),
    "Backtrack": lambda i, f: strategies.Backtrack(quantile=f(0.5), pool=f(0.25)),
    "TTest": lambda i, f: strategies.TTest(window=i(5), alpha=f(0.25)),
    "MedianStopping": lambda i, f: phyla.MedianStopping(min_steps=i(4), min_trials=i(2), every_steps=i(2)),
    "Divergence": lambda i, f: strategies.Divergence(above=f(8.0)),
    "FromSuite": lambda i, f: phyla.FromSuite("s", max_lag=i(0), remeasure=i(1)),
    "Retention": lambda i, f: phyla.Retention(best=i(2), every_steps=i(10)),
    "Retries": lambda i, f: phyla.Retries(attempts=i(2), broken=i(3), stops=i(1)),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("real", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("whole", [np.int32, np.int64, np.uint8], ids=["int32", "int64", "uint8"])
def test_settings(name: str, whole: Any, real: Any) -> None:
    given, plain = MADE[name](whole, real), MADE[name](int, float)
    assert given == plain
    assert json.dumps(plugins.encode(given)) == json.dumps(plugins.encode(plain))


def test_a_study_and_what_it_is_asked_for() -> None:
    studies = [
        phyla.Study(
            "numbers",
            SPACE,
            phyla.Minimize("loss"),
            phyla.RandomSearch(whole(2), whole(2)),
            seed=whole(3),
            stopping=phyla.MedianStopping(min_steps=whole(1)),
            retention=phyla.Retention(best=whole(2)),
            storage="memory://",
        )
        for whole in WHOLE
    ]
    configs = [json.dumps(study.config(), sort_keys=True) for study in studies]
    assert configs[0] == configs[1]
    assert [type(study.seed) for study in studies] == [int, int]
    count: Any = np.int64(2)
    assert len(studies[0].ask(count)) == 2
    assert [each.name for each in replicates(studies[1], count)] == ["numbers-r0", "numbers-r1"]
    assert simulate(studies[1], workers=count, runs=count, step_s=1.0).workers == 2


def test_a_start_from_a_checkpoint() -> None:
    step: Any = np.int64(3)
    start = StartFrom("/a", step=step, index=step)
    assert (type(start.step), type(start.index)) == (int, int)
    with raises(ConfigurationError, "StartFrom(step=-1)", "0"):
        StartFrom("/a", step=-1)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: PBT(population_size=4, steps_per_trial=1, total_steps=1e6), "did you mean 1000000?"),
        (lambda: PBT(population_size=4.5, steps_per_trial=1, total_steps=10), "population_size=4.5"),
        (lambda: RandomSearch(members=np.int64(0), total_steps=1), "RandomSearch(members=0)"),
        (lambda: RandomSearch(members=np.bool_(True), total_steps=1), "RandomSearch(members="),
        (lambda: RandomSearch(members=10**400, total_steps=1), "1,000,000"),
        (lambda: strategies.Divergence(above=10**400), "must be a finite number"),
        (lambda: strategies.Mutate(change_range=(1.1, 10**400)), "must be two numbers above 1"),
        (lambda: Perturb(factors=(0.5, 10**400)), "must be positive numbers"),
        (lambda: Perturb(factors=None), "Perturb(factors=None)"),
        (lambda: strategies.Replay(trials=[{**ENTRY, "seed": "x"}]), "Replay(seed= x"),
        (lambda: strategies.Replay(trials=[{**ENTRY, "start_step": None}]), "Replay(start_step=None)"),
    ],
)
def test_what_is_no_such_number_is_refused_with_its_value(make: Callable[[], object], told: str) -> None:
    with raises(ConfigurationError, *told.split()):
        make()
