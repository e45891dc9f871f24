"""Faults of storage in studies that run. `bench/faults.py` does the same for longer."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest

from durability import TOY, check_whole, load, run
from effort import rarely
from facts import check_facts
from failing_disk import FAILURES, Calls, FailingDisk
from fault_cases import KINDS, run_case
from phyla.settings import child_environment

SEED, FAULTS = 7, 2
ALIKE = {"another size", "deleted file", "vanished root", "quota of bytes", "read-only", "stale handles"}
ALIKE |= {"no inodes", "quota of inodes"}
"""Others do nearly the same; each error is also met once below."""

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


@pytest.mark.parametrize("name", [name for name in FAILURES if "inodes" not in name])
def test_a_disk_that_fails_while_training_saves_costs_no_attempt(tmp_path: Path, name: str) -> None:
    home, failure = tmp_path / "home", FAILURES[name]
    disk = FailingDisk(tmp_path / "disk")
    disk.begin(home / "checkpoints" / "toy" / ".staging", failure.error, Calls.WRITE, count=1)
    words = [TOY, json.dumps({"home": str(home), "retries": {"attempts": 1, "broken": 1}})]
    process = disk.start(words, env=child_environment({"PYTHONPATH": str(TOY.parent)}))
    _, errors = process.communicate(120)
    assert (process.returncode, disk.failed) == (1, 1), errors
    check_facts(errors, failure.name)
    check_facts(errors, Path(disk.last).parent)
    assert {trial.failures for trial in load(home).trials()} == {0}
    run(home)
    check_whole(load(home), members=4, trials=6)


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
