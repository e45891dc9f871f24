"""Evenly spaced values `low + index * step`: how they are drawn and how they move.

Everything here works on the index of a grid point, so that integers stay exact at any size and floats do
not collect rounding errors along a chain of moves.
"""

import math


def drawn(u: float, first: int, last: int, *, low: float, step: float, log: bool) -> int:
    """The index that the uniform number `u` in [0, 1) stands for, between `first` and `last` inclusive.

    On a log scale the cell `[x, x + step)` belongs to its left end x, so that x has the prior mass
    `log(1 + step / x)`: the floor of a log-uniform real number, which needs no cell below `low`.
    """
    if not log:
        return min(first + int(u * (last - first + 1)), last)
    start, end = math.log(low + first * step), math.log(low + (last + 1) * step)
    return min(max(int((math.exp(start + u * (end - start)) - low) / step), first), last)


def moved(index: int, target: int, last: int, *, up: bool) -> tuple[int, bool]:
    """`target`, or the next index when that would be no move; and whether it was the next index.

    At either end an outward move stays where it is.
    """
    least = index + 1 if up else index - 1
    short = target < least if up else target > least
    return min(max(least if short else target, 0), last), short
