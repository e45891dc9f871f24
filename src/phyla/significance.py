"""Tests of whether one mean is above another, and what testing many times costs.

All are one-sided: p is the probability of such a difference, or a larger one, if there were none or the first
mean were below. Samples that do not vary at all decide for themselves: p is 0 if the first mean is above, else 1.
"""

import math
from collections.abc import Sequence

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
