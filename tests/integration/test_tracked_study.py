"""`phyla run --tracker`, killed and resumed, while training code logs to W&B itself; and `phyla export`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import Phyla
from event_files import logged
from facts import check_facts
from tracked_runs import mlflow_runs, offline_runs

MEMBERS, TRIALS, STEPS = 2, 3, 5
TOTAL = TRIALS * STEPS
FILE = f"""
import time
from pathlib import Path
import phyla
import wandb

def train(trial):
    while trial.generation == {TRIALS - 1} and Path("hold").exists():
        time.sleep(0.02)
    own = wandb.init(settings=wandb.Settings(console="off", silent=True, x_disable_stats=True))
    for step in trial.steps():
        time.sleep(0.1)
        own.log({{"mine": step}})
        trial.report({{"train/loss": 1 / (1 + step)}}, step=step)
    own.finish()
    (trial.checkpoint_dir / "w").write_text("w")
    trial.report(loss=1 / (1 + step))

study = phyla.Study(
    "tracked", {{"lr": phyla.Float(0.1, 1.0)}}, phyla.Minimize("loss"),
    phyla.PBT(population_size={MEMBERS}, steps_per_trial={STEPS}, total_steps={TOTAL}), train,
)
"""


@pytest.mark.thorough  # W&B's own process takes more than a minute to begin on a busy machine
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_killed_study_goes_on_in_the_same_runs(tmp_path: Path, cli: Phyla) -> None:
    (tmp_path / "tracked.py").write_text(FILE)
    home, board = tmp_path / "home", tmp_path / "board"
    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    trackers = ("--tracker", f"tensorboard={board}", "--tracker", "wandb")
    words = f"-m phyla.cli run tracked.py --home {home} --workers 1"
    command = [sys.executable, *words.split(), *trackers]
    environment = {**os.environ, "WANDB_MODE": "offline"}
    (tmp_path / "hold").touch()
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as killed:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not list((home / "tracking").rglob("wandb*.json")):
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
    (tmp_path / "hold").unlink()
    assert cli("status", "tracked", "--home", home).count("6/6") == 0
    # A tracker that joins later is told everything.
    command += ["--tracker", f"mlflow={uri}"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=200, stdout=subprocess.DEVNULL)

    found = logged(board)
    assert set(found) == {f"tracked/member{member}" for member in range(MEMBERS)}
    for its in found.values():
        assert [one.step for one in its if one.tag == "train/loss"] == list(range(TOTAL))
        assert [one.step for one in its if one.tag == "params/lr"] == list(range(0, TOTAL, STEPS))
    for metrics in mlflow_runs(uri, "tracked").values():
        assert [step for step, _ in metrics["train/loss"]] == list(range(TOTAL))
    runs = offline_runs(home, rows=MEMBERS * (TOTAL + STEPS))
    assert len(runs) == MEMBERS
    for rows in runs.values():
        # W&B's own process held what it was told just before the kill in memory.
        steps = sorted(row["phyla/progress"] for row in rows if "train/loss" in row)
        assert steps == list(range(TOTAL))[TOTAL - len(steps) :]
        assert len(steps) >= STEPS
        assert {row["mine"] for row in rows if "mine" in row} == set(range(TOTAL))

    # What is written anew is the same.
    written = cli("export", "tracked", "--home", home, "--format", "tensorboard", "--output", tmp_path / "again")
    assert "tracked to" in written
    plain = {run: sorted((one.tag, one.step, one.value) for one in its) for run, its in found.items()}
    again = logged(tmp_path / "again")
    assert {run: sorted((one.tag, one.step, one.value) for one in its) for run, its in again.items()} == plain
    before = mlflow_runs(uri, "tracked")
    cli("export", "tracked", "--home", home, "--format", "mlflow", "--output", uri)
    assert mlflow_runs(uri, "tracked") == before
    told = cli("export", "tracked", "--home", home, "--format", "wandb", "--output", tmp_path / "offline")
    assert f"wandb sync {tmp_path / 'offline' / 'wandb'}/offline-run-*" in told
    rebuilt = offline_runs(tmp_path / "offline", rows=MEMBERS * TOTAL)
    assert set(rebuilt) == set(runs)
    for rows in rebuilt.values():
        assert [row["phyla/progress"] for row in rows if "train/loss" in row] == list(range(TOTAL))


def test_bad_places_and_options(tmp_path: Path, cli: Phyla) -> None:
    (tmp_path / "tracked.py").write_text(FILE.replace("import wandb", ""))
    file = tmp_path / "tracked.py"
    said = cli("run", file, "--home", tmp_path / "home", "--tracker", "mlfow", code=2)
    check_facts(said, "mlfow", "mlflow")
    assert not (tmp_path / "home").exists()
    (tmp_path / "taken").touch()
    for taken in ("tensorboard={}", "mlflow=sqlite:///{}/a.db"):
        place = tmp_path / "taken"
        said = cli("run", file, "--home", tmp_path / "home", "--tracker", taken.format(place), code=2)
        check_facts(said, place)
        assert not (tmp_path / "home").exists()
