"""What identifies the results of an eval task, so that none has those of another."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from facts import raises
from phyla import plugins
from phyla.errors import ConfigurationError
from phyla.evaluation import EvalTask, Preparation, Suite
from phyla.study.files.load import chosen_suites

FILE = """
import phyla
from phyla.evaluation import Preparation

def load(checkpoint): ...
def convert(checkpoint, into): ...
def accuracy(evaluation): ...

{name} = phyla.Suite("{name}", [phyla.EvalTask("accuracy", {evaluate})], {settings})
"""


def load(checkpoint: Any) -> None: ...


def load_average(checkpoint: Any) -> None: ...


def convert(checkpoint: Any, into: Path) -> None: ...


def accuracy(evaluation: Any) -> None: ...


def make(split: str) -> Callable[[Any], None]:
    def accuracy_on(evaluation: Any) -> None:
        evaluation.record(accuracy=len(split))

    return accuracy_on


TASK = EvalTask("accuracy", accuracy)
PLAIN = Suite("plain", [TASK])
GIVEN: list[dict[str, Any]] = [
    {},
    {"load": load},
    {"load": load_average},
    {"gin_files": ["a.gin"]},
    {"gin_files": ["b.gin"]},
    {"gin_files": ["b.gin", "a.gin"]},
    {"gin_files": ["a.gin", "b.gin"]},
    {"load": load, "gin_files": ["a.gin"]},
    {"load": load, "prepare": convert},
]


def test_what_a_suite_gives_its_eval_tasks_is_part_of_their_identity() -> None:
    suites = [replace(PLAIN, name=f"s{number}", **given) for number, given in enumerate(GIVEN)]
    assert len({suite.task("accuracy").identity for suite in suites}) == len(GIVEN)
    assert chosen_suites(suites) == tuple(suites)
    for suite in suites:
        stored: Suite = plugins.decode(plugins.encode(suite), plugins.absent)
        assert stored.task("accuracy").identity == suite.task("accuracy").identity
        assert replace(PLAIN, tasks=suite.tasks).task("accuracy").identity == TASK.identity


@pytest.mark.parametrize("one", [load, partial(load, "cpu"), lambda checkpoint: checkpoint])
def test_suites_may_share_the_results_of_one_eval_task(one: Any) -> None:
    other = partial(one.func, *one.args) if isinstance(one, partial) else one
    suites = [replace(PLAIN, load=one), Suite("other", [TASK, EvalTask("b", print)], load=other)]
    assert len({suite.task("accuracy").identity for suite in suites}) == 1
    assert chosen_suites(suites) == tuple(suites)


@pytest.mark.parametrize(
    ("evaluate", "settings"),
    [("accuracy", ""), ("print", "load=load"), ("print", "prepare=convert")],
)
def test_functions_of_one_name_from_two_files_share_no_results(
    tmp_path: Path, evaluate: str, settings: str
) -> None:
    files = [tmp_path / f"{name}.py" for name in ("first", "second")]
    for file in files:
        file.write_text(FILE.format(name=file.stem, evaluate=evaluate, settings=settings))
    first, second = map(str, files)
    assert len(chosen_suites(first)) == len(chosen_suites([second])) == 1
    with raises(ConfigurationError, "'first'", "'second'", "'accuracy'", "version"):
        chosen_suites([first, second])


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (EvalTask("a", make("test")), EvalTask("a", make("train"))),
        (EvalTask("a", partial(accuracy, "test")), EvalTask("a", partial(accuracy, "train"))),
        (EvalTask("a", command="e.sh {results}", cwd="/a"), EvalTask("a", command="e.sh {results}", cwd="/b")),
    ],
)
def test_what_differs_in_nothing_that_is_stored_shares_no_results(one: EvalTask, two: EvalTask) -> None:
    with raises(ConfigurationError, "'first'", "'second'", "'a'", "version"):
        chosen_suites([Suite("first", [one]), Suite("second", [two])])
    second = Suite("second", [replace(two, version="2")])
    assert chosen_suites([Suite("first", [one, replace(one, name="b")]), second])[1] == second


def test_commands_that_prepare_in_two_directories_share_no_results() -> None:
    here, there = (Preparation(command="c.sh {into}", cwd=cwd) for cwd in ("/a", "/b"))
    with raises(ConfigurationError, "'plain'", "'second'"):
        chosen_suites([replace(PLAIN, prepare=here), replace(PLAIN, name="second", prepare=there)])
