"""A series of values as the schedulers of other libraries take it."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from phyla.errors import UsageError

Series = Sequence[tuple[int, float]]
"""Pairs of the step from which on a value holds and that value, the first at step 0."""

LARGEST_COUNT = 2**31 - 1
"""What the counts of optax can hold."""


def lr_lambda(series: Series, name: str) -> Callable[[int], float]:
    """Return the function that gives the factor of a step, relative to the first value.

    Raises:
        UsageError: the first value is 0.
    """
    starts = [start for start, _ in series]
    base = series[0][1]
    if base == 0:
        raise UsageError(f"{name} starts at 0, and no factor leads from there to another value; use the schedule")
    factors = [value / base for _, value in series]

    # A plain function: LambdaLR saves any other callable with its state.
    def factor(step: int) -> float:
        return factors[max(0, bisect_right(starts, step) - 1)]

    return factor


def optax_schedule(series: Series, name: str) -> Callable[[Any], Any]:
    """Return the function that gives the value of a count; it can be jitted.

    Raises:
        UsageError: there are more steps than a count can hold.
        ImportError: JAX is not installed.
    """
    if series[-1][0] > LARGEST_COUNT:
        raise UsageError(f"{name} changes at step {series[-1][0]}, and counts of optax end at {LARGEST_COUNT}")
    try:
        import jax.numpy as jnp
    except ImportError as error:
        raise ImportError("schedule.optax() needs JAX: pip install jax optax") from error
    boundaries = jnp.asarray([start for start, _ in series[1:]], dtype=jnp.int32)
    values = jnp.asarray([value for _, value in series])

    def schedule(count: Any) -> Any:
        return values[jnp.searchsorted(boundaries, count, side="right")]

    return schedule
