"""Telling what cannot be told at once."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import raises
from phyla.controller import Controller
from phyla.errors import (
    CheckpointStorageFailed,
    ConfigurationError,
    LeaseLost,
    NoFitness,
    StateError,
    StoreError,
    StudyFailed,
)
from phyla.records import Criteria, StudyState
from phyla.store.sql.store import SqlStore
from phyla.strategies import Divergence
from phyla.study import Places
from phyla.study.maintaining.maintain import maintain


def study(home: Path, retries: int = 1) -> phyla.Study:
    return phyla.Study(
        "tell",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2),
        home=home,
        storage="memory://",
        retries=phyla.Retries(attempts=retries),
    )


def test_a_trial_can_be_told_again_when_the_store_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = study(tmp_path)
    trial = made.ask()
    assert trial is not None
    (trial.checkpoint_dir / "weights").write_text("w")

    def busy(*_: Any, **__: Any) -> Any:
        raise StoreError("busy")

    with monkeypatch.context() as patched:
        patched.setattr(SqlStore, "transaction", busy)
        with pytest.raises(StoreError, match="busy"):
            made.tell(trial, metrics={"score": 1.0})
    made.tell(trial)
    assert made.results().counts() == {"completed": 1}


def test_a_trial_that_is_told_again_with_another_score_is_refused(tmp_path: Path) -> None:
    made = study(tmp_path)
    trial = made.ask()
    assert trial is not None
    (trial.checkpoint_dir / "weights").write_text("w")
    made.tell(trial, {"score": 1, "loss": float("nan")})
    made.tell(trial, {"score": 1.0, "loss": float("nan")})
    made.tell(trial)
    with raises(StateError, "trial 1", "score", "1.0}", "5.0}"):
        made.tell(trial, {"score": 5.0, "loss": float("nan")})
    made.tell(trial, {"score": 1.0})
    other = made.ask()
    assert other is not None
    with raises(StateError, "error=", "late", "trial 1", "score", "1"):
        made.tell([other, trial], error="late")
    assert made.results().counts() == {"completed": 1, "running": 1}
    row = made.results().trials()[0]
    assert row.fitness == 1.0
    assert len(made.results().reports(trial.id)) == 1


def test_a_lost_lease_does_not_keep_the_other_failures_from_being_told(tmp_path: Path) -> None:
    made = study(tmp_path)
    first, second = made.ask(2)
    made.tell(first, error="one")
    with pytest.raises(LeaseLost):
        made.tell([first, second], error="both")
    assert made.results().counts() == {"failed": 2}


def test_an_exception_can_be_told_and_what_says_nothing_cannot(tmp_path: Path) -> None:
    made = study(tmp_path)
    first, second = made.ask(2)
    for nothing in ("", 5):
        with raises(ConfigurationError, f"tell(error={nothing!r})"):
            made.tell(first, error=nothing)  # type: ignore[arg-type]
    made.tell(first, error=ValueError("boom"))
    made.tell(second, error="bang")
    assert [trial.error for trial in made.results().trials()] == ["ValueError: boom", "bang"]


def test_what_a_trial_reported_before_it_failed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = study(tmp_path)
    trial = made.ask()
    assert trial is not None
    for value in (1.0, 2.0):
        trial.report(score=value)

    def away(*_: object) -> None:
        raise StoreError("away")

    with monkeypatch.context() as patched:
        patched.setattr(Controller, "report", away)
        with pytest.raises(StoreError, match="away"):
            made.tell(trial, error="boom")
    made.tell(trial, error="boom")
    assert [row.error for row in made.results().trials()] == ["boom"]
    assert [each.metrics["score"] for each in made.results().reports(trial.id)] == [1.0, 2.0]


def test_a_trial_that_its_last_reports_stop_can_be_told_to_have_failed(tmp_path: Path) -> None:
    made = phyla.Study(
        "tell",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2),
        home=tmp_path,
        storage="memory://",
        stopping=Divergence(),
    )
    trial = made.ask()
    assert trial is not None
    trial.report(score=float("nan"))
    made.tell(trial, error=ValueError("the loss is nan"))
    assert made.results().counts() == {"cancelled": 1}
    assert len(made.results().reports(trial.id)) == 1
    assert made.ask() is not None


def test_every_metric_that_the_objective_needs_has_to_be_told(tmp_path: Path) -> None:
    objective = phyla.Constrained(phyla.Maximize("score"), subject_to=["cost <= 2", "size < 9"])
    strategy = phyla.PBT(population_size=1, steps_per_trial=1, total_steps=1)
    made = phyla.Study("several", {"lr": phyla.Float(0.1, 1.0)}, objective, strategy, home=tmp_path)
    trial = made.ask()
    assert trial is not None
    (trial.checkpoint_dir / "weights").write_text("w")
    with raises(NoFitness, "trial 1", "score"):
        made.tell(trial, metrics={"score": 1.0})
    made.tell(trial, metrics={"cost": 3.0, "size": 1.0})
    assert made.results().best is None
    (row,) = made.results().trials()
    assert row.criteria == Criteria(values={"score": 1.0, "cost": 3.0, "size": 1.0}, infeasible="cost 3 > 2")


def told(made: phyla.Study, trial: Any) -> None:
    (trial.checkpoint_dir / "weights").write_text("w")
    made.tell(trial, metrics={"score": 1.0})


def test_the_last_trial_that_is_told_completes_the_study(tmp_path: Path) -> None:
    made = study(tmp_path)
    states = []
    while not made.finished:
        trial = made.ask()
        assert trial is not None
        told(made, trial)
        states.append(made.results().state)
    assert states == [StudyState.RUNNING] * 3 + [StudyState.COMPLETED]


EXPLORED = {"lr": 7.0}


def explored(params: Any, rng: Any) -> Any:
    return EXPLORED


def test_who_asks_is_told_that_no_decision_can_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = exploring(tmp_path)
    for trial in made.ask(2):
        told(made, trial)
    with raises(StudyFailed, "PBT", "SpaceError", "ExploreWith(explored)"):
        made.ask()
    assert made.finished
    assert made.results().counts() == {"completed": 2}

    again = exploring(tmp_path)
    finished = [again.finished]
    with raises(StudyFailed, "PBT", "SpaceError", "ExploreWith(explored)"):
        again.ask()
    finished.append(again.finished)
    assert finished == [False, True]

    monkeypatch.setitem(EXPLORED, "lr", 0.5)
    mended = exploring(tmp_path)
    while not mended.finished:
        for trial in mended.ask(2):
            told(mended, trial)
    assert mended.results().state == StudyState.COMPLETED
    assert mended.results().counts() == {"completed": 4}


def exploring(home: Path) -> phyla.Study:
    strategy = phyla.PBT(
        population_size=2,
        steps_per_trial=1,
        total_steps=2,
        exploit=None,
        explore=phyla.strategies.ExploreWith(explored),
    )
    return phyla.Study("undecided", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), strategy, home=home)


def test_a_stopped_study_resumes_with_the_first_trial_that_is_asked_for(tmp_path: Path) -> None:
    made = exploring(tmp_path)
    trial = made.ask()
    assert trial is not None
    maintain("undecided", Places.of(tmp_path)).stop("enough")
    again = exploring(tmp_path)
    seen = [(made.finished, again.finished, made.results().state)]
    assert made.ask() is None
    assert again.ask() is not None
    seen.append((made.finished, again.finished, made.results().state))
    assert seen == [(True, False, StudyState.STOPPED), (False, False, StudyState.RUNNING)]


def test_what_was_told_counts_also_if_the_study_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(tmp_path)
    trial = made.ask()
    assert trial is not None

    def busy(self: phyla.Study) -> bool:
        raise StoreError("busy")

    with monkeypatch.context() as patched:
        patched.setattr(phyla.Study, "finished", property(busy))
        told(made, trial)
    assert made.results().counts() == {"completed": 1}


def test_what_cannot_be_asked_or_told_is_refused(tmp_path: Path) -> None:
    made = study(tmp_path)
    for count in (0, -1):
        with raises(ConfigurationError, f"ask(count={count})", "1"):
            made.ask(count)
    with raises(ConfigurationError, "ask(wait_s=-1)"):
        made.ask(wait_s=-1)
    trial = made.ask()
    assert trial is not None
    anything: Any = made
    with raises(ConfigurationError, "tell(1)", "ask()"):
        anything.tell(1, {"score": 1.0})
    with raises(ConfigurationError, "tell()", "metrics", "error"):
        made.tell(trial, {"score": 1.0}, error="x")
    with raises(ConfigurationError, "1 trials", "2"):
        made.tell(trial, [{"score": 1.0}, {"score": 2.0}])
    for wrong in (0.5, "score", [0.5]):
        with raises(ConfigurationError, "tell(metrics="):
            anything.tell(trial, wrong)
    (trial.checkpoint_dir / "weights").write_text("w")
    made.tell(trial, {"score": 1.0})
    assert made.results().counts() == {"completed": 1}


def test_asking_waits_for_a_trial_but_not_when_the_study_has_ended(tmp_path: Path) -> None:
    made = study(tmp_path)
    held = made.ask(2)
    assert made.ask() is None

    def hand_in() -> None:
        for trial in held:
            (trial.checkpoint_dir / "weights").write_text("w")
            made.tell(trial, {"score": 1.0})

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(hand_in)
        trials = [made.ask(wait_s=60) for _ in range(2)]
        done.result()
    for trial in trials:
        assert trial is not None
        (trial.checkpoint_dir / "weights").write_text("w")
        made.tell(trial, {"score": 1.0})
    began = time.monotonic()
    assert made.ask(wait_s=1000) is None
    assert time.monotonic() - began < 100
    assert made.finished


def test_all_trials_of_a_request_are_given_again_if_the_start_of_one_cannot_be_read(tmp_path: Path) -> None:
    apart = phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2, exploit=None)
    space = {"lr": phyla.Float(0.1, 1.0)}
    made = phyla.Study("tell", space, phyla.Maximize("score"), apart, home=tmp_path, storage="memory://")
    for trial in made.ask(2):
        (trial.checkpoint_dir / "weights").write_text(str(trial.id))
        made.tell(trial, {"score": trial.id})
    parent = next((tmp_path / "checkpoints/tell").glob("2.1.*"))
    manifest, kept = parent / ".phyla-manifest.json", tmp_path / "kept"
    parent.chmod(0o700)
    manifest.rename(kept)
    manifest.mkdir()
    with raises(CheckpointStorageFailed, "2.1."):
        made.ask(2)
    manifest.rmdir()
    kept.rename(manifest)
    assert [trial.member for trial in made.ask(2)] == [0, 1]


def test_a_trial_that_failed_is_given_again_also_when_the_answer_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(tmp_path, retries=2)
    first, other = made.ask(2)
    made.tell(first, error="out of memory")
    complete = Controller.complete

    def interrupted(*what: Any, **how: Any) -> Any:
        complete(*what, **how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Controller, "complete", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.ask()
    again = made.ask()
    assert again is not None
    assert (again.id, again.token) == (first.id, 2)
    assert made.ask() is None
    assert other.id != first.id
