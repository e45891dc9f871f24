"""Checkpoints that are prepared once for all eval tasks: by real workers, which fail and are killed."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import phyla
from effort import rarely
from phyla.records import JobState
from phyla.store import open_store
from phyla.study.maintaining.disk_usage import disk
from phyla.study.places import Places
from phyla.worker.evaluating.prepared import PreparedCheckpoints, Record
from waiting import until
from watching import Look, command, run, start, write

SUITES = """
import asyncio
import json
import os
import time
from pathlib import Path

import phyla

CALLS = Path(__file__).parent / "calls"


def double(checkpoint, into):
    with CALLS.open("a") as calls:
        calls.write(checkpoint.name + "\\n")
    (into / "half").write_text("half")
    while "HELD" in os.environ and not Path(os.environ["HELD"]).exists():
        time.sleep(0.02)
    value = json.loads((checkpoint.path / "weights.json").read_text())["value"]
    if value < 0:
        raise asyncio.CancelledError(f"{checkpoint.name} has no shards")  # no Exception
    (into / "doubled.json").write_text(json.dumps(2 * value))


def load(checkpoint):
    return json.loads((checkpoint.path / "doubled.json").read_text())


def measure(evaluation):
    assert (evaluation.checkpoint.original / "DONE").exists()
    assert sorted(path.name for path in evaluation.checkpoint.path.iterdir()) == ["doubled.json", "half"]
    evaluation.record(value=evaluation.loaded)


tasks = [phyla.EvalTask(f"t{i}", measure, shards=1 + i % 2) for i in range(8)]
suite = phyla.Suite("doubled", tasks, load=load, prepare=double)
"""
NAMES = [f"t{i}" for i in range(8)]


def watch(folder: Path, *more: object, workers: int = 2) -> list[object]:
    (folder / "suites.py").write_text(SUITES)
    fast = ("--format", "marker", "--quiet", "0.5", "--poll", "0.2", "--once")
    return command(
        "watch", folder / "ckpt", "--suite", "suites.py:suite", "--name", "job", "--workers", workers, *fast, *more
    )


def calls(folder: Path) -> list[str]:
    file = folder / "calls"
    return sorted(file.read_text().split()) if file.exists() else []


def values(folder: Path) -> dict[str, list[float]]:
    look = Look(folder)
    found: dict[str, list[float]] = {}
    for task in look.tasks:
        for entry in look.results.get(task.id, ()):
            recorded: Any = entry.statistics["value"]
            if entry.shard == task.shard and task.state is JobState.COMPLETED:
                found.setdefault(look.seen[task.seen].name, []).append(recorded["state"]["mean"])
    return found


def left_over(folder: Path) -> list[Path]:
    return [*(folder / ".phyla" / "prepared" / "job").iterdir()]


def test_eight_eval_tasks_on_two_workers_share_one_preparation(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path / "ckpt", step)
    run(tmp_path, watch(tmp_path), spares=2)
    assert calls(tmp_path) == ["step_1", "step_2", "step_3"]
    assert values(tmp_path) == {f"step_{step}": [2.0 * step] * 12 for step in (1, 2, 3)}
    # What every evaluation has ended with needs no room.
    assert left_over(tmp_path) == []


def failures(folder: Path) -> dict[str, set[str]]:
    look = Look(folder)
    found: dict[str, set[str]] = {}
    for task in look.tasks:
        if task.state is JobState.FAILED:
            found.setdefault(look.seen[task.seen].name, set()).add(str(task.error))
    return found


def test_a_failing_preparation_is_one_failure_and_is_tried_again_with_the_evaluations(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", 1)
    write(tmp_path / "ckpt", 2, value=-1.0)
    words = watch(tmp_path)
    run(tmp_path, words, expect=1, spares=2)
    assert calls(tmp_path) == ["step_1"] + 3 * ["step_2"]
    assert values(tmp_path) == {"step_1": [2.0] * 12}
    ((name, errors),) = failures(tmp_path).items()
    (error,) = errors
    assert name == "step_2"
    assert error.startswith("prepare=double failed: asyncio.exceptions.CancelledError: step_2 has no shards (")
    assert "\n" not in error
    (group,) = (group for group in Look(tmp_path).groups if group.why is not None)
    assert group.why == f"every eval task failed: {', '.join(NAMES)} ({error})"
    page = run(tmp_path, command("evaluations", "job"))
    assert page.count("has no shards") == 1, page
    assert "t0, t1, t2 and 5 more" in page
    assert left_over(tmp_path) == []
    # Restarting the watch retries what failed.
    (tmp_path / "suites.py").write_text(SUITES.replace("if value < 0", "if False"))
    run(tmp_path, words, spares=2)
    assert calls(tmp_path) == ["step_1"] + 4 * ["step_2"]
    assert values(tmp_path) == {"step_1": [2.0] * 12, "step_2": [-2.0] * 12}


@pytest.mark.parametrize("failpoint", ["prepare.before_rename", "prepare.after_rename"])
def test_killed_while_it_prepares(tmp_path: Path, failpoint: str) -> None:
    """Everything is killed at once; the next run uses nothing that is half made, and makes nothing twice."""
    write(tmp_path / "ckpt", 5)
    words = watch(tmp_path, workers=0)
    run(tmp_path, words, failpoint=f"{failpoint}=kill", expect=-signal.SIGKILL)
    run(tmp_path, words)
    assert calls(tmp_path) == ["step_5"] * (2 if failpoint == "prepare.before_rename" else 1)
    assert values(tmp_path) == {"step_5": [10.0] * 12}
    assert left_over(tmp_path) == []


def test_a_worker_that_is_killed_while_it_prepares_loses_nothing(tmp_path: Path) -> None:
    """The other worker waits for it, and takes over."""
    import psutil

    write(tmp_path / "ckpt", 5)
    process = start(tmp_path, watch(tmp_path), HELD=str(tmp_path / "go"), spares=4)
    until(lambda: calls(tmp_path), "a worker prepares", process=process)
    (record,) = (path for path in left_over(tmp_path) if path.suffix == ".json")
    preparing = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if any(Path(opened.path) == record for opened in child.open_files())
    ]
    assert preparing
    holder = json.loads(record.read_text())
    assert (holder["begun"], holder["failed"]) == (1, 0)
    size = next(use for use in disk("job", Places.of(tmp_path / ".phyla")) if use.what == "prepared checkpoints")
    assert size.count == 2
    for child in preparing:
        child.kill()
    until(lambda: len(calls(tmp_path)) > 1, "another attempt", process=process)
    (tmp_path / "go").touch()
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert values(tmp_path) == {"step_5": [10.0] * 12}
    assert set(calls(tmp_path)) == {"step_5"}
    assert left_over(tmp_path) == []


TOML = """
[[suite]]
name = "doubled"
prepare = {prepare}
tasks = [{{ name = "t", command = ["sh", "-c", 'cat "$1/w.json" > "$2"', "sh", "{{checkpoint}}", "{{results}}"] }}]
"""
CONVERT = """
def convert(checkpoint, into):
    (into / "w.json").write_text((checkpoint.path / "weights.json").read_text())
"""


@pytest.mark.parametrize(
    "prepare",
    [
        '"convert.py:convert"',
        '"cp {checkpoint}/weights.json {into}/w.json"',
        '["cp", "{checkpoint}/weights.json", "{into}/w.json"]',
        '{ command = "./convert.sh {checkpoint} {into}", version = "2", timeout_s = 60 }',
    ],
)
def test_a_suite_file_names_a_function_or_a_command(tmp_path: Path, prepare: str) -> None:
    write(tmp_path / "ckpt", 3)
    (tmp_path / "convert.py").write_text(CONVERT)
    (tmp_path / "convert.sh").write_text('#!/bin/sh\ncp "$1/weights.json" "$2/w.json"\n')
    (tmp_path / "convert.sh").chmod(0o755)
    (tmp_path / "suites.toml").write_text(TOML.format(prepare=prepare))
    watched = phyla.watch(
        tmp_path / "ckpt",
        str(tmp_path / "suites.toml"),
        0,
        name="job",
        home=tmp_path / ".phyla",
        format="marker",
        following=phyla.Following(once=True),
    )
    assert watched.complete
    assert values(tmp_path) == {"step_3": [3.0]}


def train(trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "x.txt").write_text(str(trial.params["x"]))
    for step in trial.steps():
        trial.report(loss=0.0, step=step)


def add_one(checkpoint: Any, into: Path) -> None:
    with (checkpoint.path.parents[2] / "calls").open("a") as file:
        file.write(f"{checkpoint.name}\n")
    (into / "y.txt").write_text(str(float((checkpoint.path / "x.txt").read_text()) + 1.0))


def read_y(evaluation: phyla.Evaluation) -> None:
    evaluation.record(y=float((evaluation.checkpoint.path / "y.txt").read_text()))


@pytest.mark.parametrize("workers", [0, rarely(2)])  # above: two workers share one preparation
def test_a_study_takes_its_fitness_from_prepared_checkpoints(tmp_path: Path, workers: int) -> None:
    tasks = [phyla.EvalTask(f"t{i}", read_y) for i in range(3)]
    study = phyla.Study(
        name="job",
        space=phyla.Space(x=phyla.Float(0.0, 1.0)),
        objective=phyla.Maximize("y"),
        strategy=phyla.PBT(
            population_size=2, steps_per_trial=2, total_steps=4, fitness=phyla.FromSuite("fitness", "y_mean")
        ),
        train=train,
        suites=[phyla.Suite("fitness", tasks, prepare=add_one)],
        home=tmp_path / ".phyla",
    )
    results = study.run(workers=workers)
    trials = results.trials()
    drawn: list[Any] = [trial.params["x"] for trial in trials]
    assert [trial.fitness for trial in trials] == [pytest.approx(x + 1.0) for x in drawn]
    made = calls(tmp_path / ".phyla")
    assert {*made} <= {trial.checkpoint for trial in trials}
    assert len({*drawn}) <= len(made) == len({*made})
    # Checkpoints with the same content have the same results, unless they are evaluated at the same time.
    assert workers or len(made) == len({*drawn})
    assert left_over(tmp_path) == []


def test_deleting_a_run_deletes_its_prepared_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", 5)
    run(tmp_path, watch(tmp_path, workers=0))
    store = open_store(f"sqlite:///{tmp_path / '.phyla' / 'phyla.db'}")
    record = Record(
        store=store.identity().id, study=Look(tmp_path).run.id, checkpoint=1, identity="i", preparation="p"
    )
    store.close()
    prepared = PreparedCheckpoints(tmp_path / ".phyla" / "prepared" / "job")
    for owned in (record, replace(record, store="another"), replace(record, study=99)):
        prepared.find_or_make(
            owned, lambda into: (into / "w").touch(), created_at=0.0, max_attempts=1, wait=lambda: False
        )
    foreign = {path.name for path in left_over(tmp_path) if record.name not in path.name}
    # A name that its record does not prove, and what has no record.
    (prepared.folder / f"{'0' * 32}.json").write_text((prepared.folder / f"{record.name}.json").read_text())
    (prepared.folder / ("0" * 32)).mkdir()
    (prepared.folder / f"{record.name}.0123").mkdir()
    output = run(tmp_path, command("delete", "job", "--yes", "job"))
    assert {path.name for path in left_over(tmp_path)} == {*foreign, "0" * 32, f"{'0' * 32}.json"}, output
