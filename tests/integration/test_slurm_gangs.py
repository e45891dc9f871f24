"""Trials on both nodes of a Slurm cluster: whatever is killed, nothing is left, and the result is the same."""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from effort import thorough
from gang_runs import Gangs, family_of, kill
from slurm_cluster import Cluster, speak_to
from waiting import until

pytestmark = pytest.mark.xdist_group("gangs")


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
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield from speak_to(slurm_of_two, monkeypatch)


@pytest.fixture
def allocation(slurm: Cluster) -> Mapping[str, str]:
    """The variables of a process inside an allocation of both nodes."""
    slurm.call("salloc", "--no-shell", "--nodes=2", "--job-name=ours")
    return {"SLURM_JOB_ID": slurm.call("squeue", "-h", "--name=ours", "-o", "%i"), "SLURM_JOB_NUM_NODES": "2"}


def test_workers_in_jobs_of_two_nodes_find_what_one_machine_does(slurm: Cluster, tmp_path: Path) -> None:
    gangs = Gangs(tmp_path / "it's a $HOME")
    # Slurm without cgroups also signals the srun beneath the worker, which then kills the ranks.
    gangs.stop_and_finish("--launcher", "slurm", "--workers", 1, saves=False)
    assert {(gangs.folder / f"master-{rank}").read_text() for rank in (0, 1)} != {""}
    assert slurm.call("squeue", "-h") == ""


KILLED = {
    "training": ("worker", "keeper", "gang", "engine", "guard", "rank_keeper", "command"),
    "saving": ("worker",),
    "end": ("command",),
}
"""What is killed at each phase: each part at one, and what half of a checkpoint or of the ranks depends on."""
if thorough():
    KILLED |= {"saving": ("worker", "command"), "end": ("gang", "engine", "command")}


def test_whatever_is_killed_nothing_is_left_and_the_result_is_the_same(
    slurm: Cluster, allocation: Mapping[str, str], tmp_path: Path
) -> None:
    gangs = Gangs(tmp_path / "gangs")
    with occupied(slurm, allocation["SLURM_JOB_ID"]):
        run = gangs.run("--workers", 1, environment=allocation)
        gangs.until_told("srun waits for 2 nodes")
        gangs.hold("training")
        for victim in ("worker", "keeper"):
            until(lambda: family_of(gangs.folder).engine, "the gang waits")
            kill(family_of(gangs.folder), victim)
    gangs.kill_in_phases(KILLED, kill)
    gangs.finish(run)
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
            gangs.run("--workers", 1, environment=allocation)
            if phase == "waiting":
                until(lambda: family_of(gangs.folder).engine, "the gang waits")
            else:
                gangs.until_held(phase)
            gangs.stop()
    assert sorted((gangs.folder / "stopped").read_text().split()) == ["0", "1"]
    assert slurm.call("squeue", "-h", "-s", "-o", "%i") == ""
