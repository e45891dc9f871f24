"""What must hold of a study on disk after whatever happened to its processes."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import phyla
from phyla.checkpoints import LocalCheckpoints
from phyla.records import AttemptState, CheckpointState, TrialState
from phyla.settings import child_environment
from phyla.study import Results
from toy_study import score

TOY = Path(__file__).with_name("toy_study.py")


def start(home: Path, *, failpoint: str = "", **options: Any) -> "subprocess.Popen[str]":
    """Start the toy study in a process of its own."""
    return subprocess.Popen(
        [sys.executable, str(TOY), json.dumps({"home": str(home), **options})],
        env=child_environment({"PHYLA_FAILPOINT": failpoint, "PYTHONPATH": str(TOY.parent)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(home: Path, *, expect: int | None = 0, failpoint: str = "", **options: Any) -> str:
    """Run the toy study to its end, or until it dies."""
    process = start(home, failpoint=failpoint, **options)
    output, _ = process.communicate(timeout=120)
    if expect is not None:
        assert process.returncode == expect, output
    return output


def check_whole(results: Results, *, members: int, trials: int, finished: bool = True) -> None:
    """Nothing is lost, doubled or leaked."""
    rows = results.trials()
    completed = [row for row in rows if row.state is TrialState.COMPLETED]
    by_id = {row.id: row for row in rows}
    if finished:
        assert len(completed) == members * trials
        assert not [row for row in rows if row.state in (TrialState.RUNNING, TrialState.PENDING)]
        assert not [a for a in results.attempts() if a.state is AttemptState.RUNNING]
    counted = Counter((row.member, row.generation) for row in completed)
    assert set(counted.values()) <= {1}, "a generation was counted twice"

    repository = LocalCheckpoints(results.places.checkpoints(results.name))
    stored = {row.name: row for row in results.checkpoints()}
    live = {name for name, row in stored.items() if row.state is CheckpointState.LIVE}
    if finished:
        assert set(repository.names()) == live
        assert repository.staged() == ()
    assert live <= set(repository.names()), "a live checkpoint is gone"
    for name in live:
        assert repository.verify(name).digest == stored[name].digest

    for row in completed:
        assert row.fitness == score(row.seed, lr(row.params)), "the score belongs to other hyperparameters"
        if row.checkpoint in live:
            chain = json.loads((repository.path(row.checkpoint) / "chain.json").read_text())
            assert [trial for trial, _ in chain] == ancestry(row.id, by_id), "weights of another trial"
            assert chain[-1][1] == int(row.checkpoint.split(".")[1])


def lr(params: Mapping[str, Any]) -> float:
    """The only hyperparameter."""
    return float(params["lr"])


def ancestry(trial: int, by_id: Mapping[int, Any]) -> list[int]:
    """Trials from the root to this one, by parent."""
    path: list[int] = []
    current: int | None = trial
    while current is not None:
        path.append(current)
        current = by_id[current].parent
    return path[::-1]


def load(home: Path) -> Results:
    """Open the toy study."""
    return phyla.load_study("toy", home=home)
