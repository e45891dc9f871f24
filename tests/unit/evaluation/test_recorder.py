"""Recording samples and merging shards: every sample counts once, however they were split."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import raises
from phyla.errors import MetricInvalid, MetricMismatch, SamplesDiffer
from phyla.evaluation import Metric, Minimum, Moments, Perplexity, PerSeed, Sum
from phyla.evaluation.recorder import Recorder, merge_shards


class Tensor:
    """What a tensor of another library looks like: it has `item`, and numpy can read it if it has no gradient."""

    def __init__(self, values: Any, *, gradient: bool = False) -> None:
        self._values = np.asarray(values)
        self._gradient = gradient

    @property
    def ndim(self) -> int:
        return self._values.ndim

    def item(self) -> Any:
        return self._values.item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self._gradient:
            raise RuntimeError("this tensor requires a gradient")
        return self._values


class OnlyItem:
    def __init__(self, value: object) -> None:
        self._value = value

    def item(self) -> object:
        return self._value


def recorded(*args: Any, **kwargs: Any) -> dict[str, Metric]:
    recorder = Recorder()
    recorder.record(*args, **kwargs)
    return recorder.statistics()


def moments(recorder: Recorder, name: str = "x") -> Moments:
    metric = recorder.statistics()[name]
    assert isinstance(metric, Moments)
    return metric


@pytest.mark.parametrize(
    "one",
    [
        2,
        2.0,
        np.float32(2),
        np.int8(2),
        np.array(2),
        np.array([2.0]),
        [2],
        Tensor(2.0),
        Tensor([2]),
        OnlyItem(2.0),
    ],
)
def test_one_number_is_one_sample(one: object) -> None:
    assert recorded({"x": one}) == {"x": Moments(n=1, mean=2.0)}


@pytest.mark.parametrize("one", [True, np.bool_(True), np.array(True)])
def test_a_hit_is_one(one: object) -> None:
    assert recorded({"x": one}) == {"x": Moments(n=1, mean=1.0)}


def test_names_are_nested_or_slashed() -> None:
    assert list(recorded({"a": 1, "g": {"b": 2, "h/c": 3}, "g/d": 4})) == ["a", "g/b", "g/h/c", "g/d"]
    with raises(MetricInvalid, "g/b"):
        recorded({"g": {"b": 1}, "g/b": 2})


@pytest.mark.parametrize("name", ["", 3, "return@seed"])
def test_ill_formed_names_are_refused(name: Any) -> None:
    with raises(MetricInvalid, "record()", "@seed"):
        recorded({name: 1})


def test_a_mean_of_n_counts_n() -> None:
    recorder = Recorder()
    recorder.record({"x": 1.0}, n=30)
    recorder.record({"x": 4.0}, n=10)
    recorder.record({"x": math.nan}, n=0)
    assert moments(recorder) == Moments(n=40, mean=1.75, m2=None)


def test_arrays_are_samples() -> None:
    assert recorded({"x": np.arange(6).reshape(2, 3)})["x"] == Moments.of([0, 1, 2, 3, 4, 5])
    assert recorded({"x": []})["x"] == Moments()
    assert recorded({"x": Tensor([1, 2])}, n=2)["x"] == Moments.of([1, 2])
    with raises(MetricInvalid, "3 samples", "n=4"):
        recorded({"x": [1, 2, 3]}, n=4)


def test_a_mask_drops_padding() -> None:
    mask = [[True, True], [True, False]]
    statistics = recorded({"x": np.array([[1, 2], [3, math.nan]]), "mean": 7.0}, mask=mask, n=3)
    assert statistics == {"x": Moments.of([1, 2, 3]), "mean": Moments(n=3, mean=7.0, m2=None)}
    assert recorded({"x": [5, 6]}, mask=np.array([0.0, 1.0]))["x"] == Moments.of([6])
    with raises(MetricInvalid, "(3,)", "(2,)"):
        recorded({"x": [1, 2, 3]}, mask=[1, 0])
    with raises(MetricInvalid, "()", "(2,)"):
        recorded({"x": 1.0}, mask=[1, 0])
    with raises(MetricInvalid, "1 samples", "n=2"):
        recorded({"x": 1.0}, mask=[1, 0], n=2)
    with raises(MetricInvalid, "True"):
        recorded({"x": [1, 2]}, mask=[0.5, 1])


def test_a_metric_is_merged_as_it_is() -> None:
    recorder = Recorder()
    for nll in ([1.0, 2.0], [3.0]):
        recorder.record({"ppl": Perplexity.of(nll), "loss": np.mean(nll)}, n=len(nll))
    assert recorder.statistics()["ppl"] == Perplexity.of([1.0, 2.0, 3.0])
    assert moments(recorder, "loss").mean == 2.0


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("0.5", "is '0.5', a str"),
        (None, "is None, a NoneType"),
        (1j, "a complex"),
        ([1j], "a list"),
        (["a"], "give a number, an array"),
        ([[1], [1, 2]], "of equal shape"),
        (10**400, "must fit in a float"),
        (OnlyItem("x"), "is not a number"),
        (Tensor([1.0], gradient=True), "tensor.detach()"),
        (np.array([1], dtype="datetime64[s]"), "a ndarray"),
    ],
)
def test_what_is_no_number_is_refused(bad: object, why: str) -> None:
    with raises(MetricInvalid, "loss", why):
        recorded({"loss": bad})


@pytest.mark.parametrize("bad", [{"n": -1}, {"n": 1.0}, {"n": True}, {"seed": -1}, {"seed": "a"}])
def test_ill_formed_counts_and_seeds_are_refused(bad: dict[str, Any]) -> None:
    ((name, value),) = bad.items()
    with raises(MetricInvalid, name, repr(value)):
        recorded({"x": 1}, **bad)


def test_a_refused_record_changes_nothing() -> None:
    recorder = Recorder()
    recorder.record({"x": 1, "h": Sum.of([1])}, seed=1)
    before = recorder.statistics()
    with raises(MetricMismatch, "h", "Sum", "Moments"):
        recorder.record({"x": 2, "h": 3}, seed=2)
    with pytest.raises(MetricInvalid):
        recorder.record({"x": 2, "y": "no number"}, seed=2)
    assert recorder.statistics() == before


def test_seeds_are_kept_beside_the_whole() -> None:
    recorder = Recorder()
    recorder.record({"return": [1, 3]}, seed=5)
    recorder.record({"return": 4, "least": Minimum.of([2])}, seed=6)
    recorder.record({"return": 7}, seed=5)
    recorder.record({"return": 0}, seed=9, n=0)
    statistics = recorder.statistics()
    assert list(statistics) == ["return", "least", "return@seed"]
    assert statistics["return"].count == 4
    assert statistics["return@seed"].summary()[""] == pytest.approx((11 / 3 + 4) / 2)
    seeds = statistics["return@seed"]
    assert isinstance(seeds, PerSeed)
    assert seeds.seeds[6] == Moments(n=1, mean=4.0)
    assert set(seeds.seeds) == {5, 6}


def values_of(statistics: dict[str, Metric]) -> dict[str, float]:
    return {
        f"{name} {key}": value for name, metric in statistics.items() for key, value in metric.summary().items()
    }


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 60),
    shards=st.sampled_from([1, 2, 7]),
    offset=st.sampled_from([0.0, 1e6]),
    data=st.data(),
)
def test_statistics_do_not_depend_on_shards_and_batches(
    seed: int, n: int, shards: int, offset: float, data: Any
) -> None:
    samples = np.random.default_rng(seed).normal(offset, 1, n)

    def record(recorder: Recorder, part: Any, number: int) -> None:
        metrics = {
            "x": part,
            "total": Sum.of(part),
            "nll": Perplexity.of(abs(part - offset)),
        }
        recorder.record(metrics, seed=number % 3)

    parts: list[dict[str, Metric]] = []
    for indices in np.array_split(np.arange(n), shards):
        recorder = Recorder()
        at = 0
        while at < len(indices):
            size = data.draw(st.integers(1, len(indices) - at))
            # What has one seed goes into one call.
            batch = indices[at : at + size]
            for number in range(3):
                record(recorder, samples[batch[batch % 3 == number]], number)
            at += size
        parts.append(recorder.statistics())
    whole = Recorder()
    for number in range(3):
        record(whole, samples[np.arange(n) % 3 == number], number)
    expected, found = values_of(whole.statistics()), values_of(merge_shards(parts, expected=n))
    assert found.keys() == expected.keys()
    # Of samples about 0 the mean may be tiny; the error is then 1e-12 of their spread.
    assert found == pytest.approx(expected, rel=1e-12, abs=0 if offset else 1e-12, nan_ok=True)


def test_shards_must_have_the_same_names() -> None:
    full, lacking = recorded({"a": 1, "b": 2}), recorded({"a": 1})
    with raises(MetricMismatch, "shard 1", "2", "b", "a"):
        merge_shards([full, lacking], expected=None)
    assert merge_shards([{}, full, recorded({"a": 0}, n=0)], expected=1) == full
    assert merge_shards([], expected=None) == merge_shards([{}, {}], expected=0) == {}


def test_shards_must_have_the_same_types() -> None:
    with raises(MetricMismatch, "a", "Sum", "Moments"):
        merge_shards([recorded({"a": 1}), recorded({"a": Sum.of([1])})], expected=2)


def test_every_sample_must_have_been_counted() -> None:
    shards = [recorded({"a": [1, 2], "ppl": Perplexity.of([1])}), {}, recorded({"a": 1, "ppl": Perplexity.of([])})]
    assert merge_shards(shards, expected=3)["a"].count == 3
    assert merge_shards(shards, expected=None)["a"].count == 3
    with raises(SamplesDiffer, "a", "3 samples", "4", "shard 0", "2", "1"):
        merge_shards(shards, expected=4)
    with pytest.raises(SamplesDiffer, match="counted twice"):
        merge_shards(shards, expected=2)
    with raises(SamplesDiffer, "2 shards"):
        merge_shards([{}, {}], expected=10)


def test_a_mean_may_come_with_its_standard_error() -> None:
    (one,) = recorded({"acc": 0.61}, n=1000, stderr=0.015).values()
    assert one.summary() == {"": 0.61, "stderr": pytest.approx(0.015), "n": 1000}
    samples = [0.0, 1.0, 1.0, 4.0]
    whole = Moments.of(samples)
    assert whole.stderr is not None
    assert Moments.of_mean(1.5, 4, whole.stderr).m2 == pytest.approx(whole.m2)
    merged = Moments.of_mean(1.5, 4, whole.stderr).merge(Moments.of([2.0, 8.0]))
    assert merged.stderr == pytest.approx(Moments.of([*samples, 2.0, 8.0]).stderr)


@pytest.mark.parametrize(
    ("value", "options", "facts"),
    [
        (0.5, {"stderr": 0.1}, ("n=",)),
        (0.5, {"stderr": 0.1, "n": 1}, ("n=",)),
        (0.5, {"stderr": -0.1, "n": 9}, ("-0.1",)),
        (0.5, {"stderr": math.nan, "n": 9}, ("nan",)),
        (0.5, {"stderr": [0.1, 0.2], "n": 9}, ("[0.1, 0.2]",)),
        ([0.5, 0.7], {"stderr": 0.1, "n": 2}, ("samples", "0.1")),
    ],
)
def test_a_standard_error_that_makes_no_sense_is_refused(
    value: object, options: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with raises(MetricInvalid, *facts):
        recorded({"acc": value}, **options)
