"""`phyla watch --tracker`: evaluations at the steps of their checkpoints, each sent once; and `phyla export`."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import phyla
from command_line import Phyla
from facts import check_facts, raises
from phyla.errors import ConfigurationError
from phyla.integrations.trackers import Row, TrackedStudy
from phyla.study.running import background
from tracked_runs import mlflow_runs, offline_runs
from waiting import until

FOLLOWING = phyla.Following(once=True)


@phyla.eval_task(max_attempts=1)
def value(evaluation: phyla.Evaluation) -> None:
    number = float((evaluation.checkpoint.path / "value").read_text())
    evaluation.record(value=[number - 1.0, number + 1.0])


@phyla.eval_task(max_attempts=1)
def repaired(evaluation: phyla.Evaluation) -> None:
    evaluation.record(more=float(os.environ["REPAIRED"]))


SUITES = """
import phyla

@phyla.eval_task
def value(evaluation):
    number = float((evaluation.checkpoint.path / "value").read_text())
    evaluation.record(value=[number - 1.0, number + 1.0])

held = phyla.Suite("held", [value])
"""


def write(training: Path, step: int, number: float) -> None:
    (training / f"step-{step}").mkdir(parents=True)
    (training / f"step-{step}" / "value").write_text(str(number))
    (training / f"step-{step}" / "done").write_text("")


class Kept:
    """A tracker that keeps rows; the first calls raise its errors."""

    name: ClassVar[str] = "kept"
    place: str | None = None

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.rows: list[Row] = []

    def environment(self, study: TrackedStudy) -> Mapping[str, str]:
        return {}

    def open(self, study: TrackedStudy) -> None:
        self.study = study

    def log(self, rows: Sequence[Row]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.rows += rows

    def close(self) -> None:
        pass

    def taken(self) -> list[tuple[int, dict[str, Any]]]:
        rows, self.rows = self.rows, []
        return [(row.progress, dict(row.values)) for row in rows]


def watch(tmp_path: Path, tracker: Kept, *tasks: phyla.EvalTask) -> object:
    how: dict[str, Any] = {"format": "marker", "options": {"marker": "done"}, "home": tmp_path / "home"}
    suite = phyla.Suite("held", tasks or [value])
    return phyla.watch(tmp_path / "training", suite, name="run", following=FOLLOWING, trackers=[tracker], **how)


def test_each_result_is_sent_once_at_its_step(tmp_path: Path) -> None:
    tracker = Kept()
    write(tmp_path / "training", 200, 2.0)
    watched = watch(tmp_path, tracker)
    assert repr(watched) == "<Watched run: 1 checkpoint, evaluations: 1 complete>"
    mean = {"eval/held/value/value": 2.0, "eval/held/value/value_stderr": pytest.approx(1.0)}
    aggregate = {"eval/held/value_mean": 2.0, "eval/held/value_mean_stderr": pytest.approx(1.0)}
    assert tracker.taken() == [(200, mean | aggregate)]
    write(tmp_path / "training", 100, 1.0)
    watch(tmp_path, tracker)
    ((step, values),) = tracker.taken()
    assert (step, values["eval/held/value/value"]) == (100, 1.0)
    watch(tmp_path, tracker)
    assert tracker.taken() == []
    assert tracker.study.watched


def test_of_a_group_that_is_tried_again_what_is_new_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Kept()
    write(tmp_path / "training", 300, 3.0)
    watch(tmp_path, tracker, value, repaired)
    of_value = {"eval/held/value/value", "eval/held/value/value_stderr"}
    assert [(step, set(values)) for step, values in tracker.taken()] == [(300, of_value)]
    monkeypatch.setenv("REPAIRED", "7")
    watch(tmp_path, tracker, value, repaired)
    ((step, values),) = tracker.taken()
    assert (step, values["eval/held/repaired/more"]) == (300, 7.0)
    assert not of_value & set(values)


def test_a_failing_tracker_warns_once_per_kind_of_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "EVERY_S", 0.001)
    errors = [OSError("no answer from 10.0.0.1"), ValueError("key"), OSError("no answer from 10.0.0.2")]
    tracker = Kept(*errors, *errors)
    write(tmp_path / "training", 100, 1.0)
    with caplog.at_level(logging.WARNING, "phyla"):
        watch(tmp_path, tracker)
    until(lambda: not tracker.errors, "it works")
    assert [step for step, _ in tracker.taken()] in ([100], [])
    kinds = [record.message for record in caplog.records if "is retried" in record.message]
    assert len(kinds) == 2
    check_facts(kinds[0], "kept", "OSError", "10.0.0.1")
    check_facts(kinds[1], "kept", "ValueError")


def test_a_run_of_a_tracker_is_for_one_directory(tmp_path: Path) -> None:
    for tracker in ("mlflow#abc", Kept()):
        with raises(ConfigurationError, "2", "one run"):
            phyla.watch([tmp_path / "a", tmp_path / "b"], phyla.Suite("s", [value]), trackers=[tracker])
    with raises(ConfigurationError, "tensorboard", "#abc"):
        phyla.watch(tmp_path, phyla.Suite("s", [value]), trackers=["tensorboard#abc"], home=tmp_path / "home")


@pytest.mark.xdist_group("evaluations")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow uses what SQLAlchemy 2.1 deprecates
def test_results_go_to_the_run_of_the_training(
    tmp_path: Path, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb
    from mlflow import MlflowClient

    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()
    uri, home = f"sqlite:///{tmp_path / 'runs.db'}", tmp_path / "home"
    client = MlflowClient(tracking_uri=uri)
    run = client.create_run(client.create_experiment("training"), run_name="mine").info.run_id
    client.log_metric(run, "loss", 0.5, step=400)
    (tmp_path / "suites.py").write_text(SUITES)
    words = ("watch", tmp_path / "training", "--suite", tmp_path / "suites.py", "--home", home, "--workers", 0)
    more = ("--name", "run", "--format", "marker=done", "--once", "--tracker")
    write(tmp_path / "training", 200, 2.0)
    cli(*words, *more, f"mlflow={uri}#{run}", "--tracker", "wandb=team/llm#abc123")
    write(tmp_path / "training", 100, 1.0)
    cli(*words, *more, f"mlflow={uri}#{run}", "--tracker", "wandb=team/llm#abc123")
    found = mlflow_runs(uri, "training")["mine"]
    assert sorted(found["eval/held/value/value"]) == [(100, 1.0), (200, 2.0)]
    assert sorted(step for step, _ in found["eval/held/value/value_stderr"]) == [100, 200]
    assert client.get_run(run).info.status == "RUNNING"
    sent = offline_runs(home, rows=2)
    assert set(sent) == {"abc123"}
    steps = [(row["checkpoint_step"], row["eval/held/value/value"]) for row in sent["abc123"]]
    assert sorted(steps) == [(100, 1.0), (200, 2.0)]
    # What is exported has a run of its own.
    cli("export", "run", "--home", home, "--format", "mlflow", "--output", uri)
    exported = mlflow_runs(uri, "run")["run"]
    assert sorted(exported["eval/held/value/value"]) == [(100, 1.0), (200, 2.0)]
