"""Tests of whether one sample is above another, by SciPy, which is imported with the first test.

SciPy divides by the variance; samples that do not vary at all are compared by their means instead.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

Alternative: TypeAlias = Literal["two-sided", "greater"]

ROUNDING = 1e-12
"""Differences below this share of the values compared are rounding errors."""
ARRANGEMENTS = 100_000
"""Arrangements of tied values up to which a rank test counts all of them."""
RANK_EFFICIENCY = 3 / math.pi
"""Efficiency of a rank test relative to a t-test, for normal values (Hodges and Lehmann 1956)."""


def welch(
    first: float,
    first_stderr: float,
    first_n: int,
    second: float,
    second_stderr: float,
    second_n: int,
    *,
    alternative: Alternative = "greater",
) -> float:
    """Return p of Welch's t-test. By default it is one-sided: small if the first mean is above the second.

    Each sample is given by its mean, which is finite, its standard error, and its size, at least 2. Degrees of
    freedom are those of Welch and Satterthwaite.
    """
    # A decision calls this inside a transaction, and importing scipy.stats takes a second: only t's distribution.
    from scipy.special import stdtr

    difference = abs(first - second) if alternative == "two-sided" else first - second
    rounding = ROUNDING * max(abs(first), abs(second))
    stderr = math.hypot(first_stderr, second_stderr)
    if stderr <= rounding:
        return 0.0 if difference > rounding else 1.0
    share = (first_stderr / stderr) ** 2
    freedom = 1 / (share**2 / (first_n - 1) + (1 - share) ** 2 / (second_n - 1))
    return (2 if alternative == "two-sided" else 1) * float(stdtr(freedom, -difference / stderr))


def paired(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the one-sided p of the paired t-test: small if the first values are above their partners.

    Both are at least 2 finite values, in the same order.
    """
    from scipy import stats

    rounding = ROUNDING * max(map(abs, (*first, *second)))
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if max(differences) - min(differences) <= rounding:
        return 0.0 if statistics.fmean(differences) > rounding else 1.0
    return float(stats.ttest_1samp(differences, 0.0, alternative="greater").pvalue)


def signed_rank(
    first: Sequence[float], second: Sequence[float], *, alternative: Alternative = "two-sided"
) -> float:
    """Return p of Wilcoxon's signed-rank test of finite values and their partners, in the same order.

    Pairs without a difference are left out. It is exact, with ties too, unless there are ties in more than 16
    pairs: then it is a normal approximation. With `greater` only first values above the second ones count.
    """
    from scipy import stats

    rounding = ROUNDING * max(map(abs, (*first, *second)), default=0.0)
    differences = [a - b for a, b in zip(first, second, strict=True) if abs(a - b) > rounding]
    if not differences:
        return 1.0
    method = _method([abs(one) for one in differences], 2 ** len(differences))
    return float(stats.wilcoxon(differences, alternative=alternative, method=method).pvalue)


def rank_sum(first: Sequence[float], second: Sequence[float], *, alternative: Alternative = "two-sided") -> float:
    """Return p of the Mann-Whitney test of two independent samples, each of at least two finite values.

    It is exact, with ties too, unless tied values can be split in more than 100,000 ways: then it is a normal
    approximation. With `greater` only first values above the second ones count.
    """
    from scipy import stats

    method = _method([*first, *second], math.comb(len(first) + len(second), len(first)))
    return float(stats.mannwhitneyu(first, second, alternative=alternative, method=method).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests, in the same order.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure. The probability of at least one
    adjusted p below alpha is at most alpha if all null hypotheses are true, whatever the dependence.
    """
    adjusted, floor = [1.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        floor = max(floor, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = floor
    return adjusted


def replicates_needed(
    first: Sequence[float], second: Sequence[float], *, paired: bool, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Return how many replicates of each it takes to find the observed difference significant.

    Method: the normal approximation of the sample size of a two-sided t-test (Cohen 1988, Statistical Power
    Analysis for the Behavioral Sciences), `((z(1 - alpha / 2) + z(power)) * s / d)²` with the observed difference
    d of the means, and s² the variance of the paired differences or the sum of both variances; divided by the
    efficiency 3/pi of rank tests. It is never less than the fewest replicates with which the exact rank test can
    fall below alpha.

    Args:
        first: finite values of the replicates of one study.
        second: those of another one, in pairs of one seed if `paired`.
        paired: whether replicates are compared in pairs.
        alpha: level of significance.
        power: probability of a significant result if the difference is the observed one.

    Returns:
        Replicates of each study; None with fewer than two of either, or without a difference of the means.
    """
    from scipy import stats

    if min(len(first), len(second)) < 2:
        return None
    differences = [a - b for a, b in zip(first, second, strict=True)] if paired else []
    difference = statistics.fmean(first) - statistics.fmean(second)
    if abs(difference) <= ROUNDING * max(map(abs, (*first, *second))):
        return None
    variance = statistics.variance(differences) if paired else sum(map(statistics.variance, (first, second)))
    z = stats.norm.isf(alpha / 2) + stats.norm.ppf(power)
    needed = math.ceil(float(z) ** 2 * variance / difference**2 / RANK_EFFICIENCY)
    fewest = 2
    while smallest_p(fewest, fewest, paired=paired) >= alpha:
        fewest += 1
    return max(needed, fewest)


def smallest_p(first: int, second: int, *, paired: bool) -> float:
    """Return the smallest two-sided p that a rank test of this many replicates can give."""
    return min(1.0, 2 / (2**first if paired else math.comb(first + second, first)))


def _method(values: Sequence[float], arrangements: int) -> Any:
    """Return how SciPy gets p: its exact distribution assumes that there are no ties."""
    from scipy import stats

    if len(set(values)) == len(values):
        return "exact"
    if arrangements <= ARRANGEMENTS:
        return stats.PermutationMethod(n_resamples=ARRANGEMENTS, batch=10_000)
    return "asymptotic"
