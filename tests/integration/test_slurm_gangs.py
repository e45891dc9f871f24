"""Trials on both nodes of a Slurm cluster: whatever is killed, nothing is left, and the result is the same."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from forked import Forked
from phyla.records import StudyState
from phyla.settings import child_environment
from phyla.study import Places, Results
from phyla.study.results.load import open_any
from slurm_cluster import Cluster, speak_to
from waiting import until

pytestmark = pytest.mark.xdist_group("gangs")

RANK = """
# Trains one rank: both have to be there, each saves its part, and files may hold them at a phase.
set -e
# The first trial is never held, since a study that never completes one stops itself.
rank=$1 nodes=$2 save_to=$3 metrics=$4 trial=$5 lr=$6 source=$7
hold() {
    [ -e "hold-$1" ] && [ "$trial" != 1 ] || return 0
    setsid sleep 1000 &
    : > "at-$1-$rank-$$"
    while [ -e "hold-$1" ]; do sleep 0.1; done
    kill $!
}
trap 'echo "$rank" >> stopped; exit 0' TERM
hold training
meet=meet-$trial-$MASTER_PORT
mkdir -p "$meet"
: > "$meet/$rank"
while [ "$(ls "$meet" | wc -l)" -lt "$nodes" ]; do sleep 0.1; done
[ "$rank" = 0 ] || hold saving
echo "$MASTER_ADDR" > "master-$rank"
cat ${source:+"$source/part-$rank"} > "$save_to/part-$rank"
echo "$lr" >> "$save_to/part-$rank"
[ "$rank" != 0 ] || echo "{\\"lines\\": $(wc -l < "$save_to/part-0")}" >> "$metrics"
[ "$rank" = 0 ] || hold end
"""
STUDY = """
name = "gangs"
command = ["sh", "rank.sh", "{node_rank}", "{nodes}", "{save_to}", "{metrics}", "{trial}", "{lr}", ["{source}"]]
objective = "maximize lines"
[resources]
nodes = NODES
[retries]
attempts = 100
[space]
lr = { low = 0.1, high = 1.0 }
[random-search]
members = 2
steps_per_trial = 1
total_steps = 2
"""
TRIALS = 4


class Gangs:
    """A study of gangs in a folder that both nodes see."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.home = folder, folder / "home"
        (folder / "rank.sh").write_text(RANK)
        (folder / "study.toml").write_text(STUDY.replace("NODES", str(nodes)))

    def run(self, *words: object, environment: Mapping[str, str] | None = None) -> Forked:
        """Start `phyla run` for it."""
        env = child_environment({"PHYLA_HOME": str(self.home), **(environment or {})})
        words = ("-m", "phyla.cli", "run", "study.toml", *words)
        self.process = Forked(words, cwd=self.folder, env=env, merged=True, session=True)
        return self.process

    def end(self, run: Forked, code: int = 0) -> str:
        """Wait for the end of a run; return what it printed."""
        printed, _ = run.communicate(180)
        assert run.returncode == code, printed
        return printed

    def hold(self, phase: str) -> None:
        """Hold ranks at a phase, those of both nodes or only the second."""
        (self.folder / f"hold-{phase}").touch()

    def go_on(self, phase: str) -> None:
        """Hold them there no longer."""
        (self.folder / f"hold-{phase}").unlink()

    def until_held(self, phase: str) -> None:
        """Wait until the ranks of a further attempt are held at a phase."""
        count = 2 if phase == "training" else 1
        found = partial(self.folder.glob, f"at-{phase}-*")
        held = until(lambda: signs if len(signs := [*found()]) == count else None, phase, process=self.process)
        for sign in held:
            sign.unlink()

    @property
    def results(self) -> Results:
        found = open_any("gangs", Places.of(self.home))
        assert isinstance(found, Results)
        return found

    @property
    def outcome(self) -> dict[str, Any]:
        """What a study that has ended well has found."""
        results = self.results
        assert results.state is StudyState.COMPLETED
        assert results.counts() == {"completed": TRIALS}
        best = results.best
        assert best is not None
        parts = [(best.checkpoint.path / f"part-{rank}") for rank in (0, 1)]
        return {"lr": best.params["lr"], "parts": [part.read_text() for part in parts if part.exists()]}


class Family:
    """The processes of the gang that runs, by their part in it."""

    def __init__(self, folder: Path) -> None:
        self.gang = programs("gang.py", folder)
        self.keeper = parents(self.gang)
        self.worker = parents(self.keeper)
        self.srun = [child for process in self.gang for child in process.children(recursive=True)]
        # Its child, the keeper, was forked from it.
        ranks = programs("rank.py", folder)
        self.guard = [process for process in ranks if process.parent() not in ranks]
        self.rank_keeper = [child for process in self.guard for child in process.children()]
        self.command = [child for process in self.rank_keeper for child in process.children()]
        below = [child for process in self.guard for child in process.children(recursive=True)]
        self.all = {*self.gang, *self.keeper, *self.srun, *self.guard, *below}

    def until_gone(self) -> None:
        """Wait until nothing of it is left, on any node."""
        until(lambda: not any(map(runs, self.all)), "the gang has ended")


def family_of(folder: Path) -> Family:
    """Return the processes of the gang that runs; the ranks start others, which end at any time."""
    while True:
        with contextlib.suppress(psutil.NoSuchProcess):
            return Family(folder)


def parents(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the parents of processes."""
    return [parent for process in processes if (parent := process.parent())]


def programs(name: str, folder: Path) -> list[psutil.Process]:
    """Return the processes that run a program of gangs for a study."""
    running = psutil.process_iter(["cmdline"])
    lines = {process: process.info["cmdline"] or () for process in running}
    return [
        process
        for process, words in lines.items()
        if any(word.endswith(f"/{name}") for word in words[3:4]) and str(folder) in " ".join(words)
    ]


def runs(process: psutil.Process) -> bool:
    """Return whether a process has not ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(family: Family, victim: str) -> None:
    """Kill a part of a gang, and wait until nothing of it is left."""
    for process in getattr(family, victim)[: None if victim == "srun" else 1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    family.until_gone()


@contextlib.contextmanager
def occupied(slurm: Cluster, job: str) -> Iterator[None]:
    """Let another step of a job have the second node."""
    words = ["srun", f"--jobid={job}", "--nodes=1", "--ntasks=1", "--nodelist=node2", "sleep", "1000"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as step:
        try:
            until(lambda: slurm.call("squeue", "-h", "-s", "-o", "%i"), "the node is occupied")
            yield
        finally:
            step.terminate()


@pytest.fixture
def slurm(slurm_of_two: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster of two nodes without jobs, which Slurm's commands speak to."""
    yield from speak_to(slurm_of_two, monkeypatch)


@pytest.fixture
def allocation(slurm: Cluster) -> Mapping[str, str]:
    """The variables of a process inside an allocation of both nodes."""
    slurm.call("salloc", "--no-shell", "--nodes=2", "--job-name=ours")
    return {"SLURM_JOB_ID": slurm.call("squeue", "-h", "--name=ours", "-o", "%i"), "SLURM_JOB_NUM_NODES": "2"}


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, Any]:
    """What the study finds with one machine, in the parts of two."""
    alone = Gangs(tmp_path / "alone", nodes=1)
    alone.end(alone.run("--workers", 0))
    outcome = alone.outcome
    assert (alone.folder / "master-0").read_text() == "127.0.0.1\n"
    return {**outcome, "parts": outcome["parts"] * 2}


def test_workers_in_jobs_of_two_nodes_find_what_one_machine_does(
    slurm: Cluster, tmp_path: Path, expected: dict[str, Any]
) -> None:
    gangs = Gangs(tmp_path / "it's a $HOME")
    gangs.hold("training")
    run = gangs.run("--launcher", "slurm", "--workers", 1)
    gangs.until_held("training")
    family = family_of(gangs.folder)
    run.send_signal(signal.SIGINT)
    gangs.end(run, 130)
    family.until_gone()
    assert sorted((gangs.folder / "stopped").read_text().split()) == ["0", "1"]
    assert slurm.call("squeue", "-h") == ""
    gangs.go_on("training")
    printed = gangs.end(gangs.run("--launcher", "slurm", "--workers", 1))
    assert f"{TRIALS} trials completed, 0 failed" in printed
    assert gangs.outcome == expected
    assert {(gangs.folder / f"master-{rank}").read_text() for rank in (0, 1)} != {""}
    assert slurm.call("squeue", "-h") == ""


KILLED = {
    "waiting": ("worker", "keeper"),
    "training": ("worker", "keeper", "gang", "srun", "guard", "rank_keeper", "command"),
    "saving": ("worker", "command"),
    "end": ("gang", "srun", "command"),
}
"""What is killed at each phase. At the end, rank 0 has ended well, and rank 1 has not."""


def test_whatever_is_killed_nothing_is_left_and_the_result_is_the_same(
    slurm: Cluster, allocation: Mapping[str, str], tmp_path: Path, expected: dict[str, Any]
) -> None:
    gangs, log = Gangs(tmp_path / "gangs"), tmp_path / "gangs" / "home" / "logs" / "gangs" / "worker-0.log"
    with occupied(slurm, allocation["SLURM_JOB_ID"]):
        run = gangs.run("--workers", 1, environment=allocation)
        until(
            lambda: log.is_file() and "srun waits for 2 nodes" in log.read_text(), "the gang waits, and tells it"
        )
        gangs.hold("training")
        for victim in KILLED["waiting"]:
            until(lambda: family_of(gangs.folder).srun, "the gang waits")
            kill(family_of(gangs.folder), victim)
    for phase, victims in [*KILLED.items()][1:]:
        for victim in victims:
            gangs.until_held(phase)
            if victim == victims[-1] and phase != "end":
                following = [*KILLED][[*KILLED].index(phase) + 1]
                gangs.hold(following)
                gangs.go_on(phase)
            kill(family_of(gangs.folder), victim)
    gangs.go_on("end")
    printed = gangs.end(run)
    assert f"{TRIALS} trials completed, 0 failed" in printed
    assert gangs.outcome == expected
    steps = slurm.call("squeue", "-h", "-s", "-o", "%i")
    assert steps == ""


def test_a_gang_that_waits_or_trains_can_be_stopped(
    slurm: Cluster, allocation: Mapping[str, str], tmp_path: Path
) -> None:
    gangs = Gangs(tmp_path / "gangs")
    gangs.hold("training")
    for phase in ("waiting", "training"):
        busy = occupied(slurm, allocation["SLURM_JOB_ID"]) if phase == "waiting" else contextlib.nullcontext()
        with busy:
            run = gangs.run("--workers", 1, environment=allocation)
            if phase == "waiting":
                until(lambda: family_of(gangs.folder).srun, "the gang waits")
            else:
                gangs.until_held(phase)
            family = family_of(gangs.folder)
            run.send_signal(signal.SIGINT)
            gangs.end(run, 130)
            family.until_gone()
    assert sorted((gangs.folder / "stopped").read_text().split()) == ["0", "1"]
    assert slurm.call("squeue", "-h", "-s", "-o", "%i") == ""
