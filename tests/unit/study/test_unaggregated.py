"""A suite of a study whose objective names what it does not give."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import check_facts, raises
from phyla.errors import ConfigurationError
from phyla.study.results import progress
from phyla.study.running import messages


def train(trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "weights").write_text("w")
    trial.report(score=1.0)


@phyla.eval_task
def accuracy(evaluation: Any) -> None:
    evaluation.record(accuracy=1.0)


def spread(results: Sequence[Any]) -> Mapping[str, float]:
    return {"spread": 0.0}


def study(
    home: Path,
    metric: str,
    aggregates: Sequence[Any] = (),
    fitness: phyla.FromSuite | None = None,
    suites: Sequence[phyla.Suite] = (),
    objective: Any = None,
) -> phyla.Study:
    suite = phyla.Suite("heldout", [accuracy], objective=phyla.Maximize(metric), aggregates=aggregates)
    return phyla.Study(
        "judged",
        {"lr": phyla.Float(0.1, 1.0)},
        objective or phyla.Maximize("score"),
        phyla.RandomSearch(2, 2, steps_per_trial=1, **({} if fitness is None else {"fitness": fitness})),
        train,
        home=home,
        suites=suites or [suite],
    )


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "suite 'heldout'" in text]


@pytest.mark.parametrize(
    ("metric", "aggregates", "told"),
    [
        ("accuracy", (), "accuracy_mean"),
        (
            "accuracy_max",
            (phyla.evaluation.Mean("accuracy"), phyla.evaluation.Worst("accuracy")),
            "accuracy_mean names",
        ),
        ("in/accuracy_mean", (phyla.evaluation.Mean("accuracy", tag="out"),), "out/accuracy_mean"),
    ],
)
def test_what_a_suite_never_gives_is_refused_before_anything_runs(
    metric: str, aggregates: Sequence[Any], told: str, tmp_path: Path
) -> None:
    with raises(ConfigurationError, *told.split()):
        study(tmp_path, metric, aggregates)
    assert not (tmp_path / "phyla.db").exists()


def test_so_is_what_fitness_from_a_suite_names(tmp_path: Path) -> None:
    with raises(ConfigurationError, "FromSuite", "accuracy"):
        study(tmp_path, "accuracy_mean", fitness=phyla.FromSuite("heldout", "accuracy"))
    with raises(ConfigurationError, "score"):
        study(tmp_path, "accuracy_mean", fitness=phyla.FromSuite("heldout"))


@pytest.mark.parametrize(
    ("objective", "metric"), [(phyla.Minimize("loss"), "accuracy_mean"), (phyla.Minimize("accuracy_mean"), None)]
)
def test_a_study_may_not_seek_the_opposite_of_what_its_suite_calls_better(
    objective: phyla.Minimize, metric: str | None, tmp_path: Path
) -> None:
    fitness = phyla.FromSuite("heldout", metric)
    with raises(ConfigurationError, "heldout", "Write objective=Maximize('accuracy_mean')"):
        study(tmp_path, "accuracy_mean", fitness=fitness, objective=objective)
    study(tmp_path, "accuracy_mean", fitness=fitness, objective=phyla.Maximize("accuracy_mean"))
    weighted = phyla.WeightedSum({"accuracy_mean": -1.0})  # a sign of its own
    study(tmp_path, "accuracy_mean", fitness=phyla.FromSuite("heldout"), objective=weighted)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_only_results_tell_is_warned_about_once(
    workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study(tmp_path, "acuracy_mean").run(workers)
    (warning,) = said(caplog)
    check_facts(warning, "acuracy_mean", "accuracy_mean")


def test_it_is_said_at_the_first_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(messages, "EVERY_S", 0.0)
    monkeypatch.setattr(progress, "SHARE", 0)
    made = study(tmp_path, "other", [spread])
    completed: list[int] = []

    def count(record: logging.LogRecord) -> bool:
        if "no aggregate 'other'" in record.getMessage():
            completed.append(made.results().counts().get("completed", 0))
        return True

    caplog.handler.addFilter(count)
    made.run()
    (at_the_warning,) = completed
    assert at_the_warning < 4


@pytest.mark.parametrize("others", [(), (accuracy,)])
def test_eval_tasks_that_fail_are_warned_about_once(
    others: Sequence[phyla.EvalTask], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = phyla.EvalTask("broken", command=["sh", "no-such-script.sh"], max_attempts=1)
    suite = phyla.Suite("heldout", [broken, *others])
    study(tmp_path, "accuracy_mean", suites=[suite]).run()
    (warning,) = said(caplog)
    assert "broken (" in warning
    assert "no-such-script.sh" in warning
    check_facts(warning, "phyla evaluations judged")


def test_nothing_is_said_of_a_suite_that_gives_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    study(tmp_path, "accuracy_mean").run()
    assert not said(caplog)
