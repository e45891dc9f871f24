"""A full disk and a read-only one: the study stops with what to do, and goes on when there is room."""

import contextlib
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

import forked
from durability import TOY, check_whole, load, miscounted, run
from effort import rarely
from facts import check_facts
from failing_disk import mounted
from phyla.records import StudyState
from phyla.settings import child_environment
from phyla.store import open_store
from phyla.study import Places
from phyla.study.maintaining.maintain import maintain
from toy_study import STEPS

MEMBERS, TRIALS = 4, 12


def toy(mount: str, home: Path, **options: object) -> "subprocess.CompletedProcess[str]":
    """Run the toy study where `mount` has been done."""
    return python(mount, TOY, json.dumps({"home": str(home), **options}))


def python(mount: str, *words: object) -> "subprocess.CompletedProcess[str]":
    """Run Python where `mount` has been done, which nothing else sees."""
    environment = child_environment({"PYTHONPATH": str(TOY.parent)})
    return forked.run(words, env=environment, first=mounted(mount), timeout=180, spares=2)


def phyla(mount: str, home: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    """Run the command line where `mount` has been done."""
    return python(mount, "-m", "phyla.cli", "--home", home, *words)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Where checkpoints are, an empty directory."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("workers", [rarely(0), 2])
def test_a_disk_that_fills_up(tmp_path: Path, checkpoints: Path, workers: int) -> None:
    mount = f"mount -t tmpfs -o size=100k tmpfs {checkpoints}"
    options: dict[str, Any] = {"members": MEMBERS, "trials": TRIALS}
    done = toy(mount, tmp_path, workers=workers, **options)
    assert done.returncode == 1, done.stderr
    assert "StudyFailed" in done.stderr
    assert "No space left on device" in done.stderr
    assert "make room" in done.stderr
    results = load(tmp_path)
    assert results.state is StudyState.FAILED
    assert all(trial.failures == 0 for trial in results.trials())
    # The small disk went with its namespace, so the study stops until somebody says that it is gone for good.
    assert f"not in {checkpoints / 'toy'}" in run(tmp_path, expect=1, **options)
    (checkpoints / "toy").mkdir()
    maintain("toy", Places.of(tmp_path)).adopt()
    run(tmp_path, **options)
    assert load(tmp_path).state is StudyState.COMPLETED
    assert not miscounted(load(tmp_path), TRIALS * STEPS)


COMMAND = """
name = "toy"
command = ["sh", "-c", "head -c $((600000 + {trial} * 600000)) /dev/zero > {save_to}/model && echo loss=1"]
objective = "minimize loss"
metrics = { loss = "loss=(.*)" }
space = { lr = { low = 0.1, high = 1.0 } }
pbt = { population_size = 2, steps_per_trial = 1, total_steps = 4 }
"""


def test_a_disk_that_a_command_fills_up(tmp_path: Path, checkpoints: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(COMMAND)
    mount = f"mount -t tmpfs -o size=4m tmpfs {checkpoints}"
    done = phyla(mount, tmp_path, "run", file, "--workers", 1)
    assert done.returncode == 1, done.stderr
    assert "CommandFailed" in done.stderr
    assert f"(checkpoint_dir) and {tmp_path}" in done.stderr
    assert "No space left on device; room or inodes are used up: make room" in done.stderr
    results = load(tmp_path)
    assert results.state is StudyState.FAILED
    assert all(trial.failures == 0 for trial in results.trials())


ENDS = """
import os
import phyla

def train(trial):
    with (trial.working_dir / "fill").open("wb", 0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                os._exit(1)

pbt = phyla.PBT(population_size=2, steps_per_trial=1, total_steps=4)
study = phyla.Study("toy", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), pbt, train=train)
"""


@pytest.mark.thorough  # above: a disk that fills up under workers
def test_a_worker_that_ends_where_there_is_no_room_costs_no_attempt(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "study.py"
    home.mkdir()
    file.write_text(ENDS)
    storage = f"sqlite:///{tmp_path}/phyla.db"
    places = ["--storage", storage, "--checkpoints", tmp_path / "checkpoints"]
    done = phyla(f"mount -t tmpfs -o size=4m tmpfs {home}", home, *places, "run", file, "--workers", 1)
    assert done.returncode == 1, done.stderr
    assert "No space left on device" in done.stderr
    with contextlib.closing(open_store(storage)) as store, store.reader(1) as reader:
        assert [trial.failures for trial in reader.trials()] == [0]


def test_a_disk_without_inodes(tmp_path: Path, checkpoints: Path) -> None:
    # There is room for the marker, and for no directory beside that of staged checkpoints.
    mount = f"mount -t tmpfs -o size=8m,nr_inodes=4 tmpfs {checkpoints}"
    done = toy(mount, tmp_path, members=MEMBERS, trials=TRIALS)
    assert done.returncode == 1, done.stderr
    assert "No space left on device" in done.stderr
    assert "inodes are used up" in done.stderr


def test_a_read_only_place_for_checkpoints(tmp_path: Path, checkpoints: Path) -> None:
    mount = f"mount -t tmpfs -o ro tmpfs {checkpoints}"
    done = toy(mount, tmp_path, members=MEMBERS, trials=TRIALS, workers=2)
    assert done.returncode == 1, done.stderr
    assert "Read-only file system" in done.stderr
    assert str(checkpoints) in done.stderr
    run(tmp_path, members=MEMBERS, trials=TRIALS)
    results = load(tmp_path)
    check_whole(results, members=MEMBERS, trials=TRIALS)
    assert all(trial.failures == 0 for trial in results.trials())


def test_a_read_only_home_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    mount = f"mount --bind {home} {home} && mount -o remount,bind,ro {home}"
    done = toy(mount, home / "inner", members=1, trials=1)
    assert done.returncode == 1
    assert "Read-only file system" in done.stderr


def test_a_study_can_be_looked_at_on_a_disk_that_is_full(tmp_path: Path) -> None:
    home, small = tmp_path / "home", tmp_path / "small"
    run(home, members=2, trials=2)
    small.mkdir()
    files = f"cp -r {home}/. {small} && (cat /dev/zero > {small}/fill 2>/dev/null; true)"
    full = f"mount -t tmpfs -o size=16m tmpfs {small} && {files}"
    done = phyla(full, small, "status", "toy")
    assert (done.returncode, done.stderr) == (0, "")
    assert "toy: completed" in done.stdout
    refused = phyla(full, small, "delete", "toy", "--yes", "toy")
    assert refused.returncode == 1
    assert "free some space" in refused.stderr


@pytest.mark.parametrize("running", [rarely(False), True])
def test_what_may_only_be_read_can_be_looked_at(tmp_path: Path, running: bool) -> None:
    home, report = tmp_path / "a home", tmp_path / "report.html"
    run(home, members=2, trials=2)
    mount = f"mount --bind {shlex.quote(str(home))} {shlex.quote(str(home))} && mount -o remount,bind,ro"
    read_only = f"{mount} {shlex.quote(str(home))}"

    with contextlib.ExitStack() as stack:
        if running:
            store = stack.enter_context(contextlib.closing(open_store(Places.of(home).storage)))
            assert store.studies()
        assert (home / "phyla.db-wal").exists() == running
        for words in (["status", "toy"], ["best", "toy"], ["report", "toy", "-o", report]):
            done = phyla(read_only, home, *words)
            assert (done.returncode, done.stderr) == (0, ""), words
        assert report.stat().st_size
        refused = phyla(read_only, home, "delete", "toy", "--yes", "toy")
    assert refused.returncode == 1
    check_facts(refused.stderr, home / "checkpoints" / "toy", "read-only")
    assert load(home).state is StudyState.COMPLETED
