"""Replicates and comparisons on the command line, with real studies."""

import csv
import io
import json
import signal
from pathlib import Path

import pytest

from command_line import Phyla
from facts import check_facts
from forked import Forked
from listing import list_studies
from phyla.settings import child_environment
from phyla.study import load_study, replicate_seed
from waiting import until

pytestmark = pytest.mark.xdist_group("compare")
"""Its studies are made once, not by each process of tests."""

TIMEOUT_S = 180.0
SOURCE = Path(__file__).parents[2] / "src"

STUDY_FILE = """
import os
import time
from pathlib import Path

import phyla

SLOW = Path("slow")


def train(trial):
    if trial.parent:
        assert (trial.parent.path / "weights").exists()
    for _ in trial.steps():
        while SLOW.exists() and trial.id > 10 and not trial.should_stop:
            time.sleep(0.01)
    (trial.checkpoint_dir / "weights").write_bytes(bytes(100))
    trial.report(score=trial.params["lr"] * trial.end_step + trial.seed % 7 / 100, loss=1.0)


def train_nan(trial):
    (trial.checkpoint_dir / "weights").write_bytes(bytes(100))
    trial.report(score=float("nan"))


def made(name, strategy, **options):
    objective = options.pop("objective", phyla.Maximize("score"))
    train_it = options.pop("train", train)
    space = {"lr": phyla.Float(0.01, 1.0), "act": phyla.Choice(["a", "b"])}
    return phyla.Study(name, space, objective, strategy, train_it, **options)


clip = phyla.Perturb(clip=True)
pbt = made("pbt", phyla.PBT(population_size=4, steps_per_trial=5, total_steps=20, explore=clip), seed=3)
wide = made("wide", phyla.RandomSearch(members=4, steps_per_trial=5, total_steps=20), seed=3)
other = made("other", phyla.RandomSearch(members=4, steps_per_trial=5, total_steps=20), seed=8)
lossy = made("lossy", phyla.RandomSearch(members=2, total_steps=5), objective=phyla.Minimize("loss"))
strict = made("strict", phyla.RandomSearch(members=2, total_steps=5),
              objective=phyla.Constrained(phyla.Maximize("score"), "loss <= 2"))
nans = made("nans", phyla.RandomSearch(members=2, total_steps=5), train=train_nan)
"""


def start(folder: Path, *words: object) -> Forked:
    """Start the command line in a process of its own."""
    return Forked(["-m", "phyla.cli", *words], cwd=folder, env=child_environment({"COLUMNS": "140"}), spares=1)


def finished(process: Forked, code: int = 0) -> str:
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return err if code else out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with studies that have run: two with replicates of the same seeds, one with others, two alone."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "studies.py").write_text(STUDY_FILE)
    for name, count in (("pbt", 3), ("wide", 3), ("other", 2)):
        finished(start(folder, "run", "studies.py", "--study", name, "--replicates", count, "--workers", 0))
    for name in ("lossy", "strict", "nans"):
        code = 1 if name == "nans" else 0
        finished(start(folder, "run", "studies.py", "--study", name, "--workers", 0), code)
    return folder


@pytest.fixture
def cli(folder: Path, monkeypatch: pytest.MonkeyPatch, cli: Phyla) -> Phyla:
    """The command line in that folder."""
    monkeypatch.chdir(folder)
    return cli


# Replicates


def test_replicates_are_interrupted_and_resumed_by_the_same_command(tmp_path: Path) -> None:
    (tmp_path / "studies.py").write_text(STUDY_FILE)
    (tmp_path / "slow").touch()
    words = ("run", "studies.py", "--workers", 1, "--study", "pbt", "--replicates", 2)
    process = start(tmp_path, *words)

    def is_training() -> bool:
        # From its 11th trial on, which is in the first replicate, training waits.
        studies = list_studies(tmp_path / ".phyla")
        return any(attempt.job > 10 for one in studies for attempt in one.progress().running)

    try:
        until(is_training, "trial that waits")
        process.send_signal(signal.SIGINT)
        err = finished(process, code=130)
    finally:
        process.kill()
    check_facts(err, " ".join(map(str, words)))
    assert [one.name for one in list_studies(tmp_path / ".phyla")] == ["pbt-r0"]
    (tmp_path / "slow").unlink()
    out = finished(start(tmp_path, *words))
    lines = out.splitlines()
    first, second = lines.index("replicate 1 of 2: pbt-r0"), lines.index("replicate 2 of 2: pbt-r1")
    assert any(line.startswith("16 trials completed") for line in lines[first:second])
    assert any(line.startswith("16 trials completed") for line in lines[second:])
    assert lines[-1] == "compare them with: phyla compare pbt"
    seeds = [one.study().seed for one in list_studies(tmp_path / ".phyla")]
    assert seeds == [replicate_seed(3, 0), replicate_seed(3, 1)]
    released = [a for a in load_study("pbt-r0", home=tmp_path / ".phyla").attempts() if a.state == "released"]
    assert [attempt.timings for attempt in released] == [None]


@pytest.mark.thorough  # unit/study/test_replicates.py: the same in this process
def test_one_replicate_can_be_run_by_its_name(folder: Path, tmp_path: Path) -> None:
    home = ("--home", tmp_path, "--workers", 0)
    out = finished(start(folder, "run", "studies.py", "--study", "wide-r2", *home))
    assert "16 trials completed" in out
    (one,) = list_studies(tmp_path)
    assert (one.name, one.study().seed) == ("wide-r2", replicate_seed(3, 2))
    for wrong in ("wide-r", "wide-r02", "else-r2", "wide-rx"):
        err = finished(start(folder, "run", "studies.py", "--study", wrong, *home), code=2)
        check_facts(err, wrong)


def test_replicates_must_be_some(cli: Phyla) -> None:
    assert "--replicates" in cli("run", "studies.py", "--study", "pbt", "--replicates", 0, code=2)


# Comparing


def test_a_comparison_is_printed(cli: Phyla) -> None:
    note, *lines = cli("compare", "pbt", "wide", "other").splitlines()
    check_facts(note, "8 of 8 studies", "phyla final STUDY --file FILE")
    assert [line.split()[:2] for line in lines[2:5]] == [["pbt", "3"], ["wide", "3"], ["other", "2"]]
    text = "\n".join(lines)
    assert "Wilcoxon signed-rank   3 pairs" in text
    assert text.count("Mann-Whitney") == 2
    assert {"steps trained", "age of best"} <= {name.strip() for name in lines[0].split("   ")}
    (head,) = (line for line in lines if "smallest p" in line)
    assert head.endswith("seeds needed")
    assert sum(line.startswith("time of ") for line in lines) == 3


def test_a_comparison_as_json_and_csv(cli: Phyla) -> None:
    found = json.loads(cli("compare", "pbt", "wide", "--format", "json", "--by", "time", "--target", 5))
    assert (found["by"], found["target"]) == ("time", 5)
    assert [group["final"]["n"] for group in found["groups"]] == [3, 3]
    assert found["tests"][0]["smallest_p"] == 0.25
    first, second = ([row["seed"] for row in group["studies"]] for group in found["groups"])
    assert first == second == [replicate_seed(3, index) for index in range(3)]
    for group in found["groups"]:
        assert group["attempts"]["timed"] == group["attempts"]["ended"] == 3 * 16
        assert group["time_s"]["saving"] > 0
        assert group["time_s"]["control"] > 0
    rows = list(csv.DictReader(io.StringIO(cli("compare", "pbt", "wide", "--format", "csv"))))
    assert [row["study"] for row in rows] == ["pbt-r0", "pbt-r1", "pbt-r2", "wide-r0", "wide-r1", "wide-r2"]
    assert {row["steps"] for row in rows} == {"80"}


def test_a_comparison_is_written_as_a_page(cli: Phyla, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    out = cli("compare", "pbt", "wide", "-o", page)
    assert out.splitlines()[-1] == str(page)
    assert "pbt and wide" in page.read_text()
    missing = tmp_path / "no" / "page.html"
    assert f"cannot write {missing}" in cli("compare", "pbt", "wide", "-o", missing, code=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pbt", "nothing"), "nothing"),
        (("lossy",), "a comparison needs at least two studies or replicates of one there is only lossy"),
        (("pbt-r0",), "pbt-r0"),
        (("pbt", "lossy"), "lossy minimize loss"),
        (("pbt", "strict"), "strict maximize score subject to loss <= 2. Run them with one objective"),
        (("nans", "nans"), "there is only nans"),
        (("pbt", "wide", "--target", "nan"), "target=nan"),
        (("pbt", "wide", "--by", "cost"), "cost"),
        ((), "Missing argument"),
    ],
)
def test_what_cannot_be_compared_is_told(cli: Phyla, words: tuple[str, ...], message: str) -> None:
    check_facts(cli("compare", *words, code=2), *message.split())


def test_a_study_without_a_finite_fitness_is_named(cli: Phyla) -> None:
    check_facts(cli("compare", "pbt", "nans").splitlines()[0], "nans", "finite fitness")


def test_status_and_report_tell_where_the_time_went(cli: Phyla, tmp_path: Path) -> None:
    assert "time of workers: " in cli("status", "pbt-r0")
    time_s = json.loads(cli("status", "pbt-r0", "--json"))["time_s"]
    assert set(time_s) == {"control", "waiting", "loading", "training", "saving", "evaluating"}
    assert time_s["saving"] > 0
    page = tmp_path / "page.html"
    cli("report", "pbt-r0", "-o", page)
    check_facts(page.read_text(), "<h2>")


def test_a_report_shows_another_study_as_baseline(cli: Phyla, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    cli("report", "pbt-r0", "--baseline", "wide-r0", "-o", page)
    assert "wide-r0: median" in page.read_text()
    refused = cli("report", "pbt-r0", "--baseline", "lossy", "-o", page, code=2)
    check_facts(refused, "lossy", "pbt-r0", "minimize loss", "maximize score")
