"""Differences of two models, sample by sample."""

import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from phyla.evaluation.paired import ModelScore, compare_models
from phyla.significance import clustered, holm

VALUES = st.lists(st.floats(-10, 10), min_size=2, max_size=30)


@given(VALUES)
def test_without_groups_it_is_the_one_sample_t_test(values: list[float]) -> None:
    mean, stderr, p = clustered(values, range(len(values)))
    assert mean == pytest.approx(fmean(values), abs=1e-12)
    if max(values) - min(values) > 1e-6:
        expected = stats.ttest_1samp(values, 0.0)
        assert stderr == pytest.approx(stats.sem(values), rel=1e-6)
        assert p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)


@given(VALUES, st.integers(2, 5))
def test_samples_that_are_repeated_in_their_group_say_nothing_new(values: list[float], times: int) -> None:
    once = clustered(values, range(len(values)))
    repeated = clustered(values * times, [*range(len(values))] * times)
    assert repeated == pytest.approx(once, rel=1e-9, abs=1e-9)


def test_one_group_has_no_standard_error() -> None:
    assert clustered([1.0, 2.0], ["a", "a"]) == (1.5, None, None)


@pytest.mark.parametrize("count", [2, 3, 5, 6, 20, 2000])
@pytest.mark.parametrize("value", [1.0, -0.1])
def test_equal_differences_are_as_significant_as_their_signs(count: int, value: float) -> None:
    signs = stats.binomtest(count, count).pvalue
    for times in (1, 3):
        mean, stderr, p = clustered([value] * times * count, [*range(count)] * times)
        assert mean == pytest.approx(value)
        assert stderr == 0
        assert p == pytest.approx(signs)
    assert clustered([0.0] * count, range(count)) == (0.0, 0.0, 1.0)


def test_groups_that_differ_by_rounding_errors_do_not_differ() -> None:
    mean, stderr, p = clustered([0.1, 0.2, -0.3] * 20, [index // 3 for index in range(60)])
    assert mean != 0
    assert abs(mean) < 1e-16
    assert (stderr, p) == (0, 1)


@pytest.mark.parametrize("count", [2, 3, 4, 20])
def test_equal_values_of_different_samples_are_as_significant_as_their_ranks(count: int) -> None:
    right = score({f"a{key}": 1.0 for key in range(count)})
    wrong = score({f"b{key}": 0.0 for key in range(count)})
    (row,) = compare_models({("t", "acc"): (right, wrong)})
    assert (row.paired, row.difference, row.stderr) == (0, 1, 0)
    assert row.p == pytest.approx(2 / math.comb(2 * count, count))
    (same,) = compare_models({("t", "acc"): (right, replace(wrong, value=1.0))})
    assert same.p == 1


def score(values: dict[str, float], groups: dict[str, str] | None = None) -> ModelScore:
    sample = list(values.values())
    return ModelScore(
        value=fmean(sample), stderr=float(stats.sem(sample)), n=len(sample), samples=values, groups=groups or {}
    )


def test_pairs_are_those_that_both_models_have() -> None:
    first = score({"a": 1.0, "b": 0.0, "c": 1.0, "only": 1.0})
    second = score({"c": 0.0, "b": 0.0, "a": 1.0, "other": 0.0})
    (row,) = compare_models({("t", "acc"): (first, second)})
    assert (row.paired, row.groups) == (3, 3)
    assert [row.value, row.reference] == pytest.approx([2 / 3, 1 / 3])
    assert row.difference == pytest.approx(1 / 3)
    assert row.stderr == pytest.approx(1 / 3)


def test_groups_widen_the_interval_of_samples_that_agree() -> None:
    values = {str(index): float(index % 6 < 3) for index in range(60)}
    zero = dict.fromkeys(values, 0.0)
    groups = {key: str(int(key) // 3) for key in values}
    (alone,) = compare_models({("t", "acc"): (score(values), score(zero))})
    (grouped,) = compare_models({("t", "acc"): (score(values, groups), score(zero))})
    assert grouped.groups == 20
    assert alone.stderr is not None
    assert grouped.stderr == pytest.approx(alone.stderr * math.sqrt(3) * math.sqrt(59 / 60 * 20 / 19), rel=1e-6)


def test_without_samples_in_common_means_are_compared() -> None:
    first, second = score({"a": 1.0, "b": 2.0, "c": 3.0}), score({"x": 2.0, "y": 3.0, "z": 4.0})
    (row,) = compare_models({("t", "loss"): (first, second)})
    assert row.paired == 0
    expected = stats.ttest_ind([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], equal_var=False)
    assert row.p == pytest.approx(expected.pvalue)
    assert row.stderr == pytest.approx(math.hypot(stats.sem([1, 2, 3]), stats.sem([2, 3, 4])))
    (unknown,) = compare_models({("t", "loss"): (ModelScore(value=1.0), second)})
    assert (unknown.difference, unknown.stderr, unknown.p, unknown.adjusted) == (-2.0, None, None, None)


def test_p_is_adjusted_for_the_number_of_eval_tasks() -> None:
    rng = random.Random(0)
    scores = {
        (f"task{task}", "acc"): tuple(
            score({str(key): rng.gauss(shift * task, 1) for key in range(30)}) for shift in (0.1, 0.0)
        )
        for task in range(8)
    }
    rows = compare_models({key: (first, second) for key, (first, second) in scores.items()})
    assert [row.adjusted for row in rows] == holm([row.p or 0.0 for row in rows])


def test_samples_that_do_not_average_to_the_value_are_not_compared_in_its_place() -> None:
    """The samples of perplexity are log-likelihoods: more of them is better, and less perplexity is."""

    def perplexity(likelihoods: list[float]) -> ModelScore:
        value = math.exp(-sum(likelihoods) / len(likelihoods))
        samples = {str(key): sample for key, sample in enumerate(likelihoods)}
        return ModelScore(value=value, stderr=value / 10, n=len(likelihoods), samples=samples)

    worse, better = perplexity([-3.0, -3.5, -4.0, -2.5]), perplexity([-1.0, -1.5, -2.0, -1.5])
    (row,) = compare_models({("t", "perplexity"): (worse, better)})
    assert (row.value, row.reference, row.paired) == (worse.value, better.value, 0)
    assert row.difference == worse.value - better.value > 0


def test_rounded_samples_and_some_of_the_samples_are_compared() -> None:
    exact = [0.1234, 0.5678, 0.9123]
    for digits, n in ((2, 3), (4, 300)):
        samples = {str(key): round(value, digits) for key, value in enumerate(exact)}
        score = ModelScore(value=sum(exact) / 3 + (n > 3), n=n, samples=samples)
        (row,) = compare_models({("t", "loss"): (score, score)})
        assert row.paired == 3
