"""What Li et al. 2019 (arXiv 1902.01894) ask of a stateless service, beyond the rules of its tournaments."""

import subprocess
import sys
from pathlib import Path

import pytest

import killed_controllers
from effort import rarely
from phyla.controller import Controller
from phyla.records import TrialRecord
from phyla.store import Store, open_store

TRIALS = 4 * 3
CALLS = 2 * TRIALS + 1
"""Claim and complete each of the trials, and be told that the study ended."""


def suggestions(rows: dict[int, TrialRecord]) -> list[tuple[object, ...]]:
    """What was suggested, in the order in which it was."""

    def place(trial: int | None) -> tuple[int, int] | None:
        return None if trial is None else (rows[trial].member, rows[trial].generation)

    return [
        (
            row.member,
            row.generation,
            place(row.parent),
            place(row.jump_from),
            str(row.params),
            row.seed,
            row.fitness,
        )
        for row in rows.values()
    ]


def serial(store: Store, strategy: str, *, preempted: bool = False) -> list[tuple[object, ...]]:
    rules = killed_controllers.rules(strategy)
    study = store.create_study("serial", {}, 1, rules.strategy.population_size).id
    controller = Controller(store, study, rules)
    while True:
        claimed, _ = controller.claim("worker")
        if not claimed:
            return suggestions(killed_controllers.trials(store, study))
        trial = claimed[0].trial
        for attempt in range(2 if preempted else 0):
            controller.release(trial.id, trial.token)
            (again,), _ = controller.claim("another worker")
            assert (again.trial.id, again.trial.token) == (trial.id, attempt + 2)
            assert again.trial.parent_checkpoint == trial.parent_checkpoint
            trial = again.trial
        controller.complete([killed_controllers.completion(trial)])


@pytest.mark.parametrize("strategy", [rarely("PBT"), "initiators", rarely("initiators, without gate")])
def test_controllers_killed_between_any_two_calls_suggest_the_same(tmp_path: Path, strategy: str) -> None:
    url = f"sqlite:///{tmp_path / 'killed.db'}"
    done = subprocess.run(
        [sys.executable, killed_controllers.__file__, url, strategy, str(tmp_path / "told.json")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == CALLS
    store = open_store(url)
    killed = suggestions(killed_controllers.trials(store, 1))
    store.close()
    alone = open_store(f"sqlite:///{tmp_path / 'serial.db'}")
    undisturbed = serial(alone, strategy)
    alone.close()
    assert killed == undisturbed
    assert len(killed) == TRIALS
    assert any(jump for _, _, _, jump, *_ in killed)


@pytest.mark.parametrize("strategy", killed_controllers.STRATEGIES)
def test_preempted_trials_come_back_with_the_same_parent_and_change_nothing(strategy: str) -> None:
    memory = "memory://"
    assert serial(open_store(memory), strategy, preempted=True) == serial(open_store(memory), strategy)
