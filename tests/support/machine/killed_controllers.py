"""Drive a study with controllers that are killed, as `kill -9` does, between any two calls.

Every call to the controller is made by a process of its own, which opens the store, makes that call, writes down
what it was told, and is killed. `python killed_controllers.py URL STRATEGY FILE` runs a study to the end and
prints how many were killed.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from phyla.controller import Controller
from phyla.machine import Completion, Ended, TrainRules
from phyla.records import Checkpoint, Maximize, TrialRecord
from phyla.space import Choice, Float, Int, Space
from phyla.store import Store, open_store
from phyla.strategies import PBT, BinaryTournament, InitiatorPBT, Strategy

SIZES: dict[str, Any] = {"population_size": 4, "steps_per_trial": 5, "total_steps": 15}
STRATEGIES: dict[str, Strategy] = {
    "initiators": InitiatorPBT(**SIZES),
    "initiators, without gate": InitiatorPBT(**SIZES, gate=False),
    "PBT": PBT(**SIZES, exploit=BinaryTournament()),
}


def rules(strategy: str) -> TrainRules:
    return TrainRules(
        space=Space(lr=Float(0.1, 1.0), width=Int(1, 9), kind=Choice(["a", "b", "c"])),
        objective=Maximize("Q"),
        strategy=STRATEGIES[strategy],
        lease_s=1e6,
    )


def completion(trial: TrialRecord) -> Completion:
    """Training is the seed of the trial, and nothing else."""
    fitness = trial.seed / 2**31
    checkpoint = Checkpoint(
        name=f"{trial.id}.{trial.token}",
        study=trial.study,
        trial=trial.id,
        step=trial.end_step,
        identity="d" * 8,
        size_bytes=1,
        created_at=0.0,
    )
    return Completion(
        trial=trial.id,
        token=trial.token,
        reached_step=trial.end_step,
        values={"Q": [fitness]},
        metrics={"Q": fitness},
        checkpoint=checkpoint,
    )


def trials(store: Store, study: int) -> dict[int, TrialRecord]:
    with store.reader(study) as reader:
        return {trial.id: trial for trial in reader.trials()}


def call(url: str, study: int, strategy: str, held: int | None) -> dict[str, object]:
    """Complete the trial that is held, or claim one."""
    store = open_store(url)
    controller = Controller(store, study, rules(strategy))
    if held is not None:
        controller.complete([completion(trials(store, study)[held])])
        return {"held": None}
    claimed, rest = controller.claim("worker")
    return {"held": claimed[0].trial.id if claimed else None, "ended": isinstance(rest, Ended)}


def compile_statements(strategy: str) -> None:
    """Run a study here, so that no process that is killed has to compile SQL."""
    store = open_store("memory://")
    study = store.create_study("compiled", {}, 1, STRATEGIES[strategy].population_size).id
    controller = Controller(store, study, rules(strategy))
    while claimed := controller.claim("worker")[0]:
        controller.complete([completion(claimed[0].trial)])
    trials(store, study)


def main(url: str, strategy: str, file: Path) -> None:
    store = open_store(url)
    study = store.create_study("killed", {}, 1, STRATEGIES[strategy].population_size).id
    store.close()
    compile_statements(strategy)
    held, killed = None, 0
    while True:
        process = os.fork()
        if process == 0:
            file.write_text(json.dumps(call(url, study, strategy, held)))
            os.kill(os.getpid(), signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        killed += 1
        told = json.loads(file.read_text())
        if told.get("ended"):
            break
        held = told["held"]
    print(killed)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
