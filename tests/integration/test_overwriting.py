"""A training function that was edited, and a study that is restarted."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from command_line import Phyla
from facts import check_facts, raises
from listing import list_studies
from phyla.checkpoints.ownership import OWNER_NAME
from phyla.controller import Controller
from phyla.errors import (
    CheckpointMissing,
    CheckpointsAbsent,
    ConfigurationError,
    LauncherFailed,
    NotImportable,
    StateError,
)
from phyla.launchers import Pool
from phyla.records import StudyKind
from phyla.settings import child_environment
from phyla.store import open_store
from phyla.study.maintaining.delete import overwrite

CELL = """
def train(trial):
    (trial.checkpoint_dir / "weights.txt").write_text("{score}")
    (trial.working_dir / "log.txt").write_text("{score}")
    trial.report(score={score})
"""
STUDY = """
import phyla

study = phyla.Study(
    "cell", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"),
    phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2), train,
)
"""


def cell(score: float) -> Callable[..., Any]:
    """What a cell of a notebook defines."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(CELL.format(score=score), namespace)
    found: Callable[..., Any] = namespace["train"]
    return found


def study(home: Path, train: Callable[..., Any], **options: Any) -> phyla.Study:
    strategy = phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2)
    space = {"lr": phyla.Float(0.1, 1.0)}
    return phyla.Study("cell", space, phyla.Maximize("score"), strategy, train, home=home, **options)


def scores(results: phyla.Results) -> set[float | None]:
    return {trial.fitness for trial in results.trials()}


def files(home: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and not path.name.startswith("phyla.db")
    }


def test_a_cell_that_is_run_again_says_nothing_unless_train_was_edited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study(tmp_path, cell(1.0)).run()
    study(tmp_path, cell(1.0)).run()
    assert "edited" not in caplog.text


@pytest.mark.parametrize("again", [1, 2])
def test_an_edited_train_on_a_complete_study_is_told_that_it_sees_the_stored_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, again: int
) -> None:
    study(tmp_path, cell(1.0)).run()
    for _ in range(again):
        caplog.clear()
        assert scores(study(tmp_path, cell(2.0)).run()) == {1.0}
    (said,) = [record.getMessage() for record in caplog.records if "edited" in record.getMessage()]
    check_facts(said, "train()")
    assert "study.run(overwrite=True)" in said
    findings = phyla.load_study("cell", home=tmp_path).findings()
    assert "code" not in {one.kind for one in findings}, "nothing was trained by the edited function"


def test_an_edited_train_on_a_study_that_goes_on_is_told_what_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = study(tmp_path, cell(1.0))
    trial = first.ask()
    assert trial is not None
    (trial.checkpoint_dir / "weights.txt").write_text("1.0")
    first.tell(trial, metrics={"score": 1.0})
    results = study(tmp_path, cell(2.0)).run()
    assert "earlier trials were trained by the old code" in caplog.text
    assert scores(results) == {1.0, 2.0}


def test_overwriting_starts_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = phyla.Study("other", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"),
                        phyla.RandomSearch(members=1, total_steps=1), cell(7.0), home=tmp_path).run()  # fmt: skip
    untouched = {name: content for name, content in files(tmp_path).items() if "other" in Path(name).parts}
    assert untouched
    old = study(tmp_path, cell(1.0)).run()
    taken = {trial.id for trial in old.trials()}
    results = study(tmp_path, cell(2.0)).run(overwrite=True)
    check_facts(caplog.text, "cell", "4")
    assert "left alone" not in caplog.text
    assert "edited" not in caplog.text
    assert scores(results) == {2.0}
    assert results.counts() == {"completed": 4}
    assert taken.isdisjoint(trial.id for trial in results.trials())
    assert scores(other) == {7.0}
    found = files(tmp_path)
    assert {name: content for name, content in found.items() if "other" in Path(name).parts} == untouched
    assert {content for name, content in found.items() if name.endswith(".txt") and name not in untouched} == {
        b"2.0"
    }
    caplog.clear()
    study(tmp_path, cell(2.0)).run()
    assert "edited" not in caplog.text


def test_a_study_whose_checkpoints_are_out_of_sight_is_not_overwritten(tmp_path: Path) -> None:
    study(tmp_path, cell(1.0)).run()
    (tmp_path / "checkpoints").rename(tmp_path / "unmounted")
    with pytest.raises(CheckpointsAbsent, match=r"are not in .*no such directory"):
        study(tmp_path, cell(2.0)).run(overwrite=True)
    (tmp_path / "unmounted").rename(tmp_path / "checkpoints")
    assert scores(study(tmp_path, cell(2.0)).run()) == {1.0}
    assert scores(study(tmp_path, cell(2.0)).run(overwrite=True)) == {2.0}


def test_one_study_can_be_run_and_overwritten(tmp_path: Path) -> None:
    one = study(tmp_path, cell(1.0))
    before = {trial.id for trial in one.run().trials()}
    assert before.isdisjoint(trial.id for trial in one.run(overwrite=True).trials())
    assert study(tmp_path / "new", cell(1.0)).run(overwrite=True).counts() == {"completed": 4}
    memory = study(tmp_path / "memory", cell(1.0), storage="memory://")
    assert memory.run(overwrite=True).counts() == {"completed": 4}


def test_a_watched_directory_of_that_name_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    suite = phyla.Suite("heldout", [phyla.EvalTask("none", command=["true"])])
    phyla.watch(tmp_path / "run", suite, name="cell", home=tmp_path, following=phyla.Following(once=True))
    with raises(ConfigurationError, "cell"):
        study(tmp_path, cell(1.0)).run(overwrite=True)
    found = phyla.load_evaluations("cell", home=tmp_path)
    assert found.run.location == str(tmp_path / "run")


def test_studies_and_watched_runs_are_listed_apart(tmp_path: Path, cli: Phyla) -> None:
    (tmp_path / "run").mkdir()
    suite = phyla.Suite("heldout", [phyla.EvalTask("none", command=["true"])])
    phyla.watch(tmp_path / "run", suite, home=tmp_path, following=phyla.Following(once=True))
    study(tmp_path, cell(1.0)).run()
    assert [one.name for one in list_studies(tmp_path)] == ["cell"]
    told = json.loads(cli("--home", tmp_path, "status", "--json"))
    assert [one.get("study", one.get("run")) for one in told] == ["cell", "run"]


def test_what_phyla_did_not_make_is_left_alone_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    study(tmp_path, cell(1.0)).run(workers=0)
    mine = [tmp_path / path / "cell" / "mine.txt" for path in ("checkpoints", "work", "logs")]
    mine.append(tmp_path / "checkpoints" / "cell" / "data" / "images.bin")
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (tmp_path / "logs" / "cell" / "worker-0.log").write_text("of an earlier worker")
    store = open_store(f"sqlite:///{tmp_path}/phyla.db")
    overwrite(study(tmp_path, cell(1.0)).declared)
    assert store.find_study("cell") is None
    store.close()
    assert [path.read_text() for path in mine] == ["mine"] * 4
    assert len([name for name in files(tmp_path) if not name.endswith(OWNER_NAME)]) == len(mine)
    for name in ("checkpoints/cell: data, mine.txt", "work/cell: mine.txt", "logs/cell: mine.txt"):
        assert any(said.endswith(name) for said in caplog.messages), name


def test_a_study_that_others_train_is_not_overwritten(tmp_path: Path) -> None:
    first = study(tmp_path, cell(1.0))
    trial = first.ask()
    assert trial is not None
    (trial.checkpoint_dir / "weights.txt").write_text("1.0")
    first.tell(trial, metrics={"score": 1.0})
    store = open_store(f"sqlite:///{tmp_path}/phyla.db")
    record = store.find_study("cell")
    assert record is not None
    Controller(store, record.id, first.rules, record.config).claim("elsewhere:0:1:1")
    before = files(tmp_path)
    with raises(StateError, "cell", "elsewhere:0:1:1"):
        study(tmp_path, cell(2.0)).run(overwrite=True)
    assert files(tmp_path) == before
    with store.reader(record.id) as reader:
        assert reader.counts() == {"completed": 1, "running": 1}
    store.close()


def test_what_could_not_run_deletes_nothing(tmp_path: Path) -> None:
    results = study(tmp_path, cell(1.0)).run()
    before = files(tmp_path)
    with pytest.raises(NotImportable):
        study(tmp_path, lambda trial: None).run(workers=1, overwrite=True)
    best = results.best
    assert best is not None
    with raises(ConfigurationError, "cell"):
        study(tmp_path, cell(1.0), start_from=[best.checkpoint.path]).run(overwrite=True)
    with raises(CheckpointMissing, "gone"):
        study(tmp_path, cell(1.0), start_from=[tmp_path / "gone"]).run(overwrite=True)
    with raises(ConfigurationError, "start_from"):
        study(tmp_path, cell(1.0), start_from=[__file__] * 3).run(overwrite=True)
    assert files(tmp_path) == before
    assert results.counts() == {"completed": 4}


@pytest.mark.parametrize(
    ("launcher", "more", "error"),
    [
        ("local", {"options": {"queue": "long"}}, ConfigurationError),
        ("slurm", {"options": {"array": "1-2"}}, ConfigurationError),
        ("slurm", {}, LauncherFailed),
        ("kubernetes", {}, ConfigurationError),
        ("kubernetes", {"options": {"image": "study"}}, LauncherFailed),
        ("ray", {"gpus": 1.5}, ConfigurationError),
    ],
)
def test_a_pool_that_could_not_be_started_deletes_nothing(
    launcher: str, more: dict[str, Any], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    results = study(home, cell(1.0)).run()
    before = files(home)
    monkeypatch.setenv("PATH", "")  # no engine is installed
    pool = Pool(name="cell", launcher=launcher, command=[], workers=1, folder=tmp_path / "cell", **more)
    with pytest.raises(error):
        study(home, cell(2.0)).run(overwrite=True, pool=pool)
    assert files(home) == before
    assert results.counts() == {"completed": 4}
    assert Pool.load(pool.folder) is None


@pytest.mark.thorough  # test_silent_mistakes.py: the same with a file
def test_another_session_sees_that_train_was_edited(tmp_path: Path) -> None:
    def session(score: float, call: str) -> "subprocess.CompletedProcess[str]":
        # From standard input, so that no file has the source, as in an interactive session.
        code = CELL.format(score=score) + STUDY + f"print({call}.best.fitness)\n"
        return subprocess.run(
            [sys.executable, "-"],
            input=code,
            cwd=tmp_path,
            env=child_environment({"PYTHONPATH": str(Path(phyla.__file__).parents[1])}),
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        )

    assert "edited" not in session(1.0, "study.run()").stderr
    same = session(1.0, "study.run()")
    assert ("edited" in same.stderr, same.stdout) == (False, "1.0\n")
    edited = session(2.0, "study.run()")
    check_facts(edited.stderr, "train()")
    assert edited.stdout == "1.0\n"
    assert session(2.0, "study.run(overwrite=True)").stdout == "2.0\n"


def test_the_command_line_asks_for_the_name_again(
    tmp_path: Path, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(score: float, *words: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "cell.py").write_text(CELL.format(score=score) + STUDY)
        return forked.run(["-m", "phyla.cli", "run", "cell.py", "--workers", 0, *words], cwd=tmp_path)

    def best() -> float:
        return float(json.loads(cli("best", "cell", "--json"))["fitness"])

    assert run(1.0).returncode == 0
    edited = run(2.0)
    assert "--overwrite cell" in edited.stderr
    wrong = run(2.0, "--overwrite", "all")
    assert wrong.returncode == 2
    check_facts(wrong.stderr, "--overwrite", "cell")
    missing = run(2.0, "--overwrite")
    assert missing.returncode == 2
    assert best() == 1.0
    anew = run(2.0, "--overwrite", "cell")
    assert anew.returncode == 0
    assert "restarting study 'cell' from scratch" in anew.stderr
    assert best() == 2.0


def test_what_is_watched_under_the_name_of_a_study_is_neither_overwritten_nor_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    store = open_store(f"sqlite:///{tmp_path / 'phyla.db'}")
    watched = store.create_study("cell", {}, kind=StudyKind.DIRECTORY, location=str(tmp_path / "ckpt"))
    store.close()
    for overwriting in (False, True):
        with raises(ConfigurationError, "cell"):
            study(tmp_path, cell(1.0)).run(overwrite=overwriting)
    assert open_store(f"sqlite:///{tmp_path / 'phyla.db'}").studies() == [watched]
    assert not (tmp_path / "checkpoints" / "cell").exists()
    assert list_studies(tmp_path) == []
