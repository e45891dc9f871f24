"""Workers that are silent, hang, are preempted, or cannot start."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import psutil
import pytest

from durability import load
from facts import check_facts
from forked import Forked
from forked import run as run_started
from phyla.records import AttemptState, JobState, StudyState
from phyla.settings import child_environment

SPARES = 4
run = partial(run_started, spares=SPARES)

HEAD = """
import ctypes, json, os, signal, threading, time
from pathlib import Path
import phyla

HOME = Path({home!r})

def save(trial):
    (trial.checkpoint_dir / "a").write_text(str(trial.id))
    trial.report(score=trial.id)

"""
TAIL = """
study = phyla.Study(
    name="toy",
    space=phyla.Space(lr=phyla.Float(0.1, 1.0)),
    objective=phyla.Maximize("score"),
    strategy=phyla.PBT(population_size=2, steps_per_trial=5, total_steps=10),
    train=train, home=HOME, {options}
)
study.run(workers={workers}, {running})
"""


def write(tmp_path: Path, train: str, *, options: str = "", running: str = "", workers: int = 2) -> list[object]:
    """Write a study file and return the words that run it; note that it has no main guard."""
    file = tmp_path / "study_file.py"
    tail = TAIL.format(options=options, running=running, workers=workers)
    file.write_text(HEAD.format(home=str(tmp_path / "home")) + train + tail)
    return [file]


def test_code_that_holds_the_interpreter_is_no_dead_worker(tmp_path: Path) -> None:
    """The lease is much shorter than the call, and nobody takes the trial away."""
    train = """
def train(trial):
    if trial.generation == 0:
        ctypes.PyDLL(None).usleep(int(4e6))  # 4 s without releasing the interpreter
    save(trial)
"""
    done = run(write(tmp_path, train, options="retries=phyla.Retries(attempts=1)", running="lease_s=1.0"))
    assert done.returncode == 0, done.stderr
    results = load(tmp_path / "home")
    assert {attempt.state for attempt in results.attempts()} == {AttemptState.COMPLETED}
    assert results.counts() == {"completed": 4}


def test_a_hang_ends_by_time_out_also_while_checkpoints_are_collected(tmp_path: Path) -> None:
    train = """
from phyla.client import Client

AGAIN = HOME.with_name("again")  # a pipe: each end waits for the other
if not AGAIN.exists():
    os.mkfifo(AGAIN)
collect, late = Client.collect, [AGAIN]

def collect_late(client):
    while late:
        late.pop().read_text()
    return collect(client)

Client.collect = collect_late

def train(trial):
    if trial.member == 1 and trial.generation == 1:
        if trial.token == 1:
            threading.Event().wait()
        AGAIN.write_text("")
    save(trial)
"""
    done = run(write(tmp_path, train, running="stall_timeout_s=4.0", workers=1))
    assert done.returncode == 0, done.stderr
    results = load(tmp_path / "home")
    lost = [attempt for attempt in results.attempts() if attempt.state is AttemptState.LOST]
    assert len(lost) == 1
    assert "StallTimeout" in (lost[0].error or "")
    assert results.counts() == {"completed": 4}


def test_sigterm_returns_the_trial_to_the_queue_with_its_progress(tmp_path: Path) -> None:
    train = """
def train(trial):
    flag = HOME / "killed"
    for step in trial.steps():
        if trial.member == 0 and trial.generation == 1 and not flag.exists():
            flag.write_text("x")
            os.kill(os.getpid(), signal.SIGTERM)
            while not trial.should_stop:
                time.sleep(0.01)
            (trial.checkpoint_dir / "b").write_text("progress")
            trial.save_progress(step=step + 2)
            return
    save(trial)
"""
    done = run(write(tmp_path, train, workers=1))
    assert done.returncode in (0, 1), done.stderr
    done = run(write(tmp_path, train, workers=0))
    assert done.returncode == 0, done.stderr
    results = load(tmp_path / "home")
    released = [attempt for attempt in results.attempts() if attempt.state is AttemptState.RELEASED]
    assert len(released) == 1
    trial = next(row for row in results.trials() if row.id == released[0].job)
    assert (trial.state, trial.token, trial.failures, trial.progress_step) == (JobState.COMPLETED, 2, 0, 7)


def test_ctrl_c_once_stops_gracefully_and_the_next_run_goes_on(tmp_path: Path) -> None:
    train = """
def train(trial):
    (HOME / f"running-{trial.id}").write_text("x")
    for step in trial.steps():
        while trial.generation == 1 and not (HOME / "go on").exists():
            if trial.should_stop:
                return
            time.sleep(0.01)
    save(trial)
"""
    command = write(tmp_path, train, workers=1)
    process = Forked(command, spares=SPARES)
    home = tmp_path / "home"
    while not (home / "running-3").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=180)
    assert "KeyboardInterrupt" in error
    results = load(home)
    assert results.state is StudyState.STOPPED
    assert {row.state for row in results.trials()} == {JobState.COMPLETED, JobState.PENDING}
    assert {a.state for a in results.attempts()} == {AttemptState.COMPLETED, AttemptState.RELEASED}
    (home / "go on").write_text("x")
    assert run(write(tmp_path, train, workers=0)).returncode == 0
    assert load(home).counts() == {"completed": 4}


def test_ctrl_c_stops_only_ones_own_workers_while_others_are_at_work(tmp_path: Path) -> None:
    train = """
def train(trial):
    (HOME / f"running-{os.getpid()}").write_text("x")
    while not (HOME / "go on").exists():
        if trial.should_stop:
            return
        time.sleep(0.01)
    save(trial)
"""
    command = write(tmp_path, train, workers=1)
    home = tmp_path / "home"
    one, other = Forked(command, spares=1), Forked(command, spares=1)
    while len(list(home.glob("running-*"))) < 2:
        assert one.poll() is other.poll() is None
        time.sleep(0.01)
    one.send_signal(signal.SIGINT)
    _, error = one.communicate(timeout=180)
    assert "KeyboardInterrupt" in error
    assert load(home).state is StudyState.RUNNING
    (home / "go on").write_text("x")
    assert other.wait(180) == 0
    assert load(home).counts() == {"completed": 4}


def test_ctrl_c_twice_stops_at_once(tmp_path: Path) -> None:
    train = """
def train(trial):
    (HOME / f"running-{trial.id}").write_text("x")
    while not (HOME / "go on").exists():
        time.sleep(0.01)
    save(trial)
"""
    command = write(tmp_path, train)
    process = Forked(command, spares=2)
    home = tmp_path / "home"
    while not (home / "running-2").exists():
        assert process.poll() is None
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    assert not [worker for worker in workers if worker.is_running() and worker.status() != "zombie"]
    (home / "go on").write_text("x")
    assert run(write(tmp_path, train, workers=0)).returncode == 0
    assert load(home).counts() == {"completed": 4}
    assert all(row.failures == 0 for row in load(home).trials())


@pytest.mark.parametrize(
    ("train", "options", "words"),
    [
        ("import no_such_module\ndef train(trial): ...\n", "", "no_such_module"),
        ("train = lambda trial: None\n", "", "is a lambda or is defined inside another function"),
        ("def train(trial): save(trial)\n", "setup=lambda worker: None,", "is a lambda"),
    ],
)
def test_workers_that_cannot_start_say_why(tmp_path: Path, train: str, options: str, words: str) -> None:
    done = run(write(tmp_path, train, options=options))
    assert done.returncode != 0
    check_facts(done.stderr, *words.split())


@pytest.mark.parametrize("repaired", [True, False])
def test_a_worker_that_could_start_before_waits_until_its_file_is_repaired(tmp_path: Path, repaired: bool) -> None:
    train = """
from phyla.supervision import supervisor
supervisor.OUTDATED_S, supervisor.BROKEN_S = (0.0, 0.1), 0.1

def train(trial):
    if trial.member == trial.generation == 1 and trial.token == 1:
        file, good = Path(__file__), HOME / "good"
        good.write_text(file.read_text())
        repair = f"import os; os.replace({str(good)!r}, __file__)" if REPAIRED else ""
        file.write_text(f"{repair}\\nraise ImportError('half edited')")
        os.kill(os.getpid(), signal.SIGKILL)
    save(trial)
"""
    done = run(write(tmp_path, f"REPAIRED = {repaired}\n{train}", workers=1))
    assert (done.returncode == 0) is repaired, done.stderr
    check_facts(done.stderr, "worker 0", "cannot start again", "half edited", "worker-0.log")
    assert load(tmp_path / "home").counts()["completed"] == 4 if repaired else "StudyFailed" in done.stderr


def test_a_function_of_a_notebook_shows_the_way_out(tmp_path: Path) -> None:
    code = HEAD.format(home=str(tmp_path)) + "def train(trial): save(trial)\n"
    code += TAIL.format(options="", running="", workers=2)
    done = run(["-c", code])
    assert done.returncode != 0
    assert "%%writefile" in done.stderr
    assert "workers=0" in done.stderr


@pytest.mark.parametrize("kind", ["OSError", "KeyboardInterrupt"])
def test_a_setup_that_raises_ends_the_run_with_its_traceback(tmp_path: Path, kind: str) -> None:
    train = f"def setup(worker): raise {kind}('no data set')\ndef train(trial): save(trial)\n"
    done = run(write(tmp_path, train, options="setup=setup,", workers=1))
    assert done.returncode != 0
    assert "cannot start" in done.stderr
    assert "no data set" in done.stderr


def test_children_of_a_worker_die_with_it_and_what_it_printed_is_in_its_log(tmp_path: Path) -> None:
    train = """
import subprocess
def train(trial):
    child = subprocess.Popen(["sleep", "1000"])
    (HOME / f"child-{trial.id}").write_text(str(child.pid))
    if trial.token == 1 and trial.id == 1:
        print("about to die")
        os.kill(os.getpid(), signal.SIGKILL)
    save(trial)
"""
    done = run(write(tmp_path, train, workers=1))
    assert done.returncode == 0, done.stderr
    assert "about to die" in (tmp_path / "home/logs/toy/worker-0.log").read_text()
    pids = [int(file.read_text()) for file in (tmp_path / "home").glob("child-*")]
    assert len(pids) == 4
    psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=180)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_each_worker_sees_its_gpus(tmp_path: Path) -> None:
    train = """
def train(trial):
    (HOME / f"gpus-{trial.id}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    save(trial)
"""
    command = write(tmp_path, train)
    file = tmp_path / "study_file.py"
    file.write_text(file.read_text().replace("workers=2", "workers=2, gpus_per_worker=2"))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    done = run(command, env=environment)
    assert done.returncode == 0, done.stderr
    seen = {path.read_text() for path in (tmp_path / "home").glob("gpus-*")}
    assert seen <= {"4,5", "6,7"}
    few = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    done = run(command, env=few)
    assert "need 4 GPUs, but 1 are visible" in done.stderr


@pytest.mark.thorough  # unit/worker/test_processes.py: what is kept of long outputs
def test_what_training_prints_without_end_does_not_fill_the_disk(tmp_path: Path) -> None:
    train = """
LOG = HOME / "logs/toy/worker-0.log"

def train(trial):
    if trial.generation == 0 and trial.member == 0:
        for _ in range(160):
            print("x" * 1_000_000)
        size = LOG.stat().st_size
        # Its beginning and its end are 72 MiB.
        while LOG.stat().st_blocks * 512 > 140 << 20:
            time.sleep(0.01)
        assert LOG.stat().st_size == size
        raise ValueError("still here")
    save(trial)
"""
    done = run(write(tmp_path, train, options="retries=phyla.Retries(attempts=2)", workers=1))
    assert done.returncode == 1
    assert "still here" in (tmp_path / "home/logs/toy/worker-0.log").read_text(errors="replace")[-5000:]


def test_training_that_exits_with_status_0_or_interrupts_itself_is_no_finished_worker(tmp_path: Path) -> None:
    train = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
def train(trial):
    if trial.generation == 1 and trial.token == 2 and trial.member:
        raise KeyboardInterrupt
    if trial.generation == 1 and trial.token == 1:
        sys.exit(0) if trial.member else os._exit(0)
    save(trial)
"""
    done = run(write(tmp_path, "import sys\n" + train, workers=1))
    assert done.returncode == 0, done.stderr
    results = load(tmp_path / "home")
    assert results.counts() == {"completed": 4}
    ends = Counter(attempt.state for attempt in results.attempts())
    assert ends == {AttemptState.COMPLETED: 4, AttemptState.FAILED: 2, AttemptState.LOST: 1}


@pytest.mark.thorough  # above: status 0, which looks like an end
def test_no_status_with_which_training_exits_ends_the_run(tmp_path: Path) -> None:
    train = """
def train(trial):
    if trial.generation == 1 and trial.token == 1:
        os._exit(3 + trial.member)
    save(trial)
"""
    done = run(write(tmp_path, train, workers=1))
    assert done.returncode == 0, done.stderr
    results = load(tmp_path / "home")
    assert results.counts() == {"completed": 4}
    assert sorted(trial.failures for trial in results.trials()) == [0, 0, 1, 1]


@pytest.mark.thorough  # above: a hang; an interrupt
def test_an_interrupted_run_starts_no_worker_in_place_of_a_stalled_one(tmp_path: Path) -> None:
    train = """
def train(trial):
    (HOME / f"running-{os.getpid()}").write_text("x")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if trial.generation == 0:
        save(trial)
    else:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
"""
    done = run(write(tmp_path, train, running="stall_timeout_s=4.0", workers=1))
    assert done.returncode != 0
    check_facts(done.stderr, "SIGTERM")
    assert len(list((tmp_path / "home").glob("running-*"))) == 1
    assert load(tmp_path / "home").study().state is StudyState.STOPPED


def test_training_that_asks_for_input_finds_none(tmp_path: Path) -> None:
    train = """
import subprocess
def train(trial):
    # Without descriptors closed, the child shows what it inherits: only its own two pipes.
    words = ["sh", "-c", "cat; ls -l /proc/self/fd"]
    child = subprocess.run(words, capture_output=True, text=True, close_fds=False, timeout=30)
    assert child.stdout.count("pipe:") == 2, child.stdout
    try:
        input("Go on? ")
    except EOFError:
        save(trial)
"""
    done = run_started(write(tmp_path, train, options="retries=phyla.Retries(attempts=1)", workers=1))
    assert done.returncode == 0, done.stdout + done.stderr
    assert load(tmp_path / "home").counts() == {"completed": 4}


def test_a_file_that_hides_a_module_of_python_is_named(tmp_path: Path) -> None:
    study = """
study = phyla.Study("toy", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), phyla.RandomSearch(2, 1), save)
"""
    (tmp_path / "study_file.py").write_text(HEAD.format(home=str(tmp_path)) + study)
    hidden = tmp_path / "asyncio.py"
    hidden.write_text("")
    words = [sys.executable, "-m", "phyla.cli", "run", "study_file.py", "--workers", "0"]
    environment = child_environment({})
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    told = f"{hidden} hides Python's own module 'asyncio': rename it\n"
    assert done.stderr.startswith("error: AttributeError: module 'asyncio' has no attribute ")
    assert done.stderr.endswith(told)


def test_modules_of_the_current_directory_are_not_those_of_workers(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("random.py", "phyla.py"):
        (elsewhere / name).write_text("raise ImportError('not this one')")
    (tmp_path / "beside_the_study.py").write_text("SCORE = 3.0")
    train = """
import beside_the_study
def train(trial):
    save(trial)
    trial.report(score=beside_the_study.SCORE)
"""
    done = run_started(write(tmp_path, train, workers=1), cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert load(tmp_path / "home").counts() == {"completed": 4}
