"""What never may happen is noticed."""

from dataclasses import replace

import pytest

from facts import raises
from invariants import Invariants, MachineDefect
from phyla.machine import Failure, KeptCheckpoints, TrainRules, Update
from phyla.records import Checkpoint, JobState, Maximize, TrialRecord
from phyla.space import Float, Space
from phyla.store import open_store
from phyla.strategies import PBT
from simulation import Simulation

RULES = TrainRules(
    space=Space(x=Float(0.0, 1.0)),
    objective=Maximize("Q"),
    strategy=PBT(population_size=2, steps_per_trial=5, total_steps=10),
)
TRIAL = TrialRecord(
    id=1,
    study=1,
    member=0,
    generation=0,
    state=JobState.RUNNING,
    params={},
    start_step=0,
    end_step=5,
    seed=0,
    token=1,
    created_at=0.0,
)


def test_a_member_has_one_trial_and_its_tokens_count_up() -> None:
    states = {1: JobState.RUNNING}
    invariants = Invariants(RULES, lambda trial: states[trial], str)
    invariants.claimed(TRIAL)
    invariants.claimed(replace(TRIAL, token=2))
    with raises(MachineDefect, "member 0", "trial 1", "token 2"):
        invariants.claimed(replace(TRIAL, token=2))
    with raises(MachineDefect, "2", "trial 1"):
        invariants.claimed(replace(TRIAL, id=2))
    states[1] = JobState.FAILED
    invariants.claimed(replace(TRIAL, id=2))
    invariants.completed(replace(TRIAL, id=2), 5)
    invariants.claimed(replace(TRIAL, id=3))


def test_steps_are_counted_once() -> None:
    invariants = Invariants(RULES, lambda trial: JobState.COMPLETED, str)
    store = open_store("memory://", clock=lambda: 0.0)
    study = store.create_study("s", {}, 0, 2)
    invariants.claimed(TRIAL)
    with store.reader(study.id) as view:
        invariants.finished(view)
        invariants.completed(TRIAL, 5)
        with raises(MachineDefect, "0 completed", "5 steps"):
            invariants.finished(view)


def test_no_more_checkpoints_are_kept_than_the_formula_says() -> None:
    invariants = Invariants(RULES, lambda trial: JobState.COMPLETED, str)
    row = Checkpoint(name="1.1", study=1, trial=1, step=5, identity="", size_bytes=0, created_at=0.0)
    invariants.collected(KeptCheckpoints(kept=((row, "why"),), collectable=(row,), bound=1))
    with raises(MachineDefect, "2 checkpoints", "1"):
        invariants.collected(KeptCheckpoints(kept=((row, "why"), (row, "why")), collectable=(), bound=1))


def broken_once() -> tuple[Simulation, TrialRecord]:
    """Return a study whose trial failed at its first attempt, and is at its second one."""
    driver = Simulation(RULES, lambda parent, trial: (None, 0.0))
    first = driver.controller.claim("one")[0][0].trial
    driver.clock.now += 5.0
    driver.controller.fail(Failure(job=first.id, token=1, error="boom"))
    return driver, driver.controller.claim("two")[0][0].trial


def test_the_story_of_a_job_is_every_command_with_who_asked() -> None:
    driver, trial = broken_once()
    entries = driver.stories.entries(trial.id)
    moves = [(entry.before, entry.record.state) for entry in entries if isinstance(entry.record, TrialRecord)]
    assert moves == [(None, "running"), ("running", "pending"), ("pending", "running")]
    assert [entry.request[0] for entry in entries] == ["claim"] * 2 + ["fail"] * 2 + ["claim"] * 2
    assert entries[0].request[1:] == ("one",)
    assert entries[2].at - entries[0].at == 5.0


def test_what_is_rolled_back_is_no_part_of_the_story() -> None:
    driver, trial = broken_once()
    before = driver.stories.entries(trial.id)

    def broken() -> None:
        with driver.store.transaction(driver.study.id, exclusive=True) as tx:
            tx.apply([Update(replace(trial, error="none"))])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert driver.stories.entries(trial.id) == before


def test_a_defect_comes_with_the_story_of_its_trial() -> None:
    driver, trial = broken_once()
    invariants = Invariants(RULES, lambda trial: JobState.RUNNING, driver.stories.story)
    with pytest.raises(MachineDefect) as defect:
        invariants.claimed(trial)
    assert all(entry.line in str(defect.value) for entry in driver.stories.entries(trial.id))
