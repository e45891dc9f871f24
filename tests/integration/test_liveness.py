"""Who is at work, and who is dead: nobody takes live work, and nobody waits for what is certainly dead."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest

import phyla
from effort import rarely
from facts import check_facts
from forked import Forked
from phyla.errors import PhylaError
from phyla.records import AttemptState, StudyState
from phyla.study import Results
from phyla.worker.containment.keeper import VARIABLE, end_marked

STUDY = """
import os, signal, subprocess, sys, time
from pathlib import Path
import phyla

SIGNS = Path({signs!r})

def save(trial):
    (trial.checkpoint_dir / "a").write_text(str(trial.id))
    trial.report(score=trial.id)

{train}

study = phyla.Study(
    name="toy",
    space=phyla.Space(lr=phyla.Float(0.1, 1.0)),
    objective=phyla.Maximize("score"),
    strategy=phyla.PBT(population_size=2, steps_per_trial=5, total_steps=10, quorum=0),
    train=train, storage={storage!r}, checkpoints=SIGNS / "checkpoints",
)
if __name__ == "__main__":
    study.run(workers=int(sys.argv[1]), {running})
"""

WAITS = """
def train(trial):
    (SIGNS / f"began-{trial.id}-{trial.token}").write_text("x")
    while not (SIGNS / "go on").exists():
        if trial.should_stop:
            return
        time.sleep(0.01)
    save(trial)
"""

CONTAINER = (
    "unshare",
    *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
    *("--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
"""Gives a program a host name and process ids of its own, which are those of every other such program."""


Process: TypeAlias = "subprocess.Popen[str] | Forked"


class Runs:
    """A study file in a folder, and the processes that run it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = f"sqlite:///{folder}/store.db"
        self.started: list[Process] = []
        self.file = folder / "study_file.py"

    def write(self, train: str, running: str = "lease_s=600.0") -> None:
        self.file.write_text(
            STUDY.format(signs=str(self.folder), train=train, storage=self.storage, running=running)
        )

    def start(self, home: str = "home", *, workers: int = 1, contained: bool = False) -> "Process":
        environment = {**os.environ, "PHYLA_HOME": str(self.folder / home)}
        process: Process
        if contained:
            command = [*CONTAINER, sys.executable, str(self.file), str(workers)]
            process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        else:
            process = Forked([self.file, workers], env=environment, spares=2 * workers)
        self.started.append(process)
        return process

    def run(self, home: str = "home", *, workers: int = 1, contained: bool = False) -> None:
        process = self.start(home, workers=workers, contained=contained)
        _, error = process.communicate(timeout=180)
        assert process.returncode == 0, error

    def wait_for(self, true: Callable[[], object]) -> None:
        while not true():
            for process in self.started:
                if process.poll() not in (None, -signal.SIGKILL, 0):
                    raise AssertionError(process.communicate()[1])
            time.sleep(0.01)

    def signs(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern))

    def go_on(self) -> None:
        (self.folder / "go on").write_text("x")

    def results(self) -> Results:
        return phyla.load_study("toy", home=self.folder, storage=self.storage)

    def completed(self) -> int:
        try:
            return self.results().counts().get("completed", 0)
        except PhylaError:
            return 0

    def attempts(self) -> list[AttemptState]:
        return sorted(attempt.state for attempt in self.results().attempts())


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    found = Runs(tmp_path)
    yield found
    for process in found.started:
        process.kill()
        process.wait()
        if isinstance(process, subprocess.Popen) and process.stderr is not None:
            process.stderr.close()


def inside(process: Process) -> psutil.Process:
    """The program in a container."""
    (program,) = psutil.Process(process.pid).children()
    return program


@pytest.mark.parametrize(("other_home", "workers"), [("home", 0), rarely("home", 1), rarely("other home", 1)])
def test_containers_leave_each_other_alone(runs: Runs, other_home: str, workers: int) -> None:
    """Their hosts have one name, and their processes the same ids; they share a home, or only the store."""
    runs.write(WAITS)
    one = runs.start(workers=workers, contained=True)
    runs.wait_for(lambda: runs.signs("began-1-1"))
    other = runs.start(other_home, workers=workers, contained=True)
    runs.wait_for(lambda: runs.signs("began-2-1"))
    inside(one).send_signal(signal.SIGINT)
    _, error = one.communicate(timeout=180)
    assert "KeyboardInterrupt" in error
    assert runs.results().state is StudyState.RUNNING
    runs.go_on()
    assert other.wait(180) == 0
    assert runs.results().counts() == {"completed": 4}
    assert runs.attempts() == sorted([*[AttemptState.COMPLETED] * 4, AttemptState.RELEASED])


@pytest.mark.parametrize("workers", [0, rarely(1)])
def test_a_restart_in_another_container_waits_for_no_lease(runs: Runs, workers: int) -> None:
    """The lease is ten minutes; what died held a lock that the next run in the same home finds free."""
    runs.write(WAITS)
    killed = runs.start(workers=workers, contained=True)
    runs.wait_for(lambda: runs.signs("began-1-1"))
    inside(killed).kill()
    killed.wait()
    runs.go_on()
    runs.run(workers=workers, contained=True)
    assert runs.results().counts() == {"completed": 4}
    assert runs.attempts() == sorted([*[AttemptState.COMPLETED] * 4, AttemptState.LOST])
    assert not runs.signs("home/locks/*")


def test_what_died_on_another_host_is_left_to_its_leases(runs: Runs) -> None:
    runs.write(WAITS)
    killed = runs.start(workers=0)
    runs.wait_for(lambda: runs.signs("began-1-1"))
    killed.kill()
    killed.wait()
    runs.go_on()
    other = runs.start("other home", workers=0)
    runs.wait_for(lambda: runs.completed() == 2)
    other.send_signal(signal.SIGINT)
    _, error = other.communicate(timeout=180)
    assert "KeyboardInterrupt" in error
    assert runs.attempts() == sorted([*[AttemptState.COMPLETED] * 2, AttemptState.RUNNING])
    assert runs.results().state is StudyState.RUNNING, "for all that is known, the other host is at work"


def test_what_is_asked_for_is_taken_back_once_its_process_is_dead(runs: Runs) -> None:
    runs.write("train = None")
    asks = "trial = study.ask(); print(trial.id, flush=True); sys.stdin.read()"
    text = runs.file.read_text()
    runs.file.write_text(re.sub(r"study\.run\(.*\)", asks, text))
    home = runs.folder / "home"
    process = subprocess.Popen(
        [sys.executable, str(runs.file)],
        env={**os.environ, "PHYLA_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"

        def asked() -> int | None:
            study = phyla.Study(
                "toy",
                phyla.Space(lr=phyla.Float(0.1, 1.0)),
                phyla.Maximize("score"),
                phyla.PBT(population_size=2, steps_per_trial=5, total_steps=10, quorum=0),
                home=home,
                storage=runs.storage,
            )
            trial = study.ask(lease_s=600.0)
            return None if trial is None else trial.id

        assert [asked(), asked()] == [2, None]
        process.kill()
        process.wait()
        assert [asked(), asked()] == [1, None]


def test_an_interrupted_run_says_what_is_repeated(runs: Runs) -> None:
    train = """
def train(trial):
    for step in trial.steps():
        if trial.member == 0 and step == 1:
            (trial.checkpoint_dir / "a").write_text("x")
            trial.save_progress(step=2)
        if step == 3:
            (SIGNS / f"began-{trial.id}").write_text("x")
            while not (SIGNS / "go on").exists() and not trial.should_stop:
                time.sleep(0.01)
    save(trial)
"""
    runs.write(train)
    process = Forked(
        ["-m", "phyla.cli", "run", runs.file, "--home", runs.folder / "home", "--workers", 2], spares=2
    )
    runs.started.append(process)
    runs.wait_for(lambda: len(runs.signs("began-*")) == 2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=180)
    assert process.returncode == 130
    check_facts(error, "2 trials", "1", "phyla run")


# What workers start


ESCAPED = """
def escape(name):
    # Two sessions away, and handed on to init.
    script = f"echo $$ > {SIGNS}/draft-{name}; mv {SIGNS}/draft-{name} {SIGNS}/escaped-{name}; exec sleep 1000"
    subprocess.run(["setsid", "--fork", "setsid", "--fork", "sh", "-c", script], check=True)
    while not (SIGNS / f"escaped-{name}").exists():
        time.sleep(0.01)

def escaped(name):
    pid = int((SIGNS / f"escaped-{name}").read_text())
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
"""

ENDS = {
    "ends": "pass",
    "raises": "raise ValueError('broken')",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "stalls": "time.sleep(1000)",
}


def alive(path: Path) -> bool:
    try:
        return psutil.Process(int(path.read_text())).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("how", ["ends", "raises", "is killed", rarely("stalls")])
def test_children_in_sessions_of_their_own_end_with_their_worker(runs: Runs, how: str) -> None:
    train = f"""
def train(trial):
    if trial.id == 1 and trial.token == 1:
        escape("first")
        {ENDS[how]}
    if trial.id == 1 and trial.token == 2 and {how in ("is killed", "stalls")}:
        assert not escaped("first"), "it outlived its worker"
    save(trial)
"""
    runs.write(ESCAPED + train, "stall_timeout_s=4.0")
    runs.run()
    assert runs.results().counts() == {"completed": 4}
    (child,) = runs.signs("escaped-*")
    assert not alive(child)


def test_children_in_sessions_of_their_own_end_with_their_supervisor(runs: Runs) -> None:
    train = """
def train(trial):
    escape(str(trial.id))
    time.sleep(1000)
"""
    runs.write(ESCAPED + train)
    killed = runs.start(workers=2)
    runs.wait_for(lambda: len(runs.signs("escaped-*")) == 2)
    killed.kill()
    runs.wait_for(lambda: not any(alive(child) for child in runs.signs("escaped-*")))


def test_what_survives_when_everything_else_is_killed_ends_with_the_next_start(runs: Runs) -> None:
    train = """
def train(trial):
    if trial.generation == 0 and trial.token == 1:
        escape(str(trial.id))
        time.sleep(1000)
    assert trial.generation or not escaped(str(trial.id)), "it outlived its worker"
    save(trial)
"""
    runs.write(ESCAPED + train)
    killed = runs.start(workers=2)
    runs.wait_for(lambda: len(runs.signs("escaped-*")) == 2)
    (lock,) = runs.signs("home/locks/*.lock")
    (helper,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"{lock.stem}:" in (process.info["cmdline"] or ())
    ]
    helper.kill()
    killed.kill()
    killed.wait()
    assert all(alive(child) for child in runs.signs("escaped-*"))
    runs.run(workers=1)
    assert runs.results().counts() == {"completed": 4}


def test_only_what_carries_the_very_mark_is_ended() -> None:
    def start(mark: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sleep", "1000"], env={**os.environ, VARIABLE: mark})

    marks = {"d0d0:1:": True, "d0d0:12:": False, "d0d1:1:": False, "1": False}
    started = {mark: start(mark) for mark in marks}
    try:
        end_marked("d0d0:1:")
        assert {mark: process.poll() is not None for mark, process in started.items()} == marks
    finally:
        for process in started.values():
            process.kill()
            process.wait()
