"""Ranks of a process group share the trials of the study to which rank 0 is attached."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import phyla
from phyla.errors import ConfigurationError
from phyla.integrations.ranks import shared_trials
from phyla.records import JobState

SCRIPT = Path(__file__).parents[1] / "attached_ranks.py"
TORCHRUN = [
    *("-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"),
    "--nproc-per-node=2",
]


def lines(folder: Path, rank: int) -> list[str]:
    file = folder / f"rank{rank}"
    return file.read_text().splitlines() if file.exists() else []


def test_ranks_train_the_same_trials_and_resume_together(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = [sys.executable, *TORCHRUN, str(SCRIPT), str(home)]
    with subprocess.Popen([*command, "0.1"], stderr=subprocess.PIPE, text=True) as process:
        while len(lines(tmp_path, 1)) < 3:
            assert process.poll() is None, process.stderr
            threading.Event().wait(0.02)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=180)
    results = phyla.load_study("ranks", home=home)
    (left,) = results.trials()
    assert (left.state, left.progress_step, left.failures) == (JobState.PENDING, 2, 0)
    subprocess.run([*command, "0"], check=True, timeout=180, capture_output=True)
    assert results.counts() == {"completed": 4}
    assert lines(tmp_path, 0) == lines(tmp_path, 1)
    assert all(trial.fitness == trial.params["lr"] for trial in results.trials())
    best = results.best
    assert best is not None
    zero, one = (json.loads((best.checkpoint.path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert zero == one
    assert [step for _, step in zero] == list(range(8))


def test_only_rank_0_has_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    with pytest.raises(ConfigurationError, match="on rank 1: give it the trials on rank 0"):
        next(shared_trials(iter(())))
