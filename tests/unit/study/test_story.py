"""The story of a trial tells everything that is stored about it, in order."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import phyla
from effort import times as counts
from evaluation_simulation import EvaluatedStudy, suite_of
from facts import check_facts, raises
from phyla.errors import UsageError
from phyla.machine import SetCheckpointState, TrainRules
from phyla.machine.population import retire
from phyla.records import CheckpointState, JobState, Maximize, Report, TrialRecord
from phyla.space import Float, Space
from phyla.strategies import PBT, Divergence, FromSuite, Truncation
from phyla.study.results.story import Event, read_story
from simulation import Simulation

SPACE = Space(lr=Float(0.1, 1.0))
STRATEGY = PBT(population_size=3, steps_per_trial=2, total_steps=6, exploit=Truncation(0.4))
RULES = TrainRules(space=SPACE, objective=Maximize("Q"), strategy=STRATEGY, max_attempts=2, max_broken=50)


def whats(events: list[Event]) -> list[str]:
    return [event.what for event in events]


def facts(events: list[Event], what: str) -> list[Any]:
    return [event.facts for event in events if event.what == what]


def simulated(rules: TrainRules = RULES, seed: int = 0) -> Simulation:
    def train(parent: object, trial: TrialRecord) -> tuple[object, float]:
        driver.clock.now += 1.0
        return None, float(trial.params["lr"])  # type: ignore[arg-type]

    driver = Simulation(rules, train, seed)
    return driver


@settings(max_examples=counts(8, 25))
@given(st.integers(0, 2**20), st.sampled_from([0.0, 0.2, 0.5]))
def test_the_story_of_every_trial_is_whole_and_in_order(seed: int, failure_rate: float) -> None:
    driver = simulated(seed=seed)
    driver.run(2, np.random.default_rng(seed), failure_rate=failure_rate)
    with driver.store.reader(driver.study.id) as reader:
        trials = list(reader.trials())
        for trial in trials:
            events = read_story(reader, trial.id)
            times = [event.at for event in events if event.at is not None]
            assert times == sorted(times)
            assert events[0].what == "created"
            assert [row["attempt"] for row in facts(events, "attempt")] == list(range(1, trial.token + 1))
            assert [row["state"] for row in facts(events, "ended")] == [trial.state]
            assert len(facts(events, "checkpoint")) == (trial.checkpoint is not None)
            after = {each.id for each in trials if trial.id in (each.parent, each.replaces)}
            assert {row["trial"] for row in facts(events, "descendant")} == after


def study_in(home: Path) -> phyla.Study:
    return phyla.Study("told", SPACE, Maximize("Q"), STRATEGY, home=home, storage="memory://")


def test_reports_belong_to_their_attempt(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    trial = study.ask()
    assert trial is not None
    trial.report(step=1, Q=0.5)
    study.tell(trial, error="ValueError: broken")
    again = study.ask()
    assert again is not None
    (again.checkpoint_dir / "weights").touch()
    study.tell(again, {"Q": 0.25})
    events = study.results().story(trial.id)
    assert whats(events)[:5] == ["created", "attempt", "reports", "attempt ended", "attempt"]
    first = facts(events, "reports")[0]
    assert (first["attempt"], first["count"]) == (1, 1)
    assert first["first"] == first["last"] == {"step": 1, "metrics": {"Q": 0.5}}
    assert [row["state"] for row in facts(events, "attempt ended")] == ["failed", "completed"]
    assert "ValueError: broken" in events[3].words
    assert facts(events, "ended")[0]["fitness"] == 0.25


def test_a_trial_that_is_unknown_is_refused(tmp_path: Path) -> None:
    with raises(UsageError, "phyla trials told"):
        study_in(tmp_path).results().story(99)


def test_a_stopped_trial_ends_with_the_rule_and_is_replaced() -> None:
    driver = simulated(replace(RULES, stopping=(Divergence(above=5.0),)))
    work = driver.controller.claim("w")[0][0]
    driver.controller.report(work.trial.id, 1, [Report(1, {"Q": 9.0})])
    after = driver.controller.claim("w")[0][0].trial
    with driver.store.reader(driver.study.id) as reader:
        events = read_story(reader, work.trial.id)
    (ended,), (descendant,) = facts(events, "ended"), facts(events, "descendant")
    assert (ended["state"], ended["stop_reason"]["rule"]) == (JobState.CANCELLED, "divergence")
    assert descendant == {"trial": after.id, "member": work.trial.member, "replaces": True}


def test_a_trial_of_a_retired_member_is_cancelled_and_has_not_failed_for_good() -> None:
    driver = simulated()
    trial = driver.controller.claim("w")[0][0].trial
    with driver.store.transaction(driver.study.id, exclusive=True) as tx:
        tx.apply(retire(tx, trial.member))
        events = read_story(tx, trial.id)
    (ended,) = [event for event in events if event.what == "ended"]
    check_facts(ended.words, "cancelled", "retired")
    assert "for good" not in ended.words


def test_a_checkpoint_is_as_it_is_now() -> None:
    driver = simulated()
    driver.run_serially()
    with driver.store.transaction(driver.study.id, exclusive=True) as tx:
        trial = tx.last_completed(1)[0]
        assert trial.checkpoint is not None
        tx.apply([SetCheckpointState(trial.checkpoint, CheckpointState.DAMAGED, "other\nbytes")])
        events = read_story(tx, trial.id)
    (row,) = facts(events, "checkpoint")
    assert not any("\n" in event.words for event in events)
    assert (row["name"], row["state"], row["error"]) == (trial.checkpoint, "damaged", "other\nbytes")


def test_evaluations_of_its_checkpoint_are_told() -> None:
    strategy = replace(STRATEGY, fitness=FromSuite("s", "x_mean"))
    rules = replace(RULES, objective=Maximize("x_mean"), strategy=strategy, suites=(suite_of("a"),))
    driver = EvaluatedStudy(rules, lambda weights, trial: weights + 1.0, lambda weights, work: weights)
    driver.run_serially()
    with driver.store.reader(driver.study.id) as reader:
        (group,) = facts(read_story(reader, driver.trials()[0].id), "evaluation")
    assert (group["suite"], group["state"]) == ("s", "complete")
    assert group["values"]["x_mean"]["value"] == 1.0
