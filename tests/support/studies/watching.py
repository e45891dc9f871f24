"""A training job that only writes checkpoints, its suites, and what must hold once it was watched."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from forked import Forked
from phyla.errors import StoreError
from phyla.records import CheckpointState, GroupState, JobState, StudyState
from phyla.settings import child_environment
from phyla.store import open_store

SUITES = """
import json
import os
import time
from pathlib import Path

import numpy as np

import phyla


def content(evaluation):
    return json.loads((evaluation.checkpoint.path / "weights.json").read_text())


@phyla.eval_task(shards=2, tags=["in"])
def accuracy(evaluation):
    time.sleep(float(os.environ.get("EVAL_S", "0")))
    while not Path(os.environ.get("EVAL_UNTIL", "/")).exists():
        time.sleep(0.02)
    evaluation.record(accuracy=[content(evaluation)["value"]] * 4)
    evaluation.save(curve=np.arange(evaluation.shard.index + 1))


@phyla.eval_task(tags=["out"])
def shifted(evaluation):
    evaluation.record(accuracy=content(evaluation)["value"] - 1.0, n=4)


heldout = phyla.Suite("heldout", [accuracy, shifted], objective=phyla.Maximize("accuracy_mean"))
newest = phyla.Suite("newest", [shifted], policy=phyla.Policy(latest=True, backfill=False))


@phyla.eval_task
def raises(evaluation):
    raise ValueError("poisoned")


@phyla.eval_task
def dies(evaluation):
    os._exit(9)


@phyla.eval_task(timeout_s=1.0, max_attempts=2)
def hangs(evaluation):
    time.sleep(600)


poisoned = phyla.Suite("poisoned", [shifted, raises, dies, hangs])
"""


def write(root: Path, step: int, value: float | None = None) -> Path:
    """Write a checkpoint as a careful job does: a directory with a marker, written last."""
    folder = root / f"step_{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.json").write_text(json.dumps({"value": float(step if value is None else value)}))
    (folder / "DONE").write_text("")
    return folder


def command(*words: object) -> list[object]:
    return ["-m", "phyla.cli", *words]


def watch_words(folder: Path, *more: object, suite: str = "suites.py:heldout", workers: int = 0) -> list[object]:
    """Return the command line that watches `folder/ckpt`; makes both that and `folder/suites.py`."""
    (folder / "ckpt").mkdir(exist_ok=True)
    (folder / "suites.py").write_text(SUITES)
    fast = ("--format", "marker", "--quiet", "0.5", "--poll", "0.2", "--done", "FINISHED")
    return command("watch", folder / "ckpt", "--suite", suite, "--name", "job", "--workers", workers, *fast, *more)


def environment(failpoint: str = "", **more: str) -> dict[str, str]:
    return child_environment({"PHYLA_FAILPOINT": failpoint, "COLUMNS": "160", **more})


def start(folder: Path, words: list[object], *, failpoint: str = "", spares: int = 0, **more: str) -> Forked:
    """Start a program with variables of the environment; its workers are spares, at least: see `Forked`."""
    env = environment(failpoint, **more)
    if "--workers" in words:
        spares = max(spares, int(str(words[words.index("--workers") + 1])))
    return Forked(words, cwd=folder, env=env, merged=True, session=True, spares=spares)


def run(folder: Path, words: list[object], *, expect: int = 0, **how: Any) -> str:
    process = start(folder, words, **how)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == expect, output
    return output


class Look:
    """Everything that is stored of a run."""

    def __init__(self, folder: Path, name: str = "job") -> None:
        store = open_store(f"sqlite:///{folder / '.phyla' / 'phyla.db'}")
        run = store.find_study(name)
        assert run is not None
        self.run = run
        with store.reader(run.id) as reader:
            self.seen = {seen.id: seen for seen in reader.all_seen()}
            self.groups = list(reader.groups())
            self.tasks = list(reader.eval_jobs())
            self.running = list(reader.running())
            self.events = list(reader.events())
            self.held = reader.held_paths()
            self.results = {
                task.id: reader.ledger(self.seen[task.seen].identity, task.identity, 0, task.shards)
                for task in self.tasks
                if task.task
            }
        store.close()

    def states(self, suite: str = "heldout") -> Counter[str]:
        return Counter(group.state.value for group in self.groups if group.suite == suite)

    def values(self, suite: str = "heldout") -> dict[str, float]:
        found: dict[str, Any] = {}
        for group in self.groups:
            if group.suite == suite and group.state is GroupState.COMPLETE:
                values: Any = group.values
                found[self.seen[group.seen].name] = values["accuracy_mean"]["value"]
        return found


def has_run(folder: Path, name: str = "job") -> bool:
    file = folder / ".phyla" / "phyla.db"
    if not file.exists():
        return False
    try:
        store = open_store(f"sqlite:///{file}")
    except StoreError:  # it is being made
        return False
    try:
        return store.find_study(name) is not None
    finally:
        store.close()


def check_whole(folder: Path, steps: list[int], *, suite: str = "heldout") -> Look:
    """Every checkpoint has a status, every result is there once, and nothing is left over."""
    look = Look(folder)
    assert look.run.state is StudyState.COMPLETED
    assert not look.running
    assert not [task for task in look.tasks if task.state in (JobState.PENDING, JobState.RUNNING)]
    assert not [group for group in look.groups if group.state is GroupState.QUEUED]
    assert sorted(seen.step for seen in look.seen.values()) == sorted(steps)
    assert Counter((group.seen, group.suite) for group in look.groups).most_common(1)[0][1] == 1
    assert look.states(suite) == {"complete": len(steps)}
    expected = {f"step_{step}": (2 * step - 1) / 2 for step in steps}
    assert look.values(suite) == expected
    outputs = folder / ".phyla" / "outputs"
    for task in look.tasks:
        if task.task:
            entries = look.results[task.id]
            assert sorted(entry.shard for entry in entries) == list(range(task.shards))
            assert all((outputs / str(file)).is_file() for entry in entries for file in entry.files.values())
    snapshots = folder / ".phyla" / "snapshots" / "job"
    kept = {Path(look.seen[number].path).parent.name for number in look.held if look.seen[number].snapshot}
    assert {path.name for path in snapshots.iterdir()} == kept
    best = (folder / ".phyla" / "best" / "job" / suite).resolve()
    assert json.loads((best / "weights.json").read_text())["value"] == max(steps)
    assert all(seen.state is CheckpointState.READY for seen in look.seen.values())
    return look


def pids(process: Forked) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(process.pid).children()]


def kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return
