"""The torchrun example: two ranks of one trial die together, save together, and leave nothing behind."""

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import phyla
from phyla.records import AttemptState
from waiting import until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/torchrun"
FILE = f"""
import phyla, runpy
example = runpy.run_path({str(EXAMPLE / "study.py")!r})["study"]
strategy = phyla.PBT(population_size=1, steps_per_trial=1_000_000, total_steps=1_000_000)
study = phyla.Study("long", example.rules.space, example.rules.objective, strategy, example.train, home="home",
                    retries=phyla.Retries(attempts=9))
if __name__ == "__main__":
    study.run(workers=1)
"""


def train_processes(folder: Path, run: psutil.Process) -> list[psutil.Process]:
    """Return torchrun and the ranks of the running attempt, torchrun first."""
    found = []
    for process in run.children(recursive=True):
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if any(str(folder) in word for word in line) and "train.py" in line and "-S" not in line:
            found.append(process)
    return found


def steps(folder: Path, attempt: int) -> list[int]:
    file = folder / f"home/work/long/trial-1/metrics-{attempt}.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


@pytest.mark.thorough
@pytest.mark.timeout(280)
def test_a_gang_of_two_ranks(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "file.py").write_text(FILE)
    scripts = [Path(sys.executable).parent, Path(torch.__file__).parents[4] / "bin"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": os.pathsep.join([*map(str, scripts), os.environ["PATH"]]),
    }

    def start() -> psutil.Popen:
        return psutil.Popen([sys.executable, "file.py"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)

    def gang(run: psutil.Popen, attempt: int) -> list[psutil.Process]:
        until(lambda: steps(tmp_path, attempt) or run.poll() is not None, "the first step")
        found = train_processes(tmp_path, run)
        assert len(found) == 3, found
        assert len({os.getsid(process.pid) for process in found}) == 3
        return found

    def gone(processes: list[psutil.Process]) -> None:
        _, alive = psutil.wait_procs(processes, timeout=180)
        assert not alive

    with start() as run:
        first = gang(run, 1)
        first[2].kill()
        gone(first)
        second = gang(run, 2)
        second[0].kill()
        gone(second)
        third = gang(run, 3)
        run.send_signal(signal.SIGTERM)
        assert run.wait(180) != 0
        gone(third)
    (trial,) = phyla.load_study("long", home=tmp_path / "home").trials()
    assert (trial.failures, trial.token) == (2, 3)
    assert trial.progress_step == steps(tmp_path, 3)[-1]
    with start() as run:
        fourth = gang(run, 4)
        # It goes on from what both ranks had when they were told to stop.
        assert steps(tmp_path, 4)[0] > trial.progress_step
        keeper = fourth[0].parent()
        worker = None if keeper is None else keeper.parent()
        assert worker is not None
        worker.kill()
        gone(fourth)
        run.send_signal(signal.SIGKILL)
    attempts = phyla.load_study("long", home=tmp_path / "home").attempts()
    assert [each.state for each in attempts[:3]] == [
        AttemptState.FAILED,
        AttemptState.FAILED,
        AttemptState.RELEASED,
    ]
    assert "exit status 1: " in (attempts[0].error or "")
    assert "SIGKILL" in (attempts[1].error or "")


def test_the_example_is_a_study() -> None:
    made = runpy.run_path(str(EXAMPLE / "study.py"))["study"]
    made.train.check_space(made.rules.space)
