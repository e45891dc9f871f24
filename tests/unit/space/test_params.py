"""Params: one mapping, readable flat and nested."""

import copy
import json
from typing import Any

import pytest

from facts import check_facts, raises
from phyla.errors import SpaceError
from phyla.space import Params

FLAT = {"lr": 0.1, "opt/name": "sgd", "opt/momentum": 0.9, "net/head/width": 64}
NESTED = {"lr": 0.1, "opt": {"name": "sgd", "momentum": 0.9}, "net": {"head": {"width": 64}}}


@pytest.mark.parametrize("given", [FLAT, NESTED, Params(FLAT)])
def test_flat_and_nested_are_two_readings(given: Any) -> None:
    params = Params(given)
    assert params.flat() == FLAT
    assert params.nested() == NESTED
    assert list(params.flat()) == list(FLAT)
    assert params["opt/name"] == params["opt"]["name"] == "sgd"
    assert params["net"]["head/width"] == params["net/head"]["width"] == 64
    assert json.loads(json.dumps(params.flat())) == FLAT


def test_iteration_is_over_the_top_level() -> None:
    params = Params(FLAT)
    assert list(params) == ["lr", "opt", "net"]
    assert len(params) == 3
    assert dict(params) == {"lr": 0.1, "opt": NESTED["opt"], "net": NESTED["net"]}

    def model(a: int, b: int) -> int:
        return a + b

    assert model(**Params({"a": 1, "b": 2})) == 3


def test_membership_and_get() -> None:
    params = Params(FLAT)
    assert "opt" in params
    assert "opt/name" in params
    assert "opt/beta" not in params
    assert "op" not in params
    assert params.get("opt/beta") is None
    assert params.get("opt/beta", 0.5) == 0.5
    assert params.get("lr") == 0.1


def test_equality_with_mappings() -> None:
    assert Params(FLAT) == Params(NESTED) == FLAT
    assert Params(NESTED) == NESTED
    assert hash(Params(FLAT)) == hash(Params(NESTED))
    assert Params(FLAT) != {**FLAT, "lr": 0.2}
    assert Params(FLAT) != {"not a name": 1}
    assert Params(FLAT) != 3


def test_it_is_a_value() -> None:
    given = dict(FLAT)
    params = Params(given)
    given["lr"] = 5
    params.flat()["lr"] = 5
    params.nested()["opt"]["name"] = "adam"
    assert params == FLAT
    assert copy.deepcopy(params) == params
    assert eval(repr(params)) == params
    anything: Any = params
    with pytest.raises(TypeError):
        anything["lr"] = 1


def test_an_unknown_name_lists_what_there_is() -> None:
    with raises(KeyError, "lr") as caught:
        Params(FLAT)["lrr"]
    assert "'opt/momentum'" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"a": 1, "a/b": 2}, "a/b"),
        ({"a": {"b": 1}, "a/b": 2}, "a/b"),
        ({"a//b": 1}, "a//b"),
        ({"": 1}, "''"),
        ({"/a": 1}, "/a"),
        ({"g": {"b c": 1}}, "b c g"),
        ({"g": {}}, "g"),
        ({1: 1}, "1 string"),
    ],
)
def test_refused_names(given: Any, part: str) -> None:
    with pytest.raises(SpaceError) as caught:
        Params(given)
    check_facts(str(caught.value), *part.split())
