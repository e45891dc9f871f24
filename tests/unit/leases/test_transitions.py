"""The message about a move that the table of transitions forbids."""

import pytest

from phyla.errors import IllegalTransition
from phyla.leases import TRANSITIONS, check_transition
from phyla.machine import Failure, TrainRules
from phyla.records import JobState, Maximize
from phyla.space import Float, Space
from phyla.strategies import PBT
from simulation import Simulation


def test_a_forbidden_move_is_refused_with_the_story_of_the_trial() -> None:
    strategy = PBT(population_size=2, steps_per_trial=1, total_steps=2)
    rules = TrainRules(space=Space(lr=Float(0.1, 1.0)), objective=Maximize("Q"), strategy=strategy)
    simulation = Simulation(rules, lambda parent, trial: (None, 1.0))
    (first,), _ = simulation.controller.claim("w")
    simulation.controller.fail(Failure(job=first.trial.id, token=first.trial.token, error="out of memory"))
    (again,), _ = simulation.controller.claim("v")
    simulation.controller.complete([simulation.completion(again.trial)])
    with simulation.store.reader(simulation.study.id) as reader:
        trial, attempts = reader.trial(first.trial.id), reader.attempts(first.trial.id)
    about = r"trial 1 of member 0 is completed and cannot become running \(allowed: nothing, it is final\)\. "
    story = r"History: attempt 1 by w failed \(out of memory\); attempt 2 by v completed\.$"
    with pytest.raises(IllegalTransition, match="^" + about + story):
        check_transition(trial, JobState.RUNNING, attempts)
    with pytest.raises(IllegalTransition, match="^" + about + r"History: 2 attempts\.$"):
        check_transition(trial, JobState.RUNNING)
    with pytest.raises(
        IllegalTransition, match=r"is running and .* \(allowed: cancelled, completed, failed, pending\)"
    ):
        check_transition(first.trial, JobState.RUNNING)
    for allowed in TRANSITIONS[JobState.RUNNING]:
        check_transition(first.trial, allowed)
