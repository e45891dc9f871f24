"""Slurm stops, preempts and restarts workers: nothing is lost, and nothing that was cancelled comes back."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facts import raises
from phyla.errors import ConfigurationError, LauncherFailed, StateError
from phyla.launchers import Pool
from phyla.launchers.pools import start_pool, stop_pool
from phyla.launchers.slurm import Slurm, job_name
from phyla.testing.launchers import Programs
from pooled import TRIALS, Pooled
from slurm_cluster import Cluster
from waiting import until

pytestmark = pytest.mark.xdist_group("slurm")

PARTITIONS = ("requeue", "cancel", "abrupt")
"""What an urgent job does to others: requeue them, cancel them after some seconds, or cancel them at once."""


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path / "programs")


def jobs(slurm: Cluster, pool: Pool) -> dict[str, str]:
    """Return the states of a pool's jobs by id."""
    told = slurm.call("squeue", "-h", "-r", f"--name={job_name(pool)}", "-o", "%i %t")
    return dict(line.split() for line in told.splitlines())


def preempt(slurm: Cluster) -> None:
    """Let an urgent job take the whole node for a moment."""
    urgent = ["sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true"]
    slurm.call(*urgent)


def count(folder: Path, words: str) -> int:
    """Return how often the logs of a pool say something."""
    return sum(log.read_text().count(words) for log in folder.glob("worker-*.log"))


def test_preempted_workers_save_and_come_back(slurm: Cluster, programs: Programs, tmp_path: Path) -> None:
    pools = {
        partition: programs.pool(
            "slurm", tmp_path / partition, workers=1, options={"partition": partition}, time_limit_s=3600.0
        )
        for partition in PARTITIONS
    }
    for pool in pools.values():
        Slurm().start(pool)
    programs.until_up(3)
    before = {partition: jobs(slurm, pool) for partition, pool in pools.items()}
    preempt(slurm)
    programs.until_up(6)
    assert set(programs.saved()) == {"SIGTERM"}
    assert len(programs.saved()) == 3
    assert {partition: [*jobs(slurm, pool)] for partition, pool in pools.items()} == {
        partition: [*those] for partition, those in before.items()
    }
    for pool in pools.values():
        # One log goes on.
        (log,) = pool.folder.glob("worker-*.log")
        assert log.read_text().count("worker ") == 2


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_worker_that_is_preempted_while_it_starts_comes_back(
    slurm: Cluster, tmp_path: Path, partition: str
) -> None:
    starting = ["bash", "-c", f"mktemp {tmp_path}/up.XXXXXX; exec sleep 600"]  # a signal ends it
    pool = Pool(
        name="pool",
        launcher="slurm",
        command=starting,
        workers=1,
        folder=tmp_path / "pool",
        options={"partition": partition},
    )
    pool.save()
    Slurm().start(pool)
    until(lambda: len([*tmp_path.glob("up.*")]) == 1, "it starts")
    preempt(slurm)
    until(lambda: len([*tmp_path.glob("up.*")]) == 2, "it starts again")


def test_what_a_person_cancels_ends(slurm: Cluster, programs: Programs, tmp_path: Path) -> None:
    pool = programs.pool("slurm", tmp_path / "pool", workers=2)
    Slurm().start(pool)
    programs.until_up(2)
    first, second = jobs(slurm, pool)
    slurm.call("scancel", first)
    until(lambda: [*jobs(slurm, pool)] == [second], "it has ended")
    assert programs.saved() == ["SIGTERM"]
    # What Slurm sends before the end of the time reaches the worker, and the job waits in the queue again.
    slurm.call("scancel", "--signal=USR1", second)
    until(lambda: jobs(slurm, pool) == {second: "PD"}, "it waits again")
    assert sorted(programs.saved()) == ["SIGTERM", "SIGUSR1"]
    # One is lost, and one is not.
    Slurm().start(pool)
    assert len(jobs(slurm, pool)) == 2
    Slurm().stop(pool, 60)
    assert jobs(slurm, pool) == {}


def test_a_study_runs_to_its_end_although_its_workers_are_preempted(slurm: Cluster, tmp_path: Path) -> None:
    toy = Pooled(tmp_path / "it's a $HOME %j\n")
    run = toy.run("--launcher", "slurm", "--workers", 1, "--launcher-option", "partition=cancel")
    toy.until_waiting(1)
    assert "1/1" in toy.call("workers", "toy")
    preempt(slurm)
    logs = toy.pool.folder
    until(lambda: count(logs, "stopped by SIGTERM") == 1, "the worker has handed back its trial")
    toy.go_on()
    printed, _ = run.communicate(180)
    assert run.returncode == 0, printed
    assert f"{TRIALS} trials completed, 0 failed" in printed
    assert "exit status 75" not in printed
    assert toy.completed()
    assert count(logs, "toy is completed") >= 1
    assert slurm.call("squeue", "-h") == ""


def test_the_limits_of_a_pool_are_those_of_its_jobs(slurm: Cluster, programs: Programs, tmp_path: Path) -> None:
    pool = programs.pool("slurm", tmp_path / "pool", workers=3, cpus=2, memory_mb=1, time_limit_s=1800.0)
    Slurm().start(pool)
    programs.until_up(2)
    told = slurm.call("squeue", "-h", "-r", f"--name={job_name(pool)}", "-o", "%C %m %l %t")
    assert sorted(told.splitlines()) == ["2 1M 30:00 PD", "2 1M 30:00 R", "2 1M 30:00 R"]
    assert (Slurm().alive(pool), Slurm().outcomes(pool)) == (3, {"queued": 1})
    until(lambda: Slurm().reasons(pool) == {"Resources": 1}, "Slurm says why it is queued")


DEFAULTS = {
    "commands": {
        "SCANCEL_PARTITION": "abrupt",
        "SLURM_TIME_FORMAT": "%Hh",
        "SQUEUE_PARTITION": "abrupt",
        "SQUEUE_STATES": "PENDING",
    },
    "jobs": {"SBATCH_NO_REQUEUE": "1", "SBATCH_PARTITION": "abrupt", "SBATCH_TIMELIMIT": "7"},
    "steps": {"SBATCH_EXPORT": "NONE"},
    "allocation": {"SLURM_MEM_PER_CPU": "1", "SLURM_MEM_PER_NODE": "1", "SRUN_CPUS_PER_TASK": "99"},
}
"""Variables with which users, sites and an allocation around `phyla` change what Slurm's commands do."""


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_of_slurms_commands_do_not_change_a_pool(
    kind: str, slurm: Cluster, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what: dict[str, Any] = {"options": {"partition": "cancel"}, "environment": {"VALUE": "given"}}
    pool = programs.pool("slurm", tmp_path / "pool", workers=1, time_limit_s=600.0, **what)
    with monkeypatch.context() as patched:
        for name, value in DEFAULTS[kind].items():
            patched.setenv(name, value)
        Slurm().start(pool)
        (worker,) = programs.until_up(1)
        assert worker["value"] == "given"
        assert Slurm().alive(pool) == 1
        told = slurm.call("scontrol", "show", "job")
        assert {"Partition=cancel", "Requeue=1", "TimeLimit=00:10:00"} <= {*told.split()}
        Slurm().stop(pool, 60)
    assert programs.saved() == ["SIGTERM"]
    assert jobs(slurm, pool) == {}


def test_a_worker_starts_without_a_limit_if_slurm_does_not_tell_its_end(
    slurm: Cluster, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "bin" / "squeue"
    silent.parent.mkdir()
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    pool = programs.pool("slurm", tmp_path / "pool", workers=1)
    pool = replace(pool, environment={"PATH": f"{silent.parent}:{os.environ['PATH']}"})
    Slurm().start(pool)
    (worker,) = programs.until_up(1)
    assert "--time-limit" not in worker["arguments"]


def test_a_job_that_ends_by_itself_has_completed(slurm: Cluster, programs: Programs, tmp_path: Path) -> None:
    pool = programs.pool("slurm", tmp_path / "pool", workers=1)
    Slurm().start(pool)
    programs.until_up(1)
    programs.end()
    until(lambda: Slurm().alive(pool) == 0, "the job has ended")
    assert Slurm().outcomes(pool) == {"completed": 1}


def test_what_slurm_refuses_is_shown(
    slurm: Cluster, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pool(**more: Any) -> Pool:
        return programs.pool("slurm", tmp_path / "pool", **more)

    with raises(LauncherFailed, "sbatch", "nowhere"):
        Slurm().start(pool(options={"partition": "nowhere"}))
    first = replace(pool(options={"partition": "nowhere"}), name="first", folder=tmp_path / "first")
    with pytest.raises(LauncherFailed, match="invalid partition"):
        start_pool(first)
    assert Pool.load(first.folder) is None, "nothing was started, so there is nothing to stop"
    start_pool(replace(first, options={}))
    with raises(StateError, "2 workers", "phyla down"):
        start_pool(first)
    stop_pool(first, 60)
    with raises(ConfigurationError, "array"):
        Slurm().start(pool(options={"array": "0-9"}))
    with raises(ConfigurationError, "comment=", "a b"):
        Slurm().start(pool(options={"comment": "a b"}))
    with raises(ConfigurationError, "gpus_per_worker=0.5"):
        Slurm().start(pool(gpus=0.5))
    with raises(ConfigurationError, "5 minutes"):
        Slurm().start(pool(time_limit_s=60.0))
    with pytest.raises(ConfigurationError, match="backslash"):
        Slurm().start(programs.pool("slurm", tmp_path / "a\\b"))
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        with raises(LauncherFailed, "squeue"):
            Slurm().alive(pool())
