"""Ranks of a process group share the trials of the study to which rank 0 is attached."""

import os
from pathlib import Path

import pytest
import torch

import phyla
from facts import raises
from forked import SUPPORT, Forked
from phyla.errors import ConfigurationError
from phyla.integrations.ranks import shared_trials
from phyla.records import JobState
from waiting import until

pytestmark = pytest.mark.xdist_group("frameworks")

SCRIPT = SUPPORT / "studies/attached_ranks.py"


def start(folder: Path, seconds: str) -> list[Forked]:
    """Start both ranks, as torchrun would; they meet at a file."""
    (folder / "rendezvous").unlink(missing_ok=True)
    return [
        Forked(
            [SCRIPT, folder / "home", seconds],
            env={**os.environ, "RANK": str(rank)},
            merged=True,
            frameworks=True,
        )
        for rank in (0, 1)
    ]


def lines(folder: Path, rank: int) -> list[str]:
    file = folder / f"rank{rank}"
    return file.read_text().splitlines() if file.exists() else []


def test_ranks_train_the_same_trials_and_resume_together(tmp_path: Path) -> None:
    ranks = start(tmp_path, "0.1")
    until(lambda: len(lines(tmp_path, 1)) >= 3 or any(rank.poll() is not None for rank in ranks), "three steps")
    for rank in ranks:
        rank.terminate()
    assert all(rank.wait(180) != 0 for rank in ranks), [rank.printed() for rank in ranks]
    results = phyla.load_study("ranks", home=tmp_path / "home")
    (left,) = results.trials()
    assert (left.state, left.progress_step, left.failures) == (JobState.PENDING, len(lines(tmp_path, 1)), 0)
    for rank in start(tmp_path, "0"):
        assert rank.wait(180) == 0, rank.printed()
    assert results.counts() == {"completed": 4}
    assert lines(tmp_path, 0) == lines(tmp_path, 1)
    assert all(trial.fitness == trial.params["lr"] for trial in results.trials())
    best = results.best
    assert best is not None
    zero, other = (torch.load(best.checkpoint.path / f"state-rank{rank}.pt")["chain"]["links"] for rank in (0, 1))
    assert [link[:2] for link in zero] == [link[:2] for link in other]
    assert [step for _, step, _ in zero] == list(range(8))
    assert all(mine != others for (*_, mine), (*_, others) in zip(zero, other, strict=True))


def test_only_rank_0_has_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    with raises(ConfigurationError, "rank 1", "rank 0"):
        next(shared_trials(iter(())))
