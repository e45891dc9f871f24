"""What Space is given, checked: its parameters, constraints and starting points."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from phyla.arguments import suggestion
from phyla.errors import SpaceError
from phyla.space.conditions import Parameter, Plan, hold, unmet
from phyla.space.params import Params, flatten
from phyla.space.scalars import Scalar, checked

Constraint: TypeAlias = Callable[..., bool]
"""Takes Params and says whether they are allowed."""


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


def listed(option: str, given: object) -> list[Any]:
    """The constraints, or the starting points (`initial`), that Space was given."""
    what = "functions" if option == "constraints" else "starting points"
    if isinstance(given, Parameter):
        raise SpaceError(
            f"{option!r} is an option of Space; give a parameter of that name as Space({{{option!r}: {given!r}}})"
        )
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        alone = callable(given) if option == "constraints" else isinstance(given, Mapping)
        instead = f"; write {option}=[{name_of(given)}]" if alone else f", got {given!r}"
        raise SpaceError(f"{option} must be a list of {what}{instead}")
    for one in given if option == "constraints" else ():
        if not callable(one):
            raise SpaceError(f"a constraint must be a function, got {one!r}")
    return list(given)


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
        require(constraints, known)
    return {name: known[name] for name in known if name in flat}


def violated(constraints: Sequence[Constraint], values: Mapping[str, Scalar]) -> Constraint | None:
    """The first constraint that does not allow the flat values; None when all do."""
    for constraint in constraints:
        try:
            allowed: object = constraint(Params.of_flat(values))
        except Exception as error:
            raise SpaceError(
                f"the constraint {name_of(constraint)} raised {type(error).__name__}: {error}; "
                f"the values were {values!r} (inactive parameters are absent: use .get)"
            ) from error
        if allowed is None:
            raise SpaceError(f"the constraint {name_of(constraint)} returned None; return True or False")
        if not allowed:
            return constraint
    return None


def require(constraints: Sequence[Constraint], values: Mapping[str, Scalar]) -> None:
    """Refuse values that a constraint does not allow."""
    rejected = violated(constraints, values)
    if rejected is not None:
        raise SpaceError(f"the constraint {name_of(rejected)} does not allow {values!r}")


def name_of(constraint: object) -> str:
    """What a message calls a function."""
    return str(getattr(constraint, "__name__", None) or repr(constraint))
