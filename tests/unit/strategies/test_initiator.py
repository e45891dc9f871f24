"""Initiator based evolution: who initiates, against whom, and when."""

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np
import pytest

from effort import rarely
from phyla.errors import ConfigurationError
from phyla.machine import TrainRules
from phyla.records import JobState, Maximize, TrialRecord
from phyla.space import Choice, Float, Ordinal, Space
from phyla.strategies import FromSuite, InitiatorPBT, describe
from populations import Listed, context
from simulation import Simulation, VirtualClock

SPACE = Space(lr=Float(0.1, 1.0), width=Ordinal([1, 2, 4, 8]), kind=Choice(["a", "b"]))


def ran(
    workers: int, *, size: int = 6, trials: int = 8, failure_rate: float = 0.0, **settings: Any
) -> dict[int, TrialRecord]:
    strategy = InitiatorPBT(population_size=size, steps_per_trial=10, total_steps=10 * trials, **settings)
    rules = TrainRules(
        space=SPACE, objective=Maximize("Q"), strategy=strategy, lease_s=1e9, max_attempts=1, max_broken=100
    )
    clock = VirtualClock()

    def train(parent: object, trial: TrialRecord) -> tuple[None, float]:
        clock.now += 1
        return None, float(np.random.default_rng(trial.seed).normal())

    simulation = Simulation(rules, train, clock=clock)
    simulation.run(workers, np.random.default_rng(workers), failure_rate=failure_rate)
    with simulation.store.reader(simulation.study.id) as reader:
        return {trial.id: trial for trial in reader.trials() if trial.state is JobState.COMPLETED}


def waited(rows: dict[int, TrialRecord], back: int) -> bool:
    """Return whether every trial started after the last one of `back` generations before had ended."""
    last: dict[int, float] = {}
    for trial in rows.values():
        last[trial.generation] = max(trial.ended_at or 0.0, last.get(trial.generation, 0.0))
    return all(t.created_at >= last[t.generation - back] for t in rows.values() if t.generation >= back)


def facts(trial: TrialRecord) -> dict[str, Any]:
    return cast("dict[str, Any]", trial.reason.get("compared", {}))


@pytest.mark.parametrize(
    ("copy", "weights", "params"),
    [("both", "donor", "donor"), ("weights", "donor", "own"), ("hyperparameters", "own", "donor")],
)
def test_what_the_loser_takes_over(copy: str, weights: str, params: str) -> None:
    rows = ran(3, copy=copy, explore=None)
    lost = [trial for trial in rows.values() if trial.reason["decision"] == "exploit"]
    assert len(lost) > 10
    for trial in lost:
        assert trial.parent == facts(trial)[weights]["trial"]
        assert trial.params_from == facts(trial)[params]["trial"]
        assert trial.params == rows[facts(trial)[params]["trial"]].params
        assert trial.reason["copied"] == copy


@pytest.mark.parametrize(
    ("workers", "gate"),
    [
        case if case in {(1, False), (12, True)} else rarely(*case)
        for case in product([1, 3, 6, 12], [True, False])
    ],
)
def test_every_completed_trial_but_the_last_initiates_exactly_once(workers: int, gate: bool) -> None:
    rows = ran(workers, gate=gate, failure_rate=0.2)
    initiated = Counter(facts(trial)["own"]["trial"] for trial in rows.values() if trial.generation)
    assert set(initiated) == {trial.id for trial in rows.values() if trial.generation < 7}
    assert set(initiated.values()) == {1}


@pytest.mark.parametrize(
    ("gate", "generations", "workers"),
    [
        case if case in {(True, 2, 6), (False, 2, 3), (True, 1, 1)} else rarely(*case)
        for case in product([True, False], [2, 1], [3, 1, 6])
    ],
)
def test_opponents_are_of_the_last_one_or_two_generations(workers: int, gate: bool, generations: int) -> None:
    rows = ran(workers, gate=gate, generations=generations, trials=12)
    back: Counter[int] = Counter()
    for trial in rows.values():
        met = facts(trial).get("opponent")
        if met is None:
            continue
        opponent, own = rows[met["trial"]], rows[facts(trial)["own"]["trial"]]
        assert opponent.member != trial.member
        assert (opponent.generation, opponent.fitness) == (met["generation"], met["fitness"])
        back[own.generation - opponent.generation] += 1
        winner = max(own, opponent, key=lambda one: one.fitness or 0.0)
        assert (trial.parent, trial.params_from) == (winner.id, winner.id)
        assert trial.jump_from == (own.id if winner is opponent else None)
    assert set(back) == set(range(generations))
    if gate and generations == 2:
        # In generation 0 there is no generation before.
        assert back[1] / (back[0] + back[1]) == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("workers", [rarely(1), 4, rarely(20)])
def test_a_generation_reproduces_only_when_it_is_complete(workers: int) -> None:
    rows = ran(workers, size=20, trials=4)
    assert waited(rows, 1)
    first = list(rows.values())[:20]
    assert {(trial.member, trial.parent) for trial in first} == {(member, None) for member in range(20)}


def test_without_the_gate_members_are_one_generation_ahead_at_most() -> None:
    rows = ran(6, gate=False, trials=12)
    assert not waited(rows, 1)
    assert waited(rows, 2)


def test_both_winners_have_mutated_children() -> None:
    children = [trial for trial in ran(1).values() if trial.generation]
    assert {trial.reason["decision"] for trial in children} == {"explore", "exploit"}
    assert all(trial.reason["changes"] for trial in children)
    lines = [describe(trial.reason) for trial in children]
    assert all(line.startswith(("won against member", "took over member")) for line in lines)
    copies = ran(1, explore=None)
    assert all(t.params == copies[t.params_from or 0].params for t in copies.values() if t.generation)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"copy": "nothing"}, r"InitiatorPBT\(copy='nothing'\): choose"),
        ({"population_size": 0}, r"InitiatorPBT\(population_size=0\)"),
        ({"steps_per_trial": 0}, r"InitiatorPBT\(steps_per_trial=0\)"),
        ({"steps_per_trial": 11}, r"InitiatorPBT\(steps_per_trial=11, total_steps=10\)"),
        ({"generations": 3}, r"InitiatorPBT\(generations=3\)"),
        ({"gate": False, "fitness": FromSuite("s", "m")}, "use gate=True"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        InitiatorPBT(**{"population_size": 2, "steps_per_trial": 5, "total_steps": 10, **settings})


def test_a_member_whose_last_trials_are_gone_is_no_opponent() -> None:
    """Its checkpoint was lost, so it stands where it was some generations ago."""
    population = Listed([1.0, 2.0, 3.0], [9.0])
    population.slots[1] = replace(population.member(1), generation=3)
    strategy = InitiatorPBT(population_size=2, steps_per_trial=1, total_steps=9, explore=None, generations=1)

    def met(own: int) -> Any:
        member = replace(population.member(0), generation=own)
        decided: Any = strategy.decide(member, population, context(space=SPACE, history=population))
        compared = decided.reason["compared"]
        assert (compared["rule"], compared["generation"]) == ("initiator", own - 1)
        assert compared["own"]["trial"] == 3
        return compared.get("opponent")

    assert [met(3), met(2)] == [None, None]
    assert met(1)["trial"] == 4
