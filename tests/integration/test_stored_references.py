"""What a database names is never run: by no command that looks, and by no worker."""

import json
import mmap
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer.main

import phyla
from durability import keep_identity
from effort import rarely, thorough
from facts import check_facts
from listing import list_studies
from phyla import study_modules
from phyla.cli.app import app, run_app
from phyla.machine import Outdated
from phyla.records import AttemptState, StudyState
from phyla.study import Places
from phyla.study.maintaining.maintain import maintain
from phyla.worker.containment.surroundings import Surroundings
from phyla.worker.process import _make
from phyla.worker.spec import WorkerSpec
from waiting import until
from watching import command, run, start, write

STUDY = """
import time
from pathlib import Path

import phyla

HERE = Path(__file__).parent


def train(trial):
    for _ in trial.steps():
        while (HERE / "hold").exists() and not trial.should_stop:
            time.sleep(0.005)
    (trial.checkpoint_dir / "weights").write_text("w")
    trial.report(score=trial.params["lr"])


def setup(worker):
    return None


@phyla.eval_task
def read(evaluation):
    evaluation.record(value=float(len((evaluation.checkpoint.path / "weights").read_text())))


def explore(params, rng):
    return {"lr": 0.5}


def allowed(params):
    return params["lr"] < 2


suite = phyla.Suite("read", [read], objective=phyla.Maximize("value_mean"))
study = phyla.Study(
    "s",
    phyla.Space(lr=phyla.Float(0.1, 1.0), constraints=[allowed]),
    phyla.Maximize("score"),
    phyla.PBT(population_size=2, steps_per_trial=5, total_steps=10, explore=phyla.strategies.ExploreWith(explore)),
    train,
    setup=setup,
    suites=[suite],
    home=HERE / "home",
)
"""
CANARY = """
import sys
from pathlib import Path

HERE = Path(__file__).parent
(HERE / "imported").touch()


def called(*args, **kwargs):
    (HERE / "called").touch()


class Metric:
    def __init__(self, *args, **kwargs):
        called()

    from_json = classmethod(called)
    merge = summary = to_json = called
    count = 1


Strategy = Objective = Rule = Metric
"""
FUNCTION = {"function": "canary:called"}


def plant_function(config: dict[str, Any]) -> None:
    config["strategy"]["explore"] = {"plugin": "phyla.explore/explore-with", "function": FUNCTION}


def plant_command_as_function(config: dict[str, Any]) -> None:
    config["strategy"]["explore"] = {
        "plugin": "phyla.explore/explore-with",
        "function": {"function": "os:system"},
    }


def plant_strategy(config: dict[str, Any]) -> None:
    config["strategy"] = {**config["strategy"], "plugin": "canary:Strategy"}


def plant_objective(config: dict[str, Any]) -> None:
    config["objective"] = {"plugin": "canary:Objective", "metric": "score"}


def plant_constraint(config: dict[str, Any]) -> None:
    config["space"]["constraints"] = ["canary:called"]


def plant_rule(config: dict[str, Any]) -> None:
    config["stopping"] = {"rules": [{"plugin": "canary:Rule"}], "max_stops": 3}


def plant_training(config: dict[str, Any]) -> None:
    config["train"] = config["setup"] = "canary:called"


def plant_suite(config: dict[str, Any]) -> None:
    config["suites"][0]["tasks"][0]["evaluate"] = FUNCTION
    config["suites"][0]["load"] = FUNCTION
    config["suites"][0]["aggregates"] = [FUNCTION]


Plant = Callable[[dict[str, Any]], None]
PLANTS: list[Plant] = [
    plant_function,
    plant_command_as_function,
    plant_strategy,
    plant_objective,
    plant_constraint,
    plant_rule,
    plant_training,
    plant_suite,
]


def plant(home: Path, *plants: Plant, watched: bool = False) -> None:
    """Write references into the database, as whoever may write there could."""
    with closing(sqlite3.connect(home / "phyla.db")) as connection, connection:
        configs = "SELECT id, config FROM studies WHERE (kind <> 'population') = ?"
        for number, text in connection.execute(configs, (watched,)).fetchall():
            config = json.loads(text)
            for each in plants:
                each(config)
            connection.execute("UPDATE studies SET config = ? WHERE id = ?", (json.dumps(config), number))
        statistics = json.dumps({"value": {"metric": "canary:Metric", "state": {"n": 3}}})
        connection.execute("UPDATE eval_results SET statistics = ?", (statistics,))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two studies that were run to their end."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "study.py").write_text(STUDY)
    (folder / "other.py").write_text(STUDY.replace('"s"', '"t"'))
    for file in ("study.py", "other.py"):
        run(folder, command("run", file, "--workers", 0))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of that folder, where a module waits to be imported."""
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    keep_identity(copy / "home" / "phyla.db")
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "canary.py").write_text(CANARY)
    monkeypatch.syspath_prepend(evil)
    monkeypatch.chdir(copy)
    yield copy
    sys.modules.pop("canary", None)
    study_modules.forget()
    assert sorted(path.name for path in evil.iterdir() if path.suffix != ".pyc") == ["canary.py"]


LOOKS: dict[str, tuple[object, ...]] = {
    "status": ("s",),
    "best": ("s",),
    "compare": ("s", "t"),
    "trials": ("s",),
    "evaluations": ("s",),
    "export": ("s", "--what", "trials"),
    "report": ("s", "--output", "report.html"),
    "gc": ("s", "--explain"),
    "doctor": (),
    "init": ("study.py",),
    "workers": ("--json",),
    "token": ("list", "--json"),
}
"""Commands that only look: they work whatever the database names."""

ACTS: dict[str, tuple[object, ...]] = {
    "run": ("study.py", "--workers", 0),
    "worker": ("study.py", "--workers", 0),
    "replay": ("s",),
    "final": ("s", "--file", "study.py", "--workers", 0),
    "watch": ("s", "--suite", "study.py:suite", "--workers", 0, "--once"),
    "stop": ("s",),
    "change": ("study.py",),
    "delete": ("s", "--yes", "s"),
}
"""Commands that act: they go by the study file, or refuse."""


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    capsys.readouterr()  # what was shown while studies ran
    before, sys.argv = sys.argv, ["phyla", *map(str, words)]
    try:
        with pytest.raises(SystemExit) as ended:
            run_app()
    finally:
        sys.argv = before
    out = capsys.readouterr()
    text = out.out + out.err
    assert "Traceback" not in text
    return int(ended.value.code or 0), text


def test_every_command_is_among_those_tried() -> None:
    # `check` makes a home of its own, `up` runs `worker`, and what is sent to `serve` has tests of its own.
    others = {"check", "serve", "dashboard", "up", "down"}
    assert set(LOOKS) | set(ACTS) | others == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("plant_it", PLANTS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("state", ["running", rarely("completed")])
def test_who_looks_runs_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], plant_it: Plant, state: str
) -> None:
    plant(folder / "home", plant_it)
    with closing(sqlite3.connect(folder / "home" / "phyla.db")) as connection, connection:
        connection.execute("UPDATE studies SET state = ?", (state,))
    every_other = slice(None) if thorough() else slice(PLANTS.index(plant_it) % 2, None, 2)
    for name, words in [*LOOKS.items()][every_other]:
        code, text = said(capsys, name, *words, "--home", folder / "home")
        assert code == 0, f"{name}: {text}"
        assert text.strip()
    code, text = said(capsys, "status", "--home", folder / "home")
    assert (code, "4 of 4" in text) == (0, True), text
    assert "at most" in said(capsys, "gc", "s", "--explain", "--home", folder / "home")[1]


MORE_ACTS = {
    "replay": ("s", "--continue", 5),
    "change": ("s",),
    "worker": ("s",),
}


@pytest.mark.parametrize(("name", "words"), [*ACTS.items(), *MORE_ACTS.items()])
def test_who_acts_runs_what_the_study_file_says_and_nothing_else(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, words: tuple[object, ...]
) -> None:
    for plant_it in PLANTS:
        plant(folder / "home", plant_it)
        home = () if words[0] == "study.py" else ("--home", folder / "home")
        code, text = said(capsys, name, *words, *home)
        assert code in (0, 1, 2), text
        assert text.strip()


def test_metrics_of_unknown_types_are_shown_as_they_are_stored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(folder / "home")
    _, text = said(capsys, "evaluations", "s", "--json", "--home", folder / "home")
    rows = json.loads(text)["cells"]
    assert rows
    assert all(row["unread"] == {"value": [{"metric": "canary:Metric", "state": {"n": 3}}]} for row in rows)


def test_a_worker_refuses_a_study_that_is_not_its_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(folder / "home", plant_function, plant_constraint, plant_suite)
    code, text = said(capsys, "worker", "study.py", "--workers", 0)
    assert code == 2
    assert "is not the one that the study file defines" in text
    assert "strategy.explore.function" in text
    assert "space.constraints: stored ['canary:called']" in text
    assert "suites.read.tasks.read.evaluate.function: stored 'canary:called'" in text


def test_what_a_worker_process_imports_comes_from_its_supervisor(folder: Path) -> None:
    study = study_modules.load(folder / "study.py").study
    given = study.config(portable=True)
    plant(folder / "home", plant_function, plant_training, plant_suite)
    with closing(sqlite3.connect(folder / "home" / "phyla.db")) as connection, connection:
        connection.execute("UPDATE studies SET state = 'running'")
    spec = WorkerSpec(
        configs={"s": given},
        storage=study.places.storage,
        checkpoints=str(study.places.checkpoints("s")),
        work_root=str(folder / "work"),
        index=0,
        kinds=("train", "evaluate"),
        name="here",
    )
    before = sys.path[:]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        worker, store = _make(WorkerSpec.from_json(spec.to_json()), mmap.mmap(-1, 64), Surroundings())
        outdated = worker.run()
        store.close()
    finally:
        sys.path[:] = before
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert isinstance(outdated, Outdated)
    assert "strategy.explore.function" in outdated.why


def test_collecting_needs_no_function(folder: Path) -> None:
    """It calls none, so it works where the study file is not to be had."""
    plant(folder / "home", plant_function, plant_constraint)
    with closing(sqlite3.connect(folder / "home" / "phyla.db")) as connection, connection:
        connection.execute("UPDATE studies SET state = 'stopped'")
    maintenance = maintain("s", Places.of(folder / "home"))
    assert "for a population of 2" in maintenance.explain_retention()
    maintenance.collect()


# Workers that join


def test_workers_join_from_anywhere_by_the_study_file(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(STUDY.replace("total_steps=10", "total_steps=20"))
    (tmp_path / "elsewhere").mkdir()
    early = run(tmp_path / "elsewhere", command("worker", tmp_path / "study.py"), expect=2)
    check_facts(early, "study 's'")
    assert not (tmp_path / "home").exists()
    (tmp_path / "hold").touch()
    first = start(tmp_path, command("run", "study.py", "--workers", 1))

    def held() -> int:
        try:
            return len(phyla.load_study("s", home=tmp_path / "home").progress().running)
        except phyla.PhylaError:
            return 0

    until(lambda: held() == 1, "running trial")
    second = start(tmp_path / "elsewhere", command("worker", tmp_path / "study.py", "--workers", 1))
    until(lambda: held() == 2, "trial of the worker that joined")
    (tmp_path / "hold").unlink()
    for process in (first, second):
        output, _ = process.communicate(timeout=180)
        assert process.returncode == 0, output
    assert "s is completed: 8 of 8 trials" in output
    found = phyla.load_study("s", home=tmp_path / "home")
    assert found.state is StudyState.COMPLETED
    assert all(attempt.state is AttemptState.COMPLETED for attempt in found.attempts())
    assert len({attempt.worker for attempt in found.attempts()}) == 2
    again = run(tmp_path / "elsewhere", command("worker", tmp_path / "study.py"))
    assert "s is completed" in again


def test_a_worker_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(STUDY)
    (tmp_path / "hold").touch()
    first = start(tmp_path, command("run", "study.py", "--workers", 1))
    until(
        lambda: (
            (tmp_path / "home" / "phyla.db").exists()
            and list_studies(tmp_path / "home")
            and phyla.load_study("s", home=tmp_path / "home").progress().running
        ),
        "running trial",
    )
    before = phyla.load_study("s", home=tmp_path / "home").study()
    (tmp_path / "other.py").write_text(STUDY.replace("steps_per_trial=5", "steps_per_trial=2"))
    output = run(tmp_path, command("worker", "other.py", "--workers", 1), expect=2)
    assert "strategy.steps_per_trial: stored 5, given 2" in output
    assert phyla.load_study("s", home=tmp_path / "home").study() == before
    (tmp_path / "hold").unlink()
    output, _ = first.communicate(timeout=180)
    assert first.returncode == 0, output


# Workers of watched runs


SUITES = """
import json
import mmap

import phyla


@phyla.eval_task
def read(evaluation):
    evaluation.record(value=1.0)


suite = phyla.Suite("read", [read, phyla.EvalTask("program", command=["touch", "{results}"])])
"""


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """A folder with a run that was watched, of which eval tasks are left to do."""
    (tmp_path / "suites.py").write_text(SUITES)
    write(tmp_path / "ckpt", 1)
    words = ("--suite", "suites.py", "--format", "marker", "--name", "job", "--done", "FINISHED", "--poll", "0.2")
    process = start(tmp_path, command("watch", "ckpt", *words, "--quiet", "0.5", "--workers", 0))
    home = tmp_path / ".phyla"

    def begun() -> bool:
        try:
            with closing(sqlite3.connect(home / "phyla.db")) as connection:
                return bool(
                    connection.execute("SELECT count(*) FROM jobs WHERE group_id IS NOT NULL").fetchone()[0]
                )
        except sqlite3.Error:
            return False

    until(begun, "eval task")
    process.terminate()
    process.communicate(timeout=180)
    return tmp_path


def test_a_worker_of_a_watched_run_needs_the_suite_file(watched: Path) -> None:
    output = run(watched, command("worker", "job", "--workers", 1), expect=2)
    check_facts(output, f"{watched / 'suites.py'}:read")
    assert " worker FILE" in output
    assert "Traceback" not in output

    def only_the_command(config: dict[str, Any]) -> None:
        config["suites"][0]["tasks"] = config["suites"][0]["tasks"][1:]

    plant(watched / ".phyla", only_the_command, watched=True)
    output = run(watched, command("worker", "job", "--workers", 1), expect=2)
    check_facts(output, "program", "read")
    assert " worker FILE" in output


def test_a_worker_of_a_watched_run_runs_only_what_its_suite_file_says(watched: Path) -> None:
    def planted(config: dict[str, Any]) -> None:
        config["suites"][0]["tasks"][0]["evaluate"] = FUNCTION
        config["suites"][0]["tasks"][1]["command"] = ["touch", str(watched / "pwned")]

    (watched / "canary.py").write_text(CANARY)
    plant(watched / ".phyla", planted, watched=True)
    output = run(watched, command("worker", "suites.py", "--workers", 1), expect=2)
    check_facts(output, "job")
    assert "suites.read.tasks.read.evaluate.function: stored 'canary:called'" in output
    assert not {path.name for path in watched.iterdir()} & {"imported", "called", "pwned"}
    output = run(watched, command("worker", "nothing.py", "--workers", 1), expect=2)
    check_facts(output, "nothing.py")


def test_a_study_is_evaluated_by_workers_of_its_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "worker", "s", "--home", folder / "home")
    assert code == 2
    assert f"phyla --home {folder / 'home'} worker FILE --study s --kinds evaluate" in text
