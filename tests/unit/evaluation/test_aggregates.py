"""From tasks to a suite: what each aggregator says, and that no name is given twice."""

import math
from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from facts import raises
from phyla.errors import ConfigurationError, MetricInvalid, MetricMissing
from phyla.evaluation import (
    Aggregator,
    Estimate,
    EvalTask,
    Mean,
    Metric,
    Moments,
    Perplexity,
    Suite,
    TaskResult,
    WeightedMean,
    Worst,
)
from phyla.evaluation.aggregates import aggregate
from phyla.evaluation.recorder import Recorder
from phyla.evaluation.suite import check_aggregate


def task(name: str, *samples: float, tags: Sequence[str] = (), weight: float = 1.0, **more: Metric) -> TaskResult:
    return TaskResult(task=name, tags=tags, weight=weight, metrics={"score": Moments.of(samples), **more})


TASKS = [
    task("a", 1, 3, tags=["easy"], weight=3),
    task("b", 4, 6, tags=["easy", "new"]),
    task("c", 10, 14, tags=["new"], weight=0),
]
"""Means 2, 5, 12 with standard errors 1, 1, 2."""


def about(value: float, stderr: float) -> Any:
    return Estimate(pytest.approx(value), pytest.approx(stderr))  # type: ignore[arg-type]


def only(aggregator: Aggregator, results: Sequence[TaskResult] = TASKS) -> tuple[str, Estimate]:
    ((name, estimate),) = aggregate([aggregator], results).items()
    return name, estimate


def test_mean() -> None:
    assert only(Mean("score")) == ("score_mean", about(19 / 3, math.sqrt(6) / 3))
    assert only(Mean("score", "new")) == ("new/score_mean", about(8.5, math.sqrt(5) / 2))
    assert only(Mean("score_n")) == ("score_n_mean", Estimate(2.0))


def test_weighted_mean() -> None:
    expected = about(11 / 4, math.sqrt(10) / 4)
    assert only(WeightedMean("score")) == ("score_weighted", expected)
    assert only(WeightedMean("score", "new")) == ("new/score_weighted", Estimate(5.0, 1.0))
    with raises(ConfigurationError, "score", "weight 0"):
        only(WeightedMean("score"), TASKS[2:])


def test_worst() -> None:
    assert only(Worst("score")) == ("score_min", Estimate(2.0))
    assert only(Worst("score", "max", tag="easy")) == ("easy/score_max", Estimate(5.0))
    with raises(ConfigurationError, "min", "max"):
        Worst("score", "low")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "aggregator",
    [
        Mean("score"),
        WeightedMean("score"),
        Worst("score"),
        Worst("score", "max"),
    ],
)
@pytest.mark.parametrize("place", range(4))
def test_a_task_that_is_nan_is_not_dropped(aggregator: Aggregator, place: int) -> None:
    results = [*TASKS[:place], task("d", math.nan, 1), *TASKS[place:]]
    assert math.isnan(only(aggregator, results)[1].value)


def test_infinities_of_both_signs_are_nan() -> None:
    results = [task("a", math.inf), task("b", -math.inf)]
    assert math.isnan(only(Mean("score"), results)[1].value)
    assert only(Mean("score"), results[:1])[1].value == math.inf


def test_an_unknown_error_makes_that_of_the_mean_unknown() -> None:
    assert only(Mean("score"), [TASKS[0], task("d", 4)]) == ("score_mean", Estimate(3.0, None))


def test_without_aggregators_everything_has_its_mean() -> None:
    recorder = Recorder()
    recorder.record({"score": [1, 3]}, seed=1)
    seeded = TaskResult(task="d", metrics=recorder.statistics())
    results = [*TASKS, task("e", 1, 1, ppl=Perplexity.of([0.0])), seeded]
    found = aggregate([], results)
    assert list(found) == ["score_mean", "easy/score_mean", "new/score_mean", "ppl_mean"]
    assert found["score_mean"].value == pytest.approx((2 + 5 + 12 + 1 + 2) / 5)
    assert found["easy/score_mean"] == about(3.5, math.sqrt(2) / 2)
    assert found["ppl_mean"] == Estimate(1.0)
    assert aggregate([], []) == {}


def test_one_name_from_two_aggregators_names_both() -> None:
    with raises(ConfigurationError, "score_mean", "Mean(", "score", "best"):
        aggregate([Mean("score"), best], TASKS)


def best(results: Sequence[TaskResult]) -> dict[str, float]:
    return {"score_mean": max(result.values["score"] for result in results)}


def test_a_function_is_an_aggregator() -> None:
    assert aggregate([best], TASKS) == {"score_mean": Estimate(12.0)}


def estimate(value: Any, stderr: Any = None) -> Estimate:
    """Return what a plug-in without types may make."""
    return Estimate(value, stderr)


@pytest.mark.parametrize(
    "given",
    [
        {"x": np.float32(0.5)},
        {"x": np.array(0.5)},
        {"x": Fraction(1, 2)},
        {"x": estimate(np.float32(0.5), np.float64(0.25))},
    ],
)
def test_numbers_of_other_libraries_become_floats(given: Any) -> None:
    (number,) = aggregate([lambda _: given], TASKS).values()
    assert type(number.value) is float
    assert number.value == 0.5
    assert type(number.stderr) in (float, type(None))


@pytest.mark.parametrize(
    "given",
    [
        None,
        [("x", 1.0)],
        {3: 1.0},
        {"x": None},
        {"x": "0.5"},
        {"x": [0.5]},
        {"x": np.ones(2)},
        {"x": estimate(None)},
        {"x": estimate(0.5, "0.1")},
    ],
)
def test_what_is_no_number_is_refused_before_it_is_stored(given: Any) -> None:
    with raises(MetricInvalid):
        aggregate([lambda _: given], TASKS)


@pytest.mark.parametrize("said", [{"": None}, {"": 0.5, "stderr": "0.1"}, {"": 0.5, "p90": [1.0]}])
def test_a_metric_of_a_plug_in_that_says_no_numbers_is_refused(said: Any) -> None:
    odd: Any = SimpleNamespace(count=2, summary=lambda: said)
    with raises(MetricInvalid, "odd"):
        aggregate([Mean("odd"), Mean("odd_p90")], [task("a", 1, 2, odd=odd)])


@pytest.mark.parametrize(
    "rule",
    [
        Mean("score"),
        WeightedMean("score", "easy"),
        Worst("score", "max"),
    ],
)
def test_built_in_aggregates_announce_the_names_that_they_give(rule: Any) -> None:
    assert tuple(rule(TASKS)) == rule.aggregate_names


def test_an_objective_that_a_plug_in_never_gives_is_refused() -> None:
    class Best:
        aggregate_names = ("score_best",)

        def __call__(self, results: Sequence[TaskResult], /) -> dict[str, float]:
            return {"score_best": max(result.values["score"] for result in results)}

    announced = Suite("s", [EvalTask("a", lambda evaluation: None)], aggregates=[Best()])
    check_aggregate(announced, "score_best", "the objective")
    with raises(ConfigurationError, "score_best"):
        check_aggregate(announced, "score_bets", "the objective")
    silent = Suite("s", announced.tasks, aggregates=[Best(), best])
    check_aggregate(silent, "anything", "the objective")


@pytest.mark.parametrize(("tags", "needed"), [((), True), (("easy",), False)])
def test_an_objective_on_one_eval_task_is_said_to_need_a_tag(tags: Sequence[str], *, needed: bool) -> None:
    suite = Suite("s", [EvalTask("easy", lambda evaluation: None, tags=tags)])
    with raises(ConfigurationError, "easy/score_mean") as refused:
        check_aggregate(suite, "easy/score", "the objective")
    assert ("Give eval task 'easy' a tag of that name" in str(refused.value)) is needed


def test_what_a_task_lacks_is_named() -> None:
    with raises(MetricMissing, "loss", "a", "b", "score", "score_stderr"):
        aggregate([Mean("loss")], [*TASKS[:2], task("d", 1, loss=Moments.of([1]))])
    with raises(MetricMissing, "a", "loss", "score"):
        TASKS[0].estimate("loss")


def test_a_tag_that_no_task_has_is_named() -> None:
    with raises(ConfigurationError, "hard", "easy", "new"):
        aggregate([Worst("score", tag="hard")], TASKS)
    with raises(ConfigurationError, "Mean(metric='score', tag=None)"):
        aggregate([Mean("score")], [])


def test_the_values_of_a_task_are_flat() -> None:
    values = task("a", 1, 3, top=Perplexity.of([0.0, 0.0])).values
    assert values["score"] == 2
    assert values["score_stderr"] == 1
    assert (values["top"], values["top_nll"], values["top_tokens"]) == (1, 0, 2)
    with raises(MetricInvalid, "score_n", "score"):
        assert task("a", 1, score_n=Moments()).values
    with raises(ConfigurationError, "weight=-1"):
        task("a", weight=-1)
