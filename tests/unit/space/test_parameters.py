"""Float, Int, Choice, Ordinal: what they refuse, draw, move to and map onto the unit interval."""

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from effort import rarely, times
from facts import check_facts, raises
from phyla.errors import SpaceError
from phyla.space import Choice, Float, Int, Ordinal, Parameter, Space

QUICK = settings(max_examples=times(25, 100))

numbers = st.floats(-1e6, 1e6, allow_nan=False)
positive = st.floats(1e-8, 1e6)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def floats(draw: st.DrawFn) -> Float:
    log = draw(st.booleans())
    low, high = sorted(draw(st.tuples(*[positive if log else numbers] * 2).filter(lambda p: p[0] != p[1])))
    if draw(st.booleans()):
        step = draw(st.sampled_from([0.1, 0.25, 1.0, 1 / 3, 7.0]))
        low = round(low, 2) + (0.01 if log else 0.0)
        return Float(low, low + step * draw(st.integers(1, 200)), log=log, step=step)
    return Float(low, high, log=log)


@st.composite
def ints(draw: st.DrawFn) -> Int:
    log = draw(st.booleans())
    low = draw(st.integers(1 if log else -1000, 1000))
    step = draw(st.integers(1, 9))
    return Int(low, low + step * draw(st.integers(1, 10**6)), log=log, step=step)


scalars = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-1, 1), st.text(max_size=3))
listed = st.lists(scalars, min_size=1, max_size=5, unique=True)
parameters: st.SearchStrategy[Parameter] = st.one_of(floats(), ints(), listed.map(Choice), listed.map(Ordinal))
factors = st.floats(0.01, 100).filter(lambda factor: abs(factor - 1) > 1e-3)


@QUICK
@given(parameters, seeds)
def test_values_stay_values_under_long_chains(parameter: Parameter, seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = Space(x=parameter)
    values = space.sample(rng)
    for _ in range(times(60, 150)):
        values, _ = space.perturb(values, rng, resample=0.05)
        assert space.validate(values) == values
        assert json.loads(json.dumps(values)) == values
        assert type(values["x"]) in (float, int, str, bool, type(None))


@QUICK
@given(ints(), factors, seeds)
def test_integers_always_move_unless_a_bound_holds_them(parameter: Int, factor: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for value in (parameter.low, parameter.high, parameter.draw(rng)):
        moved, _ = parameter.perturb(value, factor, rng)
        outward = parameter.high if factor > 1 else parameter.low
        if value == outward:
            assert moved == value
        else:
            assert (moved > value) == (outward > value)
            assert moved != value


@QUICK
@given(floats(), factors, seeds)
def test_floats_with_a_step_move_by_one_at_least(parameter: Float, factor: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = parameter.draw(rng)
    moved, _ = parameter.perturb(value, factor, rng)
    if parameter.step is not None and moved not in (parameter.low, parameter.high):
        assert abs(moved - value) >= parameter.step * 0.999
    assert parameter.check(moved) == moved


@QUICK
@given(positive, positive, factors, seeds)
def test_log_scales_are_multiplied_or_clamped(one: float, other: float, factor: float, seed: int) -> None:
    low, high = sorted((one, other))
    if low == high:
        high *= 2
    rng = np.random.default_rng(seed)
    parameter = Float(low, high, log=True)
    value = parameter.draw(rng)
    moved, by = parameter.perturb(value, factor, rng)
    if high >= math.e * low:
        assert moved == value * factor or moved in (low, high)
        assert by == f"x{factor:g}"
    else:
        assert low <= moved <= high
        assert (moved > value) == (factor > 1) or moved in (low, high)
    clipped, by = parameter.clipped(value, factor, rng)
    assert (clipped, by) == (min(max(value * factor, low), high), f"x{factor:g}")


@pytest.mark.parametrize(
    ("parameter", "value", "factor", "moved", "by"),
    [
        (Float(0, 1), 0.5, 1.2, 0.6, "x1.2"),
        (Float(0, 1), 0.5, 0.8, 0.4, "x0.8"),
        (Float(0, 1), 0.9, 1.2, 1.0, "x1.2"),
        (Float(0, 1), 1.0, 1.2, 1.0, "x1.2"),
        (Float(0.9, 0.9999, log="1-x"), 0.99, 1.25, 0.992, "1 - x, x0.8"),
        (Float(0.9, 0.9999, log="1-x"), 0.99, 0.8, 0.9875, "1 - x, x1.25"),
        (Float(0.9, 0.9999, log="1-x"), 0.99, 1e9, 0.9999, "1 - x, x1e-09"),
        (Float(-50, 0.9, log="1-x"), -9.0, 2.0, -4.0, "1 - x, x0.5"),
        (Float(0, 1, step=0.1), 0.5, 1.2, 0.6, "x1.2"),
        (Float(0, 1, step=0.1), 0.1, 1.2, 0.2, "step"),
        (Float(0, 1, step=0.1), 0.1, 0.8, 0.0, "step"),
        (Float(0, 1, step=0.1), 0.3, 3.0, 0.9, "x3"),
        (Float(1e-4, 1, log=True), 0.01, 1.2, 0.012, "x1.2"),
        (Int(1, 100), 50, 1.2, 60, "x1.2"),
        (Int(1, 100), 1, 1.2, 2, "step"),
        (Int(1, 100), 2, 0.8, 1, "step"),
        (Int(1, 100), 1, 0.8, 1, "step"),
        (Int(1, 100), 100, 1.2, 100, "step"),
        (Int(0, 100), 0, 1.2, 1, "step"),
        (Int(8, 256, step=8), 64, 1.2, 80, "x1.2"),
        (Int(8, 256, step=8), 8, 1.2, 16, "step"),
        (Ordinal([16, 32, 64]), 32, 1.2, 64, "neighbour"),
        (Ordinal([16, 32, 64]), 32, 0.8, 16, "neighbour"),
        (Ordinal([16, 32, 64]), 64, 1.2, 64, "neighbour"),
        (Ordinal([16, 32, 64]), 16, 0.8, 16, "neighbour"),
    ],
)
def test_moves(parameter: Any, value: Any, factor: float, moved: Any, by: str) -> None:
    got, how = parameter.perturb(value, factor, np.random.default_rng(0))
    assert got == pytest.approx(moved, rel=1e-12, abs=0)
    assert (type(got), how) == (type(moved), by)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        (Float(-1, 1), -0.5),
        (Float(-1, 1), 0.0),
        (Float(-1, 1), 1e-300),
        (Float(-3, -1), -2.0),
        (Float(0, 1), 0.0),
        (Float(0.9, 0.9999), 0.95),
        (Float(0.9, 1.1, log=True), 1.0),
        (Float(0.9, 0.95, log="1-x"), 0.92),
    ],
)
def test_a_share_of_the_range_where_no_factor_fits(parameter: Float, value: float) -> None:
    rng, width = np.random.default_rng(1), parameter.high - parameter.low
    for factor, least, most in ((1.2, 0.03, 0.17), (2.0, 0.13, 0.55)):
        moved = [parameter.perturb(value, factor, rng)[0] for _ in range(50)]
        assert all(value + least * width < one <= value + most * width for one in moved)
        assert len(set(moved)) > 40
        back = [parameter.perturb(value, 1 / factor, rng)[0] for _ in range(50)]
        assert all(max(value - most * width, parameter.low) <= one <= value - least * width for one in back) or (
            set(back) == {parameter.low}
        )


def test_how_a_number_moved_is_told() -> None:
    rng = np.random.default_rng(1)
    told = {
        name: parameter.perturb(value, 1.2, rng, other=0.8)
        for name, parameter, value in (
            ("share", Float(0.9, 1.0), 0.95),
            ("factor", Float(0.9, 1.1, log=True), 1.0),
            ("distance", Float(0.9, 0.95, log="1-x"), 0.92),
        )
    }
    moved, by = told["share"]
    check_facts(by, f"{(moved - 0.95) / 0.001:+.3g}%")
    moved, by = told["factor"]
    assert by == f"x{moved:.4g}"
    moved, by = told["distance"]
    assert by == f"1 - x, x{(1 - moved) / (1 - 0.92):.4g}"


def test_zero_is_left_by_perturbing() -> None:
    rng = np.random.default_rng(1)
    space = Space(real=Float(0, 1), grid=Float(0, 1, step=0.25), whole=Int(0, 10))
    left = dict.fromkeys(space.parameters, 0)
    for _ in range(50):
        values = space.validate({"real": 0, "grid": 0, "whole": 0})
        for _ in range(20):
            values, _ = space.perturb(values, rng)
        for name, value in values.items():
            left[name] += value != 0
    assert left["real"] == 50
    assert all(count > 30 for count in left.values())


def after(
    parameter: Parameter, chains: int, seed: int = 0, factors: tuple[float, float] = (0.8, 1.2)
) -> list[Any]:
    """What chains of 50 moves lead to, from where members start."""
    rng, (down, up) = np.random.default_rng(seed), factors
    move: Any = parameter.perturb
    found: list[Any] = []
    for _ in range(chains):
        value: Any = parameter.start(rng)
        for count in range(50):
            value, _ = move(value, up, rng, other=down)
            if count >= 34 and count % 5 == 4:
                found.append(value)
    return found


INSIDE: dict[str, Parameter] = {
    "EMA decay": Float(0.95, 0.998),
    "beta2": Float(0.9, 0.9999),
    "beta2, by its distance from 1": Float(0.9, 0.9999, log="1-x"),
    "discount, by its distance from 1": Float(0.5, 0.999, log="1-x"),
    "GAE lambda": Float(0.9, 1.0),
    "momentum": Float(0.0, 0.99),
    "momentum, high": Float(0.8, 0.99, initial=0.9),
    "tau": Float(0.001, 0.05, log=True),
    "tau, linear": Float(0.001, 0.05),
    "dropout": Float(0.0, 0.5),
    "dropout, from 0": Float(0.0, 0.5, initial=0.0),
    "dropout, in steps": Float(0.0, 0.5, step=0.1),
    "clip ratio": Float(0.1, 0.4, initial=0.2),
    "label smoothing": Float(0.0, 0.2, step=0.05),
    "temperature, near 1": Float(0.9, 1.1, log=True),
    "very narrow": Float(0.9999, 0.99999),
    "offset": Float(-1.0, 1.0, initial=-0.5),
    "negative": Float(-3.0, -1.0),
    "negative, from its end": Float(-1.0, -0.9, initial=-1.0),
    "layers": Int(1, 8),
    "three": Int(3, 5, initial=3),
    "around 0": Int(-2, 2, initial=-2),
    "from 0": Int(0, 6, initial=0),
    "from 0 to 10": Int(0, 10),
    "offset, whole": Int(100, 105),
    "tenths": Float(0.0, 1.0, step=0.1),
    "layers, log": Int(1, 8, log=True),
    "batch": Int(16, 4096, log=True),
    "frames": Int(100, 130),
    "width in steps": Int(8, 64, step=8),
    "powers of two": Ordinal([16, 32, 64, 128, 256]),
    "two": Ordinal(["a", "b"]),
    "kinds": Choice(["a", "b", "c"]),
}


POWERS = ("layers", "layers, log", "width in steps", "from 0 to 10", "tenths")
"""Of these few numbers, doubling and halving lead to the powers of two."""
DOUBLED = [name for name in INSIDE if name not in POWERS]
CHAINS = [(name, (0.8, 1.2)) for name in INSIDE]
# Those that double and halve are, but for one in four of them, more of the same.
CHAINS += [(name, (0.5, 2.0)) if not place % 4 else rarely(name, (0.5, 2.0)) for place, name in enumerate(DOUBLED)]


def rounded(value: Any) -> Any:
    return round(value, 9) if isinstance(value, float) else value


@pytest.mark.parametrize(("name", "factors"), CHAINS, ids=str)
def test_no_part_of_a_range_is_preferred(name: str, factors: tuple[float, float]) -> None:
    """Whatever the range, every value of a few, or tenth of many, has a fair share, and no end piles up."""
    parameter = INSIDE[name]
    found = after(parameter, times(75, 150), factors=factors)
    values: Any = getattr(parameter, "values", None)
    if values is None and isinstance(parameter, Float | Int) and parameter.step is not None:
        low, count = parameter.low, round((parameter.high - parameter.low) / parameter.step) + 1
        values = [low + parameter.step * index for index in range(count)] if count <= 11 else None
    if values is not None:
        counts = Counter(map(rounded, found))
        shares = [counts[rounded(value)] / len(found) for value in values]
    else:
        assert isinstance(parameter, Float | Int)
        ends = sum(one in (parameter.low, parameter.high) for one in found)
        assert ends <= 0.08 * len(found)
        shares = [*np.histogram([parameter.unit(one) for one in found], 10, (0, 1))[0] / len(found)]
        assert len(set(found)) > min(100, 0.6 * (parameter.high - parameter.low) / (parameter.step or 1e-9))
    assert min(shares) >= (0.4 if factors == (0.8, 1.2) else 0.3) / len(shares), shares
    assert max(shares) <= 3.5 / len(shares), shares


@settings(max_examples=times(8, 60), deadline=None)
@given(st.one_of(floats(), ints(), listed.map(Ordinal)), seeds)
def test_every_part_of_a_random_range_stays_in_use(parameter: Any, seed: int) -> None:
    """Chains from the prior come to what the prior draws from, within a factor of five.

    Left out are steps that are larger than the low end on a logarithmic scale: neighbours are far apart there.
    """
    assume(not (getattr(parameter, "log", False) and (parameter.step or 0) > parameter.low))
    rng = np.random.default_rng(seed)
    drawn = np.histogram([parameter.unit(parameter.draw(rng)) for _ in range(800)], 5, (0, 1))[0] / 800
    found = after(parameter, 60, seed)
    shares = np.histogram([parameter.unit(one) for one in found], 5, (0, 1))[0] / len(found)
    assert all(share >= fair / 5 for share, fair in zip(shares, drawn, strict=True) if fair > 0.15)


def test_a_choice_of_very_many_values_is_made_at_once() -> None:
    # Comparing each value with all others would take an hour.
    assert len(Choice(range(1_000_000)).values) == 1_000_000


def test_a_perturbed_choice_is_drawn_from_all_of_its_values() -> None:
    rng = np.random.default_rng(2)
    choice = Choice(["a", "b", "c"])
    drawn = [choice.perturb("a", 1.2, rng) for _ in range(3000)]
    assert {by for _, by in drawn} == {"resampled"}
    counts = [sum(value == name for value, _ in drawn) for name in "abc"]
    assert all(abs(count - 1000) < 120 for count in counts)


def distance_from_uniform(units: list[float]) -> float:
    """Kolmogorov-Smirnov distance; below 1.63 / sqrt(n) in 99 % of all cases."""
    ordered = np.sort(np.asarray(units))
    return float(np.max(np.abs(ordered - (np.arange(len(ordered)) + 0.5) / len(ordered))))


@pytest.mark.parametrize(
    "parameter",
    [Float(1e-6, 10, log=True), Float(-3, 8), Float(0.1, 0.2, log=True), Float(0.5, 0.99999, log="1-x")],
)
def test_priors_are_uniform_on_their_scale(parameter: Float) -> None:
    rng = np.random.default_rng(3)
    assert distance_from_uniform([parameter.unit(parameter.draw(rng)) for _ in range(4000)]) < 1.63 / 4000**0.5


def test_log_integers_have_the_mass_of_their_cell() -> None:
    rng = np.random.default_rng(4)
    parameter = Int(1, 8, log=True)
    drawn = [parameter.draw(rng) for _ in range(8_000)]
    for value in range(1, 9):
        expected = math.log((value + 1) / value) / math.log(9)
        assert drawn.count(value) / len(drawn) == pytest.approx(expected, abs=0.012)


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        (Float(0, 1, step=0.25), [0.0, 0.25, 0.5, 0.75, 1.0]),
        (Float(0.1, 0.7, step=0.2), [0.1, 0.3, 0.5, 0.7]),
        (Float(1, 3, step=1, log=True), [1.0, 2.0, 3.0]),
        (Int(-1, 2), [-1, 0, 1, 2]),
        (Int(8, 32, step=8, log=True), [8, 16, 24, 32]),
        (Ordinal(["s", "m", "l"]), ["l", "m", "s"]),
        (Choice([None, True, 3]), [3, None, True]),
    ],
)
def test_all_values_and_no_others_are_drawn(parameter: Parameter, values: list[Any]) -> None:
    rng = np.random.default_rng(5)
    drawn = {parameter.draw(rng) for _ in range(400)}
    assert sorted(drawn, key=str) == sorted(values, key=str)


def test_initial_values_and_ranges() -> None:
    rng = np.random.default_rng(6)
    assert Float(0, 1, initial=0.3).start(rng) == 0.3
    assert Int(1, 9, initial=4).start(rng) == 4
    assert Choice(["a", "b"], initial="b").start(rng) == "b"
    assert Ordinal([True, False], initial=False).start(rng) is False
    starts = [Float(1e-6, 1, log=True, initial=(1e-3, 1e-2)).start(rng) for _ in range(200)]
    assert 1e-3 <= min(starts) < 1.2e-3
    assert 8e-3 < max(starts) <= 1e-2
    assert {Int(0, 100, step=5, initial=(8, 21)).start(rng) for _ in range(200)} == {10, 15, 20}
    assert {Float(0, 1, step=0.1, initial=(0.25, 0.5)).start(rng) for _ in range(200)} == {0.3, 0.4, 0.5}


def test_the_largest_integers_stay_exact() -> None:
    rng = np.random.default_rng(7)
    seed = Int(0, 2**63 - 1)
    assert all(0 <= seed.check(seed.draw(rng)) <= 2**63 - 1 for _ in range(100))
    assert seed.from_unit(1.0) == 2**63 - 1
    assert seed.perturb(2**63 - 1, 1.2, rng)[0] == 2**63 - 1


@QUICK
@given(st.one_of(floats(), ints(), listed.map(Ordinal)), seeds)
def test_unit_and_from_unit_are_inverse(parameter: Float | Int | Ordinal, seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = parameter.draw(rng)
    unit = parameter.unit(value)
    assert 0.0 <= unit <= 1.0
    back = parameter.from_unit(unit)
    if isinstance(back, float):
        assert isinstance(parameter, Float | Ordinal)
        assert isinstance(value, float)
        assert back == pytest.approx(value, rel=1e-6, abs=1e-6)
    else:
        assert back == value
    for position in (-1.0, 0.0, 0.3, 1.0, 2.0):
        assert parameter.check(parameter.from_unit(position)) == parameter.from_unit(position)


def test_unit_knows_the_log_scale() -> None:
    assert Float(1e-4, 1, log=True).unit(1e-2) == pytest.approx(0.5)
    assert Float(1e-4, 1, log=True).from_unit(0.5) == pytest.approx(1e-2)
    assert Int(1, 100, log=True).from_unit(0.5) == 10
    assert Float(1e-300, 1e300, log=True).unit(1.0) == pytest.approx(0.5)
    assert Int(2**62, 2**62 + 1, log=True).unit(2**62 + 1) == 1.0
    assert Float(0.9, 0.999, log="1-x").unit(0.99) == pytest.approx(0.5)
    assert Float(0.9, 0.999, log="1-x").from_unit(0.5) == pytest.approx(0.99)
    assert Ordinal(["s", "m", "l"]).unit("m") == 0.5
    assert Ordinal(["only"]).unit("only") == 0.0
    with raises(SpaceError, "nan"):
        Float(0, 1).from_unit(math.nan)


def test_numpy_numbers_become_plain_ones() -> None:
    low: Any = np.float32(0.5)
    parameter = Float(low, np.float64(2))
    assert (type(parameter.low), type(parameter.high)) == (float, float)
    assert type(parameter.check(np.float64(1))) is float
    assert type(Int(0, 9).check(np.int64(3))) is int
    three: Any = np.int64(3)
    assert type(Choice([three, "a"]).values[0]) is int


REFUSED = [
    ("Float(1.0, 0.1)", ["Float(1.0, 0.1)", "low", "high", "Float(0.1", "1.0"]),
    ("Float(2, 1, log=True)", ["Float(1.0", "2.0", "log=True"]),
    ("Float(1, 1)", ["Float(1, 1)", "low", "high", "Choice([1.0])"]),
    ("Float(0, math.inf)", ["high", "inf"]),
    ("Float(math.nan, 1)", ["low", "nan"]),
    ("Float(-1e308, 1e308)", ["1e+308"]),
    ("Float(True, 2)", ["low", "True"]),
    ("Float(0, '1')", ["high", "1"]),
    ("Float(0, 1, log=True)", ["log", "0", "low", "0.0"]),
    ("Float(-1, 1, log=True)", ["log", "-1.0"]),
    ("Float(5e-324, 1, log=True)", ["0", "5e-324"]),
    ("Float(1, 2, log=1)", ["True", "False", "log", "1"]),
    ("Float(0.9, 0.99, log='1-X')", ["True", "False", "1-x", "log", "1-X"]),
    ("Float(0.9, 0.99, log=None)", ["True", "False", "log", "None"]),
    ("Float(0.9, 1, log='1-x')", ["1", "high", "1.0", "log"]),
    ("Float(0, 0.9, step=0.1, log='1-x')", ["Float without steps"]),
    ("Int(-9, 0, log='1-x')", ["Float without steps"]),
    ("Float('a', 1)", ["low", "a"]),
    ("Float(None, 1)", ["low", "None"]),
    ("Float(1, 2**2000)", ["high"]),
    ("Float(0, 8e307)", ["wider than a float"]),
    ("Float(1, 2, step='x')", ["step", "x"]),
    ("Float(1, 2, default=[1])", ["default", "[1]"]),
    ("Float(1, 2, initial=(None, 2))", ["low", "initial", "None"]),
    ("Int(0, 10**400)", ["64 bits"]),
    ("Int(None, 3)", ["low", "None"]),
    ("Choice(None)", ["None"]),
    ("Ordinal(5)", ["5"]),
    ("Float(0, 1, step=0)", ["0", "step", "step=0"]),
    ("Float(0, 1, step=-0.1)", ["0", "step", "-0.1"]),
    ("Float(0, 1, step=2)", ["2.0", "Float(0.0, 2.0, step=2.0)"]),
    (
        "Float(0, 1, step=0.3)",
        ["0.3", "Float(0.0, 0.9, step=0.3) or Float(0.0, 1.2, step=0.3)"],
    ),
    ("Float(0, 1, step=1e-300)", ["step", "1e-300"]),
    ("Float(0, 1, initial=5)", ["initial", "5", "[0.0, 1.0]"]),
    ("Float(0, 1, initial=True)", ["initial", "True"]),
    ("Float(0, 1, initial=(0.5, 2))", ["(0.5, 2.0)", "0.0", "1.0"]),
    ("Float(0, 1, initial=(0.5, 0.5))", ["(0.5, 0.5)", "low", "high"]),
    ("Float(0, 1, initial=(0.1, 0.2, 0.3))", ["(low, high)", "0.3"]),
    ("Float(0, 1, step=0.5, initial=0.3)", ["0.3", "0.5"]),
    ("Float(0, 1, step=0.5, initial=(0.1, 0.2))", ["step", "(0.1, 0.2)"]),
    ("Float(0, 1, when={})", ["when"]),
    ("Float(0, 1, when={'a': []})", ["a"]),
    ("Float(0, 1, when='a')", ["when", "a"]),
    ("Int(1.5, 3)", ["low", "1.5"]),
    ("Int(1, 1e6)", ["high", "1000000"]),
    ("Int(False, 3)", ["low", "False"]),
    ("Int(3, 1)", ["Int(1", "3"]),
    ("Int(3, 3)", ["low", "high", "Choice([3])"]),
    ("Int(0, 9, log=True)", ["log", "0"]),
    ("Int(0, 10, step=0)", ["0", "step"]),
    ("Int(1, 10, step=4)", ["4", "Int(1, 9, step=4) or Int(1, 13, step=4)"]),
    ("Int(0, 10, step=0.5)", ["step", "0.5"]),
    ("Int(0, 2**63)", ["64 bits", str(2**63)]),
    ("Int(0, 9, initial=10)", ["initial", "10", "[0, 9]"]),
    ("Int(0, 9, initial=2.0)", ["initial", "2.0"]),
    ("Int(0, 9, step=3, initial=(4, 5))", ["step", "(4, 5)"]),
    ("Choice([])", ["Choice([])"]),
    ("Choice('abc')", ["abc"]),
    ("Choice({'a', 'b'})", ["must be a list"]),
    ("Choice(['a', 'b', 'a'])", ["a"]),
    ("Choice([1, True])", ["True", "1"]),
    ("Ordinal([1, 1.0])", ["1.0"]),
    ("Choice([[1, 2]])", ["None", "[1, 2]"]),
    ("Choice([math.inf])", ["finite", "inf"]),
    ("Choice(['a'], initial='b')", ["initial", "b", "a"]),
    ("Choice([1, 0], initial=True)", ["initial", "True", "[1", "0]"]),
    ("Ordinal([])", ["Ordinal([])"]),
    ("Ordinal([1, 2], initial=3)", ["initial", "3", "[1", "2]"]),
]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_has_no_nearest_one(value: float) -> None:
    with pytest.raises(SpaceError, match=r"must be finite, got -?(nan|inf)") as caught:
        Float(0, 10).check(value)
    assert "nearest" not in str(caught.value)


@pytest.mark.parametrize(("call", "parts"), REFUSED)
def test_refusals_show_the_values(call: str, parts: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        eval(call)
    check_facts(str(caught.value), *parts)


@pytest.mark.parametrize(
    "text",
    [
        "Float(0.0001, 1.0, log=True)",
        "Float(0.9, 0.9999, log='1-x', initial=0.99)",
        "Float(0.0, 1.0, step=0.25, initial=(0.25, 0.75))",
        "Int(1, 9, step=2, when={'opt': ('sgd',)})",
        "Choice(['a', True, None, 1.5], initial=True)",
        "Choice([True, False], initial=False)",
        "Ordinal([16, 32], when={'a/b': (1, 2)})",
    ],
)
def test_repr_is_the_call(text: str) -> None:
    made = eval(text)
    assert repr(made) == text
    assert eval(repr(made)) == made
    assert hash(eval(text)) == hash(made)
