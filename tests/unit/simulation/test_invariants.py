"""What never may happen is noticed."""

from dataclasses import replace

import pytest

from invariants import Invariants, MachineDefect
from phyla.machine import KeptCheckpoints, TrainRules
from phyla.records import Checkpoint, JobState, Maximize, TrialRecord
from phyla.space import Float, Space
from phyla.store import open_store
from phyla.strategies import PBT

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
    invariants = Invariants(RULES, lambda trial: states[trial])
    invariants.claimed(TRIAL)
    invariants.claimed(replace(TRIAL, token=2))
    with pytest.raises(MachineDefect, match="member 0 got trial 1 with token 2"):
        invariants.claimed(replace(TRIAL, token=2))
    with pytest.raises(MachineDefect, match="its newest attempt was 2 of trial 1"):
        invariants.claimed(replace(TRIAL, id=2))
    states[1] = JobState.FAILED
    invariants.claimed(replace(TRIAL, id=2))
    invariants.completed(replace(TRIAL, id=2), 5)
    invariants.claimed(replace(TRIAL, id=3))


def test_steps_are_counted_once() -> None:
    invariants = Invariants(RULES, lambda trial: JobState.COMPLETED)
    store = open_store("memory://", clock=lambda: 0.0)
    study = store.create_study("s", {}, 0, 2)
    invariants.claimed(TRIAL)
    with store.reader(study.id) as view:
        invariants.finished(view)
        invariants.completed(TRIAL, 5)
        with pytest.raises(MachineDefect, match="member 0 completed 5 steps, and only 0 are counted"):
            invariants.finished(view)


def test_no_more_checkpoints_are_kept_than_the_formula_says() -> None:
    invariants = Invariants(RULES, lambda trial: JobState.COMPLETED)
    row = Checkpoint(name="1.1", study=1, trial=1, step=5, identity="", size_bytes=0, created_at=0.0)
    invariants.collected(KeptCheckpoints(kept=((row, "why"),), collectable=(row,), bound=1))
    with pytest.raises(MachineDefect, match="2 checkpoints are kept, and the bound is 1"):
        invariants.collected(KeptCheckpoints(kept=((row, "why"), (row, "why")), collectable=(), bound=1))
