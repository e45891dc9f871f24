"""What `python study.py` shows while it trains: the lines of `phyla run`, on standard error."""

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

import forked
from effort import rarely
from forked import Forked
from streams import on_terminal

SCRIPT = """
import sys
import phyla


def train(trial):
    (trial.checkpoint_dir / "w").write_text(f"{trial.id} {trial.params['x']} {trial.source}")
    if trial.member == 1 and trial.generation == 1:
        raise ValueError("odd")
    trial.report(score=trial.end_step)


study = phyla.Study(
    "told",
    {"x": phyla.Float(0.1, 1.0)},
    phyla.Maximize("score"),
    phyla.RandomSearch(members=2, total_steps=2, steps_per_trial=1),
    train,
    retries=phyla.Retries(attempts=1),
)
if __name__ == "__main__":
    print(study.run(workers=int(sys.argv[1]), progress=sys.argv[2] == "yes").name)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "study.py").write_text(SCRIPT)
    return tmp_path / "study.py"


def run(script: Path, workers: int, progress: str = "yes") -> "subprocess.CompletedProcess[str]":
    return forked.run([script, workers, progress], cwd=script.parent, check=True, spares=workers)


@pytest.mark.parametrize("workers", [rarely(0), 1])
def test_a_script_shows_how_its_study_goes_on(script: Path, workers: int) -> None:
    done = run(script, workers)
    assert done.stdout == "told\n"  # what the script prints is all there is
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"starting told: 2 members, {'1 worker' if workers else 'no worker'}; watch it")
    progress = [line for line in lines if re.match(r"\d+ of \d+ trials", line)]
    assert re.search(r"best score 2 \(member 0, step 2\)  0 s left", progress[-1])
    failures = [line for line in lines if "attempt 1 failed: ValueError: odd" in line]
    assert 1 <= len(failures) == len({*failures})  # each is told once
    assert any("member 1 (given up" in line for line in lines)


def test_nothing_is_shown_where_that_is_not_wanted(script: Path) -> None:
    done = run(script, 0, "no")
    assert done.stdout == "told\n"
    assert "starting" not in done.stderr
    assert not re.search(r"\d+ of \d+ trials", done.stderr)
    assert "odd" in done.stderr  # what failed is told all the same


@pytest.mark.parametrize("workers", [rarely(0), 1])
def test_a_terminal_is_drawn_on_only_by_workers(script: Path, workers: int) -> None:
    """Training in the same process may draw progress bars of its own."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    first = on_terminal(os.ttyname(theirs), 2)
    process = Forked([script, workers, "yes"], cwd=script.parent, env=environment, first=first, spares=workers)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not shown:
            os.close(theirs)  # the script has it
        shown += part
    os.close(ours)
    assert (process.wait(120), process.printed()) == (0, "told\n")
    assert b"starting told" in shown
    assert (b"\x1b[2K" in shown) == bool(workers)  # erases lines
    assert (b"hyperparameters" in shown) == bool(workers)
