"""Asking for a whole batch, and what a batch says of its time."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import raises
from phyla.checkpoints import LocalCheckpoints
from phyla.errors import StateError
from phyla.records import JobState

SPACE = {"lr": phyla.Float(0.1, 1.0)}


def make(home: Path, members: int = 4, **settings: Any) -> phyla.Study:
    strategy = phyla.PBT(population_size=members, steps_per_trial=1, total_steps=3, **settings)
    return phyla.Study("batch", SPACE, phyla.Maximize("score"), strategy, home=home)


def told(study: phyla.Study, trials: list[phyla.Trial]) -> None:
    (trials[0].checkpoint_dir / "weights").write_text("w")
    study.tell(trials, metrics=[{"score": trial.params["lr"]} for trial in trials], checkpoint=trials[0])


def test_a_batch_is_whole_until_the_study_ends(tmp_path: Path) -> None:
    study, sizes = make(tmp_path), []
    while not study.finished:
        trials = study.ask(4, whole=True)
        sizes.append(len(trials))
        told(study, trials)
    assert sizes == [4, 4, 4]
    assert study.ask(4, whole=True) == []
    checkpoints = {(trial.checkpoint, trial.checkpoint_index) for trial in study.results().trials()}
    assert len({name for name, _ in checkpoints}) == 3
    assert len(checkpoints) == 12


def test_a_checkpoint_that_members_share_is_verified_once_in_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use, names = LocalCheckpoints.use, list[str]()

    def count(self: LocalCheckpoints, name: str, *more: Any, **how: Any) -> Path:
        names.append(name)
        return use(self, name, *more, **how)

    monkeypatch.setattr(LocalCheckpoints, "use", count)
    study = make(tmp_path)
    for _ in range(3):
        told(study, study.ask(4, whole=True))
    assert len(names) == 2 == len(set(names))


def test_members_whose_shared_checkpoint_is_gone_all_start_from_another(tmp_path: Path) -> None:
    study = make(tmp_path)
    told(study, study.ask(4, whole=True))
    shared = study.results().trials()[0].checkpoint
    shutil.rmtree(tmp_path / "checkpoints" / "batch" / str(shared))
    trials = study.ask(4, whole=True)
    assert [trial.source for trial in trials] == [None] * 4
    told(study, trials)
    assert len(study.ask(4, whole=True)) == 4


def test_nothing_is_taken_or_decided_while_others_train_a_part(tmp_path: Path) -> None:
    study, other = make(tmp_path), make(tmp_path)
    held = other.ask()
    assert held is not None
    for _ in range(3):
        assert study.ask(4, whole=True) == []
    assert [trial.id for trial in study.results().trials()] == [held.id]
    assert len(study.ask(3, whole=True)) == 3


def test_a_batch_that_can_never_be_whole_is_an_error_and_takes_nothing(tmp_path: Path) -> None:
    study = make(tmp_path, members=6, quorum=1.0)
    told(study, study.ask(4, whole=True))
    advice = "Request 2, and in the next study a number that divides the population"
    with raises(StateError, "4 trials", "2 of 6 members", "0", advice):
        study.ask(4, whole=True)
    assert study.results().counts() == {"completed": 4}
    told(study, study.ask(2, whole=True))
    assert len(study.ask(6, whole=True)) == 6


def test_where_members_come_apart_the_advice_is_a_quorum(tmp_path: Path) -> None:
    study = make(tmp_path / "apart", members=6, quorum=0.0)
    with raises(StateError, "3 trials", "of 6 members", "leave out whole=True", "use a quorum above 0"):
        train_to_the_end(study, whole=True)
    train_to_the_end(study, whole=False)
    train_to_the_end(make(tmp_path / "together", members=6, quorum=0.1), whole=True)


def train_to_the_end(study: phyla.Study, *, whole: bool) -> None:
    while not study.finished:
        told(study, study.ask(3, whole=whole))


def test_a_batch_counts_its_seconds_once(tmp_path: Path) -> None:
    study = make(tmp_path)
    began = time.monotonic()
    trials = study.ask(4, whole=True)
    threading.Event().wait(0.4)
    told(study, trials)
    elapsed_s = time.monotonic() - began
    results = study.results()
    attempts = results.attempts()
    assert 0.4 <= results.time_spent().total_s <= elapsed_s
    assert len({str(attempt.timings) for attempt in attempts}) == 1
    assert all(trial.state is JobState.COMPLETED for trial in results.trials())


def test_trials_of_one_request_that_are_told_one_by_one_share_its_time(tmp_path: Path) -> None:
    study = make(tmp_path)
    began = time.monotonic()
    first, *others = study.ask(4)
    threading.Event().wait(0.3)
    for trial in (first, *others):
        (trial.checkpoint_dir / "weights").write_text("w")
        study.tell(trial, metrics={"score": 1.0})
    elapsed_s = time.monotonic() - began
    spent = [sum((one.timings or {}).values()) for one in study.results().attempts()]
    assert spent[0] >= 0.3
    assert sum(spent) <= elapsed_s
