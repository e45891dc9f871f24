"""What a watcher of a running study is told."""

from pathlib import Path

import phyla


def study(home: Path, attempts: int = 3) -> phyla.Study:
    return phyla.Study(
        "told",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=3, steps_per_trial=2, total_steps=4),
        home=home,
        storage="memory://",
        retries=phyla.Retries(attempts=attempts),
    )


def test_each_failed_attempt_is_told_once(tmp_path: Path) -> None:
    made = study(tmp_path, attempts=2)
    new = made.results().failures(since=0.0)
    assert new() == []
    first, other = made.ask(2)
    made.tell(first, error="ValueError: one")
    assert [(told.job, told.token, told.error) for told in new()] == [(first.id, 1, "ValueError: one")]
    assert new() == []
    again = made.ask()
    assert again is not None
    assert again.id == first.id
    made.tell(again, error="ValueError: two")
    made.tell(other, error="ValueError: other")
    assert [(told.job, told.token) for told in new()] == [(first.id, 2), (other.id, 1)]
    assert new() == []


def test_what_failed_before_is_not_told(tmp_path: Path) -> None:
    made = study(tmp_path)
    trial = made.ask()
    assert trial is not None
    made.tell(trial, error="ValueError: long ago")
    assert made.results().failures(since=float("inf"))() == []
    assert len(made.results().failures(since=0.0)()) == 1


def test_progress_of_a_study_without_trials(tmp_path: Path) -> None:
    made = study(tmp_path)
    progress = made.results().progress()
    assert (progress.completed, progress.planned_trials, progress.spent_steps, progress.total_steps) == (
        0,
        6,
        0,
        12,
    )
    assert progress.best is None
    assert progress.last_activity == progress.study.created_at
    assert not progress.trials


def test_only_the_chosen_members_trials_are_read(tmp_path: Path) -> None:
    made = study(tmp_path)
    made.ask(3)
    assert set(made.results().progress().trials) == {0, 1, 2}
    assert len(made.results().progress(1).trials) == 1
