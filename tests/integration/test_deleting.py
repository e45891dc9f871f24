"""`phyla delete`: only what is the study's, to the end also after a kill; and `phyla status --disk`."""

import errno
import json
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

import forked
import phyla
from command_line import Phyla
from facts import check_facts, raises
from failing_disk import without_rights
from phyla.checkpoints import LocalCheckpoints
from phyla.errors import CheckpointStorageFailed, StateError
from phyla.settings import child_environment
from phyla.study import Places
from phyla.study.maintaining.delete import delete

MEMBERS, TRIALS = 2, 3


@phyla.eval_task
def measure(evaluation: phyla.Evaluation) -> None:
    evaluation.record(x=float((evaluation.checkpoint.path / "x").read_text()))
    evaluation.save(curve=np.arange(3))


SUITE = phyla.Suite("deep", (measure,), objective=phyla.Maximize("x_mean"))


def train(trial: phyla.Trial) -> None:
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "x").write_text(str(trial.id))
    (trial.working_dir / "scratch").write_text("s")
    trial.report(x=1.0)


def made(home: Path, name: str = "doomed") -> phyla.Study:
    strategy = phyla.PBT(population_size=MEMBERS, steps_per_trial=1, total_steps=TRIALS)
    return phyla.Study(name, {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("x"), strategy, train, home=home,
                       suites=[SUITE], retention=phyla.Retention(every_steps=2))  # fmt: skip


OVERWRITES = """
import phyla

def train(trial): ...

study = phyla.Study("doomed", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("x"),
                    phyla.PBT(population_size=2, steps_per_trial=1, total_steps=3), train)
"""


def left(home: Path) -> list[str]:
    """Return the files below a home, without those of its store."""
    files = (path for path in home.rglob("*") if not path.is_dir())
    return sorted(str(path.relative_to(home)) for path in files if not path.name.startswith("phyla.db"))


def test_what_a_study_takes_and_that_nothing_else_is_deleted(tmp_path: Path, cli: Phyla) -> None:
    made(tmp_path, "other").run()
    untouched = left(tmp_path)
    results = made(tmp_path).run()
    uses = {
        one["what"]: one for one in json.loads(cli("status", "doomed", "--home", tmp_path, "--disk", "--json"))
    }
    kept = [row for row in results.checkpoints() if row.state == "live"]
    found = [one for what, one in uses.items() if what.startswith("checkpoints: ")]
    assert sum(one["count"] for one in found) == len(kept)
    assert sum(one["size_bytes"] for one in found) == sum(row.size_bytes for row in kept)
    assert uses["checkpoints: best"]["count"] == 1
    assert uses["checkpoints: newest of members"]["count"] >= 1
    assert uses["outputs of evaluations"]["count"] == MEMBERS * TRIALS
    assert uses["database"]["size_bytes"] > 0
    mine = tmp_path / "work" / "doomed" / "mine.txt"
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    assert "give --yes doomed" not in cli("delete", "doomed", "--home", tmp_path, "--yes", "other", code=2)
    assert phyla.load_study("doomed", home=tmp_path).counts() == {"completed": MEMBERS * TRIALS}
    said = cli("delete", "doomed", "--home", tmp_path, "--yes", "doomed")
    assert f"deleted doomed: {MEMBERS * TRIALS} trials, " in said
    check_facts(said, f"{mine.parent}: mine.txt")
    assert left(tmp_path) == sorted([*untouched, "work/doomed/mine.txt"])
    assert not (tmp_path / "checkpoints" / "doomed").exists()
    check_facts(cli("delete", "doomed", "--home", tmp_path, "--yes", "doomed", code=2), "doomed")
    assert made(tmp_path).run().counts() == {"completed": MEMBERS * TRIALS}


@pytest.mark.parametrize(
    ("failpoint", "overwrite"), [("delete.after_mark", False), ("checkpoint.before_delete", True)]
)
def test_a_deletion_that_was_killed_goes_on(tmp_path: Path, failpoint: str, overwrite: bool, cli: Phyla) -> None:
    made(tmp_path).run(workers=0)
    command = ["-m", "phyla.cli", "delete", "doomed", "--home", tmp_path, "--yes", "doomed"]
    killed = forked.run(command, env=child_environment({"PHYLA_FAILPOINT": f"{failpoint}=kill"}))
    assert killed.returncode == -signal.SIGKILL
    assert left(tmp_path / "checkpoints" / "doomed")
    # Nobody goes on with what is left of it.
    refused = "'doomed' is being deleted; if that was interrupted, finish it with: phyla "
    for words in (("status", "doomed"), ("change", "doomed")):
        assert f"{refused}--home {tmp_path} delete doomed" in cli(*words, "--home", tmp_path, code=1)
    with raises(StateError, f"{refused}delete"):
        made(tmp_path).run()
    if overwrite:
        results = made(tmp_path).run(overwrite=True)
        assert results.counts() == {"completed": MEMBERS * TRIALS}
    assert "deleted doomed: " in cli("delete", "doomed", "--home", tmp_path, "--yes", "doomed")
    assert left(tmp_path) == []


def refuse(*_: object) -> NoReturn:
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("what", ["checkpoints", "work"])
def test_what_cannot_be_deleted_stays_known_until_it_is(
    tmp_path: Path, what: str, overwrite: bool, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path).run(workers=0)
    before = left(tmp_path / what / "doomed")
    at, function = (Path, "rename") if what == "checkpoints" else (shutil, "rmtree")
    words = ("delete", "doomed", "--home", tmp_path, "--yes", "doomed")
    with monkeypatch.context() as patched:
        patched.setattr(at, function, refuse)
        if overwrite:
            with raises(CheckpointStorageFailed, "Read-only", "phyla delete doomed"):
                made(tmp_path).run(overwrite=True)
        else:
            check_facts(cli(*words, code=1), "Read-only", "delete doomed")
    assert before
    assert left(tmp_path / what / "doomed") == before
    if overwrite:
        made(tmp_path).run(overwrite=True)
    assert "deleted doomed: " in cli(*words)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "words", [("delete", "doomed", "--yes", "doomed"), ("run", "study.py", "--overwrite", "doomed")]
)
@pytest.mark.parametrize("what", ["checkpoints/doomed", "work/doomed", "logs"])
def test_without_rights_nothing_is_deleted(tmp_path: Path, what: str, words: tuple[str, ...], cli: Phyla) -> None:
    home = tmp_path / "home"
    made(home).run(workers=0)
    (home / "logs/doomed").mkdir(parents=True, exist_ok=True)
    before = left(home)
    (home / what).chmod(0o500)
    (tmp_path / "study.py").write_text(OVERWRITES)
    environment = child_environment({"PHYLA_HOME": str(home)})
    done = forked.run(["-m", "phyla.cli", *words], cwd=tmp_path, env=environment, first=without_rights)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    check_facts(done.stderr, "was not deleted", home / what)
    assert {*before} <= {*left(home)}
    assert phyla.load_study("doomed", home=home).state == "completed"
    (home / what).chmod(0o700)
    assert "deleted doomed: " in cli("delete", "doomed", "--home", home, "--yes", "doomed")
    assert left(home) == []


def test_what_others_remove_meanwhile_does_not_fail_a_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path).run(workers=0)
    remove = shutil.rmtree

    def remove_twice(path: Path) -> None:
        remove(path)
        remove(path)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", remove_twice)
        delete("doomed", Places.of(tmp_path))
    assert left(tmp_path) == []


def test_a_new_study_of_that_name_cannot_take_the_directory_that_is_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path).run()
    remove_empty = LocalCheckpoints.remove_empty

    def while_another_begins(checkpoints: LocalCheckpoints) -> None:
        with pytest.raises(StateError, match="is being deleted"):
            made(tmp_path).run()
        remove_empty(checkpoints)

    monkeypatch.setattr(LocalCheckpoints, "remove_empty", while_another_begins)
    delete("doomed", Places.of(tmp_path))
    assert not (tmp_path / "checkpoints" / "doomed").exists()


def test_a_study_whose_checkpoints_are_elsewhere_is_not_deleted(tmp_path: Path, cli: Phyla) -> None:
    made(tmp_path).run(workers=0)
    there, words = tmp_path / "checkpoints" / "doomed", ("delete", "doomed", "--home", tmp_path, "--yes", "doomed")
    there.rename(tmp_path / "elsewhere")
    check_facts(cli(*words, code=1), there)
    assert phyla.load_study("doomed", home=tmp_path).counts() == {"completed": MEMBERS * TRIALS}
    there.mkdir()
    cli("doctor", "doomed", "--adopt", "--home", tmp_path, code=1)  # It lists them as missing.
    assert "deleted doomed: " in cli(*words)


def test_what_is_worked_on_or_watched_is_not_deleted(tmp_path: Path, cli: Phyla) -> None:
    study = made(tmp_path)
    trial = study.ask()
    assert trial is not None
    with raises(StateError, "doomed"):
        delete("doomed", Places.of(tmp_path))
    (trial.checkpoint_dir / "x").write_text("1.0")
    study.tell(trial, metrics={"x": 1.0})
    assert study.launch is not None
    study.launch.close()
    study.run()
    once = phyla.Following(once=True)
    phyla.watch("doomed", SUITE, name="watcher", home=tmp_path, following=once)
    said = cli("delete", "doomed", "--home", tmp_path, "--yes", "doomed", code=1)
    check_facts(said, "watcher", "--home", tmp_path)
    assert phyla.load_study("doomed", home=tmp_path).counts() == {"completed": MEMBERS * TRIALS}
    for name in ("watcher", "doomed"):
        assert f"deleted {name}" in cli("delete", name, "--home", tmp_path, "--yes", name)
    assert [name for name in left(tmp_path) if not name.startswith("watch/")] == []


@pytest.mark.parametrize("named", [False, True])
def test_deleting_a_watched_run_in_a_copied_home_leaves_the_snapshots_of_the_other(
    tmp_path: Path, cli: Phyla, named: bool
) -> None:
    training, home, copied = tmp_path / "training", tmp_path / "home", tmp_path / "copied"
    (training / "step-1").mkdir(parents=True)
    for name in ("x", "done"):
        (training / "step-1" / name).write_text("1")
    held, once = tmp_path / "held" if named else None, phyla.Following(once=True)
    phyla.watch(training, SUITE, name="watched", format="marker", options={"marker": "done"}, home=home,
                snapshot_dir=held, following=once)  # fmt: skip
    shutil.rmtree(training / "step-1")
    shutil.copytree(home, copied)
    assert "deleted watched" in cli("delete", "watched", "--home", copied, "--yes", "watched")
    assert "1 best or waiting for evaluation, none missing" in cli("doctor", "--home", home)
    assert "deleted watched" in cli("delete", "watched", "--home", home, "--yes", "watched")
    assert not list(home.rglob("x"))


@pytest.mark.parametrize("forged", [False, True])
def test_a_watched_directory_keeps_its_checkpoints(tmp_path: Path, cli: Phyla, forged: bool) -> None:
    training, home = tmp_path / "training", tmp_path / "home"
    for step in (100, 200):
        (training / f"step-{step}").mkdir(parents=True)
        (training / f"step-{step}" / "x").write_text(str(step))
        (training / f"step-{step}" / "done").write_text("")
    before = left(training)
    phyla.watch(training, SUITE, name="watched", format="marker", options={"marker": "done"}, home=home,
                following=phyla.Following(once=True))  # fmt: skip
    assert "snapshots" in cli("status", "watched", "--home", home, "--disk")
    if forged:
        # Somebody else who can write to the store says that it is full of snapshots.
        with sqlite3.connect(home / "phyla.db") as db:
            db.execute("UPDATE studies SET config = json_set(config, '$.snapshots', ?)", (str(training),))
            named = "UPDATE checkpoints SET snapshot = 1, path = ? || '/step-' || step"
            assert db.execute(named, (str(training),)).rowcount == 2
    assert "deleted watched: " in cli("delete", "watched", "--home", home, "--yes", "watched")
    assert left(training) == before
    assert forged or [name for name in left(home) if not name.startswith("watch/")] == []
