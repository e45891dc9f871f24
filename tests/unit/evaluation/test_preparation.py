"""How a suite declares what prepares its checkpoints, and what that changes about the identity of results."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facts import raises
from phyla import plugins
from phyla.errors import ConfigurationError
from phyla.evaluation import EvalTask, Preparation, Suite


def convert(checkpoint: Any, into: Path) -> None: ...


def other(checkpoint: Any, into: Path) -> None: ...


TASK = EvalTask("a", print)
PLAIN = Suite("s", [TASK])


def identity(**settings: Any) -> str:
    return replace(PLAIN, **settings).task("a").identity


def test_without_a_preparation_identities_and_stored_suites_are_as_before() -> None:
    assert PLAIN.task("a").identity == TASK.identity == "87cd4d6d68c7f475782fd24fc29c7317"
    stored = plugins.encode(PLAIN, lambda function: "f")
    assert isinstance(stored, dict)
    assert "prepare" not in stored


def test_the_identity_of_results_has_the_preparation_and_its_version() -> None:
    command = "convert {checkpoint} {into}"
    prepared = [
        TASK.identity,
        identity(prepare=convert),
        identity(prepare=other),
        identity(prepare=Preparation(convert, version="2")),
        identity(prepare=command),
        identity(prepare=Preparation(command=command, version="2")),
    ]
    assert len({*prepared}) == len(prepared)
    assert identity(prepare=Preparation(convert, max_attempts=9, timeout_s=1.0)) == identity(prepare=convert)
    assert (
        identity(prepare=command.split()) == identity(prepare=Preparation(command=command, cwd="/")) == prepared[4]
    )


def test_a_preparation_belongs_to_its_suite() -> None:
    suite = replace(PLAIN, prepare=convert)
    assert PLAIN.task("a").identity == TASK.identity
    assert replace(suite, prepare=None).task("a").identity == TASK.identity
    assert replace(suite, tasks=[*suite.tasks, EvalTask("b", print)]).task("b").given


def test_a_stored_suite_has_the_same_identity_where_its_functions_are_absent() -> None:
    suite = replace(PLAIN, prepare=convert)
    stored: Suite = plugins.decode(plugins.encode(suite), plugins.absent)
    assert stored.task("a").identity == suite.task("a").identity


@pytest.mark.parametrize(
    ("prepare", "facts"),
    [
        (5, ["Suite('s', prepare=5)", "prepare(checkpoint, into)"]),
        ("convert {checkpoint}", ["{into}"]),
        ("convert {checkpoint} {into} {results}", ["{results}", "'into'"]),
        ("convert {checkpoint} | tee {into}/w", ["| needs a shell"]),
        ([], ["give a list of texts"]),
    ],
)
def test_a_preparation_that_makes_no_sense_is_refused(prepare: Any, facts: list[str]) -> None:
    with raises(ConfigurationError, *facts):
        replace(PLAIN, prepare=prepare)


@pytest.mark.parametrize(
    "settings",
    [{}, {"function": convert, "command": "x {into}"}, {"function": 1}, {"function": convert, "cwd": "/"}]
    + [{"function": convert, name: 0} for name in ("max_attempts", "timeout_s")],
)
def test_a_preparation_is_a_function_or_a_command(settings: dict[str, Any]) -> None:
    with raises(ConfigurationError, "Preparation"):
        Preparation(**settings)
