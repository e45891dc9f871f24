"""Strict JSON: nan and infinities as text, everything else as it is."""

import math
from collections.abc import Mapping

from phyla.records import Json


def strict(value: Json) -> Json:
    """Return a value as every JSON parser reads it, in plain dicts and lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {name: strict(item) for name, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, (bool, int)):
        return value
    return [strict(item) for item in value]
