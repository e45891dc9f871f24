"""A space as JSON, and which other space may take its place once values of it are in use.

Parameters are a list: their order decides which random number goes where, and databases may reorder the keys of
an object. Names in `when` are written from the top, with a leading "/".
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from phyla.errors import SpaceError
from phyla.space.declaration import conditions
from phyla.space.parameters import Choice, Float, Int, Ordinal, Parameter
from phyla.space.scalars import is_same

KINDS: dict[str, type[Parameter]] = {kind.kind: kind for kind in (Float, Int, Choice, Ordinal)}


def described(name: str, parameter: Parameter) -> dict[str, Any]:
    """A parameter in JSON types."""
    entry: dict[str, Any] = {"name": name, "kind": parameter.kind}
    for one in fields(parameter):
        value = getattr(parameter, one.name)
        entry[one.name] = list(value) if isinstance(value, tuple) else value
    if parameter.when is not None:
        entry["when"] = {f"/{parent}": list(values) for parent, values in conditions(parameter)}
    return entry


def read(entry: Mapping[str, Any]) -> tuple[str, Parameter]:
    """The name and the parameter that `described` gave a description of."""
    try:
        options = {key: value for key, value in entry.items() if key not in ("name", "kind")}
        return entry["name"], KINDS[entry["kind"]](**options)
    except (AttributeError, KeyError, TypeError, SpaceError) as error:
        raise SpaceError(f"{entry!r} describes no parameter: {error}") from error


def check_extension(old: Mapping[str, Parameter], new: Mapping[str, Parameter]) -> None:
    """Refuse parameters in which values of the old ones may not be valid.

    Bounds may be widened, values added, and parameters added that have a default. Where members start may change.

    Args:
        old: parameters by full name, as a space has them.
        new: what they are to become.

    Raises:
        SpaceError: names everything that is narrowed, removed, or changed otherwise, with old and new values.
    """
    problems = [f"{name} is gone" for name in old if name not in new]
    problems += [
        f"{name}: {problem}"
        for name, before in old.items()
        if name in new
        for problem in _narrowed(before, new[name])
    ]
    problems += [
        f"{name} is new and has no default: give the value that earlier trials had, as in default=..."
        for name, parameter in new.items()
        if name not in old and parameter.default is None
    ]
    if problems:
        raise SpaceError(
            f"the space of a study that exists can only be widened: {'; '.join(problems)}. "
            "Values that trials have used must stay valid."
        )


def _narrowed(old: Parameter, new: Parameter) -> Iterator[str]:
    if conditions(old) != conditions(new):
        yield f"when was {old.when!r}, now {new.when!r}"
    if isinstance(old, Float | Int) and isinstance(new, Float | Int) and old.kind == new.kind:
        narrower = {"low": new.low > old.low, "high": new.high < old.high, "log": new.log != old.log}
        for name in (name for name, is_narrower in narrower.items() if is_narrower):
            yield f"{name} was {getattr(old, name)!r}, now {getattr(new, name)!r}"
        if not _on_grid(old, new):
            yield f"step was {old.step!r} from {old.low!r}, now {new.step!r} from {new.low!r}"
    elif isinstance(old, Choice) and isinstance(new, Choice):
        missing = [value for value in old.values if not any(is_same(value, other) for other in new.values)]
        if missing:
            yield f"the values {missing!r} are gone"
    elif isinstance(old, Ordinal) and isinstance(new, Ordinal):
        # In the old order, with new ones between.
        kept = [value for value in new.values if any(is_same(value, other) for other in old.values)]
        if len(kept) < len(old.values) or not all(map(is_same, kept, old.values)):
            yield f"the values were {list(old.values)!r}, now {list(new.values)!r}"
    else:
        yield f"it was {old!r}, now {new!r}"


def _on_grid(old: Float | Int, new: Float | Int) -> bool:
    """Whether every value of the old grid is on the new one."""
    if new.step is None:
        return True
    if old.step is None:
        return False
    if isinstance(new, Int):
        return old.step % new.step == 0 and (old.low - new.low) % new.step == 0
    ratios = (old.step / new.step, (old.low - new.low) / new.step)
    return all(math.isclose(ratio, round(ratio), abs_tol=1e-6) for ratio in ratios)
