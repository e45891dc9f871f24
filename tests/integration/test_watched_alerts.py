"""`phyla watch --tensorboard DIR --on-alert COMMAND`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phyla
from command_line import Phyla
from event_files import logged
from facts import check_facts
from phyla import study_modules
from phyla.cli.run import finish
from phyla.errors import ConfigurationError
from phyla.evaluation import Suite

SUITES = """
import phyla

@phyla.eval_task
def accuracy(evaluation):
    value = float((evaluation.checkpoint.path / "value").read_text())
    evaluation.record(accuracy=[value + d for d in (-0.01, 0.0, 0.01, 0.02)])

heldout = phyla.Suite("heldout", [accuracy], objective=phyla.Maximize("accuracy_mean"))
"""
ALERT = """
import json, os, sys
told = {name: value for name, value in os.environ.items() if name.startswith("PHYLA_")}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({"in": json.load(sys.stdin), "environment": told}) + "\\n")
sys.exit(3)
"""


def write(training: Path, step: int, value: float) -> None:
    (training / f"step-{step}").mkdir(parents=True)
    (training / f"step-{step}" / "value").write_text(str(value))
    (training / f"step-{step}" / "done").write_text("")


def test_each_regression_is_told_once_and_the_board_follows(
    tmp_path: Path, cli: Phyla, caplog: pytest.LogCaptureFixture
) -> None:
    training, board, told = tmp_path / "training", tmp_path / "board", tmp_path / "told.jsonl"
    (tmp_path / "suites.py").write_text(SUITES)
    (tmp_path / "alert.py").write_text(ALERT)
    command = f"{sys.executable} '{tmp_path / 'alert.py'}' {told}"
    words = ("watch", training, "--suite", tmp_path / "suites.py", "--home", tmp_path / "home", "--workers", 0)
    more = ("--name", "run", "--format", "marker=done", "--once", "--tensorboard", board, "--on-alert", command)
    watch: tuple[object, ...] = (*words, *more)

    def alerts() -> list[dict[str, dict[str, Any]]]:
        return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []

    write(training, 100, 0.9)
    cli(*watch)
    assert alerts() == []
    write(training, 200, 0.1)
    cli(*watch)
    (one,) = alerts()
    facts = {"run": "run", "suite": "heldout", "task": "accuracy", "metric": "accuracy", "step": 200}
    assert one["in"] | facts == one["in"]
    names = ("RUN", "SUITE", "TASK", "CHECKPOINT", "STEP")
    assert [one["environment"][f"PHYLA_{name}"] for name in names] == [
        "run",
        "heldout",
        "accuracy",
        "step-200",
        "200",
    ]
    assert one["environment"]["PHYLA_MESSAGE"].startswith(
        "regression: heldout/accuracy accuracy 0.105 at step 200"
    )
    (warned,) = [one.message for one in caplog.records if "on a regression of run" in one.message]
    assert warned.endswith("ended with status 3")
    cli(*watch)
    assert len(alerts()) == 1
    # It has not recovered, so that is no other regression; when it has, the next one is.
    write(training, 300, 0.2)
    cli(*watch)
    assert len(alerts()) == 1
    write(training, 400, 0.9)
    write(training, 500, 0.1)
    cli(*watch)
    assert [alert["in"]["step"] for alert in alerts()] == [200, 500]
    found = [(one.step, one.tag) for one in logged(board)["run"] if one.tag == "heldout/accuracy_mean"]
    assert [step for step, _ in found] == [100, 200, 300, 400, 500]


def test_regressions_are_the_same_in_whatever_order_results_come(tmp_path: Path, cli: Phyla) -> None:
    (tmp_path / "suites.py").write_text(SUITES)
    (tmp_path / "alert.py").write_text(ALERT)
    rng = np.random.default_rng(0)
    values = [0.5 - 0.2 * (step >= 10) + 0.005 * rng.normal() for step in range(16)]

    def regressions(name: str, batches: Sequence[Sequence[int]]) -> tuple[list[Any], list[Any]]:
        training, told = tmp_path / name, tmp_path / f"{name}.jsonl"
        command = f"{sys.executable} '{tmp_path / 'alert.py'}' {told}"
        words = ("watch", training, "--suite", tmp_path / "suites.py", "--home", tmp_path / "home", "--workers", 0)
        training.mkdir()
        more = ("--name", name, "--format", "marker=done", "--once", "--on-alert", command)
        for batch in batches:
            for step in batch:
                write(training, step, values[step])
            cli(*words, *more)
        events = phyla.load_evaluations(name, home=tmp_path / "home").events()
        commands = [json.loads(line)["in"] for line in told.read_text().splitlines()]
        facts = [(event.data["since"], event.data["step"], event.data["p"]) for event in events]
        return facts, [command["since"] for command in commands]

    live = regressions("live", [range(step, step + 4) for step in range(0, 16, 4)])
    assert [(since, step) for since, step, _ in live[0]] == [(10, 10)]
    assert live[1] == [10]
    assert regressions("backlog", [range(16)]) == live
    assert regressions("late", [range(9, 16), range(9)])[0] == live[0]


def test_a_regression_that_earlier_results_explain_is_withdrawn(tmp_path: Path, cli: Phyla) -> None:
    training, told = tmp_path / "training", tmp_path / "told.jsonl"
    (tmp_path / "suites.py").write_text(SUITES)
    (tmp_path / "alert.py").write_text(ALERT)
    words = ("watch", training, "--suite", tmp_path / "suites.py", "--home", tmp_path / "home", "--workers", 0)
    more = ("--name", "run", "--format", "marker=done", "--once", "--alert", "--on-alert")
    command = f"{sys.executable} '{tmp_path / 'alert.py'}' {told}"
    training.mkdir()
    # Step 10 was lucky, which only those before it show.
    write(training, 10, 0.9)
    write(training, 11, 0.5)
    assert "regression: heldout/accuracy" in cli(*words, *more, command)
    for step in range(10):
        write(training, step, 0.5 + 0.02 * (-1) ** step)
    assert "withdrawn" in cli(*words, *more, command)
    assert len(told.read_text().splitlines()) == 1
    assert phyla.load_evaluations("run", home=tmp_path / "home").events() == []


def test_metrics_beside_the_objective_are_watched(tmp_path: Path, cli: Phyla) -> None:
    training = tmp_path / "training"
    nll = "    evaluation.record(nll=[4 - 3 * value + d for d in (-0.01, 0.0, 0.01, 0.02)])\n\nheldout"
    watch = ', watch=[phyla.Minimize("nll_mean")])'
    suites = SUITES.replace("\nheldout", nll, 1).replace("accuracy=[value", "accuracy=[0.5")
    (tmp_path / "suites.py").write_text(suites.replace('"accuracy_mean"))', '"accuracy_mean")' + watch))
    write(training, 100, 0.9)
    words = ("watch", training, "--suite", tmp_path / "suites.py", "--home", tmp_path / "home", "--workers", 0)
    more = ("--name", "run", "--format", "marker=done", "--once", "--alert")
    cli(*words, *more)
    write(training, 200, 0.1)
    assert "regression: heldout/accuracy nll 3.705 at step 200" in cli(*words, *more)
    assert "regression: heldout/accuracy nll 3.705 at step 200" in cli(
        "evaluations", "run", "--home", tmp_path / "home"
    )


def test_what_is_evaluated_again_is_told_and_the_board_follows(tmp_path: Path, cli: Phyla) -> None:
    training, board = tmp_path / "training", tmp_path / "board"
    (tmp_path / "first.py").write_text(SUITES)
    again = SUITES.replace("eval_task\n", "eval_task(version=2)\n").replace("[value", "[1 + value")
    (tmp_path / "again.py").write_text(again)
    write(training, 100, 0.5)
    more = ("--name", "run", "--workers", 0, "--format", "marker=done", "--once", "--tensorboard", board)
    for suites in ("first.py", "again.py"):
        told = cli("watch", training, "--suite", tmp_path / suites, "--home", tmp_path / "home", *more)
    assert "step-100 (step 100) heldout complete: accuracy_mean 1.505" in told
    found = [one.value for one in logged(board)["run"] if one.tag == "heldout/accuracy_mean"]
    assert found == [pytest.approx(1.505)]


def test_a_board_that_cannot_be_written_is_said_before_anything_is_evaluated(tmp_path: Path, cli: Phyla) -> None:
    training, taken, foreign = tmp_path / "training", tmp_path / "taken", tmp_path / "logs" / "run" / "notes.txt"
    (tmp_path / "suites.py").write_text(SUITES)
    write(training, 100, 0.5)
    taken.touch()
    foreign.parent.mkdir(parents=True)
    foreign.touch()
    words = ("watch", training, "--suite", tmp_path / "suites.py", "--home", tmp_path / "home", "--name", "run")
    for board, said in (
        (taken, "cannot write to"),
        (taken / "x", "cannot write to"),
        (foreign.parents[1], foreign),
    ):
        assert str(said) in cli(*words, "--workers", 0, "--once", "--tensorboard", board, code=2)
    assert "no study" in cli("status", "run", "--home", tmp_path / "home", code=2)


def test_an_eval_task_that_was_edited_under_the_same_version_is_told(tmp_path: Path, cli: Phyla) -> None:
    training, suites = tmp_path / "training", tmp_path / "suites.py"
    words = ("watch", training, "--suite", suites, "--home", tmp_path / "home", "--workers", 0, "--name", "run")
    suites.write_text(SUITES)
    write(training, 100, 0.5)
    cli(*words, "--format", "marker=done", "--once")
    assert "raise the version" not in cli(*words, "--format", "marker=done", "--once")
    study_modules.forget()  # as in the next process
    suites.write_text(SUITES.replace("[value", "[1 + value"))
    write(training, 200, 0.5)
    told = cli(*words, "--format", "marker=done", "--once")
    changed = "raise the version"
    assert told.count(changed) == 1
    # It is said once, whatever comes later.
    write(training, 300, 0.5)
    assert changed not in cli(*words, "--format", "marker=done", "--once")


def test_an_edit_of_what_an_eval_task_calls_is_told(tmp_path: Path, cli: Phyla) -> None:
    training, suites = tmp_path / "training", tmp_path / "suites.py"
    words = ("watch", training, "--suite", suites, "--home", tmp_path / "home", "--workers", 0, "--name", "run")
    called = SUITES.replace("[value", "[shift() + value") + "\n\ndef shift():\n    return 0.0\n\nunused = 1\n"
    write(training, 100, 0.5)
    for text, count in ((called, 0), (called.replace("= 1", "= 2"), 0), (called.replace("0.0\n", "1.0\n"), 1)):
        study_modules.forget()  # as in the next process
        suites.write_text(text)
        told = cli(*words, "--format", "marker=done", "--once")
        assert told.count("raise the version") == count


def test_each_directory_without_a_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training, empty = tmp_path / "training", tmp_path / "empty"
    write(training, 100, 0.5)
    empty.mkdir()
    suite = Suite("s", [phyla.EvalTask("none", command=["false"], max_attempts=1)])
    following = phyla.Following(once=True)
    how: dict[str, Any] = {"format": "marker", "options": {"marker": "done"}, "home": tmp_path / "home"}
    finish(phyla.watch([training, empty], suite, following=following, **how))
    check_facts(capsys.readouterr().err, empty)


def test_the_same_failure_is_in_full_once_in_the_final_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @phyla.eval_task(max_attempts=1)
    def fails(evaluation: phyla.Evaluation) -> None:
        raise ValueError("odd data" if evaluation.checkpoint.step == 300 else "no data")

    for at in (100, 200, 300):
        write(tmp_path / "run", at, 0.5)
    following = phyla.Following(once=True)
    how: dict[str, Any] = {"format": "marker", "options": {"marker": "done"}, "home": tmp_path / "home"}
    watched = phyla.watch(tmp_path / "run", Suite("s", [fails]), following=following, **how)
    capsys.readouterr()
    assert finish(watched) == 1
    output = capsys.readouterr().out
    assert (output.count("no data"), output.count("odd data")) == (1, 1)
    (same,) = (line for line in output.splitlines() if line.endswith("step-100"))
    assert "step-200" in same


@pytest.mark.parametrize(
    ("command", "message"), [("no-such-program -x", "no program 'no-such-program'"), ("'", "split")]
)
def test_a_command_that_cannot_be_is_refused_at_once(tmp_path: Path, command: str, message: str) -> None:
    suite = Suite("none", [phyla.EvalTask("none", command=["true"])])
    with pytest.raises(ConfigurationError, match=message):
        phyla.watch(tmp_path, suite, on_alert=command, home=tmp_path / "home")
    assert not (tmp_path / "home").exists()
