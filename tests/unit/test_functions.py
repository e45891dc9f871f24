"""Functions of a user that a call would not run to their end are refused where they are given."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import phyla
from facts import raises
from phyla.errors import ConfigurationError, SpaceError
from phyla.evaluation import EvalTask, Preparation, Suite
from phyla.strategies import ExploreWith
from phyla.worker.containment.surroundings import Surroundings


async def coroutine(*_: object) -> None: ...


def generator(*_: object) -> Iterator[None]:
    yield


async def asynchronous_generator(*_: object) -> AsyncIterator[None]:
    yield


class Called:
    async def __call__(self, *_: object) -> None: ...


@functools.wraps(coroutine)
def driven(*arguments: object) -> None:
    """Drive the coroutine that it wraps, as decorators do."""
    with pytest.raises(StopIteration):
        coroutine(*arguments).send(None)


def study(**functions: Any) -> phyla.Study:
    strategy = phyla.RandomSearch(members=1, total_steps=1)
    return phyla.Study("s", {"lr": phyla.Float(0.1, 1.0)}, phyla.Minimize("loss"), strategy, **functions)


def prepared(function: Any) -> Preparation:
    return Preparation(function=function)


@pytest.mark.parametrize(
    "give",
    [
        lambda function: study(train=function),
        lambda function: study(train=driven, setup=function),
        lambda function: EvalTask("a", function),
        lambda function: Suite("s", [EvalTask("a", driven)], load=function),
        ExploreWith,
        prepared,
    ],
)
def test_a_function_that_a_call_does_not_run_is_refused(give: Callable[[Any], object]) -> None:
    give(driven)
    for function in (coroutine, functools.partial(coroutine, 1), Called()):
        with raises(ConfigurationError, "async", "asyncio.run"):
            give(function)
    for yields in (generator, asynchronous_generator):
        with raises(ConfigurationError, "generator", "yield"):
            give(yields)
    with raises(ConfigurationError, "function", "3"):
        give(3)


def test_a_constraint_that_a_call_does_not_run_is_refused() -> None:
    refused: dict[str, Any] = {"async": coroutine, "generator": generator}
    for kind, function in refused.items():
        with raises(SpaceError, function.__name__, kind):
            phyla.Space(lr=phyla.Float(0.1, 1.0), constraints=[function])


@pytest.mark.parametrize(
    "function", [lambda: coroutine(), functools.partial(lambda _: coroutine(), 1)], ids=["lambda", "partial"]
)
def test_a_function_that_hands_on_a_coroutine_is_refused_with_the_way_out(function: Any) -> None:
    with raises(ConfigurationError, repr(function), "asyncio.run"):
        Surroundings().call("it ran", function)
