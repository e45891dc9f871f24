"""How the numbers of numerical libraries become samples, or `MetricInvalid`; and how samples are summed."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyla.errors import MetricInvalid


def as_count(value: object, what: str) -> int:
    """Return a count as an int."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 0:
        raise MetricInvalid(f"{what} must be an integer of at least 0, got {value!r}")
    return int(value)


def as_number(value: object, what: str) -> float | None:
    """Return one number as a float; None if it is no single number but may be an array.

    Numbers of Python and numpy, arrays and tensors without dimensions, and whatever else gives a number by
    `item()` are single numbers.
    """
    if isinstance(value, Real | np.bool_):
        return _float(value, what)
    item = getattr(value, "item", None)
    if not callable(item) or getattr(value, "ndim", 0) != 0:
        return None
    inner = item()
    if not isinstance(inner, Real | np.bool_):
        raise MetricInvalid(
            f"{what} is {value!r}, which is no number; give a number, an array of numbers or a metric"
        )
    return _float(inner, what)


def as_samples(values: object, what: str) -> NDArray[np.float64]:
    """Return an array-like of real numbers as an array of floats of the same shape."""
    array = as_array(values, what)
    # Low-precision floats of some libraries are foreign types to numpy, which convert.
    foreign = array.dtype.kind == "V" and array.dtype.names is None
    if array.dtype.kind not in "biuf" and not foreign:
        kind = type(values).__name__
        raise MetricInvalid(f"{what} is {values!r}, a {kind}; give a number, an array of numbers or a metric")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise MetricInvalid(f"{what} holds {array.dtype} values, which are no real numbers: {error}") from None


def as_mask(mask: object) -> NDArray[np.bool_]:
    """Return an array-like of booleans, or of 0 and 1, as an array."""
    array = as_array(mask, "mask")
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise MetricInvalid(f"mask={mask!r}: a mask is True where a sample counts and False where it is padding")
    return array.astype(np.bool_)


def as_array(values: object, what: str) -> NDArray[Any]:
    """Return an array-like as a numpy array."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MetricInvalid(
            f"{what} is a {type(values).__name__} that numpy cannot read: {error}; give numbers of equal shape, "
            "for a tensor tensor.detach().float().cpu()"
        ) from None


def _float(value: Any, what: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise MetricInvalid(f"{what} must fit in a float, got {value!r}") from None


def exact_sum(values: Sequence[float]) -> tuple[float, float]:
    """Return a sum and its rounding error, so that sums do not depend on how they were split.

    The error is 0 if the sum is not finite.
    """
    try:
        total = math.fsum(values)
        return total, math.fsum([*values, -total]) if math.isfinite(total) else 0.0
    except (OverflowError, ValueError):
        # A partial sum is too large for a float, or infinities of both signs make it nan.
        with np.errstate(all="ignore"):
            return float(np.sum(values)), 0.0
