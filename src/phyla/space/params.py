"""Params: the values of one trial, readable flat and nested; and the names that make both possible."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, final

from phyla.arguments import suggestion
from phyla.errors import SpaceError

SEGMENT = re.compile(r"\w[\w.\-]*")


def flatten(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """A mapping with slashed names and nested groups as one flat dict, in the same order.

    Raises:
        SpaceError: an ill-formed name, an empty group, or two entries with one name.
    """
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
            raise SpaceError(
                f"{key!r}{inside} is no parameter name; use letters, digits, '_', '-' and '.', "
                "with a single '/' between a group and a name"
            )
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
    level, so that `dict(params)` and `model(**params)` do what they say; a group's value is again Params.
    Parameters that are inactive are absent: ask with `in` or `get`.

    Args:
        values: Values by name; slashed names, nested mappings, or both.

    Raises:
        SpaceError: an ill-formed or ambiguous name.
    """

    __slots__ = ("_flat", "_prefix", "_read")

    _flat: dict[str, Any]
    _read: set[str] | None
    """Full names of what was read, shared with the groups; None if that is not tracked."""
    _prefix: str

    def __init__(self, values: Mapping[str, Any], /) -> None:
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
