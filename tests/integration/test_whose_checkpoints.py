"""What is not this study's is never touched, and what is out of sight is not lost."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from command_line import Phyla
from facts import check_facts, raises
from listing import list_studies
from phyla.checkpoints import LocalCheckpoints
from phyla.checkpoints.ownership import OWNER_NAME
from phyla.controller import StudyRecords
from phyla.errors import CheckpointsAbsent, CheckpointsNotOurs
from phyla.records import CheckpointState, GroupState, StudyState
from phyla.settings import child_environment
from phyla.study import Places, Results, load_study
from phyla.study.maintaining.delete import delete
from phyla.study.maintaining.maintain import maintain

MEMBERS, TRIALS = 3, 4


def train(trial: phyla.Trial) -> None:
    """Remember every trial that made the weights."""
    chain = json.loads((trial.source.path / "chain.json").read_text()) if trial.source else []
    chain.append(trial.params["lr"])
    (trial.checkpoint_dir / "chain.json").write_text(json.dumps(chain))
    trial.report(score=sum(chain))


def study(home: Path, function: Any = train, *, trials: int = TRIALS, **options: Any) -> phyla.Study:
    strategy = phyla.PBT(
        population_size=MEMBERS,
        steps_per_trial=1,
        total_steps=trials,
        exploit=phyla.Truncation(0.4),
        quorum=1.0,
    )
    return phyla.Study(
        "mine", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), strategy, function, home=home, **options
    )


def interrupted(home: Path, *, after: int = 2, **options: Any) -> None:
    """Run a study until some member has completed so many trials."""

    def until(trial: phyla.Trial) -> None:
        if trial.generation == after:
            raise KeyboardInterrupt
        train(trial)

    with pytest.raises(KeyboardInterrupt):
        study(home, until, **options).run()


def tree(folder: Path) -> dict[str, Any]:
    """Return everything below a folder: content, and when it was changed."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }


def facts(results: Results) -> tuple[Any, ...]:
    """Return what a study decided, without times and the names of checkpoints."""
    return (
        results.study().state,
        [(row.name, row.state) for row in results.checkpoints()],
        [(row.id, row.state, row.token, row.failures, row.params, row.fitness) for row in results.trials()],
        [(row.job, row.token, row.state) for row in results.attempts()],
    )


def history(results: Results) -> list[tuple[Any, ...]]:
    """Return what members trained, however often they were interrupted."""
    rows = [row for row in results.trials() if row.state == "completed"]
    return sorted((row.member, row.generation, sorted(row.params.items()), row.fitness) for row in rows)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return history(study(tmp_path_factory.mktemp("undisturbed")).run())


# --- what is not ours


def test_a_data_set_of_that_name_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data" / "mine"
    for name in ("train", "test", "4.1"):
        (data / name).mkdir(parents=True)
        (data / name / "images.bin").write_bytes(b"precious")
    before = tree(data)
    with raises(CheckpointsNotOurs, data, "4.1", "test", "train", "--checkpoints") as error:
        study(tmp_path / "home", checkpoints=tmp_path / "data").run()
    assert "--adopt" not in str(error.value)
    assert tree(data) == before
    assert list_studies(tmp_path / "home") == []


def test_what_somebody_puts_into_the_directory_is_never_touched(tmp_path: Path) -> None:
    interrupted(tmp_path)
    root = tmp_path / "checkpoints" / "mine"
    mine = [
        root / "backup",
        root / "4.1",
        root / "1.1.0123456789ab",
        root / ".staging/4.2",
        root / ".deleting/4.3",
    ]
    for folder in mine:
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"mine")
    (root / "notes.txt").write_text("mine")
    before = [tree(folder) for folder in mine]
    with pytest.warns(UserWarning, match=r"5 directories .* 'mine' are not known to this store.*left alone"):
        study(tmp_path).run()
    assert [tree(folder) for folder in mine] == before
    assert (root / "notes.txt").read_text() == "mine"


def test_the_second_store_under_one_name_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    interrupted(tmp_path / "first", checkpoints=shared)
    before = tree(shared)
    for _ in range(2):
        with raises(CheckpointsNotOurs, f"{shared}/mine"):
            study(tmp_path / "second", checkpoints=shared).run()
        with pytest.raises(CheckpointsNotOurs):
            study(tmp_path / "second", checkpoints=shared).ask()
    assert tree(shared) == before
    assert study(tmp_path / "first", checkpoints=shared).run().state is StudyState.COMPLETED


def test_a_copied_home_is_refused_alike_by_run_change_and_doctor(tmp_path: Path) -> None:
    interrupted(tmp_path / "home")
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    with pytest.raises(CheckpointsNotOurs, match="of which this store is a copy") as refused:
        study(tmp_path / "copy").run()
    with pytest.raises(CheckpointsNotOurs) as change_refused:
        study(tmp_path / "copy", trials=TRIALS + 1).change()
    assert str(change_refused.value) == str(refused.value)
    assert not load_study("mine", home=tmp_path / "copy").changes()
    # The command that adopts it names the copy.
    findings = json.loads(command(tmp_path, "doctor", "mine", "--home", tmp_path / "copy", "--json").stdout)
    (failed,) = (finding for finding in findings if finding["verdict"] == "fail")
    check_facts(failed["text"], f"phyla --home {tmp_path / 'copy'} doctor mine --adopt")

    shutil.rmtree(tmp_path / "home" / "checkpoints")
    assert study(tmp_path / "home", trials=TRIALS + 1).change()  # others may see them


def test_deleting_the_study_of_a_copied_home_counts_no_checkpoints_that_stay(tmp_path: Path, cli: Phyla) -> None:
    study(tmp_path / "a").run()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    checkpoints = [tmp_path / home / "checkpoints" for home in ("a", "b")]
    before = [tree(folder) for folder in checkpoints]
    said = cli("delete", "mine", "--home", tmp_path / "b", "--yes", "mine").splitlines()
    check_facts(said[0], "deleted mine", f"{MEMBERS * TRIALS} trials")
    assert "checkpoint" not in said[0]
    check_facts(said[1:], checkpoints[1] / "mine")
    assert [tree(folder) for folder in checkpoints] == before


def test_studies_in_memory_can_follow_each_other(tmp_path: Path) -> None:
    first = study(tmp_path, storage="memory://").run()
    kept = {row.name for row in first.checkpoints() if row.state is CheckpointState.LIVE}
    with pytest.warns(UserWarning, match="left alone"):
        second = study(tmp_path, storage="memory://").run()
    assert history(first) == history(second)
    assert kept <= {path.name for path in (tmp_path / "checkpoints" / "mine").iterdir()}


@pytest.mark.parametrize("how", ["cp", "mv"])
def test_a_restored_backup_deletes_nothing(tmp_path: Path, how: str, undisturbed: list[tuple[Any, ...]]) -> None:
    # In processes of their own, so that the database is closed when it is copied.
    (tmp_path / "study.py").write_text(STUDY_FILE)
    words = ["run", "study.py", "--workers", 0, "--home", tmp_path]
    root, database = tmp_path / "checkpoints" / "mine", tmp_path / "phyla.db"
    assert command(tmp_path, *words, STOP_AT="1").returncode == 130
    backup = Path(shutil.copy(database, tmp_path / "backup.db"))
    assert command(tmp_path, *words).returncode == 0
    assert list(tmp_path.glob("phyla.db-wal")) == []
    kept = {path.name for path in root.iterdir() if path.name[0].isdecimal()}
    if how == "cp":
        shutil.copy(backup, database)
    else:
        backup.replace(database)
    before, was = tree(root), facts(load_study("mine", home=tmp_path))

    with raises(CheckpointsNotOurs, "phyla doctor mine --adopt"):
        study(tmp_path, retention=phyla.Retention(every_steps=1)).run()
    assert tree(root) == before
    assert facts(load_study("mine", home=tmp_path)) == was

    adopted = command(tmp_path, "doctor", "mine", "--adopt", "--home", tmp_path).stdout
    check_facts(adopted, root, "mine")
    assert all(name in adopted for name in kept if name not in {row[0] for row in was[1]})
    with pytest.warns(UserWarning, match="left alone"):
        results = study(tmp_path, retention=phyla.Retention(every_steps=1)).run()
    assert kept <= {path.name for path in root.iterdir()}
    assert {name: one for name, one in tree(root).items() if name.split("/")[0] in kept} == {
        name: one for name, one in before.items() if name.split("/")[0] in kept
    }
    assert history(results) == undisturbed


def test_adopting_takes_no_data_set_and_no_other_study(tmp_path: Path) -> None:
    interrupted(tmp_path)
    root = tmp_path / "checkpoints" / "mine"
    (tmp_path / "data" / "mine").mkdir(parents=True)
    (tmp_path / "data" / "mine" / "images").write_bytes(b"precious")
    with pytest.raises(CheckpointsNotOurs, match="images"):
        maintain("mine", Places.of(tmp_path, checkpoints=tmp_path / "data")).adopt()
    other = tmp_path / "other"
    phyla.Study(
        "theirs",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.RandomSearch(1, 1),
        train,
        home=other,
    ).run()
    (other / "checkpoints" / "theirs").rename(other / "checkpoints" / "mine")
    with raises(CheckpointsNotOurs, "theirs"):
        maintain("mine", Places.of(tmp_path, checkpoints=other / "checkpoints")).adopt()
    # One that lost its marker, as by `cp -r mine/* there`, is ours.
    (root / ".phyla-owner.json").unlink()
    with pytest.raises(CheckpointsNotOurs, match="no marker"):
        study(tmp_path).run()
    assert "only checkpoints in it" in maintain("mine", Places.of(tmp_path)).adopt()
    assert study(tmp_path).run().state is StudyState.COMPLETED


@pytest.mark.parametrize("when", ["before it saves", "before it commits"])
def test_nothing_is_written_into_what_takes_the_place_of_the_directory(tmp_path: Path, when: str) -> None:
    root, away = tmp_path / "checkpoints" / "mine", tmp_path / "away"
    before: dict[str, Any] = {}

    def replaced(trial: phyla.Trial) -> None:
        staged = trial.checkpoint_dir if when == "before it commits" else None
        if trial.generation == 2 and not away.exists():
            root.rename(away)
            # As another study's, which has directories of the same names.
            (root / ".staging").mkdir(parents=True)
            (root / ".staging" / "4.2").mkdir()
            if staged is not None:
                shutil.copytree(away / ".staging" / staged.name, staged)
                (staged / "weights").write_bytes(b"theirs")
            before.update(tree(root))
        if staged is None:
            train(trial)
        else:
            trial.report(score=1.0)
            if not away.exists():
                (staged / "chain.json").write_text("[]")

    with pytest.raises(CheckpointsNotOurs, match=str(root)):
        study(tmp_path, replaced).run()
    found = tree(root)
    if when == "before it commits":
        # What this store staged is its own, wherever it is.
        before = {name: one for name, one in before.items() if name in found}
    assert found == before
    shutil.rmtree(root)
    away.rename(root)
    assert study(tmp_path).run().state is StudyState.COMPLETED


def test_a_deleted_checkpoint_that_is_there_again_is_left_alone_and_listed(tmp_path: Path, cli: Phyla) -> None:
    results = study(tmp_path).run()
    root = tmp_path / "checkpoints" / "mine"
    deleted = [row.name for row in results.checkpoints() if row.state is CheckpointState.DELETED]
    kept = next(row.name for row in results.checkpoints() if row.state is CheckpointState.LIVE)
    shutil.copytree(root / kept, root / deleted[0])
    before = tree(root)
    study(tmp_path, trials=TRIALS).run()
    assert tree(root) == before
    check_facts(cli("doctor", "mine", "--home", tmp_path), deleted[0])


# --- what is out of sight


def test_a_checkpoint_that_comes_back_while_it_is_looked_for_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path)
    root, away = tmp_path / "checkpoints" / "mine", tmp_path / "away"
    real = LocalCheckpoints.path
    moved: list[str] = []

    def path(self: LocalCheckpoints, name: str) -> Path:
        """Find nothing once, as where a mount is away for a moment."""
        if not moved:
            moved.append(name)
            root.rename(away)
            try:
                return real(self, name)
            finally:
                away.rename(root)
        return real(self, name)

    monkeypatch.setattr(LocalCheckpoints, "path", path)
    results = study(tmp_path).run()
    assert moved
    assert {row.state for row in results.checkpoints()} <= {CheckpointState.LIVE, CheckpointState.DELETED}
    assert {row.state for row in results.trials()} == {"completed"}


def test_a_home_that_was_moved_still_works(tmp_path: Path, undisturbed: list[tuple[Any, ...]]) -> None:
    interrupted(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert history(study(tmp_path / "there").run()) == undisturbed


STUDY_FILE = """
import json, os
from pathlib import Path

import phyla

AWAY = os.environ.get("AWAY")


def train(trial):
    if str(trial.generation) == os.environ.get("STOP_AT"):
        raise KeyboardInterrupt
    chain = json.loads((trial.source.path / "chain.json").read_text()) if trial.source else []
    chain.append(trial.params["lr"])
    if trial.generation == 2 and AWAY and not Path(AWAY).exists():
        trial.checkpoint_dir.parents[1].rename(AWAY)
    (trial.checkpoint_dir / "chain.json").write_text(json.dumps(chain))
    trial.report(score=sum(chain))


study = phyla.Study(
    "mine",
    {"lr": phyla.Float(0.1, 1.0)},
    phyla.Maximize("score"),
    phyla.PBT(
        population_size=3, steps_per_trial=1, total_steps=4, exploit=phyla.Truncation(0.4), quorum=1.0
    ),
    train,
    retention=phyla.Retention(every_steps=1),
)
"""


def command(folder: Path, *words: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    return forked.run(["-m", "phyla.cli", *words], cwd=folder, env=child_environment(environment), spares=1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_directory_that_vanishes_while_it_is_used_and_comes_back(
    tmp_path: Path, workers: int, undisturbed: list[tuple[Any, ...]]
) -> None:
    (tmp_path / "study.py").write_text(STUDY_FILE)
    root, away = tmp_path / ".phyla" / "checkpoints" / "mine", tmp_path / "away"
    words = ["run", "study.py", "--workers", workers]
    stopped = command(tmp_path, *words, AWAY=str(away))
    assert stopped.returncode == 1, stopped.stderr
    check_facts(stopped.stderr, "mine", root, os.uname().nodename)
    assert "Traceback" not in stopped.stderr
    assert not root.exists()
    results = load_study("mine", home=tmp_path / ".phyla")
    assert {row.state for row in results.checkpoints()} <= {CheckpointState.LIVE, CheckpointState.DELETED}
    assert {(row.state, row.failures) for row in results.trials()} == {("completed", 0), ("pending", 0)}
    assert results.study().state is StudyState.STOPPED

    was = facts(results)
    again = command(tmp_path, *words)
    assert again.returncode == 1
    assert f"not in {root}" in again.stderr
    assert facts(load_study("mine", home=tmp_path / ".phyla")) == was

    away.rename(root)
    done = command(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert history(load_study("mine", home=tmp_path / ".phyla")) == undisturbed


def test_a_run_from_another_directory_stops_before_it_decides_anything(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "study.py").write_text(STUDY_FILE)
    storage = f"sqlite:///{tmp_path}/shared.db"
    command(here, "run", "study.py", "--workers", 0, AWAY=str(tmp_path / "away"), PHYLA_STORAGE=storage)
    (tmp_path / "away").rename(here / ".phyla" / "checkpoints" / "mine")
    was = facts(load_study("mine", storage=storage))

    stopped = command(there, "run", "study.py", "--workers", 1, PHYLA_STORAGE=storage)
    assert stopped.returncode == 1
    assert f"not in {there}/.phyla/checkpoints/mine on {os.uname().nodename}" in stopped.stderr
    assert "--checkpoints" in stopped.stderr
    assert facts(load_study("mine", storage=storage)) == was
    assert not (there / ".phyla" / "checkpoints").exists()
    shown = command(there, "best", "mine", PHYLA_STORAGE=storage).stdout
    assert f"{there}/.phyla/checkpoints/mine/" in shown
    assert "(not found on this machine)" in shown
    examined = command(there, "doctor", PHYLA_STORAGE=storage)
    assert (examined.returncode, "are not in" in examined.stdout) == (1, True)

    place = here / ".phyla" / "checkpoints"
    done = command(there, "run", "study.py", "--workers", 1, "--checkpoints", place, PHYLA_STORAGE=storage)
    assert done.returncode == 0, done.stderr
    assert f"--checkpoints {place}" in done.stdout
    assert "not found" not in done.stdout
    assert load_study("mine", storage=storage).state is StudyState.COMPLETED


def test_no_second_directory_is_made_while_the_first_trial_is_trained(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    storage = f"sqlite:///{tmp_path}/shared.db"
    refused: list[str] = []

    def start_elsewhere(trial: phyla.Trial) -> None:
        if not refused:
            with raises(CheckpointsAbsent, "mine", f"{there}/checkpoints/mine", "--checkpoints") as error:
                study(there, storage=storage).ask()
            refused.append(str(error.value))
        train(trial)

    results = study(here, start_elsewhere, storage=storage).run()
    assert refused
    assert not (there / "checkpoints").exists()
    assert results.counts() == {"completed": MEMBERS * TRIALS}


@pytest.mark.parametrize("looked_at_before", [False, True])
def test_who_asks_first_has_the_directory(tmp_path: Path, looked_at_before: bool) -> None:
    here, there, storage = tmp_path / "here", tmp_path / "there", f"sqlite:///{tmp_path}/shared.db"
    if looked_at_before:
        # To look at a study makes it, but no directory.
        assert study(there, storage=storage).results().counts() == {}
    assert study(here, storage=storage).ask() is not None
    begins: tuple[Callable[[phyla.Study], object], ...] = (phyla.Study.ask, phyla.attach)
    for begin in begins:
        with raises(CheckpointsAbsent, f"{here}/checkpoints/mine", f"{there}/checkpoints/mine"):
            begin(study(there, storage=storage))
    assert not (there / "checkpoints").exists()


def test_who_is_overtaken_is_refused_before_anything_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_directory = StudyRecords.set_directory

    def overtaken(records: StudyRecords, directory: str, before: str) -> str:
        set_directory(records, "/data on another", before)
        return set_directory(records, directory, before)

    monkeypatch.setattr(StudyRecords, "set_directory", overtaken)
    with raises(CheckpointsAbsent, f"{tmp_path}/checkpoints/mine", "/data on another"):
        study(tmp_path).ask()
    assert load_study("mine", home=tmp_path).trials() == []


def test_a_study_that_was_interrupted_without_a_checkpoint_continues_elsewhere_once_it_is_adopted(
    tmp_path: Path,
) -> None:
    here, there, storage = tmp_path / "here", tmp_path / "there", f"sqlite:///{tmp_path}/shared.db"
    interrupted(here, after=0, storage=storage)
    with raises(CheckpointsAbsent, f"{here}/checkpoints/mine", os.uname().nodename, "phyla doctor mine --adopt"):
        study(there, storage=storage).run()
    (there / "checkpoints" / "mine").mkdir(parents=True)
    maintain("mine", Places.of(there, storage)).adopt()
    # There is no way back without adopting that one.
    with raises(CheckpointsAbsent, f"{there}/checkpoints/mine", "phyla doctor mine --adopt"):
        study(here, storage=storage).run()
    assert study(there, storage=storage).run().counts() == {"completed": MEMBERS * TRIALS}


MEETING = """
import socket

from phyla.controller import StudyRecords
from phyla.store.sql.store import SqlStore

METHOD = os.environ["METHOD"]
OWNER = {"create_study": SqlStore, "set_directory": StudyRecords}[METHOD]
call = getattr(OWNER, METHOD)


def call_together(*args, **named):
    with socket.create_connection(("127.0.0.1", int(os.environ["PORT"]))) as together:
        together.recv(1)
    return call(*args, **named)


setattr(OWNER, METHOD, call_together)
"""


@pytest.mark.parametrize("method", ["create_study", "set_directory"])
def test_of_two_homes_that_start_a_study_at_once_one_trains(
    tmp_path: Path, method: str, undisturbed: list[tuple[Any, ...]]
) -> None:
    storage, homes = f"sqlite:///{tmp_path}/shared.db", [tmp_path / "a", tmp_path / "b"]
    (tmp_path / "study.py").write_text(STUDY_FILE + MEETING)
    words = ["-m", "phyla.cli", "run", "study.py", "--workers", 0, "--storage", storage, "--home"]
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        server.settimeout(120)
        environment = child_environment({"METHOD": method, "PORT": str(server.getsockname()[1])})
        runs = [forked.Forked([*words, home], cwd=tmp_path, env=environment) for home in homes]
        for run in runs:
            stack.callback(run.kill)
        for meeting in [server.accept()[0] for _ in runs]:
            meeting.close()
        errors = [run.communicate(120)[1] for run in runs]
    assert sorted(run.wait() for run in runs) == [0, 1], errors
    lost = next(number for number, run in enumerate(runs) if run.wait())
    home, other = homes[lost], homes[1 - lost]
    check_facts(errors[lost], f"{home}/checkpoints/mine", f"{other}/checkpoints/mine", os.uname().nodename)
    check_facts(errors[lost], "--checkpoints", "doctor mine --adopt")
    assert "Traceback" not in errors[lost]

    results = load_study("mine", home=other, storage=storage)
    assert history(results) == undisturbed
    assert results.counts() == {"completed": MEMBERS * TRIALS}
    assert {row.state for row in results.checkpoints()} <= {CheckpointState.LIVE, CheckpointState.DELETED}
    assert [path.name for path in (home / "checkpoints" / "mine").iterdir()] == [OWNER_NAME]
    before = tree(other / "checkpoints")
    # Deleting it there would leave the checkpoints behind.
    with raises(CheckpointsAbsent, f"{other}/checkpoints/mine"):
        delete("mine", Places.of(home, storage))
    assert tree(other / "checkpoints") == before
    assert command(tmp_path, "doctor", "mine", "--home", other, "--storage", storage).returncode == 0


def test_what_adopts_a_second_directory_replaces_the_first(tmp_path: Path) -> None:
    here, there, storage = tmp_path / "here", tmp_path / "there", f"sqlite:///{tmp_path}/shared.db"
    interrupted(here, storage=storage)
    root = there / "checkpoints" / "mine"
    root.mkdir(parents=True)
    check_facts(maintain("mine", Places.of(there, storage)).adopt(), root, "it was empty")
    with raises(CheckpointsAbsent, f"{here}/checkpoints/mine", str(root)):
        study(here, storage=storage).run()
    # And back: everything is in the first one.
    check_facts(maintain("mine", Places.of(here, storage)).adopt(), f"the study had {root}", "0 are missing")
    with raises(CheckpointsAbsent, f"{here}/checkpoints/mine", str(root)):
        study(there, storage=storage).run()
    assert study(here, storage=storage).run().counts() == {"completed": MEMBERS * TRIALS}


def test_results_are_read_where_the_checkpoints_are_not(tmp_path: Path) -> None:
    interrupted(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    looked = study(tmp_path)
    assert looked.results().counts()["completed"] == 2 * MEMBERS
    with pytest.raises(CheckpointsAbsent):
        looked.ask()
    with pytest.raises(CheckpointsAbsent):
        maintain("mine", Places.of(tmp_path)).collect()


def test_one_lost_checkpoint_is_taken_back_when_it_is_there_again(tmp_path: Path) -> None:
    away = tmp_path / "away"

    def losing(trial: phyla.Trial) -> None:
        if trial.generation == 2 and trial.parent is not None and not away.exists():
            trial.parent.path.rename(away)
            (away / "name").write_text(trial.parent.name)
        if trial.generation == 3:
            raise KeyboardInterrupt
        train(trial)

    with pytest.raises(KeyboardInterrupt):
        study(tmp_path, losing, retention=phyla.Retention(every_steps=1)).run()
    name = (away / "name").read_text()
    (away / "name").unlink()
    states = {row.name: row.state for row in load_study("mine", home=tmp_path).checkpoints()}
    assert [one for one, state in states.items() if state is CheckpointState.LOST] == [name]

    root = tmp_path / "checkpoints" / "mine"
    whole = (away / "chain.json").read_bytes()
    away.rename(root / name)
    (root / name / "chain.json").unlink()
    interrupted(tmp_path, after=3, retention=phyla.Retention(every_steps=1))
    # Incomplete, it is still lost.
    states = {row.name: row.state for row in load_study("mine", home=tmp_path).checkpoints()}
    assert states[name] is CheckpointState.LOST
    (root / name / "chain.json").write_bytes(whole)
    results = study(tmp_path, retention=phyla.Retention(every_steps=1)).run()
    assert {row.state for row in results.checkpoints()} == {CheckpointState.LIVE}
    assert results.counts()["completed"] == MEMBERS * TRIALS


def test_an_evaluation_whose_checkpoints_vanish_is_not_gone(tmp_path: Path) -> None:
    root, away = tmp_path / "checkpoints" / "mine", tmp_path / "away"

    @phyla.eval_task
    def length(evaluation: phyla.Evaluation) -> None:
        if evaluation.checkpoint.step == 2 and not away.exists():
            root.rename(away)
        evaluation.record(length=len(json.loads((evaluation.checkpoint.path / "chain.json").read_text())))

    suites = [phyla.Suite("length", [length], objective=phyla.Maximize("length_mean"))]
    with pytest.raises(CheckpointsAbsent, match=str(root)):
        study(tmp_path, suites=suites).run()
    away.rename(root)
    away.mkdir()
    results = study(tmp_path, suites=suites).run()
    groups = list(results.evaluations().groups("length"))
    assert {(group.state, group.why) for group in groups} == {(GroupState.COMPLETE, None)}
    assert len(groups) == MEMBERS * TRIALS
