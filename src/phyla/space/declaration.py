"""What Space is given, checked and made flat: its parameters and its starting points."""

from collections.abc import Mapping, Sequence
from typing import Any

from phyla.arguments import suggestion
from phyla.errors import SpaceError
from phyla.space import constraints as rules
from phyla.space.conditions import Parameter, Plan, hold, unmet
from phyla.space.constraints import Constraint
from phyla.space.params import flatten
from phyla.space.scalars import Scalar, checked


def parameters(mapping: object, keywords: dict[str, Any]) -> dict[str, Parameter]:
    """The parameters of a space by full name, in order."""
    if mapping is None:
        mapping = {}
    if not isinstance(mapping, Mapping):
        raise SpaceError(f"a space is made of a mapping from names to parameters, got {mapping!r}")
    flat = flatten(mapping)
    for name, parameter in flatten(keywords).items():
        if name in flat:
            raise SpaceError(f"{name!r} is given twice; rename one")
        flat[name] = parameter
    if not flat:
        raise SpaceError("the space is empty; give at least one parameter, such as lr=Float(1e-4, 1.0, log=True)")
    for name, parameter in flatten(flat).items():
        if not isinstance(parameter, Parameter):
            raise SpaceError(f"{name}: {parameter!r} is no parameter; {_instead(parameter)}")
    return flat


def _instead(value: object) -> str:
    match value:
        case [int() | float() as low, int() | float() as high] if isinstance(value, tuple):
            return f"did you mean Float({low!r}, {high!r}) or Choice({[low, high]!r})?"
        case list() | tuple():
            return f"did you mean Choice({list(value)!r})?"
        case type():
            return "call it with its bounds or values"
        case _:
            return "write Float, Int, Choice or Ordinal, and keep what never changes out of the space"


def listed_points(initial: object) -> list[object]:
    """The starting points that Space was given; their values are checked by `starting_points`."""
    if isinstance(initial, Mapping):
        raise SpaceError(f"initial must be a list of starting points; write initial=[{dict(initial)!r}]")
    if isinstance(initial, Parameter):
        raise SpaceError(
            f"'initial' is an option of Space; give a parameter of that name as Space({{'initial': {initial!r}}})"
        )
    if isinstance(initial, str) or not isinstance(initial, Sequence):
        raise SpaceError(f"initial must be a list of starting points, got {initial!r}")
    return list(initial)


def starting_points(
    initial: Sequence[object], plan: Plan, constraints: Sequence[Constraint]
) -> tuple[dict[str, Scalar], ...]:
    """The starting points of a space, flat and in canonical form."""
    points = []
    for member, point in enumerate(initial):
        try:
            points.append(starting_point(point, plan, constraints))
        except SpaceError as error:
            raise SpaceError(f"initial[{member}]: {error}") from error.__cause__
    return tuple(points)


def starting_point(point: object, plan: Plan, constraints: Sequence[Constraint]) -> dict[str, Scalar]:
    """One starting point of a space, flat and in canonical form."""
    if not isinstance(point, Mapping):
        raise SpaceError(f"must map names to values, got {point!r}")
    flat = flatten(point)
    names = [name for name, _, _ in plan]
    for name in sorted(flat.keys() - set(names)):
        raise SpaceError(f"there is no parameter {name!r}; {suggestion(name, names)}")
    known: dict[str, Scalar] = {}
    inactive: set[str] = set()
    for name, parameter, needed in plan:
        if hold(needed, known):
            if name in flat:
                known[name] = checked(parameter.check, flat[name], name)
            elif parameter.initial is not None and not isinstance(parameter.initial, tuple):
                known[name] = parameter.initial
        elif name in flat:
            raise SpaceError(f"{name}: cannot start at {flat[name]!r}: {unmet(needed, known)}")
        elif any(p in inactive or (p in known and known[p] not in allowed) for p, allowed in needed):
            inactive.add(name)
    # Only a point that leaves nothing to draw can be checked now; others are when they are drawn.
    if len(known) + len(inactive) == len(plan):
        rules.check(constraints, known)
    return {name: known[name] for name in known if name in flat}
