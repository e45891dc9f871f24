"""What Slurm's commands answer."""

from pathlib import Path

import pytest

from facts import raises
from phyla.errors import LauncherFailed
from phyla.launchers.slurm import _slurm


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
