"""Runs that a signal or the end of their time stops, and others that go on from what they saved."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import forked
import phyla
from command_line import Phyla
from durability import load
from effort import rarely
from facts import check_facts, raises
from forked import Forked
from phyla.errors import ConfigurationError, Preempted, TimeTooShort
from phyla.records import AttemptState, JobState, StudyState
from phyla.settings import child_environment
from phyla.store import open_store
from waiting import PATIENCE_S, until
from watching import write

STEPS = 5
STUDY = f"""
import json, os, time
from pathlib import Path
import phyla

HOME = Path(__file__).parent / "home"

def train(trial):
    trained = json.loads((trial.source.path / "steps.json").read_text()) if trial.source else []
    def save():
        (trial.checkpoint_dir / "steps.json").write_text(json.dumps(trained))
    assert os.environ["PHYLA_SAVE_EVERY_S"] == "600"
    for step in trial.steps():
        trained.append(step)
        if step == {STEPS + 2}:
            (HOME / f"waits-{{trial.member}}").write_text("")
            while not ((HOME / "go on").exists() or trial.should_save):
                time.sleep(0.005)
        if trial.should_save:
            save()
            trial.save_progress()
    save()
    trial.report(steps=len(trained))

study = phyla.Study(
    "toy",
    phyla.Space(lr=phyla.Float(0.1, 1.0)),
    phyla.Maximize("steps"),
    phyla.RandomSearch(members=2, steps_per_trial={STEPS}, total_steps={2 * STEPS}),
    train,
    home=HOME,
)
"""


def run(folder: Path, *words: object, workers: int = 2, session: bool = False) -> Forked:
    environment = child_environment({"PHYLA_HOME": str(folder / "home")})
    words = ("-m", "phyla.cli", "run", "study.py", "--workers", workers, "--save-every", "10m", *words)
    return Forked(words, cwd=folder, env=environment, merged=True, session=session, spares=workers)


def waiting(process: "Forked | subprocess.Popen[bytes]", folder: Path, members: int = 2) -> None:
    """Wait until all members are in the midst of their second trial."""
    while len(list((folder / "home").glob("waits-*"))) < members:
        assert process.poll() is None
        time.sleep(0.01)


def everybody(process: Forked) -> None:
    """Send the signal as a batch system does that signals every process of a job, and the shell once more."""
    for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        one.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGUSR1)


SIGNALS: dict[str, tuple[str, list[str], Callable[[Forked], None]]] = {
    "group": ("SIGTERM", [], lambda process: os.killpg(process.pid, signal.SIGTERM)),
    "USR1": ("SIGUSR1", ["--stop-signal", "USR1"], lambda process: process.send_signal(signal.SIGUSR1)),
    "everybody": ("SIGUSR1", ["--stop-signal", "usr1"], everybody),
}


@pytest.mark.parametrize("how", ["group", rarely("USR1"), rarely("everybody")])
def test_a_signal_saves_what_runs_and_another_process_goes_on_from_there(tmp_path: Path, how: str) -> None:
    name, words, send = SIGNALS[how]
    (tmp_path / "study.py").write_text(STUDY)
    process = run(tmp_path, *words, session=True)
    waiting(process, tmp_path)
    send(process)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 75, output
    check_facts(output, name, "2 trials")
    check_facts(output, "phyla run study.py")
    results = load(tmp_path / "home")
    assert results.state is StudyState.STOPPED
    assert results.study().message == f"stopped by {name}; run it again to resume"
    pending = [trial for trial in results.trials() if trial.state is JobState.PENDING]
    assert [(trial.progress_step, trial.failures) for trial in pending] == [(STEPS + 3, 0)] * 2

    (tmp_path / "home" / "go on").touch()
    process = run(tmp_path, *words, workers=1)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    for member in load(tmp_path / "home").members():
        assert member.head is not None
        found = tmp_path / "home" / "checkpoints" / "toy" / member.head.checkpoint / "steps.json"
        assert json.loads(found.read_text()) == list(range(2 * STEPS)), "no step was trained twice"


def test_a_job_of_slurm_requeues_itself_until_the_study_is_done(tmp_path: Path) -> None:
    """The script of the guide, with a `scontrol` that notes what it is told, and the signal that a step gets."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "gpus-and-preemption.md").read_text()
    (script,) = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "job.sh").write_text(script)
    (tmp_path / "study.py").write_text(STUDY.replace("members=2", "members=1"))
    programs = {
        "phyla": f'exec {sys.executable} -m phyla.cli "$@" --workers 1',
        "scontrol": 'echo "$@" >> told',
        "srun": 'shift\nexec "$@"',
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = child_environment(
        {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}", "PHYLA_HOME": str(tmp_path / "home")}
    )

    def submit() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, env=environment, start_new_session=True)

    job = submit()
    waiting(job, tmp_path, 1)
    (step,) = psutil.Process(job.pid).children()
    step.send_signal(signal.SIGUSR1)
    assert job.wait(180) == 75
    assert (tmp_path / "told").read_text() == "requeue 7\n"
    (tmp_path / "home" / "go on").touch()
    assert submit().wait(180) == 0
    assert (tmp_path / "told").read_text() == "requeue 7\n"
    assert load(tmp_path / "home").counts() == {"completed": 2}
    assert all(trial.failures == 0 for trial in load(tmp_path / "home").trials())


def slow(trial: phyla.Trial) -> None:
    """Take a while, unless asked to stop; save what there is."""
    begin = time.monotonic()
    for _ in trial.steps():
        while time.monotonic() - begin < float(os.environ["TRIAL_S"]):
            if trial.should_save:
                (trial.checkpoint_dir / "a").write_text("a")
                trial.save_progress()
                return
            time.sleep(0.01)
    (trial.checkpoint_dir / "a").write_text("a")
    trial.report(score=1.0)


def slow_study(home: Path) -> phyla.Study:
    space, search = {"lr": phyla.Float(0.1, 1.0)}, phyla.RandomSearch(members=4, steps_per_trial=2, total_steps=2)
    return phyla.Study("toy", space, phyla.Maximize("score"), search, slow, home=home)


@pytest.mark.parametrize("workers", [rarely(0), 1])
def test_what_would_not_end_in_time_is_not_begun(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that is slow just then needs seconds until training begins.
    monkeypatch.setenv("TRIAL_S", "15")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with raises(Preempted, "29 s"):
        slow_study(tmp_path).run(workers, time_limit_s=29)
    results = load(tmp_path)
    assert [attempt.state for attempt in results.attempts()] == [AttemptState.COMPLETED]
    assert results.state is StudyState.STOPPED


@pytest.mark.parametrize("workers", [0, rarely(1)])
def test_shortly_before_the_end_what_runs_saves_and_stops(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIAL_S", "60")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with raises(Preempted, "12 s"):
        slow_study(tmp_path).run(workers, time_limit_s=12)
    results = load(tmp_path)
    assert [attempt.state for attempt in results.attempts()] == [AttemptState.RELEASED]
    assert results.progress().given_back == (), "it did not ask to be run again later: its worker was stopped"
    (trial,) = results.trials()
    assert trial.progress_step == 1
    monkeypatch.setenv("TRIAL_S", "0")
    assert slow_study(tmp_path).run(0, time_limit_s=60).state is StudyState.COMPLETED


def deaf(trial: phyla.Trial) -> None:
    """Never look whether to stop."""
    time.sleep(60)


@pytest.mark.thorough  # below: what hangs is ended
def test_what_does_not_stop_is_ended_at_the_end_and_no_other_run_would_do_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Phyla
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    study = slow_study(tmp_path)
    study.train = deaf
    with raises(TimeTooShort, "20 s"):
        study.run(1, time_limit_s=20)
    check_facts(cli("--home", tmp_path, "status", "toy"), "trial.save_progress()", "trial.should_save")
    (attempt,) = load(tmp_path).attempts()
    assert attempt.state is AttemptState.LOST
    (trial,) = load(tmp_path).trials()
    assert (trial.state, trial.failures) == (JobState.PENDING, 0)


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    study = slow_study(tmp_path)
    for wrong in ("KILL", "NOPE", 99, ""):
        with raises(ConfigurationError, "USR1"):
            study.run(stop_signal=wrong)
    for name in ("time_limit_s", "save_every_s", "grace_s"):
        for number in (0, -1, float("nan"), float("inf"), True, "4h"):
            with raises(ConfigurationError, f"{name}=", "0"):
                study.run(**{name: number})  # type: ignore[arg-type]
    assert not (tmp_path / "phyla.db").exists()


FORKS = """
import multiprocessing
import time

import phyla


def train(trial):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join(10)
    if child.is_alive():
        child.kill()
        raise RuntimeError("it does not end")
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "weights").write_text("w")
    trial.report(score=1.0)


study = phyla.Study(
    "forks", phyla.Space(lr=phyla.Float(0.1, 1.0)), phyla.Maximize("score"), phyla.RandomSearch(1, 1), train
)
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_what_training_forks_can_be_ended(tmp_path: Path, workers: int) -> None:
    (tmp_path / "forks.py").write_text(FORKS)
    words = ["-m", "phyla.cli", "run", "forks.py", "--workers", str(workers)]
    if workers:
        done = forked.run(words, cwd=tmp_path, env=child_environment({}))
    else:  # the children of a process that is forked for tests may not have any
        words = [sys.executable, *words]
        done = subprocess.run(words, cwd=tmp_path, env=child_environment({}), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


HANGS = """
import ctypes
import time
from pathlib import Path

import phyla


def hang():
    Path("hangs").touch()
    if Path("outside").exists():
        library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)
    while True:
        try:
            time.sleep(900)
        except BaseException:
            if not Path("swallows").exists():
                raise


def train(trial):
    hang()


@phyla.eval_task
def task(evaluation):
    hang()


suite = phyla.Suite("suite", [task])
strategy = phyla.RandomSearch(members=1, total_steps=1)
study = phyla.Study("deaf", {"lr": phyla.Float(0, 1)}, phyla.Minimize("loss"), strategy, train)
"""
RUN = ("run", "study.py")
WATCH = ("watch", "ckpt", "--suite", "study.py:suite", "--name", "deaf", "--format", "marker")


@pytest.mark.parametrize(
    ("words", "workers", "number", "swallows", "status"),
    [
        (RUN, 1, signal.SIGTERM, True, 75),
        rarely(RUN, 0, signal.SIGTERM, False, 75),
        rarely(RUN, 0, signal.SIGTERM, True, 75),
        (RUN, 0, signal.SIGTERM, None, 75),  # outside of Python
        (RUN, 0, signal.SIGINT, False, 130),
        rarely(WATCH, 1, signal.SIGINT, False, 130),
        (WATCH, 0, signal.SIGTERM, False, 75),
    ],
)
def test_what_hangs_is_ended_after_the_grace_time_and_goes_back_to_the_queue(
    tmp_path: Path, words: tuple[str, ...], workers: int, number: int, swallows: bool | None, status: int
) -> None:
    (tmp_path / "study.py").write_text(HANGS)
    write(tmp_path / "ckpt", 1)
    if swallows is not False:
        (tmp_path / ("outside" if swallows is None else "swallows")).touch()
    command = ["-m", "phyla.cli", *words, "--workers", workers, "--grace", "0.5"]
    process = Forked(command, cwd=tmp_path, env=child_environment({}), merged=True)
    until((tmp_path / "hangs").exists, "training that hangs", process=process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status, output
    check_facts(output, "worker 0" if workers else "what runs", "0.5 s", "--grace")
    store = open_store(f"sqlite:///{tmp_path / '.phyla' / 'phyla.db'}")
    found = store.find_study("deaf")
    assert found is not None
    with store.reader(found.id) as reader:
        assert not reader.running()
        jobs: list[Any] = [*reader.trials(after=0, limit=10), *reader.eval_jobs()]
    (job,) = jobs
    assert (job.state, job.failures) == (JobState.PENDING, 0)
    store.close()
