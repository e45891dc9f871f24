"""What user code leaves running ends with its worker, and nobody waits for it."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import forked
import phyla
from effort import rarely
from waiting import PATIENCE_S, until
from watching import write

LEAVES = """
import concurrent.futures
import multiprocessing
import os
import subprocess
import threading
import time
from pathlib import Path

import phyla


def leave():
    def note(pid):
        Path("left", str(pid)).touch()

    threading.Thread(target=time.sleep, args=(900,), name="loader").start()
    threading.Thread(target=time.sleep, args=(900,), daemon=True).start()
    concurrent.futures.ThreadPoolExecutor(1).submit(time.sleep, 900)
    for daemon in (True, False):
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(900,), daemon=daemon)
        process.start()
        note(process.pid)
    note(subprocess.Popen(["sleep", "900"], start_new_session=True).pid)
    if (fork := os.fork()) == 0:
        time.sleep(900)
        os._exit(0)
    note(fork)
"""
STUDY = """
def train(trial):
    if trial.member == 0:
        leave()
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "x").write_text("x")
    trial.report(loss=trial.params["lr"])


strategy = phyla.RandomSearch(members=2, total_steps=1)
study = phyla.Study("left", {"lr": phyla.Float(0, 1)}, phyla.Minimize("loss"), strategy, train)
"""
SUITE = """
@phyla.eval_task
def task(evaluation):
    leave()
    evaluation.record(one=1.0)


suite = phyla.Suite("suite", [task])
"""
WARNED = "ended: the thread 'loader'"


def phyla_(tmp_path: Path, *words: object, workers: int) -> str:
    """Run the command line to its end, and return what it printed.

    A forked program cannot start processes as these leave them.
    """
    (tmp_path / "left").mkdir()
    output = tmp_path / "output"
    words = ("-m", "phyla.cli", *words, "--workers", workers)
    # No pipe: what is left would keep one open.
    with output.open("w+") as file:
        if workers:
            done = forked.run(words, cwd=tmp_path, stdout=file, spares=workers, timeout=PATIENCE_S).returncode
        else:
            command = [sys.executable, *map(str, words)]
            done = subprocess.run(
                command, cwd=tmp_path, stdout=file, stderr=file, timeout=PATIENCE_S, check=False
            ).returncode
    printed = output.read_text()
    assert done == 0, printed
    return printed


def check_ended(tmp_path: Path, printed: str, times: int) -> None:
    pids = [int(path.name) for path in (tmp_path / "left").iterdir()]
    assert len(pids) == 4 * times
    # A fork that was orphaned is waited for by somebody else.
    until(lambda: not any(_alive(pid) for pid in pids), "the end of what was left")
    assert printed.count("warning: the work was done") == 1
    assert WARNED in printed


def _alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("workers", [rarely(0), 2])
def test_nothing_that_training_started_outlives_a_run(tmp_path: Path, workers: int) -> None:
    (tmp_path / "study.py").write_text(LEAVES + STUDY)
    printed = phyla_(tmp_path, "run", "study.py", workers=workers)
    check_ended(tmp_path, printed, 1)
    assert phyla.load_study("left", home=tmp_path / ".phyla").counts() == {"completed": 2}


@pytest.mark.parametrize("workers", [0, rarely(1)])
def test_nothing_that_an_eval_task_started_outlives_a_watch(tmp_path: Path, workers: int) -> None:
    (tmp_path / "suite.py").write_text(LEAVES + SUITE)
    write(tmp_path / "ckpt", 1)
    fast = ("--format", "marker", "--once")
    printed = phyla_(tmp_path, "watch", "ckpt", "--suite", "suite.py", *fast, workers=workers)
    check_ended(tmp_path, printed, 1)
    assert "1 complete" in printed


DIES = """
import os
import signal
import subprocess
from pathlib import Path

import psutil

import phyla


def train(trial):
    left = Path("left", "pid")
    if not left.exists():
        left.write_text(str(subprocess.Popen(["sleep", "900"], start_new_session=True).pid))
        os.kill(os.getpid(), signal.SIGKILL)
    pid = int(left.read_text())
    alive = psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"
    Path("found").write_text("alive" if alive else "gone")
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "x").write_text("x")
    trial.report(loss=trial.params["lr"])


strategy = phyla.RandomSearch(members=1, total_steps=1)
study = phyla.Study("left", {"lr": phyla.Float(0, 1)}, phyla.Minimize("loss"), strategy, train)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of processes")
def test_what_a_dead_worker_started_has_ended_before_the_next_attempt(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(DIES)
    phyla_(tmp_path, "run", "study.py", workers=1)
    assert (tmp_path / "found").read_text() == "gone"


BOTH = """
import os
import phyla


def train(trial):
    child = os.fork() if trial.member == 0 else 1
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "x").write_text("parent" if child else "child")
    trial.report(loss=trial.params["lr"])
    if child and trial.member == 0:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@phyla.eval_task
def task(evaluation):
    child = os.fork()
    evaluation.record(one=1.0)
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


strategy = phyla.RandomSearch(members=2, total_steps=1)
study = phyla.Study("left", {"lr": phyla.Float(0, 1)}, phyla.Minimize("loss"), strategy, train,
    suites=[phyla.Suite("suite", [task])])
"""


@pytest.mark.parametrize("workers", [0, rarely(1)])
def test_a_fork_that_goes_on_beside_its_parent_ends_and_harms_nothing(tmp_path: Path, workers: int) -> None:
    (tmp_path / "study.py").write_text(BOTH)
    printed = phyla_(tmp_path, "run", "study.py", workers=workers)
    results = phyla.load_study("left", home=tmp_path / ".phyla")
    assert results.counts() == {"completed": 2}
    trials = results.trials()
    assert [trial.token for trial in trials] == [1, 1]
    saved = [next((tmp_path / ".phyla/checkpoints/left").glob(f"*{trial.checkpoint}*/x")) for trial in trials]
    assert {path.read_text() for path in saved} == {"parent"}
    log = printed if workers == 0 else (tmp_path / ".phyla/logs/left/worker-0.log").read_text()
    assert "steps(): process" in log
    assert log.count("returned and ends here") == 1  # both checkpoints are the same
