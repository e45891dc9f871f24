"""A space as JSON.

Parameters are a list: their order decides which random number goes where, and databases may reorder the keys of
an object. Names in `when` are written from the top, with a leading "/".
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from phyla.errors import SpaceError
from phyla.space.conditions import Parameter, conditions
from phyla.space.discrete import Choice, Ordinal
from phyla.space.numeric import Float, Int
from phyla.space.scalars import Scalar

KINDS: dict[str, type[Parameter]] = {kind.kind: kind for kind in (Float, Int, Choice, Ordinal)}


def described(
    parameters: Mapping[str, Parameter], constraints: Sequence[str], initial: Sequence[Mapping[str, Scalar]]
) -> dict[str, Any]:
    """The parts of a space in JSON types."""
    return {
        "parameters": [_entry(name, parameter) for name, parameter in parameters.items()],
        "constraints": list(constraints),
        "initial": [dict(point) for point in initial],
    }


def read(
    config: Mapping[str, Any],
) -> tuple[dict[str, Parameter], Sequence[str], Sequence[Mapping[str, Scalar]]]:
    """The parts of a described space: parameters by name, the texts of its constraints, its starting points."""
    if not isinstance(config, Mapping):
        raise SpaceError(f"the description of a space must be a mapping, got {config!r}")
    unknown = config.keys() - {"parameters", "constraints", "initial"}
    if unknown:
        raise SpaceError(f"the description of a space has unknown keys {sorted(map(str, unknown))!r}")
    entries = config.get("parameters")
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise SpaceError(f"the parameters of a described space must be a list, got {entries!r}")
    parameters: dict[str, Parameter] = {}
    for entry in entries:
        name, parameter = _parameter(entry)
        if name in parameters:
            raise SpaceError(f"the parameter {name!r} is described twice")
        parameters[name] = parameter
    return parameters, config.get("constraints", ()), config.get("initial", ())


def _entry(name: str, parameter: Parameter) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "kind": parameter.kind}
    for one in fields(parameter):
        value = getattr(parameter, one.name)
        entry[one.name] = list(value) if isinstance(value, tuple) else value
    if parameter.when is not None:
        entry["when"] = {f"/{parent}": list(values) for parent, values in conditions(parameter)}
    return entry


def _parameter(entry: object) -> tuple[str, Parameter]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise SpaceError(f"a described parameter must be a mapping with a name, got {entry!r}")
    name, kind = entry["name"], entry.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SpaceError(f"{name}: kind must be one of {list(KINDS)!r}, got {kind!r}")
    options = {key: value for key, value in entry.items() if key not in ("name", "kind")}
    known = {one.name: one.kw_only for one in fields(KINDS[kind])}
    for key in options.keys() - known.keys():
        raise SpaceError(f"{name}: a parameter of kind {kind!r} has no {key!r}; it has {list(known)!r}")
    for key, optional in known.items():
        if not optional and key not in options:
            raise SpaceError(f"{name}: a parameter of kind {kind!r} needs {key!r}")
    try:
        return name, KINDS[kind](**options)
    except SpaceError as error:
        raise SpaceError(f"{name}: {error}") from None
