"""Means, intervals and tests: published tables, scipy, and all permutations."""

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from effort import times
from phyla.significance import (
    clustered,
    deviation_of,
    difference_interval,
    mean_interval,
    mean_of,
    rank_sum,
    replicates_needed,
    signed_rank,
    smallest_p,
    welch,
)

SMALL = st.integers(-4, 4).map(float)
MEASURED = st.integers(-1000, 1000).map(lambda value: value / 64)


def two_sided(reached: float, sums: list[float]) -> float:
    """Return twice the share of all sums that are at least as far out, on the side where that is less."""
    least = min(sum(total >= reached for total in sums), sum(total <= reached for total in sums))
    return min(1.0, 2 * least / len(sums))


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        # Of all signs of n differences two are the best and the worst: 2 / 2**n, the smallest p there is.
        ([1.0, 2.0, 3.0, 4.0, 5.0], 2 / 32),
        # Hollander and Wolfe, Nonparametric Statistical Methods, table 3.1: T+ = 40 of n = 9 has p = 0.020 on one
        # side.
        ([0.952, -0.147, 1.022, 0.430, 0.620, 0.590, 0.490, -0.080, 0.010], 20 / 512),
        ([0.0, 0.0], 1.0),
        ([], 1.0),
        ([-1.0, -2.0], 2 / 4),
    ],
)
def test_known_values_of_the_signed_rank_test(differences: list[float], p: float) -> None:
    assert signed_rank(differences, [0.0] * len(differences)) == pytest.approx(p, abs=1e-12)


@given(st.lists(SMALL, max_size=times(6, 9)))
def test_the_signed_rank_test_counts_all_signs(differences: list[float]) -> None:
    kept = [difference for difference in differences if difference]
    ranks = stats.rankdata([abs(difference) for difference in kept])
    reached = sum(rank for rank, difference in zip(ranks, kept, strict=True) if difference > 0)
    sums = [
        sum(rank for rank, up in zip(ranks, signs, strict=True) if up)
        for signs in itertools.product((False, True), repeat=len(kept))
    ]
    assert signed_rank(differences, [0.0] * len(differences)) == pytest.approx(two_sided(reached, sums), abs=1e-12)


@given(st.lists(MEASURED, min_size=1, max_size=40))
def test_the_signed_rank_test_is_scipys_without_ties(differences: list[float]) -> None:
    assume(all(differences))
    assume(len({abs(difference) for difference in differences}) == len(differences))
    zeros = [0.0] * len(differences)
    expected = stats.wilcoxon(differences, method="exact").pvalue
    assert signed_rank(differences, zeros) == pytest.approx(expected, rel=1e-9)


@given(st.lists(SMALL, min_size=2, max_size=4), st.lists(SMALL, min_size=2, max_size=4))
def test_the_rank_sum_test_counts_all_splits(first: list[float], second: list[float]) -> None:
    ranks = stats.rankdata([*first, *second])
    reached = sum(ranks[: len(first)])
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(first))]
    assert rank_sum(first, second) == pytest.approx(two_sided(reached, sums), abs=1e-12)


@given(st.lists(MEASURED, min_size=2, max_size=30, unique=True), st.data())
def test_the_rank_sum_test_is_scipys_without_ties(values: list[float], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(values) - 1))
    first, second = values[:size], values[size:]
    expected = stats.mannwhitneyu(first, second, method="exact").pvalue
    assert rank_sum(first, second) == pytest.approx(expected, rel=1e-9)


def test_many_values_are_exact_too() -> None:
    first, second = [float(value) for value in range(80)], [value + 0.5 for value in range(20, 100)]
    expected = stats.mannwhitneyu(second, first, method="exact").pvalue
    assert rank_sum(second, first) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "paired", "needed"),
    [
        # Cohen 1988, table 2.4.1: a difference of half a standard deviation takes 64 values of each for a t-test
        # at 5 % and 80 % power. The normal approximation gives 62.8; a rank test needs pi / 3 times as many.
        ([0.5 - 2**-0.5, 0.5 + 2**-0.5], [-(2**-0.5), 2**-0.5], False, 66),
        ([0.5 - 2**-0.5, 0.5 + 2**-0.5], [0.0, 0.0], True, 33),
        # Rank tests cannot fall below 5 % with fewer, however large the difference is.
        ([9.0, 9.1, 9.2], [1.0, 1.1, 1.3], True, 6),
        ([9.0, 9.1, 9.2], [1.0, 1.1, 1.3], False, 4),
        # Of two pairs one is equal, so six that differ take twelve.
        ([9.0, 9.0, 9.0, 1.0], [9.0, 1.0, 1.0, 1.0], True, 12),
        ([1.0, 2.0], [2.0, 1.0], False, None),
        ([1.0], [2.0], True, None),
    ],
)
def test_replicates_needed(first: list[float], second: list[float], paired: bool, needed: int | None) -> None:
    assert replicates_needed(first, second, paired=paired) == needed


def test_so_many_replicates_have_the_power_that_was_asked_for() -> None:
    rng, count, draws = np.random.default_rng(0), 66, times(200, 400)
    found = sum(
        rank_sum(rng.normal(0.5, 1, count).tolist(), rng.normal(0, 1, count).tolist()) < 0.05 for _ in range(draws)
    )
    assert 0.74 < found / draws < 0.86


@given(
    st.lists(MEASURED, min_size=2, max_size=9, unique=True),
    st.lists(MEASURED, min_size=2, max_size=9, unique=True),
)
def test_welchs_test_is_scipys(first: list[float], second: list[float]) -> None:
    summaries = [(float(np.mean(one)), float(stats.sem(one)), len(one)) for one in (first, second)]
    for alternative in ("two-sided", "greater"):
        found = welch(summaries[0], summaries[1], alternative=alternative)
        expected = stats.ttest_ind(first, second, equal_var=False, alternative=alternative).pvalue
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("difference", [1e-2, 1e-5, 1e-11])
def test_replicates_needed_for_differences_that_hardly_exist(difference: float, paired: bool) -> None:
    first, second = [1.0, 2.0, 3.0], [2.0, 3.0, 1.0 + 3 * difference]
    needed = replicates_needed(first, second, paired=paired)
    z = stats.norm.isf(0.025) + stats.norm.ppf(0.8)
    variance = 3 if paired else 2
    assert needed == pytest.approx(z**2 * variance / difference**2 * np.pi / 3, rel=0.02)


@pytest.mark.parametrize("paired", [False, True])
def test_the_smallest_p_of_any_number_of_replicates(paired: bool) -> None:
    sizes = [1, 2, 3, 25, 500, 1000, 1099, 1100, 10**6, 10**12]
    found = [smallest_p(size, size, paired=paired) for size in sizes]
    assert found == sorted(found, reverse=True)
    assert found[2] == (2 / 8 if paired else 2 / 20)
    assert found[-1] == 0


def test_few_values_against_many_are_exact() -> None:
    many = [float(value) for value in range(3000)]
    assert rank_sum([-2.0, -1.0], many) == pytest.approx(smallest_p(2, 3000, paired=False))


def test_rank_tests_of_a_thousand_values() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.1, 1, 1000).tolist(), rng.normal(0, 1, 1000).tolist()
    expected = stats.mannwhitneyu(first, second, method="asymptotic").pvalue
    assert rank_sum(first, second) == pytest.approx(expected)
    differences = [a - b for a, b in zip(first, second, strict=True)]
    assert signed_rank(first, second) == pytest.approx(stats.wilcoxon(differences, method="asymptotic").pvalue)


NORMAL = st.floats(-1e3, 1e3).map(lambda value: value if abs(value) > 1e-3 else 0.0)


@given(
    st.lists(NORMAL, min_size=2, max_size=9), st.lists(NORMAL, min_size=2, max_size=9), st.integers(-1000, 1013)
)
def test_statistics_do_not_depend_on_the_unit(first: list[float], second: list[float], power: int) -> None:
    """Powers of two scale floats without rounding, so everything scales exactly, up to the largest float."""
    unit = 2.0**power
    ours, theirs = ([value * unit for value in sample] for sample in (first, second))
    assert mean_of(ours) == mean_of(first) * unit
    assert deviation_of(ours) == deviation_of(first) * unit
    scaled = tuple(end * unit for end in difference_interval(first, second, paired=False))
    assert difference_interval(ours, theirs, paired=False) == scaled
    assert mean_interval(ours) == tuple(end * unit for end in mean_interval(first))
    assert replicates_needed(ours, theirs, paired=False) == replicates_needed(first, second, paired=False)
    mean, stderr, p = clustered(first, range(len(first)))
    assert stderr is not None
    assert clustered(ours, range(len(first))) == (mean * unit, stderr * unit, p)


@pytest.mark.parametrize("size", [1, 2, 25, 1000])
@pytest.mark.parametrize("value", [sys.float_info.max, -sys.float_info.max, 5e-324, 0.0])
def test_the_mean_of_equal_values(value: float, size: int) -> None:
    assert mean_of([value] * size) == value
    assert size < 2 or deviation_of([value] * size) == 0


def test_where_a_standard_error_is_beyond_a_float_nothing_is_significant() -> None:
    opposite = [sys.float_info.max, -sys.float_info.max]
    assert deviation_of(opposite) == math.inf
    assert welch((1.0, math.inf, 2), (0.0, 1.0, 2)) == 1
