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


def test_a_store_that_cannot_be_read_now_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(tmp_path, MISSPELT, storage="memory://")
    opened = made._open()

    def busy(*_: Any, **__: Any) -> Any:
        raise StoreError("busy")

    monkeypatch.setattr(SqlStore, "reader", busy)
    Lookout(made.name, made.rules).look(opened.store, opened.record.id, at_once=True)
