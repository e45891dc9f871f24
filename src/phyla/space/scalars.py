"""The values that a parameter can have: JSON scalars, and how foreign numbers become them."""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import TypeAlias, TypeVar

from phyla.errors import SpaceError

Scalar: TypeAlias = str | int | float | bool | None
"""What one parameter's value is: always a plain Python object that JSON can hold."""

When: TypeAlias = Mapping[str, Scalar | Sequence[Scalar]]
"""A condition: parameter names and the value, or list of values, they must have."""

Value = TypeVar("Value")


def as_real(value: object, what: str) -> float:
    """`value` as a finite float. Numpy numbers are accepted, booleans are not."""
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SpaceError(f"{what} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise SpaceError(f"{what} must fit in a float, got {value!r}") from None
    if not math.isfinite(number):
        raise SpaceError(f"{what} must be finite, got {value!r}")
    return number


def as_integer(value: object, what: str) -> int:
    """`value` as an int. Numpy integers are accepted, booleans and floats are not."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        hint = f"; did you mean {int(value)}?" if isinstance(value, float) and value.is_integer() else ""
        raise SpaceError(f"{what} must be an integer, got {value!r}{hint}")
    return int(value)


def as_scalar(value: object, what: str) -> Scalar:
    """`value` as a JSON scalar: str, int, finite float, bool or None."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return as_real(value, what)
    raise SpaceError(
        f"{what} must be a string, number, bool or None, got {value!r}; "
        "name it with a string and look the object up where you use it"
    )


def as_when(when: object) -> dict[str, tuple[Scalar, ...]] | None:
    """A condition in its canonical form: every name with a tuple of values."""
    if when is None:
        return None
    if not isinstance(when, Mapping):
        raise SpaceError(
            f"when must map parameter names to values, got {when!r}; write when={{'name': ['value']}}"
        )
    if not when:
        raise SpaceError("when is empty; leave it out for a parameter that is always active")
    conditions: dict[str, tuple[Scalar, ...]] = {}
    for name, values in when.items():
        if not isinstance(name, str):
            raise SpaceError(f"when must map parameter names to values, got the name {name!r}")
        several = values if isinstance(values, list | tuple) else [values]
        if not several:
            raise SpaceError(f"when={{{name!r}: {values!r}}} can never hold; name at least one value")
        conditions[name] = tuple(as_scalar(value, f"the value of {name!r} in when") for value in several)
    return conditions


def is_same(left: Scalar, right: Scalar) -> bool:
    """Whether two scalars are equal as JSON: 1 is 1.0, but True is not 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def checked(check: Callable[[object], Value], value: object, what: str) -> Value:
    """What `check` makes of a value; its error starts with `what`."""
    try:
        return check(value)
    except SpaceError as error:
        raise SpaceError(f"{what}: {error}") from error.__cause__
