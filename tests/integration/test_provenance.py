"""How a study was started is stored, shown and compared; secrets are not."""

import json
import linecache
import subprocess
from pathlib import Path

import pytest

import phyla
from command_line import Phyla
from facts import check_facts
from phyla import study_modules
from phyla.study.running.provenance import DIFF_BYTES, collect, packages

FILE = """
import phyla

def train(trial):
    for step in trial.steps():
        pass
    (trial.checkpoint_dir / "w").write_text("w")
    trial.report(x=1.0 * trial.params["lr"])

study = phyla.Study(
    "noted", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("x"),
    phyla.PBT(population_size=1, steps_per_trial=1, total_steps=2), train,
)
"""


def write(file: Path, text: str) -> None:
    """Write a study file that this process has read already."""
    file.write_text(text)
    study_modules.forget()
    linecache.clearcache()


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "noted.py").write_text(FILE)
    git(folder, "init", "-q")
    git(folder, "add", "noted.py")
    git(folder, "commit", "-qm", "first")
    return folder


def test_what_changed_between_two_starts(
    repository: Path, tmp_path: Path, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("TORCH_API_KEY", "hidden")
    monkeypatch.setenv("PHYLA_STORAGE", "postgresql://me:hidden@host/db")
    home, file = tmp_path / "home", repository / "noted.py"
    cli("run", file, "--home", home, "--workers", 0)
    longer = FILE.replace("total_steps=2", "total_steps=3")
    write(file, longer)
    cli("change", file, "--home", home)
    cli("run", file, "--home", home, "--workers", 0)
    write(file, longer.replace("total_steps=3", "total_steps=4").replace("1.0 *", "2.0 *"))
    cli("change", file, "--home", home)
    cli("run", file, "--home", home, "--workers", 0)
    # There is nothing to do: that is no start.
    cli("run", file, "--home", home, "--workers", 0)
    told = json.loads(cli("status", "noted", "--home", home, "--provenance", "--json"))
    first, second, third = (one["facts"] for one in told)
    assert first["commit"] == second["commit"] == git(repository, "rev-parse", "HEAD")
    assert [one["facts"]["changed"] for one in told] == [False, True, True]
    assert told[0]["diff"] is None
    assert "+    phyla.PBT(population_size=1, steps_per_trial=1, total_steps=3), train," in told[1]["diff"]
    assert [one["differs"] for one in told] == [
        "",
        "uncommitted changes",
        "the training code, uncommitted changes",
    ]
    assert first["code"] == second["code"] != third["code"]
    assert first["variables"]["SLURM_JOB_ID"] == "17"
    assert first["variables"]["PHYLA_STORAGE"] == "postgresql://me:***@host/db"
    assert first["packages"]["numpy"]
    assert first["machine"]["cpus"]
    assert "hidden" not in json.dumps(told)
    text = cli("status", "noted", "--home", home, "--provenance")
    assert f"{first['commit'][:10]} + changes" in text
    assert "the training code, uncommitted changes" in text
    page = tmp_path / "page.html"
    cli("report", "noted", "--home", home, "--output", page)
    assert f"commit {first['commit'][:10]} + changes" in page.read_text()


def test_without_git_or_a_repository_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, diff = collect(None, tmp_path)
    assert (facts["commit"], facts["changed"], diff) == (None, None, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    facts, diff = collect(None, Path(__file__).parent)
    assert (facts["commit"], diff) == (None, None)


def test_a_diff_has_a_limit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.argv", ["run", "--api-key", "hidden", "--password=hidden", "http://me:hidden@host", "--lr", "0.1"]
    )
    (repository / "noted.py").write_text("x\n" * DIFF_BYTES)
    facts, diff = collect({"file": str(repository / "noted.py"), "now": "digest"}, repository.parent)
    assert diff is not None
    assert len(diff) == DIFF_BYTES < facts["diff_bytes"]  # type: ignore[operator]
    assert facts["command"] == ["run", "--api-key", "***", "--password=***", "http://me:***@host", "--lr", "0.1"]


def test_packages_are_known_by_their_folders(tmp_path: Path) -> None:
    for name in ("Some_Thing-1.2.dist-info", "old-3.egg-info", "module.py", "plain"):
        (tmp_path / name).mkdir()
    assert packages([str(tmp_path / "absent"), str(tmp_path)]) == {"old": "3", "some-thing": "1.2"}


def test_a_store_that_fails_does_not_end_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise OSError("no such luck")

    monkeypatch.setattr("phyla.study.running.provenance.collect", fails)

    def train(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "w").write_text("w")
        trial.report(x=1.0, step=trial.end_step)

    strategy = phyla.PBT(population_size=1, steps_per_trial=1, total_steps=1)
    study = phyla.Study(
        "noted", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("x"), strategy, train, home=tmp_path
    )
    assert study.run().counts() == {"completed": 1}
    check_facts(caplog.text, "OSError")


def test_a_study_of_a_command_is_noted_too(tmp_path: Path, cli: Phyla) -> None:
    command = phyla.Command(["sh", "-c", 'echo a > "$PHYLA_SAVE_TO/a"; echo x={lr}'], metrics={"x": r"x=(\S+)"})
    study = phyla.Study(
        "noted",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("x"),
        phyla.PBT(population_size=1, steps_per_trial=1, total_steps=1),
        command,
        home=tmp_path,
    )
    study.run()
    assert len(study.results().starts()) == 1
    assert "noted" not in cli("status", "noted", "--provenance", "--home", tmp_path).split()[:1]
