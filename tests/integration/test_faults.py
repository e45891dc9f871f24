"""Faults of storage in studies that run: each kind at least twice. `bench/faults.py` does the same for longer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from effort import rarely
from failing_calls import FailingCalls
from fault_cases import ISOLATED, isolated
from fault_kinds import KINDS

BENCH = Path(__file__).parents[2] / "bench" / "faults.py"
SEED = 7
ALIKE = {"truncation", "vanished file", "vanished root", "no inodes", "quota of inodes", "stale handles"}
"""Others do nearly the same."""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts file systems of Linux")


@pytest.mark.parametrize("kind", [rarely(kind) if kind in ALIKE else kind for kind in KINDS])
def test_a_study_finishes_or_names_the_fault_and_harms_nothing(tmp_path: Path, kind: str) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, str(BENCH), "--kind", kind, "--faults", "2", "--each", "2", "--seed", str(SEED)]
    done = subprocess.run(
        [*isolated(), *command, "--folder", str(tmp_path / "studies"), "--json", str(found)],
        env={**os.environ, ISOLATED: "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads(found.read_text())["cases"]
    assert sum(fault["struck"] > 0 for case in cases for fault in case["faults"]) >= 2


def test_failing_calls_fail_where_they_should(tmp_path: Path) -> None:
    """Without this, a suite that injects nothing would pass."""
    calls = FailingCalls(tmp_path / "calls", FailingCalls.build(tmp_path))
    program = f"import pathlib; pathlib.Path('{tmp_path}/here/file').write_text('x')"

    def write() -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, **calls.environment}
        command = [sys.executable, "-S", "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)

    (tmp_path / "here").mkdir()
    calls.begin(tmp_path / "there", 122, 127)
    assert write().returncode == 0
    assert calls.failed == 0
    calls.begin(tmp_path / "here", 122, 4, count=1)
    assert "Disk quota exceeded" in write().stderr
    assert (calls.failed, calls.last) == (1, f"{tmp_path}/here/file")
    assert write().returncode == 0
