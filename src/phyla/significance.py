"""Tests of whether one sample is above another, by SciPy, which is imported with the first test.

A t-test divides by the variance. Where samples do not vary, `welch` decides by their means, and `clustered` by
the signs of the groups.
"""

import math
import statistics
from collections.abc import Collection, Sequence
from typing import Any, Literal, TypeAlias

Alternative: TypeAlias = Literal["two-sided", "greater"]
Summary: TypeAlias = tuple[float, float, int]
"""The mean of a sample, which is finite, its standard error, and its size, at least 2."""

ROUNDING = 1e-12
"""Differences below this share of the values compared are rounding errors."""
ARRANGEMENTS = 100_000
"""Arrangements of tied values up to which a rank test counts all of them."""
EXACT = 10_000
"""Product of the sizes of samples without ties up to which a rank test is exact; with more it takes too long."""
COUNTED = 1100
"""Size of both samples from which a float does not hold the number of their arrangements."""
RANK_EFFICIENCY = 3 / math.pi
"""Efficiency of a rank test relative to a t-test, for normal values (Hodges and Lehmann 1956)."""


def unit_of(values: Collection[float]) -> float:
    """Return a power of two in units of which finite values are about 1, so that sums and squares do not overflow.

    Dividing by it rounds nothing but values that are negligible beside the largest.
    """
    _, exponent = math.frexp(max(map(abs, values), default=0.0))
    return math.ldexp(1.0, max(exponent - 2, -1074))


def mean_of(values: Collection[float]) -> float:
    """Return the mean of at least one finite value of any size."""
    unit = unit_of(values)
    return unit * statistics.fmean(value / unit for value in values)


def median_of(values: Collection[float]) -> float:
    """Return the median of at least one finite value of any size."""
    unit = unit_of(values)
    return unit * statistics.median(value / unit for value in values)


def deviation_of(values: Collection[float]) -> float:
    """Return the sample standard deviation of at least two finite values of any size."""
    unit = unit_of(values)
    return unit * statistics.stdev(value / unit for value in values)


def welch(first: Summary, second: Summary, *, alternative: Alternative = "greater") -> float:
    """Return p of Welch's t-test: one-sided it is small if the first mean is above the second.

    It is 1 where a standard error is beyond a float. Where neither sample varies, it is 0 or 1 by the means.
    """
    # A decision calls this inside a transaction, and importing scipy.stats takes a second: only t's distribution.
    from scipy.special import stdtr

    (mean, first_stderr, first_n), (other, second_stderr, second_n) = first, second
    difference = abs(mean - other) if alternative == "two-sided" else mean - other
    rounding = ROUNDING * max(abs(mean), abs(other))
    stderr = math.hypot(first_stderr, second_stderr)
    if not math.isfinite(stderr):
        return 1.0
    if stderr <= rounding:
        return 0.0 if difference > rounding else 1.0
    share = (first_stderr / stderr) ** 2
    freedom = 1 / (share**2 / (first_n - 1) + (1 - share) ** 2 / (second_n - 1))
    return (2 if alternative == "two-sided" else 1) * float(stdtr(freedom, -difference / stderr))


def difference_interval(first: Sequence[float], second: Sequence[float], *, paired: bool) -> tuple[float, float]:
    """Return the 95 % t-interval of the difference of the means of samples of at least 2: Welch's, or of pairs."""
    from scipy.special import stdtrit

    unit = unit_of([*first, *second])
    first, second = ([value / unit for value in sample] for sample in (first, second))
    if paired:
        differences, _ = _differences(first, second)
        mean, freedom = statistics.fmean(differences), len(differences) - 1.0
        stderr = statistics.stdev(differences) / math.sqrt(len(differences))
    else:
        mean = statistics.fmean(first) - statistics.fmean(second)
        parts = [statistics.variance(sample) / len(sample) for sample in (first, second)]
        stderr = math.sqrt(sum(parts))
        squares = sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, (first, second), strict=True))
        freedom = sum(parts) ** 2 / squares if squares else 1.0
    wide = float(stdtrit(freedom, 0.975)) * stderr
    return unit * (mean - wide), unit * (mean + wide)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % t-interval of the mean of at least one finite value; that of one is infinite."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return -math.inf, math.inf
    mean, stderr = mean_of(values), deviation_of(values) / math.sqrt(len(values))
    wide = float(stdtrit(len(values) - 1.0, 0.975)) * stderr
    return mean - wide, mean + wide


def clustered(values: Sequence[float], groups: Sequence[object]) -> tuple[float, float | None, float | None]:
    """Return the mean of finite values, its standard error, and the two-sided p of a mean of 0.

    Values of one group are not independent of each other; groups are. With fewer than two groups the standard
    error and p are None.
    Sources: Liang and Zeger 1986 (the variance), with the factor G / (G - 1) and Student's t with G - 1 degrees of
    freedom for G groups (Cameron and Miller 2015, A practitioner's guide to cluster-robust inference). If each
    value is a group, it is the one-sample t-test. Where groups do not vary, that gives p = 0 for any number of
    them, so p is that of the sign test of the groups.
    """
    from scipy.special import stdtr

    unit, mean = unit_of(values), mean_of(values)
    sums: dict[object, float] = {}
    for value, group in zip(values, groups, strict=True):
        sums[group] = sums.get(group, 0.0) + (value / unit - mean / unit)
    if len(sums) < 2:
        return mean, None, None
    squares = math.fsum(total * total for total in sums.values())
    stderr = unit * math.sqrt(squares * len(sums) / (len(sums) - 1)) / len(values)
    rounding = ROUNDING * max(map(abs, values))
    if stderr <= rounding:
        return mean, 0.0, smallest_p(len(sums), len(sums), paired=True) if abs(mean) > rounding else 1.0
    return mean, stderr, 2 * float(stdtr(len(sums) - 1.0, -abs(mean) / stderr))


def signed_rank(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p of Wilcoxon's signed-rank test of finite values and their partners, in one order.

    Pairs without a difference are left out. It is exact, unless there are ties in more than 16 pairs, or more than
    100 pairs: then it is a normal approximation.
    """
    from scipy import stats

    differences = nonzero_differences(first, second)
    if not differences:
        return 1.0
    count = len(differences)
    method = _method([abs(difference) for difference in differences], count, count, paired=True)
    return float(stats.wilcoxon(differences, method=method).pvalue)


def rank_sum(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p of the Mann-Whitney test of independent samples of at least two finite values.

    It is exact, unless tied values can be split in more than 100,000 ways, or the product of the sizes of the
    samples is above 10,000: then it is a normal approximation.
    """
    from scipy import stats

    method = _method([*first, *second], len(first), len(second), paired=False)
    return float(stats.mannwhitneyu(first, second, method=method).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests, in the same order.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    adjusted, floor = [1.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        floor = max(floor, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = floor
    return adjusted


def replicates_needed(
    first: Sequence[float], second: Sequence[float], *, paired: bool, alpha: float = 0.05
) -> int | None:
    """Return how many replicates of each it takes to find the observed difference of the means significant.

    Method: the normal approximation of the sample size of a two-sided t-test with a power of 80 % (Cohen 1988,
    Statistical Power Analysis for the Behavioral Sciences), `((z(1 - alpha / 2) + z(0.8)) * s / d)²` with the
    observed difference d of the means, and s² the variance of the paired differences or the sum of both variances;
    divided by the efficiency 3/pi of rank tests. It is never less than the fewest replicates with which the exact
    rank test can fall below alpha, if as large a share of pairs has no difference again. None with fewer than
    two values of either, or without a difference.
    """
    from scipy import stats

    if min(len(first), len(second)) < 2:
        return None
    unit = unit_of([*first, *second])
    first, second = ([value / unit for value in sample] for sample in (first, second))
    difference = statistics.fmean(first) - statistics.fmean(second)
    if abs(difference) <= ROUNDING * max(map(abs, (*first, *second))):
        return None
    samples = [_differences(first, second)[0]] if paired else [first, second]
    z = float(stats.norm.isf(alpha / 2) + stats.norm.ppf(0.8))
    variance = sum(map(statistics.variance, samples))
    needed = max(2, math.ceil(z**2 * variance / difference**2 / RANK_EFFICIENCY))
    differ = len(nonzero_differences(first, second)) if paired else len(first)
    while smallest_p(needed * differ // len(first), needed, paired=paired) >= alpha:
        needed += 1
    return needed


def smallest_p(first: int, second: int, *, paired: bool) -> float:
    """Return the smallest two-sided p of a rank test of this many replicates, or pairs that differ."""
    return min(1.0, 2 / _arrangements(first, second, paired=paired))


def _arrangements(first: int, second: int, *, paired: bool) -> float:
    """Return how many arrangements a rank test compares; infinity beyond a float."""
    # Not even counted, as numbers with millions of digits take hours.
    if (first if paired else min(first, second)) >= COUNTED:
        return math.inf
    try:
        return float(2**first if paired else math.comb(first + second, first))
    except OverflowError:
        return math.inf


def nonzero_differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return by how much first values exceed their partners, without pairs that are equal up to rounding."""
    differences, rounding = _differences(first, second)
    return [difference for difference in differences if abs(difference) > rounding]


def _differences(first: Sequence[float], second: Sequence[float]) -> tuple[list[float], float]:
    """Return by how much first values exceed their partners, and the bound of rounding errors."""
    rounding = ROUNDING * max(map(abs, (*first, *second)), default=0.0)
    return [a - b for a, b in zip(first, second, strict=True)], rounding


def _method(values: Sequence[float], first: int, second: int, *, paired: bool) -> Any:
    """Return how SciPy gets p: its exact distribution assumes that there are no ties."""
    from scipy import stats

    if len(set(values)) == len(values):
        return "exact" if first * second <= EXACT else "asymptotic"
    if _arrangements(first, second, paired=paired) <= ARRANGEMENTS:
        return stats.PermutationMethod(n_resamples=ARRANGEMENTS, batch=10_000)
    return "asymptotic"
