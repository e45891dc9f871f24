"""How long a study still takes, judged by the pace of its newest trials."""

import itertools
import sqlite3
from pathlib import Path

import pytest

import phyla
from phyla.records import JobState, TrialRecord
from phyla.study.results.progress import step_s

DAYS_S = 3 * 86_400.0


NUMBERS = itertools.count(1)


def trial(began_at: float, ended_at: float | None, steps: int = 10, worker: str | None = None) -> TrialRecord:
    """Return a trial of a worker, or of one that trained nothing else."""
    number = next(NUMBERS)
    return TrialRecord(
        id=number,
        worker=worker or f"w{number}",
        study=1,
        member=0,
        generation=0,
        state=JobState.RUNNING if ended_at is None else JobState.COMPLETED,
        params={},
        start_step=5,
        end_step=5 + steps,
        reached_step=None if ended_at is None else 5 + steps,
        seed=0,
        created_at=began_at,
        started_at=began_at,
        ended_at=ended_at,
    )


def test_the_pace_is_that_of_all_that_train_at_once() -> None:
    assert step_s([]) is None
    assert step_s([trial(100, None)]) is None
    assert step_s([trial(100, 120)]) == 2.0
    assert step_s([trial(100, 120), trial(100, 120), trial(110, 130), trial(120, None)]) == 1.0


def test_the_first_trial_of_a_worker_does_not_count_once_there_are_others() -> None:
    slow = [trial(100, 160, worker="a"), trial(100, 165, worker="b")]
    assert step_s(slow) == pytest.approx(65 / 20)
    begins = {"a": 160.0, "b": 165.0}
    quick = [trial(at + 10 * n, at + 10 * n + 10, worker=name) for name, at in begins.items() for n in range(20)]
    assert step_s([*quick[:1], *slow]) == pytest.approx(1.0)
    assert step_s([*quick, *slow]) == pytest.approx(0.5, rel=0.03)
    assert step_s([*slow, *quick]) == step_s([*quick, *slow])


def test_the_longest_pause_does_not_count_and_regular_ones_do() -> None:
    before = [trial(begin, begin + 10) for begin in (100, 110)]
    after = [trial(begin + DAYS_S, begin + DAYS_S + 10) for begin in (120, 130)]
    assert step_s([*after, *before]) == pytest.approx(1.0)
    # Between any two, a worker evaluates for as long as it trains.
    assert step_s([trial(begin, begin + 10) for begin in range(100, 2100, 20)]) == pytest.approx(2.0, rel=0.02)


def train(trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "weights").write_text("w")
    trial.report(score=1.0)


def test_a_study_that_was_paused_for_days_goes_on_at_its_old_pace(tmp_path: Path) -> None:
    def study() -> phyla.Study:
        strategy = phyla.RandomSearch(members=4, total_steps=4, steps_per_trial=1)
        return phyla.Study(
            "paused", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), strategy, train, home=tmp_path
        )

    def stop_halfway(results: phyla.Results) -> None:
        if results.progress().completed >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study().run(on_progress=stop_halfway)
    store = sqlite3.connect(tmp_path / "phyla.db")
    with store:
        for column in ("created_at", "started_at", "ended_at"):
            store.execute(f"UPDATE jobs SET {column} = {column} - {DAYS_S}")
    store.close()
    left: list[float | None] = []
    study().run(on_progress=lambda results: left.append(results.progress().left_s))
    assert left[-1] == 0.0
    assert any(left)
    assert all(one < 600 for one in left if one is not None)
