"""Faults of storage in studies that run. `bench/faults.py` does the same for longer."""

import errno
import os
import sys
from pathlib import Path

import pytest

from effort import rarely
from failing_disk import Calls, FailingDisk
from fault_cases import KINDS, run_case

SEED, FAULTS = 7, 2
ALIKE = {"another size", "deleted file", "vanished root", "no inodes", "quota of inodes", "stale handles"}
"""Others do nearly the same."""

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloads a library of Linux"),
    pytest.mark.xdist_group("failing disk"),
]


@pytest.mark.parametrize("kind", [rarely(kind) if kind in ALIKE else kind for kind in KINDS])
def test_a_study_finishes_or_names_the_fault_and_harms_nothing(tmp_path: Path, kind: str) -> None:
    injected, seed = 0, SEED
    while injected < FAULTS:
        outcome = run_case(kind, seed, FAULTS, tmp_path)
        assert not outcome.violations, str(outcome)
        injected, seed = injected + outcome.injected, seed + 1


def test_failing_calls_fail_where_they_should(tmp_path: Path) -> None:
    """Without this, a suite that injects nothing would pass."""
    disk = FailingDisk(tmp_path / "disk")

    def write() -> str:
        program = f"import pathlib; pathlib.Path('{tmp_path}/here/file').write_text('x')"
        process = disk.start(["-c", program], env=os.environ)
        _, errors = process.communicate(60)
        return errors

    (tmp_path / "here").mkdir()
    disk.begin(tmp_path / "there", errno.EDQUOT, Calls(127))
    assert write() == ""
    assert disk.failed == 0
    disk.begin(tmp_path / "here", errno.EDQUOT, Calls.WRITE, count=1)
    assert "Disk quota exceeded" in write()
    assert (disk.failed, disk.last) == (1, f"{tmp_path}/here/file")
    assert write() == ""
