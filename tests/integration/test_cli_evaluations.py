"""The command line on what was measured: of a watched run and of a study, on SQLite."""

import csv
import io
import json
import os
import re
import shutil
import sys
from html import unescape
from pathlib import Path

import pytest

import forked
import phyla
from command_line import Phyla
from evaluated_run import HELDOUT, SPARSE, EvaluatedRun, eventful
from event_files import logged
from facts import check_facts
from phyla.store import open_store
from phyla.study import Evaluations, load_evaluations
from watching import write

pytestmark = pytest.mark.xdist_group("evaluations")
"""Its studies are made once, not by each process of tests."""

STUDY_FILE = """
import phyla


def train(trial):
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "lr").write_text(str(trial.params["lr"] + trial.end_step / 1000))
    trial.report(x=1.0)


@phyla.eval_task(tags=["in"])
def quality(evaluation):
    evaluation.record(score=float((evaluation.checkpoint.path / "lr").read_text()))


study = phyla.Study(
    "suited",
    {"lr": phyla.Float(0.01, 1.0)},
    phyla.Maximize("score"),
    phyla.PBT(population_size=3, steps_per_trial=5, total_steps=15, fitness=phyla.FromSuite("s", "score_mean")),
    train,
    suites=[phyla.Suite("s", [quality], objective=phyla.Maximize("score_mean"))],
)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a watched run in which everything happened, and a study whose checkpoints are evaluated."""
    folder = tmp_path_factory.mktemp("evaluated")
    home = folder / ".phyla"
    home.mkdir()
    run = eventful(home, store=open_store(f"sqlite:///{home / 'phyla.db'}"))
    run.store.close()
    (folder / "suited.py").write_text(STUDY_FILE)
    done = forked.run(
        ["-m", "phyla.cli", "run", "suited.py", "--workers", 0],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    (folder / "suited.py").unlink()  # nothing here needs the code
    return home


@pytest.fixture
def phyla_at(home: Path, cli: Phyla, monkeypatch: pytest.MonkeyPatch) -> Phyla:
    monkeypatch.chdir(home.parent)
    return cli


@pytest.fixture
def found(home: Path) -> Evaluations:
    return load_evaluations("watched", home=home)


def test_the_matrix(phyla_at: Phyla, found: Evaluations) -> None:
    text = phyla_at("evaluations", "watched", "--suite", "heldout")
    lines = text.splitlines()
    assert lines[0].startswith("Evaluations of watched: running; the newest 20 checkpoints: ")
    assert "1 failed" in lines[0]
    assert lines[1].startswith("heldout: 2 checkpoints and 400 steps behind, the oldest for ")
    matrix, running, missing = (
        text.split(f"\n{title}\n")[1] for title in ("Suite heldout", "Running", "Missing values")
    )
    rows = {line.split()[1]: line.split() for line in matrix.split("\n\n")[0].splitlines() if "step_" in line}
    assert list(rows)[:3] == ["step_2600_again", "step_2400_again", "step_2200_again"]  # newest first
    assert rows["step_2600_again"][2:] == ["-", *["queued"] * 4]
    assert rows["step_2400_again"][0] == "2,400@1"
    assert rows["step_2400_again"][-3:] == ["running", "queued", "queued"]
    assert rows["step_3600_torn"][2:] == ["-", *["quarantined"] * 4]
    assert rows["step_3800"][2:] == ["-", *["gone"] * 4]
    assert rows["step_3400_broken"][2].startswith("~")
    assert "failed" in rows["step_3400_broken"]
    best = found.best("heldout")
    assert best is not None
    assert rows["step_3000"][2] == f"*{best.value:.4g}"
    check_facts(matrix, "~ not over all eval tasks", "* the best")
    assert re.search(
        r"^failed +heldout +noisy +1 +step 3,400 +ValueError: the model gave \[nan\] \(", missing, re.M
    )
    check_facts(lines, "phyla evaluations NAME --retry")
    assert re.search(r"^2,400@1 +step_2400_again +heldout +noisy +\S.+ \S+$", running, re.M)
    assert "regression: heldout/clean accuracy" in text
    assert "sparse" not in text
    check_facts(lines, "--last")


def test_the_matrix_of_chosen_eval_tasks_and_checkpoints(phyla_at: Phyla) -> None:
    text = phyla_at("evaluations", "watched", "--suite", "heldout", "--task", "shifted", "--last", 2)
    assert sum("step_" in line and "@" in line for line in text.splitlines()) == 2
    assert "shifted" in text
    assert "labels" not in text
    lacking = phyla_at("evaluations", "watched", "--missing", "--suite", "heldout")
    assert "step_3000" not in lacking
    assert {"step_3400_broken", "step_3600_torn", "step_3800", "step_2600_again"} <= set(lacking.split())


def test_a_watched_run_exports_evaluations_unless_told_otherwise(phyla_at: Phyla) -> None:
    named = phyla_at("export", "watched", "--what", "evaluations")
    assert phyla_at("export", "watched") == named
    assert phyla_at("export", "watched", "--suite", "sparse") != named
    assert json.loads(phyla_at("export", "suited")) == json.loads(phyla_at("export", "suited", "--what", "trials"))


def test_watched_runs_are_compared_by_their_evaluations(phyla_at: Phyla, tmp_path: Path) -> None:
    told = phyla_at("compare", "watched", "suited", code=2)
    check_facts(told, "watched", "phyla evaluations watched --format json", "--against")
    file = tmp_path / "run.json"
    file.write_text(phyla_at("evaluations", "watched", "--format", "json"))
    compared = phyla_at("evaluations", "watched", "--checkpoint", "step_3000", "--against", file)
    check_facts(compared, "step_3000", "clean")


def test_a_study_stands_as_the_study_does(phyla_at: Phyla, home: Path, tmp_path: Path) -> None:
    lines = phyla_at("evaluations", "suited").splitlines()
    assert lines[0].startswith("Evaluations of suited: completed; ")
    assert lines[1].startswith("s: up to date at step ")
    assert json.loads(phyla_at("evaluations", "suited", "--json"))["state"] == "completed"
    page = load_evaluations("suited", home=home).write_report(tmp_path / "page.html").read_text()
    assert '<span class="state completed">completed</span>' in page
    assert json.loads(phyla_at("evaluations", "watched", "--json"))["state"] == "running"


def test_many_eval_tasks_are_shown_in_several_tables(phyla_at: Phyla, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.cli.output.WIDE", 80)
    text = phyla_at("evaluations", "watched", "--suite", "heldout", "--last", 3)
    assert text.count("accuracy_mean") > 1
    assert max(map(len, text.split("\n\n")[1].splitlines())) <= 80


def test_the_matrix_as_json(phyla_at: Phyla, found: Evaluations) -> None:
    whole = json.loads(phyla_at("evaluations", "watched", "--json"))
    assert len(whole["cells"]) == len(list(found.cells()))
    assert whole["summary"] == found.summary()
    assert [suite["name"] for suite in whole["suites"]] == ["heldout", "sparse"]
    assert [(lag["suite"], lag["checkpoints"], lag["steps"]) for lag in whole["lag"]] == [
        ("heldout", 2, 400),
        ("sparse", 1, None),
    ]
    running = [cell for cell in whole["cells"] if cell["status"] == "running"]
    assert [cell["running_s"] >= 0 for cell in running] == [True]
    failed = [cell for cell in whole["cells"] if cell["status"] == "failed"]
    assert [(cell["task"], cell["partial"]) for cell in failed] == [("noisy", True)]
    assert re.fullmatch(r"ValueError: the model gave \[nan\] \(.*evaluated_run.py, line \d+\)", failed[0]["why"])
    assert {event["kind"] for event in whole["events"]} == {"regression", "quarantined", "gone", "rewound"}
    lacking = json.loads(phyla_at("evaluations", "watched", "--missing", "--suite", "sparse", "--json"))
    assert {cell["suite"] for cell in lacking["cells"]} == {"sparse"}


def test_wrong_options_get_one_clear_message(phyla_at: Phyla, tmp_path: Path) -> None:
    for words, expected in (
        (("evaluations", "odd"), "there is no run 'odd' in sqlite:///"),
        (("evaluations", "watched", "--suite", "odd"), "'odd'; choose from 'heldout', 'sparse'"),
        (("evaluations", "watched", "--task", "odd"), "clean, labels, noisy, shifted"),
        (("evaluations", "watched", "--checkpoint", "step_3000"), "--checkpoint step_3000"),
        (("evaluations", "watched", "--home", tmp_path), "does not exist"),
        (("evaluations", "watched", "--retry", "--suite", "heldout"), "--suite"),
        (("evaluations", "watched", "--against", "best", "--task", "clean"), "--task"),
        (("evaluations", "watched", "--format", "json", "--last", 3), "--last"),
        (("best", "watched", "--suite", "sparse"), "suite 'sparse' has no objective"),
        (("export", "watched", "--format", "tensorboard"), "needs --output DIR"),
        (("export", "suited", "--what", "trials", "--format", "tensorboard"), "needs --what evaluations"),
        (("export", "watched", "--what", "evaluations", "--suite", "odd"), "suite 'odd'"),
        (("export", "watched", "--what", "evaluations", "--trial", 1), "--trial needs --what"),
        (("report", "odd"), "there is no study 'odd'"),
    ):
        assert expected in phyla_at(*words, code=2), words


def test_best_of_a_suite(phyla_at: Phyla, found: Evaluations) -> None:
    best = found.best("heldout")
    assert best is not None
    told = json.loads(phyla_at("best", "watched", "--suite", "heldout", "--json"))
    assert (told["value"], told["checkpoint"]["name"]) == (best.value, "step_3000")
    assert told["rivals"] == 0  # standard errors of some eval tasks are not known
    text = phyla_at("best", "watched", "--suite", "heldout")
    assert text.startswith(
        f"best heldout/accuracy_mean  {best.value:.4g}\n"
        "checkpoint  /nowhere/step_3000 (not found on this machine)\n"
    )
    study = json.loads(phyla_at("best", "suited", "--suite", "s", "--json"))
    assert (Path(study["checkpoint"]["path"]) / "lr").exists()
    assert study["value"] == json.loads(phyla_at("best", "suited", "--json"))["fitness"]


def test_status_tells_the_lag_of_a_study_with_suites(phyla_at: Phyla) -> None:
    (lag,) = json.loads(phyla_at("status", "suited", "--json"))["evaluation"]
    assert (lag["suite"], lag["checkpoints"], lag["waiting"]) == ("s", 0, 0)
    line = f"evaluation of s: up to date at step {lag['complete']}"
    assert line in phyla_at("status", "suited").splitlines()


def test_export_of_points(phyla_at: Phyla, found: Evaluations, tmp_path: Path) -> None:
    points = list(found.points())
    rows = json.loads(phyla_at("export", "watched", "--what", "evaluations"))
    assert [(row["step"], row["name"]) for row in rows] == [(point.step, point.name) for point in points]
    text = phyla_at("export", "watched", "--what", "evaluations", "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["checkpoint"] for line in lines] == [point.checkpoint for point in points]
    assert {line["partial"] for line in lines} == {"True", "False"}
    only = json.loads(phyla_at("export", "watched", "--what", "evaluations", "--suite", "sparse"))
    assert {row["suite"] for row in only} == {"sparse"}
    target = tmp_path / "points.json"
    phyla_at("export", "watched", "--what", "evaluations", "-o", target)
    assert json.loads(target.read_text()) == rows
    assert "delete it first, or choose another name" in phyla_at(
        "export", "watched", "--what", "evaluations", "-o", target, code=2
    )


def test_export_of_tensorboard(phyla_at: Phyla, tmp_path: Path) -> None:
    for _ in range(2):
        phyla_at("export", "watched", "--format", "tensorboard", "-o", tmp_path / "logs")
    assert sorted(logged(tmp_path / "logs")) == ["watched", "watched@branch1"]
    phyla_at("export", "suited", "--format", "tensorboard", "-o", tmp_path / "logs")
    (tmp_path / "file").write_text("mine")
    for written in ("tensorboard", "wandb"):
        message = phyla_at("export", "suited", "--format", written, "-o", tmp_path / "file", code=2)
        check_facts(message, f"{tmp_path}/file", "Not a directory")
    assert (tmp_path / "file").read_text() == "mine"
    runs = logged(tmp_path / "logs")
    assert sorted(runs) == ["suited/member0", "suited/member1", "suited/member2", "watched", "watched@branch1"]
    evaluated = {"s/quality/score", "s/score_mean", "s/in/score_mean"}
    trained = {"x", "params/lr", "phyla/age", "phyla/fitness", "phyla/generation", "phyla/trial"}
    assert {one.tag for one in runs["suited/member0"]} == evaluated | trained
    phyla_at("export", "suited", "--what", "evaluations", "--format", "tensorboard", "-o", tmp_path / "only")
    assert {one.tag for one in logged(tmp_path / "only")["suited/member0"]} == evaluated
    said = phyla_at("export", "watched", "--format", "wandb", "-o", tmp_path / "logs")
    check_facts(said, "wandb sync")


def test_an_extra_that_is_missing_is_named(
    phyla_at: Phyla, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    message = phyla_at("export", "watched", "--format", "tensorboard", "-o", tmp_path / "x", code=2)
    assert 'pip install "phyla[tensorboard]"' in message
    assert list(tmp_path.iterdir()) == []


def test_report(phyla_at: Phyla, tmp_path: Path) -> None:
    phyla_at("report", "watched", "-o", tmp_path / "run.html")
    assert "heldout/labels" in (tmp_path / "run.html").read_text()
    phyla_at("report", "suited", "-o", tmp_path / "study.html")
    page = (tmp_path / "study.html").read_text()
    assert "Which checkpoint is good at what?" in page
    assert "The winner's schedule" in unescape(page)


def test_a_run_without_checkpoints(cli: Phyla, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'phyla.db'}")
    EvaluatedRun(tmp_path, [HELDOUT, SPARSE], store=store, name="fresh")
    store.close()
    text = cli("evaluations", "fresh", "--home", tmp_path)
    assert text.splitlines()[:2] == [
        "Evaluations of fresh: running; nothing to show",
        "heldout: no checkpoint is completely evaluated",
    ]
    assert json.loads(cli("export", "fresh", "--what", "evaluations", "--home", tmp_path)) == []
    assert cli("best", "fresh", "--suite", "heldout", "--home", tmp_path, code=2).startswith(
        "error: suite 'heldout' is complete on no checkpoint of 'fresh' yet"
    )


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("words", [(), ("watched",)], ids=["all", "one"])
def test_tables_of_watched_runs_fit_a_narrow_window(
    phyla_at: Phyla, words: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = "suite" if words else "run"

    def table() -> list[str]:
        lines = phyla_at("status", *words).splitlines()
        at = next(number for number, line in enumerate(lines) if line.startswith(f"{first} "))
        return lines[at : at + 5]

    heads = table()[0].split()
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = table()
    assert max(map(len, narrow)) <= columns
    assert narrow[0].split() == heads, "no head is cut"
    assert "complete" in "".join(narrow[2:])
    assert "queued" in "".join(narrow[2:])


def test_a_mean_over_fewer_eval_tasks_than_others_is_marked(tmp_path: Path, cli: Phyla) -> None:
    """As after a task was added: training deletes the first checkpoint before the second eval task is known."""

    def evaluate(*tasks: str) -> None:
        suite = phyla.Suite("s", [measuring(task) for task in tasks], objective=phyla.Maximize("accuracy_mean"))
        once = phyla.Following(once=True)
        options = {"marker": "DONE"}
        phyla.watch(tmp_path / "run", suite, 0, home=tmp_path, format="marker", options=options, following=once)

    def measuring(task: str) -> phyla.EvalTask:
        code = "import json, sys; print(json.dumps(dict(accuracy=0.5)), file=open(sys.argv[1], 'w'))"
        return phyla.EvalTask(task, command=[sys.executable, "-c", code, "{results}"])

    folders = [write(tmp_path / "run", step) for step in (10, 20)]
    evaluate("first")
    assert "~" not in cli("--home", tmp_path, "evaluations", "run")
    shutil.rmtree(folders[0])
    evaluate("first", "second")
    rows = {
        line.split()[1]: line.split()
        for line in cli("--home", tmp_path, "evaluations", "run").splitlines()
        if "step_" in line
    }
    assert rows["step_10"][2:] == ["~0.5", "0.5", "gone"]
    assert rows["step_20"][2:] == ["*0.5", "0.5", "0.5"]
