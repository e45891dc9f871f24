"""What Slurm's commands answer."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import Phyla
from facts import check_facts, raises
from phyla.errors import LauncherFailed
from phyla.launchers import Pool
from phyla.launchers.slurm import Slurm, _slurm


@pytest.mark.parametrize(
    ("command", "status", "fine"), [("scancel", 229, True), ("scancel", 1, False), ("squeue", 229, False)]
)
def test_a_job_that_ended_meanwhile_needs_no_cancelling(
    command: str, status: int, fine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / command
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if fine:
        assert _slurm(command, "--name=x") == ""
    else:
        with raises(LauncherFailed, f"{command} failed", f"status {status}"):
            _slurm(command, "--name=x")


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """Return a pool of one worker, whose only job never ends."""
    for command, prints in (("squeue", "echo 7_0"), ("scancel", "")):
        program = tmp_path / command
        program.write_text(f"#!/bin/sh\n{prints}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Pool(name="p", launcher="slurm", command=["true"], workers=1, folder=tmp_path)


def test_a_job_that_slurm_cannot_end_is_named(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.launchers.slurm.GONE_S", 0.1)
    with raises(LauncherFailed, "7_0", "squeue"):
        Slurm().stop(pool, 0.0)


def test_why_jobs_are_queued_is_shown(pool: Pool, cli: Phyla, tmp_path: Path) -> None:
    pending = {"%i": "7_0\n7_1\n7_2", "%T": "PENDING\nPENDING\nFAILED", "%r": "PartitionConfig\nNone"}
    cases = "".join(f'*{code}) echo "{prints}";;\n' for code, prints in pending.items())
    (tmp_path / "squeue").write_text(f'#!/bin/sh\ncase "$*" in\n{cases}esac\n')
    replace(pool, folder=tmp_path / "pools/p").save()
    (row,) = json.loads(cli("workers", "--json", "--home", tmp_path))
    assert (row["alive"], row["states"], row["reasons"]) == (3, {"queued": 2, "failed": 1}, {"PartitionConfig": 1})
    check_facts(cli("workers", "--home", tmp_path), "2 queued (1 PartitionConfig), 1 failed")


def test_a_pool_that_was_not_stopped_may_requeue_its_jobs(pool: Pool) -> None:
    stopped = pool.folder / "stopped"
    stopped.touch()
    Slurm().start(pool)
    assert not stopped.exists()
