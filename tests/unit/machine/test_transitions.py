"""The message about a move that the table of transitions forbids."""

import pytest

from phyla.errors import IllegalTransition
from phyla.machine import Failure, TrainRules
from phyla.machine.jobs import TRANSITIONS, change_state
from phyla.records import JobState, Maximize
from phyla.space import Float, Space
from phyla.strategies import PBT
from simulation import Simulation


def test_a_forbidden_move_is_refused_with_what_is_known_of_it() -> None:
    strategy = PBT(population_size=2, steps_per_trial=1, total_steps=2)
    rules = TrainRules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy)
    simulation = Simulation(rules, lambda parent, trial: (None, 1.0))
    (first,), _ = simulation.controller.claim("w")
    simulation.controller.fail(Failure(job=first.trial.id, token=first.trial.token, error="out of memory"))
    (again,), _ = simulation.controller.claim("v")
    simulation.controller.complete([simulation.completion(again.trial)])
    with simulation.store.reader(simulation.study.id) as reader:
        trial = reader.trial(first.trial.id)
    about = r"trial 1 is completed and cannot become running \(allowed: nothing, it is final\); its attempts: 2"
    with pytest.raises(IllegalTransition, match="^" + about + "$"):
        change_state(trial, JobState.RUNNING)
    allowed = r"allowed: cancelled, completed, failed, pending\); its attempts: 2, the last error: out of memory$"
    with pytest.raises(IllegalTransition, match=allowed):
        change_state(again.trial, JobState.RUNNING)
    for allowed_state in TRANSITIONS[JobState.RUNNING]:
        assert change_state(again.trial, allowed_state).state is allowed_state
