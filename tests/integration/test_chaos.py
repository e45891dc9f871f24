"""Faults of machines, programs and the network in a study over HTTP. `bench/chaos.py` does the same for longer."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import forked

BENCH = Path(__file__).parents[2] / "bench" / "chaos.py"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="makes network namespaces of Linux")


def run(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Run it; return what happened."""
    found = tmp_path / "found.json"
    command = [BENCH, *words, "--lease", "3", "--folder", tmp_path / "world", "--json", found]
    done = forked.run(command, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(found.read_text())
    return told


def test_nothing_is_lost(tmp_path: Path) -> None:
    told = run(tmp_path, "--minutes", "0.15", "--seed", "5", "--every", "0.35")
    assert len({kind for _, kind, *_ in told["faults"]}) >= 8
    assert told["requests"]["complete: ok"] > told["trials"] > 0
    assert told["requests"]["black box complete: ok"] > 0


@pytest.mark.thorough
def test_workers_that_come_and_go_train_the_same_trials(tmp_path: Path) -> None:
    told = run(tmp_path, "--elastic", "--minutes", "0.4", "--seed", "3")
    assert len(told["faults"]) == 12
    assert told["attempts"] > told["trials"] == 100
