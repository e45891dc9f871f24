"""What `phyla status` says of studies that nobody works on."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import phyla
from command_line import Phyla
from facts import check_facts
from phyla.study.results.progress import silent_s
from phyla.study.running.display import StudyDisplay
from waiting import until

HINT = "run the study again"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Phyla) -> Phyla:
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return cli


def study(name: str) -> phyla.Study:
    space = {"lr": phyla.Float(0.1, 1.0)}
    strategy = phyla.RandomSearch(members=2, total_steps=2)
    return phyla.Study(name, space, phyla.Maximize("q"), strategy)


def test_a_study_whose_leases_have_all_run_out_is_said_to_have_no_worker(cli: Phyla) -> None:
    assert study("dead").ask(2, lease_s=0.02)
    shown = until(lambda: HINT in (said := cli("status", "dead")) and said, HINT)
    assert re.match(r"no worker has renewed its lease for [\d.]+ s; ", shown.splitlines()[1])
    assert "running, no worker" in cli("status")
    assert json.loads(cli("status", "dead", "--json"))["silent_s"] > 0.02


def test_a_study_between_trials_is_said_to_have_no_trial_running(cli: Phyla) -> None:
    made = study("new")
    trial = made.ask(lease_s=0.02)
    assert trial is not None
    made.tell(trial, error="ValueError: no")
    shown = until(lambda: HINT in (said := cli("status", "new")) and said, HINT)
    assert re.search(r" queued +lr=", shown)


def test_what_a_process_held_that_is_gone_is_not_said_to_run(cli: Phyla, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, test_cli_status as made; made.study('killed').ask(); os._exit(9)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 9
    shown = cli("status", "killed")
    assert re.search(r" worker gone +lr=", shown)
    assert HINT in shown
    assert "1 held by workers that are gone" in shown
    assert "running, no worker" in cli("status")
    monkeypatch.setenv("COLUMNS", "80")
    narrow = cli("status", "killed").splitlines()
    for words in ("member   steps   gen   fitness ", " 0/2 ", "running trial   attempt   member   worker"):
        assert any(words in line for line in narrow), narrow


def test_of_a_study_at_work_or_complete_nothing_is_said(cli: Phyla) -> None:
    assert study("alive").ask()
    done = study("done")
    for trial in done.ask(2, lease_s=0.02):
        (trial.checkpoint_dir / "x").write_text("x")
        done.tell(trial, metrics={"q": 1.0})
    assert done.ask(lease_s=0.02) is None
    study("dead").ask(lease_s=0.02)
    until(lambda: HINT in cli("status", "dead"), HINT)
    for name in ("alive", "done"):
        assert HINT not in cli("status", name)
        assert json.loads(cli("status", name, "--json"))["silent_s"] is None


def test_one_of_a_kind_is_singular(cli: Phyla) -> None:
    space, strategy = {"lr": phyla.Float(0.1, 1.0)}, phyla.RandomSearch(members=1, total_steps=2)
    for name in ("one", "other"):
        made = phyla.Study(name, space, phyla.Maximize("q"), strategy)
        trial = made.ask()
        assert trial is not None
        (trial.checkpoint_dir / "x").write_text("x")
        made.tell(trial, metrics={"q": 1.0})
        assert made.ask() is None
    assert "kept 1 checkpoint (1 B)" in cli("gc", "one")
    assert "Wilcoxon signed-rank   1 pair " in cli("compare", "one", "other")
    assert "completed, 1 checkpoint intact" in cli("doctor")


def test_who_shrinks_a_population_has_stopped_no_trial_early(cli: Phyla) -> None:
    def study(members: int) -> phyla.Study:
        strategy = phyla.PBT(population_size=members, steps_per_trial=2, total_steps=4)
        return phyla.Study("shrunk", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("q"), strategy)

    assert len(study(2).ask(2)) == 2
    study(1).change()
    shown = cli("status", "shrunk")
    assert "trials completed: 0 of 2, 1 running, 1 cancelled\n" in shown
    assert "stopped early" not in shown
    assert json.loads(cli("status", "shrunk", "--json"))["cancelled_trials"] == 1
    (row,) = json.loads(cli("trials", "shrunk", "--json", "--state", "cancelled"))
    assert "retired" in row["error"]


def test_silence_is_counted_from_the_last_sign_of_life() -> None:
    assert silent_s([], now=100.0, length_s=60.0, last_activity=50.0) is None
    assert silent_s([], now=200.0, length_s=60.0, last_activity=50.0) == 150.0
    assert silent_s([190.0], now=200.0, length_s=60.0, last_activity=50.0) == 70.0
    assert silent_s([190.0, 201.0], now=200.0, length_s=60.0, last_activity=50.0) is None


def test_a_study_can_be_followed_whoever_trains_it(cli: Phyla, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = phyla.PBT(population_size=2, steps_per_trial=1, total_steps=3, quorum=1.0)
    made = phyla.Study("told", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), strategy)
    trials = made.ask(2, whole=True)
    following, progressed = threading.Event(), StudyDisplay.progressed

    def look(display: StudyDisplay, results: phyla.Results) -> None:
        progressed(display, results)
        following.set()

    def train(trials: list[phyla.Trial]) -> None:
        following.wait()
        while trials:
            for trial in trials:
                (trial.checkpoint_dir / "weights").write_text("w")
            made.tell(trials, metrics=[{"score": 1.0}] * len(trials))
            trials = made.ask(2, whole=True)

    monkeypatch.setattr(StudyDisplay, "progressed", look)
    training = threading.Thread(target=train, args=(trials,))
    training.start()
    lines = cli("status", "told", "--watch").splitlines()
    training.join()
    assert "0 of 6 trials" in lines[0]
    assert any("told: completed" in line for line in lines)
    check_facts(cli("status", "--watch", code=2), "--watch")


LOWERED = """
import phyla


def train(trial):
    (trial.checkpoint_dir / "w").write_text(str(trial.id))
    trial.report(q=trial.params["lr"])


strategy = phyla.PBT(population_size=2, steps_per_trial=5, total_steps=20)
study = phyla.Study("lowered", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("q"), strategy, train)
"""


def test_change_says_what_fewer_steps_than_were_trained_mean(cli: Phyla) -> None:
    long, short = Path("long.py"), Path("short.py")
    long.write_text(LOWERED)
    short.write_text(LOWERED.replace("total_steps=20", "total_steps=10"))
    cli("run", long, "--workers", 0)
    check_facts(cli("change", short), "2 members", "more than 10 steps")
    assert "more than" not in cli("change", long)


def test_of_a_large_population_the_best_members_are_listed(cli: Phyla) -> None:
    many = phyla.Study("many", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("x"), phyla.RandomSearch(501, 1))
    assert many.ask() is not None
    assert "the best 500 of 501 members" in cli("status", "many")
    assert len(json.loads(cli("status", "many", "--json"))["members"]) == 501


def test_what_failed_is_told_of_members_that_are_not_listed(cli: Phyla, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.cli.status.MEMBERS_SHOWN", 1)
    made = study("few")
    _, second = made.ask(2)
    made.tell(second, error="ValueError: no")
    shown = cli("status", "few")
    assert "the best 1 of 2 members" in shown
    assert re.search(rf"^ *{second.id} +1 +1 +pending +ValueError: no$", shown, re.MULTILINE)
