"""Numbers as the unevaluated sum of two floats, so that sums do not depend on how they were split.

Sources: Dekker 1971; Knuth, The Art of Computer Programming, volume 2, section 4.2.2, theorem B.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def two_sum(a: float, b: float) -> tuple[float, float]:
    """Return the rounded sum and its rounding error; the error is 0 if the sum is not finite."""
    high = a + b
    if not math.isfinite(high):
        return high, 0.0
    part = high - a
    return high, (a - (high - part)) + (b - part)


def add(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Return the sum of two such numbers."""
    high, low = two_sum(a[0], b[0])
    return two_sum(high, low + a[1] + b[1]) if math.isfinite(high) else (high, 0.0)


def total(values: NDArray[Any]) -> tuple[float, float]:
    """Return the sum of an array; nan or infinite if a value or the sum is."""
    listed = values.tolist()
    try:
        high = math.fsum(listed)
        return (high, math.fsum([*listed, -high])) if math.isfinite(high) else (high, 0.0)
    except (OverflowError, ValueError):
        # The sum, or a partial one, is too large; or infinities of both signs make it nan.
        with np.errstate(all="ignore"):
            return float(values.sum()), 0.0
