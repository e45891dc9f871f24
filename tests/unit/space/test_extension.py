"""A space whose values are in use can be widened, and nothing else."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import raises
from phyla.errors import SpaceError
from phyla.space import Choice, Float, Int, Ordinal, Parameter, Space, check_extension


def check(old: Parameter, new: Parameter) -> None:
    check_extension(Space(x=old).parameters, Space(x=new).parameters)


WIDER = [
    (Float(0.1, 1.0), Float(0.1, 1.0)),
    (Float(0.1, 1.0), Float(0.01, 2.0)),
    (Float(0.1, 1.0, log=True), Float(0.01, 1.0, log=True, initial=0.5)),
    (Float(0.0, 1.0, step=0.25), Float(0.0, 1.0, step=0.25)),
    (Float(0.0, 1.0, step=0.25), Float(-0.5, 2.0, step=0.25)),
    (Int(1, 4), Int(0, 9)),
    (Int(2, 8, step=2), Int(0, 10, step=2)),
    (Choice(["a", "b"]), Choice(["c", "b", "a"])),
    (Ordinal([1, 4]), Ordinal([0, 1, 2, 4, 8])),
    (Ordinal([1, 4], initial=1), Ordinal([1, 4], initial=4)),
]
NARROWER = [
    (Float(0.1, 1.0), Float(0.2, 1.0), "0.1 0.2 low"),
    (Float(0.1, 1.0), Float(0.1, 0.5), "1.0 0.5 high"),
    (Float(0.1, 1.0), Float(0.3, 0.5), "0.1 0.3 1.0 0.5 low high"),
    (Float(0.1, 1.0), Float(0.1, 1.0, log=True), "False True log"),
    (Float(0.0, 1.0), Float(0.0, 1.0, step=0.5), "None step 0.5"),
    (Float(0.0, 1.0, step=0.25), Float(0.0, 1.0, step=0.125), "0.25 0.0 0.125 step"),
    (Float(0.0, 1.0, step=0.25), Float(0.0, 1.0), "0.25 0.0 None step"),
    (Float(0.0, 1.0, step=0.25), Float(-0.1, 1.15, step=0.25), "0.25 0.0 -0.1 step"),
    (Int(1, 4), Int(2, 4), "1 2 low"),
    (Int(1, 5), Int(1, 5, step=2), "1 2 step"),
    (Int(2, 8, step=2), Int(1, 9, step=2), "2 1 step"),
    (Int(1, 4), Float(1, 4), "Int(1, Float(1.0,"),
    (Choice(["a", "b"]), Choice(["a"]), "['b']"),
    (Choice([1, 2]), Choice([True, 2]), "[1]"),
    (Choice(["a", "b"]), Ordinal(["a", "b"]), "Choice(['a', Ordinal(['a',"),
    (Ordinal([1, 4]), Ordinal([4, 1]), "[1, 4] [4, 1]"),
    (Ordinal([1, 4]), Ordinal([1, 2]), "[1, 4] [1, 2]"),
]


@pytest.mark.parametrize(("old", "new"), WIDER, ids=str)
def test_wider_is_accepted_and_holds_every_old_value(old: Parameter, new: Parameter) -> None:
    check(old, new)
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert Space(x=new).contains(Space(x=old).sample(rng))


@pytest.mark.parametrize(("old", "new", "match"), NARROWER, ids=str)
def test_anything_else_is_refused_with_names_and_values(old: Parameter, new: Parameter, match: str) -> None:
    with raises(SpaceError, *match.split()):
        check(old, new)


bounds = st.tuples(st.integers(-20, 20), st.integers(-20, 20)).filter(lambda pair: pair[0] < pair[1])


def floats() -> st.SearchStrategy[Float]:
    return bounds.map(lambda pair: Float(pair[0], pair[1]))


def ints() -> st.SearchStrategy[Int]:
    def made(low: int, steps: int, step: int) -> Int:
        return Int(low, low + steps * step, step=step)

    return st.builds(made, st.integers(-6, 6), st.integers(1, 6), st.integers(1, 4))


def listed(kind: Any) -> st.SearchStrategy[Any]:
    return st.lists(st.sampled_from("abcd"), min_size=1, unique=True).map(kind)


def accepted(old: Parameter, new: Parameter) -> bool:
    try:
        check(old, new)
    except SpaceError:
        return False
    return True


@given(old=ints(), new=ints())
def test_of_integers_exactly_the_supersets_with_the_same_step_are_accepted(old: Int, new: Int) -> None:
    inside = set(range(old.low, old.high + 1, old.step)) <= set(range(new.low, new.high + 1, new.step))
    assert accepted(old, new) == (inside and old.step == new.step)


@given(old=floats(), new=floats())
def test_of_floats_exactly_the_supersets_are_accepted(old: Float, new: Float) -> None:
    assert accepted(old, new) == (new.low <= old.low and old.high <= new.high)


@given(old=listed(Choice), new=listed(Choice))
def test_of_choices_exactly_the_supersets_are_accepted(old: Choice, new: Choice) -> None:
    assert accepted(old, new) == (set(old.values) <= set(new.values))


@given(old=listed(Ordinal), new=listed(Ordinal))
def test_of_ordinals_those_that_keep_the_order_are_accepted(old: Ordinal, new: Ordinal) -> None:
    kept = [value for value in new.values if value in old.values]
    assert accepted(old, new) == (kept == list(old.values))


def test_parameters_are_added_with_a_default_and_never_removed() -> None:
    old = Space(lr=Float(0.1, 1.0))
    new = Space(lr=Float(0.1, 1.0), decay=Float(0.0, 1.0, default=0.0))
    check_extension(old.parameters, new.parameters)
    with raises(SpaceError, "decay"):
        check_extension(new.parameters, old.parameters)
    with raises(SpaceError, "default="):
        check_extension(old.parameters, Space(lr=Float(0.1, 1.0), decay=Float(0.0, 1.0)).parameters)


def test_conditions_stay() -> None:
    def space(**when: Any) -> Space:
        return Space(kind=Choice(["a", "b"]), x=Float(0, 1, **when))

    with raises(SpaceError, "x", "when"):
        check_extension(space().parameters, space(when={"kind": "a"}).parameters)


SPACE = Space(
    kind=Choice(["sgd", "adam"], default="sgd"),
    lr=Float(0.1, 1.0),
    momentum=Float(0.0, 1.0, default=0.5, when={"kind": "sgd"}),
    beta=Float(0.0, 1.0, default=0.25, when={"kind": "adam"}),
)


@pytest.mark.parametrize(
    ("params", "completed"),
    [
        ({"lr": 0.5}, {"kind": "sgd", "lr": 0.5, "momentum": 0.5}),
        ({"lr": 0.5, "kind": "adam"}, {"kind": "adam", "lr": 0.5, "beta": 0.25}),
        ({"lr": 0.5, "kind": "sgd", "momentum": 0.1}, {"kind": "sgd", "lr": 0.5, "momentum": 0.1}),
    ],
)
def test_values_from_before_are_completed_with_the_defaults(params: Any, completed: Any) -> None:
    assert SPACE.with_defaults(params) == completed
    assert list(SPACE.validate(params)) == list(completed), "in the order of the space"
    assert SPACE.validate(params) == completed
    assert SPACE.contains(params)
    explored, changes = SPACE.perturb(params, np.random.default_rng(0), names=["lr"])
    assert set(explored) == set(completed)
    assert set(changes) == {"lr"}


def test_a_space_without_defaults_leaves_values_as_they_are() -> None:
    params = {"lr": 0.5}
    assert Space(lr=Float(0.1, 1.0)).with_defaults(params) is params


def test_defaults_are_drawn_from_like_other_values_and_stored() -> None:
    drawn = {SPACE.sample(np.random.default_rng(seed))["kind"] for seed in range(20)}
    assert drawn == {"sgd", "adam"}
    assert Space.from_config(SPACE.config(str), lambda text: lambda params: True) == SPACE
    assert "default=0.5" in repr(SPACE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Float(0.0, 1.0, default=2.0),
        lambda: Int(0, 4, step=2, default=1),
        lambda: Choice(["a"], default="b"),
        lambda: Ordinal([1, 2], default=3),
    ],
)
def test_defaults_that_are_none_of_the_values_are_refused(make: Any) -> None:
    with pytest.raises(SpaceError, match="default: "):
        make()


def test_parts_are_completed_by_others_and_by_draws() -> None:
    rng = np.random.default_rng(0)
    assert SPACE.complete({"lr": 0.2}, {"kind": "adam", "lr": 0.9, "beta": 0.1}, rng) == {
        "kind": "adam",
        "lr": 0.2,
        "beta": 0.1,
    }
    drawn = SPACE.complete({"kind": "sgd"}, {"kind": "adam", "lr": 0.9, "beta": 0.1}, rng)
    assert (drawn["kind"], drawn["lr"]) == ("sgd", 0.9)
    assert SPACE.contains(drawn)
    bounded = Space({"a": Float(0, 1), "b": Float(0, 1)}, constraints=[lambda p: p["a"] + p["b"] < 1])
    for seed in range(20):
        values = bounded.complete({"a": 0.9}, {"a": 0.1, "b": 0.8}, np.random.default_rng(seed))
        assert values["a"] == 0.9
        assert bounded.contains(values)
    with pytest.raises(SpaceError, match="give more than"):
        bounded.complete({"a": 0.9, "b": 0.9}, {}, rng)
    with pytest.raises(SpaceError, match="rate"):
        SPACE.check_part({"rate": 1})
