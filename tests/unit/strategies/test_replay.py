"""The strategy that trains a chain of trials again."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from effort import times
from facts import raises
from phyla import plugins
from phyla.errors import ConfigurationError, SpaceError
from phyla.machine import Ended, TrainRules
from phyla.records import JobState, JsonObject, Maximize, Member, TrialRecord
from phyla.space import Float, Space
from phyla.strategies import PBT, Last, MeanOfLast, Replay, Start, Stop, Truncation
from populations import Listed, context
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
    for last in [*rows.values()][:: -times(6, 1)]:
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


def test_each_decision_is_that_of_the_trial_whose_turn_it_is() -> None:
    population = Listed([1.0, 2.0], [])
    trials = [trial(start_step=2), trial(trial=4, start_step=5, end_step=9, params={"lr": 0.2}, seed=0), trial()]
    strategy = Replay(trials=trials[:2], of="found")

    def decided(member: Member) -> Any:
        return strategy.decide(member, population, context(space=SPACE))

    first = decided(population.member(1))
    told: JsonObject = {"decision": "replay", "of": "found"}
    assert first == Start(
        weights=None, params={"lr": 0.1}, params_from=None, steps=3, reason={**told, "trial": 1}, seed=3
    )
    one = replace(population.member(0), generation=1)
    head = one.head
    assert head is not None
    second = decided(one)
    assert second == Start(
        weights=head, params={"lr": 0.2}, params_from=None, steps=7, reason={**told, "trial": 4}, seed=0
    )
    assert decided(replace(one, head=replace(head, step=9))).steps == 1
    assert decided(replace(one, head=replace(head, step=8))).steps == 1
    assert decided(replace(one, head=replace(head, step=7))).steps == 2
    again = decided(replace(one, broken_trial=6, replacements=2))
    assert again == replace(second, reason={**told, "trial": 4, "replaces": 6})
    stopped = decided(replace(one, broken_trial=6, stops=1))
    assert stopped == Stop(reason={"why": "a stopping rule ended its trial", "trial": 6})
    assert [strategy.finished(replace(one, generation=count)) for count in range(4)] == [False, False, True, True]
    assert strategy.member_steps == 7


def test_the_trials_are_those_of_the_ancestry() -> None:
    rows = list(Listed([1.0, 2.0]).trials.values())
    rows[1] = replace(rows[1], seed=5, params={"lr": 0.5})
    found = Replay.along(rows, of="s", fitness=MeanOfLast(3))
    assert found.trials == (
        {"trial": 1, "start_step": 0, "end_step": 1, "seed": 0, "params": {}},
        {"trial": 2, "start_step": 1, "end_step": 2, "seed": 5, "params": {"lr": 0.5}},
    )
    assert (found.of, found.fitness) == ("s", MeanOfLast(3))
    assert (Replay.along(rows).of, Replay.along(rows).fitness) == ("", Last())


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
        ([], "Replay(trials= one trial"),
        ("abc", "Replay(trials= one trial"),
        ([3], "3 start_step end_step seed"),
        ([{"trial": 1}], "start_step end_step seed params"),
        ((), "Replay(trials= one trial"),
        ([trial(more=1)], "start_step end_step seed params"),
        ([trial(params=None)], "Replay(params=None)"),
        ([trial(start_step=5, end_step=5)], "Replay(end_step=5) 6"),
        ([trial(), trial(trial=2, start_step=9, end_step=12)], "'trial': 2, 'trial': 1,"),
    ],
)
def test_trials_that_make_no_sense(trials: Any, match: str) -> None:
    with raises(ConfigurationError, *match.split()):
        Replay(trials=trials)


def test_hyperparameters_that_the_space_does_not_allow_are_refused() -> None:
    simulation = Simulation(rules(Replay(trials=[trial(params={"lr": 7.0})])), train)
    _, rest = simulation.controller.claim("a")
    assert isinstance(rest, Ended)
    assert "SpaceError: lr" in (rest.message or "")


def test_the_trial_that_the_space_does_not_allow_is_named() -> None:
    allowed = trial(), trial(trial=4, start_step=5, end_step=9)
    Replay(trials=allowed).check_space(SPACE)
    wrong = trial(trial=4, start_step=5, end_step=9, params={"lr": 7.0})
    with raises(SpaceError, "1", "trial 4", "step 5"):
        Replay(trials=[allowed[0], wrong]).check_space(SPACE)


def test_one_step_is_a_trial_and_zero_a_seed() -> None:
    trials = [trial(end_step=1, seed=0), trial(trial=2, start_step=1, end_step=2)]
    assert Replay(trials=tuple(trials)).trials == tuple(trials)
