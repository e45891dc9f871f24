"""A stopping rule that waits for a metric that is never reported."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import check_facts
from phyla.errors import StoreError
from phyla.store.sql.store import SqlStore
from phyla.strategies import StoppingRule
from phyla.study.running.messages import Lookout

MISSPELT = phyla.strategies.Divergence(metric="train/los", above=100)


def train(trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "weights").write_text("w")
    trial.report({"train": {"loss": 1.0}, "score": 2.0})


def study(home: Path, stopping: StoppingRule | Sequence[StoppingRule], **options: Any) -> phyla.Study:
    return phyla.Study(
        "watched",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.RandomSearch(2, 2, steps_per_trial=1),
        home=home,
        stopping=stopping,
        **options,
    )


def test_a_run_says_it_once_and_names_what_was_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = study(
        tmp_path, [phyla.strategies.Divergence(), MISSPELT, phyla.MedianStopping(min_steps=0)], train=train
    )
    results = made.run()
    (finding,) = (one for one in results.findings() if one.kind == "metric")
    check_facts(finding.text, "train/los", "train/loss", "score")
    assert caplog.text.count(finding.text) == 1
    assert results.counts() == {"completed": 4}


@pytest.mark.parametrize(
    "rule", [phyla.strategies.Divergence(metric="train/loss"), phyla.MedianStopping(min_steps=0)]
)
def test_nothing_is_said_where_it_is_reported(rule: StoppingRule, tmp_path: Path) -> None:
    found = study(tmp_path, rule, train=train).run().findings()
    assert not [one for one in found if one.kind == "metric"]


@phyla.eval_task
def held(evaluation: phyla.Evaluation) -> None:
    evaluation.record(score=1.0, n=1)


@pytest.mark.parametrize("reports", [None, False, True])
@pytest.mark.parametrize(
    ("rule", "metric"),
    [
        (phyla.strategies.Divergence(), "score_mean"),
        (phyla.MedianStopping(min_steps=0), "score_mean"),
        (phyla.strategies.Divergence(metric="held/score_mean"), "held/score_mean"),
    ],
)
def test_a_rule_that_waits_for_what_only_a_suite_measures_is_named(
    rule: StoppingRule, metric: str, reports: bool | None, tmp_path: Path
) -> None:
    def train_evaluated(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "weights").write_text("w")
        if reports is not None:
            trial.report({"score_mean" if reports else "train/loss": 1.0})

    made = phyla.Study(
        "evaluated",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score_mean"),
        phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2, fitness=phyla.FromSuite("held")),
        train=train_evaluated,
        suites=[phyla.Suite("held", [held], objective=phyla.Maximize("score_mean"))],
        home=tmp_path,
        stopping=rule,
    )
    found = [one for one in made.run(workers=0).findings() if one.kind == "metric"]
    assert [one.about for one in found] == ([] if reports and metric == "score_mean" else [metric])
    assert not any("none" in one.text for one in found)


def test_a_reported_metric_may_begin_with_the_name_of_a_suite(tmp_path: Path) -> None:
    def train_held(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "weights").write_text("w")
        trial.report({"loss": 1.0, "held/loss": 1.0})

    made = phyla.Study(
        "evaluated",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Minimize("loss"),
        phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2),
        train=train_held,
        suites=[phyla.Suite("held", [held])],
        home=tmp_path,
        stopping=phyla.strategies.Divergence(metric="held/loss"),
    )
    assert not [one for one in made.run(workers=0).findings() if one.kind == "metric"]


def test_a_store_that_cannot_be_read_now_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(tmp_path, MISSPELT, storage="memory://")
    opened = made._open()

    def busy(*_: Any, **__: Any) -> Any:
        raise StoreError("busy")

    monkeypatch.setattr(SqlStore, "reader", busy)
    Lookout(made.name, made.rules).look(opened.store, opened.record.id, at_once=True)
