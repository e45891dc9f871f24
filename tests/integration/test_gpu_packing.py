"""Eval tasks that ask for several GPUs, on a machine that says it has some."""

import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

import forked
import phyla
from facts import raises
from phyla.errors import ConfigurationError
from phyla.records import StudyState
from phyla.watcher import Following

FILE = """
import json, os, time
from pathlib import Path
import phyla

LOG = Path(__file__).with_name("log")

def note(what, began):
    # One write of one line is never torn by another.
    line = json.dumps([what, os.environ["CUDA_VISIBLE_DEVICES"].split(","), began, time.monotonic()])
    with LOG.open("a") as log:
        log.write(line + "\\n")

def look(evaluation):
    began = time.monotonic()
    time.sleep(0.05)
    evaluation.record(loss=float((evaluation.checkpoint.path / "w").read_text()))
    note(evaluation.task, began)

def train(trial):
    began = time.monotonic()
    w = float((trial.source.path / "w").read_text()) if trial.source else trial.seed
    for _ in trial.steps():
        time.sleep(0.02)
        w += trial.params["lr"]
    (trial.checkpoint_dir / "w").write_text(str(w))
    note("train", began)

def task(name, **more):
    return phyla.evaluation.EvalTask(name, look, **more)

several = phyla.Suite("several", [
    task("any"), task("one", resources={"gpus": 1}, shards=2), task("two", resources={"gpus": 2}),
    task("four", resources={"gpus": 4}),
])
pair = phyla.Suite("pair", [task("two", resources={"gpus": 2})])
study = phyla.Study(
    "packed",
    phyla.Space(lr=phyla.Float(0.1, 1.0)),
    phyla.Minimize("loss"),
    phyla.PBT(population_size=2, steps_per_trial=5, total_steps=10,
              fitness=phyla.strategies.FromSuite("pair", "loss_mean", max_lag=1)),
    train,
    suites=[pair],
)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "packed_work.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "packed_work", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    return tmp_path


def work(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Return what ran, with how many GPUs and when; each GPU was used by one at a time."""
    found = defaultdict(list)
    by_gpu = defaultdict(list)
    for line in (folder / "log").read_text().splitlines():
        what, gpus, began, ended = json.loads(line)
        found[what].append((len(gpus), began, ended))
        for gpu in gpus:
            by_gpu[gpu].append((began, ended))
    for times in by_gpu.values():
        times.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(times)), "a GPU was shared"
    return found


@pytest.mark.thorough  # unit/supervision: who gets which; below: with training
def test_small_and_large_tasks_share_a_machine(folder: Path) -> None:
    for step in (1, 2):
        (folder / "ckpt" / f"step_{step}").mkdir(parents=True)
        (folder / "ckpt" / f"step_{step}" / "w").write_text("1.0")
        (folder / "ckpt" / f"step_{step}" / "DONE").touch()
    how = {"format": "marker", "following": Following(once=True), "home": folder / "home"}
    watched = phyla.watch(folder / "ckpt", "packed_work:several", 3, **how)  # type: ignore[arg-type]
    assert watched.counts == {"complete": 2}
    found = work(folder)
    assert {what: {gpus for gpus, _, _ in times} for what, times in found.items()} == {
        "any": {1},
        "one": {1},
        "two": {2},
        "four": {4},
    }
    assert {what: len(times) for what, times in found.items()} == {"any": 2, "one": 4, "two": 2, "four": 2}


def test_training_gives_way_to_an_evaluation_that_needs_its_gpus_and_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    forked.run(["-c", "import packed_work; packed_work.study.run(2)"], cwd=folder, check=True, spares=6)
    results = phyla.load_study("packed", home=folder / ".phyla")
    assert results.state is StudyState.COMPLETED
    assert results.counts() == {"completed": 4}
    assert all(trial.fitness is not None for trial in results.trials())
    found = work(folder)
    assert [gpus for gpus, _, _ in found["train"]] == [1] * 4
    assert [gpus for gpus, _, _ in found["two"]] == [2] * 4
    # No attempt was given up or failed for it.
    assert [attempt.state.value for attempt in results.attempts()] == ["completed"] * 4


def test_a_task_that_asks_for_more_than_there_is_is_refused(folder: Path) -> None:
    (folder / "ckpt").mkdir()
    with raises(ConfigurationError, "four", "several", "4 GPUs", "2"):
        phyla.watch("ckpt", "packed_work:several", 2, gpus=[6, 7], home=folder / "home")
