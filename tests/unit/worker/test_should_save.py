"""When training is asked to save its progress."""

import os
from pathlib import Path

import pytest

import phyla
from phyla.worker import TrialSession, session_of


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def trial(tmp_path: Path, now: list[float]) -> phyla.Trial:
    space, search = {"lr": phyla.Float(0.1, 1.0)}, phyla.RandomSearch(members=1, steps_per_trial=9, total_steps=9)
    study = phyla.Study("s", space, phyla.Maximize("score"), search, home=tmp_path)
    asked = study.ask()
    assert asked is not None
    session = session_of(asked)
    told = TrialSession(
        session.record,
        session.client,
        session.repository,
        metrics=("score",),
        work_root=tmp_path,
        clock=lambda: now[0],
        save_every_s=10.0,
    )
    return told.trial


def due(trial: phyla.Trial) -> bool:
    return trial.should_save


def save(trial: phyla.Trial, step: int) -> None:
    (trial.checkpoint_dir / "a").write_text("a")
    trial.save_progress(step=step)


def test_it_is_time_to_save_after_every_so_many_seconds(trial: phyla.Trial, now: list[float]) -> None:
    assert not due(trial)
    now[0] += 9.9
    assert not due(trial)
    now[0] += 0.1
    assert due(trial)
    assert due(trial), "until something is saved"
    save(trial, 3)
    assert not due(trial)
    now[0] += 10.0
    assert due(trial)
    save(trial, 4)
    now[0] -= 500.0
    assert due(trial), "the clock was set back: better now than in ten minutes"


def test_without_a_cadence_only_a_stop_asks_for_it(trial: phyla.Trial, now: list[float]) -> None:
    session = session_of(trial)
    session.save_every_s = None
    now[0] += 1e6
    assert not due(trial)
    session.stop()
    assert due(trial)
    save(trial, 3)
    assert not due(trial)
    assert session.stopped_early, "training knows that it is to stop"


def test_what_a_rule_stopped_is_not_saved(trial: phyla.Trial, now: list[float]) -> None:
    now[0] += 100.0
    session_of(trial).stop({"rule": "Divergence"})
    assert not due(trial)
    assert trial.should_stop


@pytest.mark.parametrize("cadence", [90.0, None])
def test_a_command_that_is_trained_without_worker_processes_has_the_cadence_in_its_environment(
    cadence: float | None, tmp_path: Path
) -> None:
    command = ["sh", "-c", 'printf %s "$PHYLA_SAVE_EVERY_S" > "$0/cadence"; echo \'{{"score": 1}}\' > "$1"']
    study = phyla.Study(
        "s",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.RandomSearch(members=1, steps_per_trial=1, total_steps=1),
        train=phyla.Command([*command, "{save_to}", "{metrics}", "{lr}"]),
        home=tmp_path,
    )
    best = study.run(workers=0, save_every_s=cadence).best
    assert best is not None
    assert (best.checkpoint.path / "cadence").read_text() == ("" if cadence is None else "90")
    assert "PHYLA_SAVE_EVERY_S" not in os.environ
