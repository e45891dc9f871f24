"""Tests of whether one sample is above another, and what testing many times costs.

All are one-sided: p is the probability of such a difference, or a larger one, if there were none or the first
were below; `two_sided` makes one p of both directions. `welch` and `paired` compare means, and samples that do not
vary at all decide for themselves: p is 0 if the first mean is above, else 1. `signed_rank` and `rank_sum` compare
ranks, assume nothing about distributions, and are exact for any number of values, with ties too.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

ROUNDING = 1e-12
"""Differences below this share of the values compared are rounding, not differences."""


def welch(
    first: float, first_stderr: float, first_n: int, second: float, second_stderr: float, second_n: int
) -> float:
    """Return p that the first mean is not above the second: Welch's t-test, for samples of any variances.

    Source: Welch 1947, The generalization of 'Student's' problem when several different population variances
    are involved, with the degrees of freedom of Welch-Satterthwaite.

    Args:
        first: mean of the first samples; finite.
        first_stderr: its standard error.
        first_n: number of samples, at least 2.
        second: mean of the second samples; finite.
        second_stderr: its standard error.
        second_n: number of samples, at least 2.
    """
    rounding = ROUNDING * max(abs(first), abs(second))
    difference = first - second
    stderr = math.hypot(first_stderr, second_stderr)
    if stderr <= rounding:
        return 0.0 if difference > rounding else 1.0
    share = (first_stderr / stderr) ** 2
    freedom = 1 / (share**2 / (first_n - 1) + (1 - share) ** 2 / (second_n - 1))
    return _tail(difference / stderr, freedom)


def paired(first: Sequence[float], second: Sequence[float]) -> float:
    """Return p that the first values are not above the second on average: Student's paired t-test.

    Args:
        first: at least 2 finite values.
        second: as many, each belonging to the first one at its place.
    """
    rounding = ROUNDING * max(map(abs, (*first, *second)))
    differences = [a - b for a, b in zip(first, second, strict=True)]
    k = len(differences)
    mean = math.fsum(differences) / k
    if max(differences) - min(differences) <= rounding:
        return 0.0 if mean > rounding else 1.0
    spread = math.sqrt(math.fsum((difference - mean) ** 2 for difference in differences) / (k - 1))
    return _tail(mean / (spread / math.sqrt(k)), k - 1)


def signed_rank(first: Sequence[float], second: Sequence[float]) -> float:
    """Return p that the first values are not above the second: Wilcoxon's signed-rank test, exact.

    Pairs without a difference are left out; without any left p is 1. With n pairs it is at least 1 / 2**n.

    Source: Wilcoxon 1945, Individual comparisons by ranking methods; ties get the mean of their ranks, and the
    distribution is that over all signs of the differences.

    Args:
        first: finite values.
        second: as many, each belonging to the first one at its place.
    """
    rounding = ROUNDING * max(map(abs, (*first, *second)), default=0.0)
    differences = [a - b for a, b in zip(first, second, strict=True)]
    differences = [difference for difference in differences if abs(difference) > rounding]
    ranks = _doubled_ranks([abs(difference) for difference in differences])
    reached = sum(rank for rank, difference in zip(ranks, differences, strict=True) if difference > 0)
    chance = np.zeros(sum(ranks) + 1)
    chance[0] = 1.0
    for rank in ranks:
        shifted = np.zeros_like(chance)
        shifted[rank:] = chance[: len(chance) - rank]
        chance = (chance + shifted) / 2
    return min(1.0, float(chance[reached:].sum()))


def rank_sum(first: Sequence[float], second: Sequence[float]) -> float:
    """Return p that the first values are not above the second: the test of Mann, Whitney and Wilcoxon, exact.

    With n and m values it is at least 1 / C(n + m, n).

    Source: Mann and Whitney 1947, On a test of whether one of two random variables is stochastically larger than
    the other; ties get the mean of their ranks, and the distribution is that over all ways to split the values.

    Args:
        first: at least one finite value.
        second: at least one finite value, independent of the first ones.
    """
    ranks = _doubled_ranks([*first, *second])
    size, reached = len(first), sum(ranks[: len(first)])
    # chance[k, s]: that k of the values so far are among the first ones, and that their ranks sum to s.
    chance = np.zeros((size + 1, sum(sorted(ranks)[-size:]) + 1))
    chance[0, 0] = 1.0
    for seen, rank in enumerate(ranks):
        left = len(ranks) - seen
        share = (size - np.arange(size + 1)).clip(0, left) / left
        stays, taken = chance * (1 - share)[:, None], chance * share[:, None]
        chance = stays
        chance[1:, rank:] += taken[:-1, : chance.shape[1] - rank]
    return min(1.0, float(chance[size, reached:].sum()))


def two_sided(
    test: Callable[[Sequence[float], Sequence[float]], float], first: Sequence[float], second: Sequence[float]
) -> float:
    """Return p that neither sample is above the other: twice the smaller one-sided p, at most 1.

    Args:
        test: `signed_rank`, `rank_sum` or `paired`.
        first: as the test takes it.
        second: as the test takes it.
    """
    return min(1.0, 2 * min(test(first, second), test(second, first)))


def midranks(values: Sequence[float]) -> list[float]:
    """Return the rank of every value, counted from 1; equal values get the mean of their ranks."""
    return [rank / 2 for rank in _doubled_ranks(values)]


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for all of them having been looked at, in the same order.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure. The probability of at least one
    adjusted p below alpha is at most alpha if all null hypotheses are true, whatever the dependence.

    Args:
        p: probabilities, in [0, 1].
    """
    adjusted, floor = [1.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        floor = max(floor, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = floor
    return adjusted


def _tail(t: float, freedom: float) -> float:
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of every value, so that the mean rank of ties is an integer."""
    _, place, count = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    doubled = 2 * ends - count + 1
    return [int(doubled[at]) for at in place]
