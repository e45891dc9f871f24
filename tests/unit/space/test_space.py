"""Space: groups, conditions, constraints, starting points, exploring, and the way to JSON and back."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from facts import check_facts, raises
from phyla.errors import SpaceError
from phyla.space import Choice, Float, Int, Ordinal, Params, Space

QUICK = settings(max_examples=times(25, 100))
seeds = st.integers(0, 2**32 - 1)


def small_product(params: Params) -> bool:
    return bool(params["batch"] * params["opt"]["lr"] < 20)


def never(params: Params) -> bool:
    return False


def broken(params: Params) -> bool:
    return bool(params["opt/momentum"] > 1)


def forgetful(params: Params) -> Any:
    params.get("lr")


KNOWN: dict[str, Callable[..., bool]] = {"tests:small_product": small_product, "tests:never": never}


def refer(constraint: Callable[..., bool]) -> str:
    return next(text for text, known in KNOWN.items() if known is constraint)


def rich() -> Space:
    """Every kind of parameter, two levels of conditions, a constraint and starting points."""
    return Space(
        {
            # Comes before what it depends on.
            "nesterov": Choice([True, False], when={"opt/momentum_on": True, "opt/name": ["sgd"]}),
            "opt": {
                "name": Choice(["sgd", "adam"]),
                "lr": Float(1e-4, 1.0, log=True, initial=(1e-3, 1e-1)),
                "momentum_on": Choice([True, False], when={"opt/name": "sgd"}),
                "momentum": Float(0, 1, step=0.05, when={"opt/momentum_on": True}),
                "beta": Float(0.5, 0.999, when={"opt/name": "adam"}),
            },
            "decay": Float(-1, 1),
        },
        batch=Ordinal([16, 32, 64, 128], initial=32),
        layers=Int(0, 8),
        width=Int(8, 512, step=8, log=True, when={"layers": [1, 2, 3, 4]}),
        constraints=[small_product],
        initial=[{"opt": {"name": "adam", "lr": 0.01}, "layers": 1}, {"opt/name": "sgd"}],
    )


RICH = rich()


def test_names_are_flat_and_in_order() -> None:
    assert list(RICH.parameters) == [
        "nesterov",
        "opt/name",
        "opt/lr",
        "opt/momentum_on",
        "opt/momentum",
        "opt/beta",
        "decay",
        "batch",
        "layers",
        "width",
    ]
    assert list(RICH.sample(np.random.default_rng(0))) == [
        name for name in RICH.parameters if name in RICH.sample(np.random.default_rng(0))
    ]
    assert list(Space({"a/b": Int(0, 1)}, a={"c": Int(0, 1)}).parameters) == ["a/b", "a/c"]
    assert list(Space({"constraints": Int(0, 1), "initial": Int(0, 1)}).parameters) == [
        "constraints",
        "initial",
    ]


@QUICK
@given(seeds)
def test_every_operation_gives_valid_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = RICH.sample(rng, member=seed % 4)
    for _ in range(60):
        assert RICH.validate(values) == values
        assert list(RICH.validate(values)) == list(values)
        assert small_product(Params(values))
        assert ("opt/beta" in values) == (values["opt/name"] == "adam")
        assert ("opt/momentum" in values) == (values.get("opt/momentum_on") is True)
        assert ("nesterov" in values) == ("opt/momentum" in values)
        assert ("width" in values) == (values["layers"] in (1, 2, 3, 4))
        before = values
        if rng.random() < 0.2:
            values, changes = RICH.resample(values, rng, ["opt/name", "layers"])
        else:
            values, changes = RICH.perturb(values, rng, resample=0.1)
        assert changes.keys() == {
            name
            for name in before.keys() | values.keys()
            if name not in before or name not in values or before[name] != values[name]
        }
        for name, change in changes.items():
            assert change["from"] == before.get(name)
            assert change["to"] == values.get(name)
            assert (change["by"] == "activated") == (name not in before)
            assert (change["by"] == "dropped") == (name not in values)
        assert json.loads(json.dumps(changes)) == changes


@QUICK
@given(seeds)
def test_the_same_seed_gives_the_same_values(seed: int) -> None:
    def run() -> list[object]:
        rng = np.random.default_rng(seed)
        space = rich()
        values = space.sample(rng)
        moved, changes = space.perturb(values, rng, resample=0.25)
        return [values, moved, changes, space.resample(moved, rng), space.sample(rng, member=1)]

    assert run() == run()


def test_params_are_not_changed_in_place() -> None:
    rng = np.random.default_rng(0)
    values = RICH.sample(rng)
    before = dict(values)
    RICH.perturb(values, rng)
    RICH.validate(values)
    assert values == before


def test_flat_nested_and_params_are_all_read() -> None:
    values = RICH.sample(np.random.default_rng(0))
    nested = Params(values).nested()
    assert RICH.validate(nested) == RICH.validate(Params(values)) == RICH.validate(values) == values
    shuffled = dict(sorted(values.items(), reverse=True))
    assert list(RICH.validate(shuffled)) == list(values)


def test_factors_are_drawn_from_those_given() -> None:
    rng = np.random.default_rng(0)
    space = Space(x=Float(1e-9, 1e9, log=True))
    by = [space.perturb({"x": 1.0}, rng, factors=(0.5, 2, 3))[1]["x"] for _ in range(300)]
    assert {change["by"] for change in by} == {"x0.5", "x2", "x3"}
    assert {change["to"] for change in by} == {0.5, 2.0, 3.0}
    assert all(type(change["to"]) is float for change in by)
    moved, _ = space.perturb({"x": 1.0}, rng, factors=[np.float64(2.0)])
    assert type(moved["x"]) is float


def test_resample_probability() -> None:
    rng = np.random.default_rng(0)
    space = Space(x=Float(0, 1))
    by = [space.perturb({"x": 0.5}, rng, resample=0.25)[1]["x"]["by"] for _ in range(2000)]
    assert by.count("resampled") == pytest.approx(500, abs=70)
    assert space.perturb({"x": 0.5}, rng, resample=1)[1]["x"]["by"] == "resampled"


def test_only_named_parameters_move() -> None:
    rng = np.random.default_rng(0)
    space = Space(a=Float(1, 2), b=Float(1, 2), c=Choice(["x", "y"]), d=Float(0, 1, when={"c": "y"}))
    start = {"a": 1.5, "b": 1.5, "c": "x"}
    assert set(space.perturb(start, rng, names=["a"])[1]) == {"a"}
    assert set(space.resample(start, rng, names=["b"])[1]) == {"b"}
    assert set(space.resample(start, rng, names="b")[1]) == {"b"}
    assert space.perturb(start, rng, names=[]) == (start, {})
    both = [space.perturb(start, rng, names=["c"])[1] for _ in range(20)]
    assert {"d": "activated", "c": "resampled"} in [{k: v["by"] for k, v in c.items()} for c in both]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"factors": ()}, ["factors"]),
        ({"factors": (1.0, 1.2)}, ["1", "1.0"]),
        ({"factors": (-0.5,)}, ["0", "-0.5"]),
        ({"factors": (float("inf"),)}, ["inf"]),
        ({"factors": ("2",)}, ["2"]),
        ({"resample": 1.5}, ["probability", "1.5"]),
        ({"resample": float("nan")}, ["probability", "nan"]),
        ({"resample": "half"}, ["resample", "half"]),
        ({"resample": None}, ["resample", "None"]),
        ({"factors": None}, ["factors", "None"]),
        ({"factors": 1.2}, ["factors", "1.2"]),
        ({"factors": (10**400,)}, ["a factor must fit in a float"]),
        ({"names": 5}, ["names", "5"]),
        ({"names": ["lrr"]}, ["lrr", "lr"]),
    ],
)
def test_refused_options(options: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        Space(lr=Float(0, 1)).perturb({"lr": 0.5}, np.random.default_rng(0), **options)
    check_facts(str(caught.value), *parts)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda space, rng: space.sample(rng, member="a"), "a"),
        (lambda space, rng: space.sample(rng, member=-1), "0 -1"),
        (lambda space, rng: space.cross({"lr": 0.5}, {"lr": 0.1}, rng, share=None), "share is a probability"),
        (lambda space, rng: space.cross({"lr": 0.5}, {"lr": 0.1}, rng, share="x"), "share is a probability"),
        (lambda space, rng: space.validate({"lr": 10**400}), "lr the value of this Float must fit in a float"),
        (lambda space, rng: space.validate({"lr": None}), "None"),
        (lambda space, rng: space.validate(None), "None"),
        (lambda space, rng: space.parameters["lr"].from_unit(None), "None"),
        (lambda space, rng: space.parameters["lr"].from_unit("a"), "a"),
    ],
)
def test_arguments_that_make_no_sense_are_told_with_their_value(call: Any, told: str) -> None:
    with raises(SpaceError, *told.split()):
        call(Space(lr=Float(0, 1)), np.random.default_rng(0))


def test_numbers_of_numpy_are_taken() -> None:
    space, rng = Space(lr=Float(0, 1)), np.random.default_rng(0)
    member: Any = np.int64(0)
    assert set(space.sample(rng, member)) == {"lr"}
    share: Any = np.float32(0.5)
    assert space.cross({"lr": 0.5}, {"lr": 0.5}, rng, share=share)[1] == {}
    options: Any = {"factors": np.array([0.8, 1.2]), "resample": np.float32(1)}
    assert space.perturb({"lr": 0.5}, rng, **options)[1]["lr"]["by"] == "resampled"


VALID = {"opt/name": "adam", "opt/lr": 0.1, "opt/beta": 0.9, "decay": 0.0, "batch": 32, "layers": 0}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"opt/lr": 5.0}, ["opt/lr", "5.0", "[0.0001, 1.0]", "1.0"]),
        ({"opt/lr": "a"}, ["opt/lr", "a", "number"]),
        ({"opt/lr": True}, ["opt/lr", "True", "number"]),
        ({"opt/lr": float("nan")}, ["opt/lr", "nan"]),
        ({"opt/lr": ...}, ["opt/lr", "Float(0.0001, 1.0, log=True"]),
        ({"opt/name": "rms"}, ["opt/name", "rms", "sgd", "adam"]),
        ({"opt/momentum": 0.5}, ["opt/momentum", "0.5", "'opt/momentum_on' is True"]),
        ({"opt/momentum_on": True}, ["opt/name", "sgd", "adam"]),
        ({"layers": 1.0}, ["layers", "1.0", "integer", "1"]),
        ({"layers": 2}, ["width"]),
        ({"layers": 2, "width": 9}, ["width", "9", "8"]),
        ({"batch": 48}, ["batch", "48", "[16", "32", "64", "128]"]),
        ({"opt/lrr": 1}, ["opt/lrr", "opt/lr"]),
        ({"batch": 128, "opt/lr": 1.0}, ["small_product", "'batch': 128"]),
        ({"opt": {"lr": 0.1}}, ["opt/lr"]),
    ],
)
def test_validate_says_what_is_wrong(change: dict[str, Any], parts: list[str]) -> None:
    assert RICH.contains(VALID)
    params = {name: value for name, value in {**VALID, **change}.items() if value is not ...}
    assert not RICH.contains(params)
    with pytest.raises(SpaceError) as caught:
        RICH.validate(params)
    check_facts(str(caught.value), *parts)


def test_validate_gives_values_their_type() -> None:
    space = Space(a=Float(0, 9), b=Choice([1.0, "x"]), c=Int(0, 9), d=Float(0, 1, step=0.1))
    values = space.validate({"a": 3, "b": 1, "c": np.int64(3), "d": 0.1 + 0.2})
    assert values == {"a": 3.0, "b": 1.0, "c": 3, "d": 0.3}
    assert [type(value) for value in values.values()] == [float, float, int, float]
    no_mapping: Any = [1]
    with pytest.raises(SpaceError, match=r"mapping.*\[1\]"):
        space.validate(no_mapping)


def test_members_start_where_they_are_told() -> None:
    rng = np.random.default_rng(0)
    first = RICH.sample(rng, member=0)
    assert (first["opt/name"], first["opt/lr"], first["layers"], first["batch"]) == ("adam", 0.01, 1, 32)
    second = [RICH.sample(rng, member=1) for _ in range(50)]
    assert {values["opt/name"] for values in second} == {"sgd"}
    later = [RICH.sample(rng, member=7) for _ in range(50)]
    assert {values["opt/name"] for values in later} == {"sgd", "adam"}
    for values in second + later:
        assert values["batch"] == 32
        assert isinstance(values["opt/lr"], float)
        assert 1e-3 <= values["opt/lr"] <= 1e-1
    assert {RICH.sample(rng)["batch"] for _ in range(100)} == {16, 32, 64, 128}
    with raises(SpaceError, "-1"):
        RICH.sample(rng, member=-1)


def test_a_name_in_when_is_a_full_name() -> None:
    space = Space(
        {
            "kind": Choice(["a", "b"]),
            "near": {"kind": Choice(["c", "d"]), "x": Float(0, 1, when={"kind": "a"})},
            "far": {"x": Float(0, 1, when={"kind": "b", "near/kind": ["d"]})},
        }
    )
    assert {name: p.when for name, p in space.parameters.items() if p.when} == {
        "near/x": {"kind": ("a",)},
        "far/x": {"kind": ("b",), "near/kind": ("d",)},
    }
    assert Space.from_config(space.config(refer), KNOWN.__getitem__) == space


def test_constraints_that_cannot_be_met_are_named() -> None:
    rng = np.random.default_rng(0)
    space = Space(lr=Float(0, 1), constraints=[never])
    with raises(SpaceError, "1000", "lr", "0"):
        space.sample(rng)
    with raises(SpaceError, "100", "lr", "0.5}"):
        space.perturb({"lr": 0.5}, rng)
    assert not space.contains({"lr": 0.5})


@pytest.mark.parametrize(
    ("constraint", "part"),
    [
        (broken, "broken raised KeyError: \"no parameter 'opt/momentum'"),
        (forgetful, "forgetful returned None"),
    ],
)
def test_constraints_that_fail_are_named_with_the_values(constraint: Any, part: str) -> None:
    space = Space(lr=Float(0, 1), constraints=[constraint])
    calls: list[Callable[[], object]] = [
        lambda: space.sample(np.random.default_rng(0)),
        lambda: space.validate({"lr": 0.5}),
        lambda: space.contains({"lr": 0.5}),
    ]
    for call in calls:
        with pytest.raises(SpaceError) as caught:
            call()
        assert part in str(caught.value)


def test_a_forbidden_start_can_be_perturbed_away_from() -> None:
    rng = np.random.default_rng(0)
    space = Space({"opt/lr": Float(1e-3, 1, log=True)}, batch=Ordinal([16, 32]), constraints=[small_product])
    moved, _ = space.perturb({"opt/lr": 0.7, "batch": 32}, rng)
    assert space.contains(moved)


def both(**options: Any) -> Space:
    return Space(a=Float(0, 1), b=Choice(["x", "y"]), c=Int(0, 9, when={"b": "x"}), **options)


LOOSE: Any = Space

REFUSED: list[tuple[Callable[[], Space], list[str]]] = [
    (lambda: Space(), ["empty"]),
    (lambda: Space({}), ["empty"]),
    (lambda: LOOSE([Float(0, 1)]), ["mapping", "Float(0.0, 1.0)"]),
    (lambda: Space(lr=0.1), ["lr", "0.1 is not a parameter"]),
    (lambda: Space(opt={"lr": (0.1, 1.0)}), ["opt/lr", "write Float(low, high)"]),
    (lambda: Space(act=["relu", "tanh"]), ["act", "Choice([...])"]),
    (lambda: Space(lr=Float), ["lr", "write Float(low, high)"]),
    (lambda: Space({"a b": Float(0, 1)}), ["'a b' is not a parameter name"]),
    (lambda: Space({"": Float(0, 1)}), ["'' is not a parameter name"]),
    (lambda: Space({"a/": Float(0, 1)}), ["'a/' is not a parameter name"]),
    (lambda: LOOSE({3: Float(0, 1)}), ["the name 3 must be a string"]),
    (lambda: Space(opt={}), ["the group 'opt' is empty"]),
    (lambda: Space({"a": Float(0, 1)}, a=Float(0, 1)), ["'a' is given twice"]),
    (lambda: Space({"a/b": Float(0, 1)}, a={"b": Float(0, 1)}), ["'a/b' is given twice"]),
    (lambda: Space({"a/b": Float(0, 1)}, a=Float(0, 1)), ["'a' is both a parameter and the group of 'a/b'"]),
    (lambda: Space(a=Float(0, 1, when={"bb": 1}), b=Int(0, 1)), ["a: when names 'bb'", "did you mean 'b'?"]),
    (
        lambda: Space(opt={"kind": Choice(["a", "b"]), "x": Float(0, 1, when={"kind": "a"})}),
        ["opt/x: when names 'kind', which is not a parameter", "'opt/kind'"],
    ),
    (
        lambda: Space(a=Float(0, 1, when={"b": 3}), b=Choice([1, 2])),
        ["a: when=", "'b'", "3 is none of [1, 2]"],
    ),
    (lambda: Space(a=Float(0, 1, when={"b": 3}), b=Int(0, 2)), ["a: when=", "'b'", "3 is outside of [0, 2]"]),
    (lambda: Space(a=Float(0, 1, when={"b": 1}), b=Choice([True])), ["a: when=", "1 is none of [True]"]),
    (lambda: Space(a=Int(0, 1, when={"a": 1})), ["circle: a -> a"]),
    (
        lambda: Space(a=Int(0, 1, when={"b": 1}), b=Int(0, 1, when={"c": 1}), c=Int(0, 1, when={"a": 1})),
        ["circle: a -> b -> c -> a"],
    ),
    (
        lambda: Space(g={"a": Int(0, 1), "b": Int(0, 1, when={"g/a": 1, "/g/a": 0})}),
        ["g/b: when names 'g/a' twice"],
    ),
    (lambda: LOOSE(constraints=Float(0, 1)), ["'constraints' is an option", "Space({'constraints': Float("]),
    (lambda: LOOSE(initial=Float(0, 1)), ["'initial' is an option", "Space({'initial': Float("]),
    (lambda: both(constraints=never), ["write constraints=[never]"]),
    (lambda: both(constraints=["never"]), ["a constraint must be a function", "'never'"]),
    (lambda: both(constraints="never"), ["a list of functions", "'never'"]),
    (lambda: both(initial={"a": 1}), ["write initial=[{'a': 1}]"]),
    (lambda: both(initial="a"), ["a list of starting points", "'a'"]),
    (lambda: both(initial=[{}, 3]), ["initial[1]", "3"]),
    (lambda: both(initial=[{"a": 3}]), ["initial[0]: a: 3 is outside of [0.0, 1.0]"]),
    (lambda: both(initial=[{"z": 3}]), ["initial[0]", "unknown parameter 'z'"]),
    (
        lambda: both(initial=[{"b": "y", "c": 3}]),
        ["initial[0]: c: cannot start at 3", "'b' is 'x'", "is 'y'"],
    ),
    (lambda: both(initial=[{"c": 3}]), ["initial[0]: c: cannot start at 3", "'b' has no value"]),
    (lambda: both(initial=[{"a": 0.5, "b": "y"}], constraints=[never]), ["initial[0]", "never", "0.5"]),
]


@pytest.mark.parametrize(("build", "parts"), REFUSED)
def test_refusals_name_the_parameter_and_the_values(build: Callable[[], Space], parts: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        build()
    for part in parts:
        assert part in str(caught.value)


def test_a_start_may_rely_on_a_fixed_initial_of_what_it_depends_on() -> None:
    space = Space(b=Choice(["x", "y"], initial="x"), c=Int(0, 9, when={"b": "x"}), initial=[{"c": 3}])
    assert space.sample(np.random.default_rng(0), member=0) == {"b": "x", "c": 3}


def test_a_start_that_leaves_something_to_draw_is_judged_when_drawn() -> None:
    def no_c(params: Params) -> bool:
        return "c" not in params

    space = both(initial=[{"a": 0.5}], constraints=[no_c])
    assert space.sample(np.random.default_rng(0), member=0) == {"a": 0.5, "b": "y"}


def test_config_round_trip() -> None:
    config = RICH.config(refer)
    stored = json.loads(json.dumps(config, sort_keys=True))
    again = Space.from_config(stored, KNOWN.__getitem__)
    assert again == RICH
    assert hash(again) == hash(RICH)
    assert again.config(refer) == config
    assert repr(again) == repr(RICH)
    assert again.sample(np.random.default_rng(8)) == RICH.sample(np.random.default_rng(8))


def test_equality_sees_order_options_and_constraints() -> None:
    a, b = Float(0, 1), Float(0, 2)
    assert Space(a=a, b=b) == Space({"a": a}, b=b)
    assert Space(a=a, b=b) != Space(b=b, a=a)
    assert Space(a=a) != Space(a=Float(0, 1, initial=0.5))
    assert Space(a=a) != Space(a=a, constraints=[never])
    assert Space(a=a) != Space(a=a, initial=[{"a": 0.5}])
    assert Space(a=a) != 3


def test_repr() -> None:
    space = Space({"opt/lr": Float(0, 1)}, n=Int(1, 2), constraints=[never], initial=[{"n": 1}])
    assert repr(space) == (
        "Space({'opt/lr': Float(0.0, 1.0), 'n': Int(1, 2)}, constraints=[never], initial=[{'n': 1}])"
    )
    assert eval(repr(space)) == space


FLOAT = {"name": "x", "kind": "float", "low": 0, "high": 1}


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        (3, ["3"]),
        ({**FLOAT, "kind": "real"}, ["real"]),
        ({**FLOAT, "values": [1]}, ["x", "values"]),
        ({"name": "x", "kind": "int", "low": 0}, ["x", "high"]),
        ({**FLOAT, "low": 2}, ["x", "Float(2, 1)", "Float(1.0", "2.0"]),
    ],
)
def test_malformed_descriptions(entry: Any, parts: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        Space.from_config({"parameters": [entry]}, KNOWN.__getitem__)
    check_facts(str(caught.value), *parts)


def test_a_description_may_leave_out_defaults() -> None:
    config = {"parameters": [FLOAT, {"name": "y", "kind": "ordinal", "values": [1, 2]}]}
    assert Space.from_config(config, KNOWN.__getitem__) == Space(x=Float(0, 1), y=Ordinal([1, 2]))


def test_importing_the_space_does_not_import_numpy() -> None:
    code = "import sys, phyla.space; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
