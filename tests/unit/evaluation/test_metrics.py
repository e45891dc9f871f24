"""Metrics: what they say, that merging loses nothing, and that JSON keeps everything."""

import dataclasses
import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import raises
from phyla.errors import MetricInvalid, MetricMismatch
from phyla.evaluation import Maximum, Metric, Minimum, Moments, Perplexity, PerSeed, Sum
from phyla.evaluation.recorder import BUILT_IN, decode, encode
from phyla.records import JsonObject

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
OF: dict[str, Any] = {
    "moments": Moments.of,
    "sum": Sum.of,
    "minimum": Minimum.of,
    "maximum": Maximum.of,
    "perplexity": Perplexity.of,
    "per-seed": lambda values: PerSeed({i: Moments.of([v, 2 * v]) for i, v in enumerate(values)}),
}


def no_names(kind: type[Any]) -> str:
    raise AssertionError(kind)


def no_types(name: str) -> type[Any]:
    raise AssertionError(name)


def strict(raw: object) -> Any:
    return json.loads(json.dumps(raw, allow_nan=False))


@dataclasses.dataclass(frozen=True)
class Last:
    """A metric of a user: the order of shards is kept, so the last sample is a statistic."""

    value: float = math.nan

    @property
    def count(self) -> None:
        return None

    def merge(self, other: Self) -> Self:
        return other

    def summary(self) -> Mapping[str, float]:
        return {"": self.value}

    def to_json(self) -> JsonObject:
        return {"value": self.value}

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        return cls(float(raw["value"]))  # type: ignore[arg-type]


def test_moments_are_those_of_the_samples() -> None:
    moments = Moments.of([[1, 2], [3, 6]])
    assert (moments.n, moments.mean, moments.m2) == (4, 3.0, 14.0)
    assert moments.variance == pytest.approx(14 / 3)
    assert moments.stderr == pytest.approx(math.sqrt(14 / 12))
    assert moments.summary() == {"": 3.0, "stderr": moments.stderr, "n": 4.0}


def test_the_variance_of_means_is_unknown_and_stays_so() -> None:
    means = Moments.of_mean(2.0, 10).merge(Moments.of([4, 6]))
    assert (means.n, means.mean) == (12, 2.5)
    assert (means.variance, means.stderr) == (None, None)
    assert means.summary() == {"": 2.5, "n": 12.0}
    assert Moments.of_mean(2.0, 1) == Moments.of([2.0])
    assert Moments.of_mean(math.nan, 0) == Moments()


@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=30),
    st.sampled_from([0.0, 1.0, 1e6, -1e9]),
    st.data(),
)
def test_moments_are_exact_however_samples_are_split(noise: list[float], offset: float, data: Any) -> None:
    samples = [offset + value for value in noise]
    merged = Moments()
    at = 0
    while at < len(samples):
        size = data.draw(st.integers(1, len(samples) - at))
        merged = merged.merge(Moments.of(samples[at : at + size]))
        at += size
    exact = [Fraction(sample) for sample in samples]
    mean = sum(exact) / len(exact)
    m2 = float(sum((value - mean) ** 2 for value in exact))
    spread = max(map(abs, noise))
    assert merged.mean + merged.low == pytest.approx(float(mean), rel=1e-15, abs=1e-14 * spread)
    assert merged.m2 == pytest.approx(m2, rel=1e-12, abs=1e-24 * spread**2)


@pytest.mark.parametrize("kind", OF)
@given(values=st.lists(ANY_FLOAT, max_size=6))
def test_json_is_strict_and_keeps_everything(kind: str, values: list[float]) -> None:
    metric = OF[kind](values)
    raw = strict(encode(metric, no_names))
    assert raw["metric"] == kind
    again = decode(raw, no_types)
    assert type(again) is BUILT_IN[kind]
    assert strict(encode(again, no_names)) == raw
    assert repr(again) == repr(metric)


@pytest.mark.parametrize("kind", OF)
@given(parts=st.lists(st.lists(st.integers(-8, 8).map(lambda i: i / 4), max_size=4), min_size=3, max_size=3))
def test_merging_is_associative_and_the_empty_one_neutral(kind: str, parts: list[list[float]]) -> None:
    a, b, c = (OF[kind](part) for part in parts)
    left, right = a.merge(b).merge(c).summary(), a.merge(b.merge(c)).summary()
    assert left == pytest.approx(right, rel=1e-12, abs=1e-12, nan_ok=True)
    empty = OF[kind]([])
    assert empty.merge(a).to_json() == a.merge(empty).to_json() == a.to_json()
    if kind != "per-seed":
        together = OF[kind]([*parts[0], *parts[1], *parts[2]]).summary()
        assert left == pytest.approx(together, rel=1e-12, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("kind", ["moments", "sum", "minimum", "maximum", "perplexity"])
def test_nan_shows_wherever_it_stands(kind: str) -> None:
    for values in ([math.nan, 1.0, 2.0], [1.0, math.nan], [1.0, 2.0, math.nan]):
        assert math.isnan(OF[kind](values).summary()[""])
        merged = OF[kind](values[:1]).merge(OF[kind](values[1:]))
        assert math.isnan(merged.summary()[""])
        assert merged.count in (len(values), None)


def test_infinities_show() -> None:
    one = Moments.of([1.0, math.inf])
    assert one.mean == one.merge(Moments.of([5.0])).mean == Moments.of([5.0]).merge(one).mean == math.inf
    assert one.stderr is not None
    assert math.isnan(one.stderr)
    assert math.isnan(one.merge(Moments.of([-math.inf])).mean)
    assert Sum.of([1e308, 1e308]).total == math.inf
    assert Perplexity.of([1e4]).summary()[""] == math.inf


def test_samples_near_the_largest_float_have_a_mean() -> None:
    largest = Moments.of([1.7e308, 1.6e308, 1.5e308])
    assert largest.mean == pytest.approx(1.6e308)
    apart = Moments.of([1.7e308, -1.7e308]).merge(Moments.of([-1.7e308]))
    assert apart.mean == pytest.approx(-1.7e308 / 3)
    assert apart.m2 == math.inf


def test_a_sum_does_not_lose_small_samples() -> None:
    assert Sum.of([1e16]).merge(Sum.of([1.0])).merge(Sum.of([-1e16])).summary() == {"": 1.0, "n": 3.0}
    assert Sum.of([1e16, 1.0]).merge(Sum.of([-1e16])).total == 1.0
    assert Sum.of([]).summary() == {"": 0.0, "n": 0.0}


def test_extremes() -> None:
    assert Minimum.of([3, -1]).merge(Minimum.of([2])).summary() == {"": -1.0, "n": 3.0}
    assert Maximum.of([3, -1]).merge(Maximum.of([2])).summary() == {"": 3.0, "n": 3.0}
    assert math.isnan(Minimum.of([]).summary()[""])


def test_perplexity_weighs_tokens_not_texts() -> None:
    merged = Perplexity.of([math.log(2)] * 3).merge(Perplexity.of([math.log(32)]))
    assert merged.summary() == pytest.approx({"": 4.0, "nll": math.log(4), "tokens": 4.0})
    assert merged.count is None
    assert math.isnan(Perplexity().summary()[""])


def test_a_mean_per_seed() -> None:
    merged = PerSeed({3: Moments.of([1, 3]), 1: Moments.of([4])}).merge(PerSeed({3: Moments.of([5])}))
    assert list(merged.seeds) == [1, 3]
    assert merged.seeds[3].mean == 3
    assert merged.summary()[""] == 3.5
    assert strict(PerSeed({7: Moments.of([0.5]), 8: Moments.of([1])}).to_json()) == {
        "seed": [7, 8],
        "mean": [0.5, 1.0],
    }
    with raises(MetricInvalid, "seed", "-1"):
        PerSeed({-1: Moments()})


def test_what_does_not_belong_together_is_not_merged() -> None:
    with raises(MetricMismatch, "Moments", "Sum"):
        Moments().merge(Sum())  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{"n": -1}, {"n": 1.5}, {"n": True}, {"n": 2, "m2": -1.0}, {"n": 0, "mean": 1.0}])
def test_impossible_moments_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(MetricInvalid):
        Moments(**bad)


def test_a_metric_of_a_user_is_stored_under_the_name_it_is_given() -> None:
    metric: Metric = Last(0.5)
    raw = strict(encode(metric, lambda kind: f"mine:{kind.__name__}"))
    assert raw == {"metric": "mine:Last", "state": {"value": 0.5}}
    assert decode(raw, {"mine:Last": Last}.__getitem__) == metric
    with raises(MetricInvalid, "Last", "sum"):
        encode(metric, lambda _: "sum")


@pytest.mark.parametrize(
    "raw",
    [
        3,
        {},
        {"metric": "sum"},
        {"metric": "sum", "state": {}},
        {"metric": "sum", "state": {"total": "1", "n": 1}},
        {"metric": "sum", "state": {"total": 1, "n": -1}},
        {"metric": "moments", "state": {"n": 1, "mean": True, "m2": 0}},
        {"metric": "sum", "state": {"total": [1], "n": 1}},
        {"metric": "per-seed", "state": {"seed": [1, 2], "mean": [0.0]}},
    ],
)
def test_what_is_no_stored_metric_is_refused(raw: Any) -> None:
    with pytest.raises(MetricInvalid, match=r"a stored metric|cannot be read"):
        decode(raw, no_types)
