"""A final that a loop with ask and tell holds."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import raises
from phyla.errors import StudyFailed
from phyla.records import JobKind, JobState, StudyState

FINAL = phyla.Final(candidates=4, measurements=16)
CONFIRMED = FINAL.rounds(4)[-1][1]
Score = Callable[[phyla.Trial], float]


def make(home: Path, final: phyla.Final | None = FINAL, retries: int = 1, **settings: Any) -> phyla.Study:
    options = {"steps_per_trial": 1, "total_steps": 3, "quorum": 1.0, **settings}
    return phyla.Study(
        "asked",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=4, **options),
        home=home,
        final=final,
        retries=phyla.Retries(attempts=retries),
    )


def noisy(trial: phyla.Trial) -> float:
    return float(trial.params["lr"]) + random.Random(trial.seed).gauss(0, 1)


def tell(study: phyla.Study, trials: Sequence[phyla.Trial], score: Score = noisy, *, shared: bool = False) -> None:
    for trial in trials[:1] if shared else trials:
        (trial.checkpoint_dir / "weights").write_text("w")
    metrics = [{"score": score(trial)} for trial in trials]
    study.tell(trials, metrics, checkpoint=trials[0] if shared else None)


def loop(study: phyla.Study, score: Score = noisy) -> None:
    """Ask and tell as the documentation does."""
    while not study.finished:
        trial = study.ask()
        if trial is not None:
            tell(study, [trial], score)


def first_measurements(study: phyla.Study) -> list[phyla.Trial]:
    """Train to the end; return the trials that the final begins with."""
    while True:
        trials = study.ask(4, whole=True)
        if trials[0].measuring:
            return trials
        tell(study, trials)


def check_held(study: phyla.Study, measurements: int = 16) -> None:
    results = study.results()
    assert study.finished
    assert results.state is StudyState.COMPLETED
    measured = [trial for trial in results.trials() if trial.kind is JobKind.FINAL]
    assert {trial.state for trial in results.trials()} == {JobState.COMPLETED}
    assert len(measured) == measurements
    assert {trial.token for trial in measured} == {1}
    assert results.best is not None
    assert results.best.measurements >= CONFIRMED


def test_the_loop_holds_the_final_and_drops_no_measurement(tmp_path: Path) -> None:
    study = make(tmp_path)
    loop(study)
    check_held(study)
    assert study.ask() is None


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [2, 4])
def test_batches_are_whole_to_the_last_measurement(tmp_path: Path, count: int, shared: bool) -> None:
    study, sizes = make(tmp_path), []
    while not study.finished:
        trials = study.ask(count, whole=True)
        sizes.append(len(trials))
        assert len({trial.measuring for trial in trials}) == 1
        tell(study, trials, shared=shared)
    assert set(sizes) == {count}
    check_held(study, measurements=sum(sizes) - 12)


def test_another_process_sees_that_the_final_is_not_over_and_holds_it(tmp_path: Path) -> None:
    study, other = make(tmp_path), make(tmp_path)
    while len(study.results().trials()) < 14:
        tell(study, [trial for trial in [study.ask()] if trial])
        assert not other.finished
    held = other.ask(2)
    assert {trial.measuring for trial in held} == {True}
    while (trial := study.ask()) is not None:
        tell(study, [trial])
    assert not study.finished
    for trial in held:
        assert not other.finished
        tell(other, [trial])
    loop(study)
    assert other.finished
    check_held(study)


def test_a_loop_that_was_left_before_the_final_goes_on_with_it(tmp_path: Path) -> None:
    study = make(tmp_path)
    while len(study.results().trials()) < 12:
        tell(study, [trial for trial in [study.ask()] if trial])
    resumed = make(tmp_path)
    assert not resumed.finished
    loop(resumed)
    check_held(resumed)


def test_a_study_that_has_ended_gets_its_final_later(tmp_path: Path) -> None:
    loop(make(tmp_path, final=None))
    study = make(tmp_path)
    study.change()
    assert not study.finished
    loop(study)
    check_held(study)


def test_a_study_that_reaches_its_goal_ends_with_its_last_measurement(tmp_path: Path) -> None:
    study = make(tmp_path, total_steps=50)
    study = phyla.Study(
        "goal",
        study.rules.space,
        phyla.Maximize("score", stop_at=4.0),
        study.rules.strategy,
        home=tmp_path,
        final=FINAL,
    )
    loop(study, lambda trial: noisy(trial) + trial.end_step)
    check_held(study)


def test_the_last_measurement_that_fails_ends_the_study(tmp_path: Path) -> None:
    study = make(tmp_path)
    *others, last = first_measurements(study)
    study.tell(others, error="boom")
    assert not study.finished
    with raises(StudyFailed, "4 of its measurements", f"trial {last.id}", "boom"):
        study.tell(last, error="boom")
    assert study.results().state is StudyState.FAILED


def test_the_last_measurement_that_is_nan_ends_the_study(tmp_path: Path) -> None:
    study = make(tmp_path)
    *others, last = first_measurements(study)
    tell(study, others, lambda _: math.nan)
    with raises(StudyFailed, "4 of its measurements", f"trial {last.id}", "score=nan"):
        tell(study, [last], lambda _: math.nan)
    assert study.results().state is StudyState.FAILED


def test_the_last_trial_that_fails_ends_a_study_whose_members_are_all_given_up(tmp_path: Path) -> None:
    study = phyla.Study(
        "given-up",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=1, steps_per_trial=1, total_steps=3),
        home=tmp_path,
        retries=phyla.Retries(attempts=1),
    )
    with raises(StudyFailed, "every member was given up", "boom"):
        while not study.finished:
            trial = study.ask()
            assert trial is not None
            study.tell(trial, error="boom")
    assert study.results().state is StudyState.FAILED
