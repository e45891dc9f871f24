"""Which checkpoints are kept, why, and how many that can be."""

from typing import Any

import pytest

from phyla.machine import Keeping, TrainRules, bound, explain
from phyla.records import Maximize, TrialRecord
from phyla.space import Float, Space
from phyla.strategies import RandomSearch
from simulation import Simulation


def keeping(**given: Any) -> Keeping:
    plain: dict[str, Any] = {
        "population_size": 10,
        "generations": 0,
        "elites": False,
        "lead": 1,
        "keep_best": 3,
        "keep_front": 100,
        "keep_every_steps": None,
        "tradeoffs": False,
        "suites": 0,
        "suite": None,
        "max_lag": 0,
    }
    return Keeping(**{**plain, **given})


NEWEST = "newest of each member + the 1 before that each published"
RUNNING = "parent and progress of each running trial"


@pytest.mark.parametrize(
    ("given", "most", "terms"),
    [
        ({}, 43, f"{NEWEST} + {RUNNING} + best 3; at most 43"),
        ({"tradeoffs": True}, 140, f"{NEWEST} + {RUNNING} + the Pareto front, at most 100 of it; at most 140"),
        (
            {"suite": "s", "max_lag": 2, "suites": 1},
            74,
            (
                f"{NEWEST} + up to 3 of each that wait for suite 's' + the best of each suite "
                f"+ {RUNNING} + best 3; at most 74"
            ),
        ),
        (
            {"generations": 2, "lead": 1},
            83,
            f"{NEWEST} + the last 2 generations + {RUNNING} + best 3; at most 83",
        ),
        (
            {"generations": 2, "lead": 2},
            103,
            f"{NEWEST} + the last 2 generations + {RUNNING} + best 3; at most 103",
        ),
        ({"elites": True}, 53, f"{NEWEST} + the best that each published + {RUNNING} + best 3; at most 53"),
        (
            {"keep_every_steps": 7},
            43,
            f"{NEWEST} + {RUNNING} + best 3 + every 7 steps; at most 43, milestones not counted",
        ),
    ],
)
def test_how_many_are_kept_is_told_term_by_term(given: dict[str, Any], most: int, terms: str) -> None:
    assert bound(keeping(**given)) == most
    assert explain(keeping(**given)) == f"kept = {terms}, for a population of 10"


def test_each_checkpoint_is_kept_for_a_reason() -> None:
    rules = TrainRules(
        space=Space(lr=Float(0.1, 1.0)),
        objective=Maximize("Q"),
        strategy=RandomSearch(1, 60, 5),
        keep_best=2,
        keep_every_steps=20,
    )

    def train(parent: Any, trial: TrialRecord) -> tuple[None, float]:
        return None, -float(trial.end_step)

    made = Simulation(rules, train)
    made.run_serially()
    found = made.controller.retention()
    why = {row.step: reason for row, reason in found.kept}
    milestone = {step: f"milestone: step {step} is a multiple of 20" for step in (20, 40)}
    best = dict.fromkeys((5, 10), "one of the best 2")
    assert {step: reason for step, reason in why.items() if not reason.startswith("in use: ")} == {
        **best,
        **milestone,
    }
    assert 60 in why
    assert {row.step for row in found.collectable} == set(range(5, 65, 5)) - set(why)
    assert found.bound == bound(rules.keeping)
