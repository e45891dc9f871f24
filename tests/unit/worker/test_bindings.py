"""Gin bindings of the suite and of the eval task."""

import sys
from pathlib import Path

import gin
import pytest

from evaluation_simulation import WatchedRun
from facts import check_facts, raises
from phyla.client import Client
from phyla.errors import ConfigurationError
from phyla.evaluation import EvalTask, Suite
from phyla.machine import WatchRules
from phyla.records import Checkpoint, GroupState
from phyla.worker import EvaluatedStudy, Evaluation, Evaluator
from phyla.worker.evaluating.evaluated_study import apply_bindings


@gin.configurable  # type: ignore[untyped-decorator]
def inner_problem(size: int = 1, noise: float = 0.0, steps: int = 10) -> tuple[int, float, int]:
    return size, noise, steps


SEEN: list[tuple[str, tuple[int, float, int]]] = []


def measure(evaluation: Evaluation) -> None:
    SEEN.append((evaluation.task, inner_problem()))
    evaluation.record(x=1.0)


def load(checkpoint: object) -> None:
    SEEN.append(("load", inner_problem()))


class Files:
    def path(self, seen: Checkpoint) -> Path:
        return Path(seen.path)

    def check(self, seen: Checkpoint, *, again: bool = False) -> None:
        return


def evaluate(root: Path, suite: Suite, *steps: int) -> WatchedRun:
    run = WatchedRun([suite])
    client = Client(run.store, run.run, WatchRules(suites=(suite,)))
    evaluated = EvaluatedStudy(suites=(suite,), sources=Files(), outputs=root / "outputs" / "run", gin_root=root)
    evaluator = Evaluator(
        client, {run.run.id: evaluated}, work_root=root / "work", name="w", clock=run.clock, timer=lambda: 0.0
    )
    run.observe(*steps)
    while (work := run.claim()) is not None:
        outcome = evaluator.run(work)
        if hasattr(outcome, "retryable"):
            run.controller.fail(outcome)  # type: ignore[arg-type]
        else:
            run.hand_in(outcome)  # type: ignore[arg-type]
    return run


def test_later_bindings_win_and_are_cleared_between_eval_tasks(tmp_path: Path) -> None:
    SEEN.clear()
    (tmp_path / "config.gin").write_text(
        "inner_problem.size = 2\ninner_problem.noise = 0.5\nnot_imported_here.learning_rate = 1\n"
    )
    suite = Suite(
        "s",
        (
            EvalTask("a", measure, gin=("inner_problem.steps = 99", "inner_problem.size = 4")),
            EvalTask("b", measure),
        ),
        load=load,
        gin_files=("config.gin",),
    )
    run = evaluate(tmp_path, suite, 100)
    assert run.groups()[0].state is GroupState.COMPLETE
    assert SEEN == [("load", (2, 0.5, 10)), ("a", (4, 0.5, 99)), ("b", (2, 0.5, 10))]


def see(_results: object) -> dict[str, float]:
    SEEN.append(("aggregate", inner_problem()))
    return {}


def test_bindings_of_one_eval_task_are_seen_by_nothing_else(tmp_path: Path) -> None:
    SEEN.clear()
    suite = Suite(
        "s",
        (EvalTask("a", measure), EvalTask("b", measure, gin=("inner_problem.size = 5",))),
        load=load,
        aggregates=(see,),
    )
    evaluate(tmp_path, suite, 100, 200)
    plain = (1, 0.0, 10)
    assert 2 * [("load", plain), ("a", plain), ("b", (5, 0.0, 10)), ("aggregate", plain)] == SEEN
    assert inner_problem() == plain


def test_without_bindings_of_a_suite_the_configuration_of_gin_stays(tmp_path: Path) -> None:
    SEEN.clear()
    gin.parse_config("inner_problem.size = 7")
    try:
        evaluate(tmp_path, Suite("s", (EvalTask("a", measure),)), 100, 200)
    finally:
        gin.clear_config()
    assert SEEN == 2 * [("a", (7, 0.0, 10))]


@pytest.mark.parametrize(
    ("task", "files", "words"),
    [
        (("inner_problem.size ==",), (), "cannot be parsed"),
        (("inner_problem.colour = 3",), (), "colour"),
        (("inner_problm.size = 3",), (), "inner_problm"),
        (("inner_problem.size = @unknown_here()",), (), "unknown_here"),
        ((), ("nowhere.gin",), "nowhere.gin"),
    ],
)
def test_bindings_that_make_no_sense_are_told_and_not_tried_again(
    tmp_path: Path, task: tuple[str, ...], files: tuple[str, ...], words: str
) -> None:
    suite = Suite("s", (EvalTask("a", measure, gin=task),), gin_files=files)
    run = evaluate(tmp_path, suite, 100)
    assert run.groups()[0].state is GroupState.PARTIAL
    check_facts(run.groups()[0].why or "", *words.split())
    assert [record.token for record in run.reader().eval_jobs()] == [1]


def test_without_gin_the_way_out_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gin", None)
    with raises(ConfigurationError, "pip install 'phyla"):
        apply_bindings(Path(), (), ("a.b = 1",))
    apply_bindings(Path(), (), ())  # nothing to parse, nothing needed
