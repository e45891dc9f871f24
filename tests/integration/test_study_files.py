"""Studies in TOML files on the command line: run, killed, resumed, joined; and those of the documentation."""

import json
import math
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

import forked
import phyla
from command_line import Phyla
from facts import check_facts
from forked import Forked
from phyla.records import JobState
from phyla.settings import child_environment
from phyla.study.files.load import load_studies
from study_files import blocks, write_files
from waiting import until

SOURCE = Path(phyla.__file__).parents[1]
HELD = 'while [ "$2" -ge 10 ] && [ -e hold ]; do sleep 0.02; done\n'
"""Lets trials of the second generation and later ones wait."""
TRAIN = """
import argparse

parser = argparse.ArgumentParser()
for name in ("lr", "dropout"):
    parser.add_argument(f"--{name}", type=float)
for name in ("batch_size", "layers", "steps"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--out")
parser.add_argument("--resume")
given = parser.parse_args()
value = float(open(f"{given.resume}/value").read()) if given.resume else 1.0
value *= 1 - given.lr
open(f"{given.out}/value", "w").write(str(value))
print(f"step {given.steps} val_loss={value}")
"""
SCRIPT = """
import argparse, json, pathlib

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--max-steps", type=int, default=40)
parser.add_argument("--resume-from", type=pathlib.Path)
parser.add_argument("--output-dir", type=pathlib.Path, default="runs")
given = parser.parse_args()
state = {"step": 0, "x": 10.0}
if given.resume_from:
    state = json.loads((given.resume_from / "state.json").read_text())
while state["step"] < given.max_steps:
    state = {"step": state["step"] + 1, "x": state["x"] * (1 - 2 * given.lr)}
(given.output_dir / "state.json").write_text(json.dumps(state))
print("done: loss =", state["x"] ** 2)
"""
EVALUATE = """
x=$(cat "$1/x")
echo x >> evaluated
awk -v x="$x" 'BEGIN { printf "{\\"distance\\": %.17g}", x < 0 ? -x : x }' > "$2"
"""
SUITE = """
fitness = { name = "from-suite", suite = "held" }

[[eval]]
name = "held"
tasks = [{ name = "far", command = ["sh", "evaluate.sh", "{checkpoint}", "{results}"] }]
"""


def start(folder: Path, *words: object) -> Forked:
    environment = child_environment({"PYTHONPATH": str(SOURCE), "COLUMNS": "140"})
    return Forked(["-m", "phyla.cli", *words], cwd=folder, env=environment, spares=2)


def write_study(folder: Path) -> None:
    """Write the study file of the documentation, and its script."""
    write_files("how-to/commands.md", folder)
    write_files("how-to/study-files.md", folder)


def running(folder: Path) -> list[psutil.Process]:
    """Return the processes that work in a folder."""
    found = []
    for process in psutil.process_iter(["cwd", "name"]):
        if process.info["cwd"] == str(folder) and process.info["name"] in ("sh", "awk", "sleep"):
            found.append(process)
    return found


def under_way(home: Path, count: int) -> bool:
    """Return whether so many trials run that wait until they are let go."""
    try:
        trials = phyla.load_study("quadratic", home=home).trials()
    except phyla.PhylaError:  # not made yet
        return False
    return sum(trial.state is JobState.RUNNING and trial.start_step >= 10 for trial in trials) >= count


@pytest.mark.thorough  # test_commands.py: commands that are killed
def test_a_study_of_a_shell_script_is_killed_resumed_and_joined(
    tmp_path: Path, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home = tmp_path / "studies", tmp_path / "elsewhere" / ".phyla"
    folder.mkdir()
    home.parent.mkdir()
    write_study(folder)
    script = folder / "train.sh"
    script.write_text(HELD + script.read_text())
    (folder / "hold").touch()
    # The command runs in the folder of the file, wherever phyla was started.
    run = start(home.parent, "run", "../studies/study.toml", "--workers", 2)
    until(lambda: under_way(home, 2), "trials under way", process=run)
    until(lambda: running(folder), "command", process=run)
    run.send_signal(signal.SIGKILL)
    run.wait()
    end = time.monotonic() + 30
    while running(folder):
        assert time.monotonic() < end, "the command outlived phyla"
        time.sleep(0.02)

    run = start(home.parent, "run", "../studies/study.toml", "--workers", 1)
    until(lambda: under_way(home, 1), "trial under way", process=run)
    worker = start(home.parent, "worker", "../studies/study.toml", "--workers", 1)
    until(lambda: under_way(home, 2), "second trial under way", process=worker)
    (folder / "hold").unlink()
    for process in (run, worker):
        output, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors
        assert "16" in output

    monkeypatch.chdir(home.parent)
    results = phyla.load_study("quadratic")
    assert results.counts() == {"completed": 16}
    best = results.best
    assert best is not None
    x = float((best.checkpoint.path / "x").read_text())
    assert math.isclose(best.fitness, x * x, rel_tol=1e-4)  # the script saves six digits
    expected = 10.0
    for piece in results.schedule().segments:
        expected *= (1 - 2 * float(str(piece.params["lr"]))) ** (piece.end_step - piece.start_step)
    assert math.isclose(x, expected, rel_tol=1e-4)
    assert f"best loss  {best.fitness:.6g}" in cli("best", "quadratic")
    cli("replay", "quadratic", "--file", "../studies/study.toml", "--workers", 0)
    again = phyla.load_study("quadratic-replay").best
    assert again is not None
    assert again.checkpoint.digest == best.checkpoint.digest


def test_commands_come_from_the_file_and_never_from_the_database(tmp_path: Path) -> None:
    write_study(tmp_path)
    file = tmp_path / "study.toml"
    text = file.read_text().replace("minimize loss", "minimize distance_mean")
    file.write_text(f"{text}{SUITE}")
    (tmp_path / "evaluate.sh").write_text(EVALUATE)
    (study,) = load_studies(file)
    study.places = phyla.study.Places.of(tmp_path / "home")
    study.results()
    with closing(sqlite3.connect(tmp_path / "home" / "phyla.db")) as connection, connection:
        ((number, stored),) = connection.execute("SELECT id, config FROM studies").fetchall()
        for name in ("train.sh", "evaluate.sh"):
            assert name in stored
            stored = stored.replace(name, f"canary-{name}")
            (tmp_path / f"canary-{name}").write_text("touch canary; exit 1\n")
        connection.execute("UPDATE studies SET config = ? WHERE id = ?", (stored, number))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = forked.run(
        ["-m", "phyla.cli", "run", "../study.toml", "--workers", 1, "--home", "../home"],
        cwd=elsewhere,
        env=child_environment({"PYTHONPATH": str(SOURCE)}),
        spares=1,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "canary").exists()
    # Both commands ran in the folder of the file.
    assert len((tmp_path / "evaluated").read_text().split()) == 16
    results = phyla.load_study("quadratic", home=tmp_path / "home")
    best = results.best
    assert best is not None
    assert best.fitness == abs(float((best.checkpoint.path / "x").read_text()))


@pytest.mark.parametrize(("name", "trials"), [("asha.toml", 4), ("pbt.toml", 4)])
def test_the_studies_that_come_from_a_sweep_run(tmp_path: Path, name: str, trials: int) -> None:
    write_files("coming-from/wandb-sweeps.md", tmp_path)
    if name == "pbt.toml":  # as the page says, from the other one
        (pbt,) = [text for named, text in blocks("coming-from/wandb-sweeps.md", "toml") if named is None]
        asha = (tmp_path / "asha.toml").read_text().replace("{layers}", "2")
        kept = [line for line in asha[: asha.index("[asha]")].splitlines() if not line.startswith("layers =")]
        (tmp_path / name).write_text("\n".join([*kept, pbt]))
    shorter = (("members = 27", "members = 3"), ("population_size = 8", "population_size = 2"), ("2700", "600"))
    for long, short in shorter:
        (tmp_path / name).write_text((tmp_path / name).read_text().replace(long, short))
    (tmp_path / "train.py").write_text(TRAIN)
    (study,) = load_studies(tmp_path / name)
    study.places = phyla.study.Places.of(tmp_path / "home")
    results = study.run()
    assert results.state == "completed"
    assert results.counts()["completed"] == trials
    assert results.best is not None


def test_what_is_drafted_for_a_script_runs_it_unchanged(
    tmp_path: Path, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    cli("init", "train.py")
    text = Path("study.toml").read_text()
    for old, new in (
        ("population_size = 8", "population_size = 2"),
        ("steps_per_trial = 2 ", "steps_per_trial = 20 "),
    ):
        assert old in text
        text = text.replace(old, new)
    Path("study.toml").write_text(text)
    cli("run", "study.toml", "--workers", 0)
    results = phyla.load_study("train")
    assert results.counts() == {"completed": 4}
    assert results.best is not None
    state = json.loads((results.best.checkpoint.path / "state.json").read_text())
    assert state["step"] == 40
    assert results.best.fitness == pytest.approx(state["x"] ** 2, rel=1e-3)


def test_the_command_line_says_what_is_wrong_with_a_file(
    tmp_path: Path, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path)
    text = Path("study.toml").read_text()
    Path("wrong.toml").write_text(text.replace("total_steps", "total_step"))
    Path("suite.toml").write_text(
        '[[suite]]\nname = "s"\ntasks = [{ name = "t", command = "true {checkpoint}" }]\n'
    )
    for words in (["run"], ["worker"], ["change"], ["replay", "x", "--file"]):
        told = cli(*words, "wrong.toml", code=2)
        check_facts(told, "wrong.toml", "total_step", "total_steps")
        if words != ["worker"]:
            check_facts(cli(*words, "suite.toml", code=2), "suite.toml")
    check_facts(cli("watch", ".", "--suite", "study.toml", code=2), "study.toml")
    assert not Path(".phyla").exists()
    load_studies("study.toml")[0].results()
    Path("study.toml").write_text(text.replace("population_size = 4", "population_size = 5"))
    assert "strategy.population_size: stored 4, given 5" in cli("run", "study.toml", code=2)
    check_facts(cli("change", "study.toml"), "strategy.population_size", "4", "5")
