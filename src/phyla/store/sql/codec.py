"""JSON as the database keeps it: strict, and yet nan and infinities come back as they were.

A float that strict JSON cannot write becomes `{"$float": "nan"}`; a mapping of the user's own that
has the key `$float` becomes `{"$float": [[key, value], ...]}`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from phyla.records import Json

TAG = "$float"

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(value: Json) -> str:
    """Return JSON in ASCII, keys in the order given."""
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError):
        # A float that is not finite, or a mapping or sequence that is not a dict or list.
        return _ENCODER.encode(_tagged(value))
    return _ENCODER.encode(_tagged(value)) if TAG in text else text


def decode(text: str) -> Any:
    """Return what `encode` was given, in dicts and lists."""
    return json.loads(text, object_hook=_untagged) if TAG in text else json.loads(text)


def _tagged(value: Json) -> Json:
    if isinstance(value, float):
        return value if math.isfinite(value) else {TAG: repr(float(value))}
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        if TAG in value:
            return {TAG: [[key, _tagged(item)] for key, item in value.items()]}
        return {key: _tagged(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_tagged(item) for item in value]
    return value


def _untagged(found: dict[str, Any]) -> Any:
    if TAG not in found:
        return found
    inner = found[TAG]
    return float(inner) if isinstance(inner, str) else dict(inner)
