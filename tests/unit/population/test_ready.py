"""The ready interval: in steps, or in the seconds that a member's own trials took."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phyla.errors import ConfigurationError
from phyla.machine import Claimed, Failure, Rules
from phyla.population import PBT, Truncation
from phyla.records import Maximize, TrialRecord, TrialState
from phyla.simulation import Crew, Durations, Hazards, LearningCurve, Simulator
from phyla.space import Float, Space
from simulation import Simulation

SPACE = Space(lr=Float(0.1, 1.0))


def pbt(**given: Any) -> PBT:
    sizes = {"population_size": 4, "steps_per_trial": 1, "total_steps": 12, "exploit": Truncation(0.5)}
    return PBT(**{**sizes, **given})


def simulation(strategy: PBT) -> Simulation:
    def train(_parent: object, trial: TrialRecord) -> tuple[object, float]:
        return trial.id, float(np.random.default_rng(trial.seed).normal())

    return Simulation(Rules(space=SPACE, objective=Maximize("Q"), strategy=strategy), train)


def history(run: Simulation) -> list[TrialRecord]:
    with run.store.reader(run.study.id) as reader:
        return [trial for trial in reader.trials() if trial.state is TrialState.COMPLETED]


def ready(rows: list[TrialRecord]) -> list[tuple[TrialRecord, float]]:
    """Return each decision after the first with the seconds of its member's trials since it last moved."""
    since: dict[int, float] = {}
    found = []
    for row in sorted(rows, key=lambda row: (row.member, row.generation)):
        if row.generation:
            found.append((row, since[row.member]))
        assert row.started_at is not None
        assert row.ended_at is not None
        took = row.ended_at - row.started_at
        since[row.member] = took + (0.0 if row.exploited else since.get(row.member, 0.0))
    return found


def not_ready(row: TrialRecord) -> bool:
    return row.reason.get("compared") == {"why": "not ready"}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), ready_s=st.sampled_from([0.5, 30.0, 100.0, 1e9]), idle_s=st.integers(0, 10**6))
def test_only_seconds_of_completed_trials_count(seed: int, ready_s: float, idle_s: int) -> None:
    rng = np.random.default_rng(seed)
    run = simulation(pbt(ready_s=ready_s))
    while True:
        # Nobody trains: the study is stopped, or its workers are elsewhere.
        run.clock.now += idle_s
        claimed, _ = run.controller.claim("worker")
        if not claimed:
            break
        (work,) = claimed
        assert isinstance(work, Claimed)
        run.clock.now += float(rng.integers(1, 60))
        if rng.random() < 0.2 and work.trial.failures == 0:
            run.controller.fail(Failure(trial=work.trial.id, token=work.trial.token, error="simulated"))
        else:
            run.controller.complete([run.completion(work.trial)])
    decisions = ready(history(run))
    assert len(decisions) == 4 * 11
    for row, seconds in decisions:
        assert not_ready(row) == (seconds < ready_s), (row, seconds)


def test_the_same_decision_at_any_time() -> None:
    def decided(pause_s: float) -> list[Any]:
        run = simulation(pbt(ready_s=25.0))
        while True:
            run.clock.now += pause_s
            claimed, _ = run.controller.claim("worker")
            if not claimed:
                return [(row.member, row.generation, row.parent, dict(row.params)) for row in history(run)]
            (work,) = claimed
            assert isinstance(work, Claimed)
            run.clock.now += 1 + work.trial.seed % 20
            run.controller.complete([run.completion(work.trial)])

    assert decided(0.0) == decided(3600.0)


def test_on_the_virtual_clock_of_a_simulation() -> None:
    strategy = pbt(population_size=6, total_steps=40, ready_s=100.0)
    rules = Rules(space=SPACE, objective=Maximize("Q"), strategy=strategy)
    simulator = Simulator(
        rules,
        0,
        crew=Crew(workers=3),
        durations=Durations(trial_s=30.0, spread=0.3),
        hazards=Hazards(),
        fitness=LearningCurve(SPACE, rules.objective, 40),
        rng=np.random.default_rng(0),
    )
    simulator.run()
    with simulator.store.reader(simulator.study) as reader:
        rows = [row for row in reader.trials() if row.state is TrialState.COMPLETED]
    decisions = ready(rows)
    assert any(row.reason["decision"] == "exploit" for row, _ in decisions)
    # The sums are added up in another order than here.
    assert all(not_ready(row) == (seconds < 100.0) for row, seconds in decisions if abs(seconds - 100.0) > 1e-3)


def test_burn_in_counts_steps_also_then() -> None:
    run = simulation(pbt(ready_s=0.001, burn_in=6))
    run.clock.now += 1
    run.run_serially()
    assert min((row.generation for row in history(run) if row.exploited), default=6) >= 6


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "60", [1]])
def test_seconds_that_make_no_sense(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"PBT\(ready_s=.*must be a number of seconds above 0"):
        pbt(ready_s=value)


def test_steps_and_seconds_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match=r"ready_interval=5, ready_s=60.*leave one of them out"):
        pbt(ready_interval=5, ready_s=60)
    assert pbt(ready_s=60).ready_s == 60


@pytest.mark.parametrize("name", ["burn_in", "ready_interval"])
@pytest.mark.parametrize("exploit", [Truncation(), None])
def test_a_population_that_would_never_exploit_is_refused(name: str, exploit: Truncation | None) -> None:
    for steps in (12, 100):
        with pytest.raises(ConfigurationError, match=rf"PBT\({name}={steps}, total_steps=12\)"):
            pbt(exploit=exploit, **{name: steps})
    assert getattr(pbt(exploit=exploit, **{name: 11}), name) == 11


@pytest.mark.parametrize("interval", [0, 2.5, True])
def test_steps_that_make_no_sense(interval: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"PBT\(ready_interval=.*must be an integer of at least 1"):
        pbt(ready_interval=interval)
