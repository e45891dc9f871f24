"""Faults of machines, programs and the network in a study over HTTP. `bench/chaos.py` does the same for longer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "chaos.py"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="makes network namespaces of Linux")


def test_nothing_is_lost(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, str(BENCH), "--minutes", "0.3", "--seed", "5", "--every", "0.5", "--lease", "3"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "world"), "--json", str(found)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(found.read_text())
    assert len({kind for _, kind, *_ in told["faults"]}) >= 8
    assert told["requests"]["complete: ok"] > told["trials"] > 0
