"""What Float and Int ask of their bounds, steps and initial ranges, and what they say when it is not so."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from phyla.errors import SpaceError
from phyla.space.scalars import call, fraction

Number = TypeVar("Number", int, float)


def check(kind: str, low: float, high: float, log: object, options: Mapping[str, object]) -> None:
    """Refuse bounds that span no range, or none on a log scale.

    Raises:
        SpaceError: always with the call that may have been meant.
    """
    if not isinstance(log, bool):
        raise SpaceError(f"log must be True or False, got {log!r}")
    if low > high:
        raise SpaceError(f"low must be below high; did you mean {call(kind, (high, low), options)}?")
    if low == high:
        raise SpaceError(
            f"low must be below high; keep a value that never changes out of the space, or write Choice([{low!r}])"
        )
    if log and low <= 0:
        raise SpaceError(f"a log scale needs low above 0, got {low!r}; raise low or leave out log=True")


def position(value: float, low: float, high: float, *, log: bool) -> float:
    """Where `value` lies between low (0) and high (1), on a log or linear scale."""
    if log:
        start, end = math.log(low), math.log(high)
        # Neighbouring numbers may have the same logarithm; a straight line is as good between them.
        if start < end:
            return fraction((math.log(value) - start) / (end - start))
    return fraction((value - low) / (high - low))


def check_inside(low: float, first: float, last: float, high: float) -> None:
    """Refuse an initial range `(first, last)` that is no range within the bounds.

    Raises:
        SpaceError: it is reversed, or reaches out of the bounds.
    """
    if first >= last:
        raise SpaceError(f"the initial range {(first, last)!r} must have its low below its high")
    if first < low or last > high:
        raise SpaceError(
            f"the initial range {(first, last)!r} is outside of the bounds {(low, high)!r}; narrow it"
        )


def misfit(kind: str, low: float, high: float, step: float, steps: int, *, log: bool) -> SpaceError:
    """The error for a `high` that lies between `steps` and one more steps above `low`."""
    options = {"log": log or None, "step": step}
    ends = [round(low + count * step, 12) for count in (steps, steps + 1) if count > 0]
    fitting = " or ".join(call(kind, (low, end), options) for end in ends)
    return SpaceError(f"high must be low plus a whole number of steps of {step!r}; did you mean {fitting}?")


def pair(given: Sequence[object], convert: Callable[[object, str], Number]) -> tuple[Number, Number]:
    """An initial range as two numbers.

    Raises:
        SpaceError: it has not two entries, or they are no such numbers.
    """
    if len(given) != 2:
        raise SpaceError(f"an initial range is (low, high), got {given!r}")
    return convert(given[0], "low of the initial range"), convert(given[1], "high of the initial range")


def starting(check_value: Callable[[object], Number], initial: object, what: str = "initial") -> Number:
    """An initial value, or another that is given with the parameter, as the parameter holds it.

    Raises:
        SpaceError: it is none of its values.
    """
    try:
        return check_value(initial)
    except SpaceError as error:
        raise SpaceError(f"{what}: {error}") from None
