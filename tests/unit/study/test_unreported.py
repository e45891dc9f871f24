"""A stopping rule that waits for a metric that is never reported."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import phyla
from phyla.errors import StoreError
from phyla.store.sql.store import SqlStore
from phyla.strategies import StoppingRule

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


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_warns_once_and_names_what_was_reported(workers: int, tmp_path: Path) -> None:
    made = study(
        tmp_path, [phyla.strategies.Divergence(), MISSPELT, phyla.MedianStopping(min_steps=1)], train=train
    )
    with pytest.warns(UserWarning, match="watched") as told:
        made.run(workers)
    (warning,) = told
    text = str(warning.message)
    assert "Divergence(metric='train/los', above=100, below=None) stops nothing" in text
    assert "did you mean 'train/loss'? the names are 'train/loss', 'score'" in text
    assert made.results().counts() == {"completed": 4}


def test_it_warns_as_soon_as_a_trial_has_completed(tmp_path: Path) -> None:
    seen: list[int] = []
    made = study(tmp_path, MISSPELT, train=train)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"completed \(1\) reported it"):
            made.run(on_progress=lambda results: seen.append(results.counts()["completed"]))
    assert seen == []


def test_who_is_told_warns_too(tmp_path: Path) -> None:
    made = study(tmp_path, MISSPELT, storage="memory://")
    trials = made.ask(2)
    for trial in trials:
        (trial.checkpoint_dir / "weights").write_text("w")
    with pytest.warns(UserWarning, match="train/los"):
        made.tell(trials[0], metrics={"score": 1.0})
    made.tell(trials[1], metrics={"score": 1.0})


@dataclass(frozen=True)
class Watching:
    """A rule of a third party."""

    marks_every: int | None = None
    history: int = 0

    def watches(self, objective: Any) -> list[str]:
        return ["gradient"]

    def judge(self, reported: Any, others: Any) -> None:
        return


def test_rules_of_a_third_party_may_say_what_they_watch(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"Watching\(.*'gradient' is not reported"):
        study(tmp_path, [Watching(), phyla.strategies.StopWith(never)], train=train).run()


def never(reported: Any) -> None:
    return


@pytest.mark.parametrize(
    "rule", [phyla.strategies.Divergence(metric="train/loss"), phyla.MedianStopping(min_steps=1)]
)
def test_no_warning_where_it_is_reported(rule: StoppingRule, tmp_path: Path) -> None:
    study(tmp_path, rule, train=train).run()


def test_a_store_that_cannot_be_read_now_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(tmp_path, MISSPELT, storage="memory://")
    opened = made._open()

    def busy(*_: Any, **__: Any) -> Any:
        raise StoreError("busy")

    monkeypatch.setattr(SqlStore, "reader", busy)
    made.lookout.look(opened.store, opened.record.id, at_once=True)
