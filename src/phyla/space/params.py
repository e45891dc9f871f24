"""Params, the values of one trial, readable flat and nested, and checks of single values and names."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeAlias, TypeVar, final

from phyla.errors import SpaceError
from phyla.validation import brief, printable, suggestion

Scalar: TypeAlias = str | int | float | bool | None
"""The value of one parameter: a plain Python object that JSON can represent."""

When: TypeAlias = Mapping[str, Scalar | Sequence[Scalar]]
"""A condition: parameter names and the value, or list of values, they must have."""

Given = TypeVar("Given")
Value = TypeVar("Value")

SEGMENT = re.compile(r"\w[\w.\-]*")


def as_real(value: object, label: str) -> float:
    """`value` as a finite float. Numpy numbers are accepted, booleans are not."""
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SpaceError(f"{label} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise SpaceError(f"{label} must fit in a float, got {brief(value)}") from None
    if not math.isfinite(number):
        raise SpaceError(f"{label} must be finite, got {value!r}")
    return number


def as_integer(value: object, label: str) -> int:
    """`value` as an int. Numpy integers are accepted, booleans and floats are not."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        hint = f"; did you mean {int(value)}?" if isinstance(value, float) and value.is_integer() else ""
        raise SpaceError(f"{label} must be an integer, got {value!r}{hint}")
    return printable(int(value), label, SpaceError)


def as_share(value: object, label: str) -> float:
    """`value` as a probability."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 <= float(value) <= 1.0:
        raise SpaceError(f"{label} is a probability between 0 and 1, got {value!r}")
    return float(value)


def as_scalar(value: object, label: str) -> Scalar:
    """`value` as a JSON scalar: str, int, finite float, bool or None."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral):
        return printable(int(value), label, SpaceError)
    if isinstance(value, Real):
        return as_real(value, label)
    raise SpaceError(f"{label} must be a string, number, bool or None, got {value!r}; name it with a string")


def as_when(when: object) -> dict[str, tuple[Scalar, ...]] | None:
    """A condition in its canonical form: every name with a tuple of values."""
    if when is None:
        return None
    if not isinstance(when, Mapping):
        raise SpaceError(f"when must map names to values, got {when!r}; write when={{'name': ['value']}}")
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


def run_check(check: Callable[[Given], Value], value: Given, label: str) -> Value:
    """The result of `check` for a value; its error starts with `label`."""
    try:
        return check(value)
    except SpaceError as error:
        raise SpaceError(f"{label}: {error}") from error.__cause__


def flatten(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """A mapping with slashed names and nested groups as one flat dict, in the same order."""
    flat: dict[str, Any] = {}
    for name, value in _leaves(mapping, ""):
        if name in flat:
            raise SpaceError(f"{name!r} is given twice; rename one")
        flat[name] = value
    groups = {name[:end]: name for name in flat for end, char in enumerate(name) if char == "/"}
    for group, name in groups.items():
        if group in flat:
            raise SpaceError(f"{group!r} is both a parameter and the group of {name!r}; rename one")
    return flat


def _leaves(mapping: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise SpaceError(f"the name {key!r} must be a string")
        if not all(SEGMENT.fullmatch(segment) for segment in key.split("/")):
            inside = f" in the group {prefix[:-1]!r}" if prefix else ""
            allowed = "use letters, digits, '_', '-' and '.', with a single '/' between a group and a name"
            raise SpaceError(f"{key!r}{inside} is not a parameter name; {allowed}")
        if isinstance(value, Mapping):
            if not value:
                raise SpaceError(f"the group {prefix + key!r} is empty; leave it out")
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


@final
class Params(Mapping[str, Any]):
    """The values of one trial: an immutable mapping that can be read flat or nested.

    `params["opt/lr"]` and `params["opt"]["lr"]` are the same value. Iterating gives the names of the top
    level, so that `dict(params)` and `model(**params)` work as expected; a group's value is again Params.
    Inactive parameters are absent: test with `in` or `get`.

    Args:
        values: Values by name; slashed names, nested mappings, or both.

    Raises:
        SpaceError: an ill-formed or ambiguous name.
    """

    __slots__ = ("_flat", "_prefix", "_read")

    _flat: dict[str, Any]
    _read: set[str] | None
    """Full names of the values that were read, shared with the groups; None if untracked."""
    _prefix: str

    def __init__(self, values: Mapping[str, Any], /) -> None:
        if not isinstance(values, Mapping):
            raise SpaceError(f"Params({values!r}): give a mapping from names to values")
        self._flat = flatten(values)
        self._read, self._prefix = None, ""

    @classmethod
    def of_flat(cls, flat: Mapping[str, Any], /, *, read: set[str] | None = None, prefix: str = "") -> "Params":
        """Params of values whose names are known to be flat and well-formed; nothing is checked.

        The full name of every value that is read, with `prefix` before it, is added to `read`.
        """
        params = cls.__new__(cls)
        params._flat = dict(flat)
        params._read, params._prefix = read, prefix
        return params

    def flat(self) -> dict[str, Any]:
        """A new dict from full, slashed names to values, ready for JSON."""
        self._read_all()
        return dict(self._flat)

    def _read_all(self) -> None:
        if self._read is not None:
            self._read.update(self._prefix + name for name in self._flat)

    def __reduce__(self) -> Any:
        """Reads of copies and pickles are not tracked, so all of it counts as read."""
        return Params, (self.flat(),)

    def nested(self) -> dict[str, Any]:
        """A new dict with one dict per group."""
        return {key: value.nested() if isinstance(value, Params) else value for key, value in self.items()}

    def __getitem__(self, name: str) -> Any:
        if name in self._flat:
            if self._read is not None:
                self._read.add(self._prefix + name)
            return self._flat[name]
        prefix = f"{name}/"
        group = {key.removeprefix(prefix): value for key, value in self._flat.items() if key.startswith(prefix)}
        if not group:
            raise KeyError(f"no parameter {name!r}; {suggestion(name, self._flat)}")
        return Params.of_flat(group, read=self._read, prefix=self._prefix + prefix)

    def get(self, name: str, default: Any = None, /) -> Any:
        """The value or group of that name, or `default` if it is absent or inactive."""
        # Not by catching the KeyError: its message takes long to make, and constraints ask often.
        if name not in self:
            return default
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._flat or (
            isinstance(name, str) and any(key.startswith(f"{name}/") for key in self._flat)
        )

    def __iter__(self) -> Iterator[str]:
        self._read_all()
        return iter(dict.fromkeys(name.partition("/")[0] for name in self._flat))

    def __len__(self) -> int:
        return len({name.partition("/")[0] for name in self._flat})

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Params):
            return self._flat == other._flat
        if not isinstance(other, Mapping):
            return NotImplemented
        try:
            return self._flat == flatten(other)
        except SpaceError:
            return False

    def __hash__(self) -> int:
        return hash(frozenset(self._flat.items()))

    def __repr__(self) -> str:
        return f"Params({self._flat!r})"
