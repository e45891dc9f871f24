"""Plain JSON values, and numbers that strict JSON has no sign for."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, final

from typing_extensions import TypeAliasType

from phyla.errors import WrongArgument

Json = TypeAliasType("Json", "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None")
JsonObject: TypeAlias = Mapping[str, Json]


@final
class ReadOnly(dict[str, Json]):
    """A JSON object that plug-ins share: changing it raises, copies can be changed."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise WrongArgument("this is shared, and cannot be changed; change a copy, such as {**params, 'lr': 0.1}")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def json_number(value: float | None) -> float | str | None:
    """Return a number as strict JSON allows it: nan and infinities as text."""
    return value if value is None or math.isfinite(value) else repr(float(value))


def read_number(raw: Json) -> float:
    """Return the number that `json_number` wrote; `ValueError` if it is none."""
    if isinstance(raw, str) and raw in ("nan", "inf", "-inf"):
        return float(raw)
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ValueError(f"{raw!r} is not a number")
    return float(raw)


def significant(value: float, digits: int) -> str:
    """Return a number with this many digits, and more if it is near 1: for 0.99996, the distance from 1 counts.

    Below 1e-9, that is a rounding error.
    """
    distance = 1 - value
    more = -math.floor(math.log10(distance)) - 2 if 1e-9 < distance < 0.01 else 0
    return f"{value:.{digits + more}g}"


def read_list(raw: Json) -> Sequence[Json]:
    """Return a JSON list; `ValueError` if it is none."""
    if not isinstance(raw, list | tuple):
        raise ValueError(f"must be a list, got {raw!r}")
    return raw


def read_object(raw: Json) -> JsonObject:
    """Return a JSON object; `ValueError` if it is none."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"must be an object, got {raw!r}")
    return raw


def strict(value: Json) -> Json:
    """Return a value that every JSON parser reads: nan and infinities as text, in plain dicts and lists."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, Mapping):
        return {name: strict(item) for name, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, (bool, int)):
        return value
    return [strict(item) for item in value]
