"""Constraints between parameters: functions that say whether values are allowed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from phyla.errors import SpaceError
from phyla.space.conditions import Parameter
from phyla.space.params import Params
from phyla.space.scalars import Scalar

Constraint: TypeAlias = Callable[..., bool]
"""Takes Params and says whether they are allowed."""


def listed(constraints: object) -> tuple[Constraint, ...]:
    """The constraints that Space was given, checked."""
    if isinstance(constraints, Parameter):
        raise SpaceError(
            "'constraints' is an option of Space; give a parameter of that name as "
            f"Space({{'constraints': {constraints!r}}})"
        )
    if callable(constraints):
        raise SpaceError(f"constraints must be a list of functions; write constraints=[{name(constraints)}]")
    if isinstance(constraints, str | Mapping) or not isinstance(constraints, Sequence):
        raise SpaceError(f"constraints must be a list of functions, got {constraints!r}")
    for constraint in constraints:
        if not callable(constraint):
            raise SpaceError(f"a constraint must be a function, got {constraint!r}")
    return tuple(constraints)


def violated(constraints: Sequence[Constraint], values: Mapping[str, Scalar]) -> Constraint | None:
    """The first constraint that does not allow the flat values; None when all do."""
    for constraint in constraints:
        try:
            allowed: object = constraint(Params.of_flat(values))
        except Exception as error:
            raise SpaceError(
                f"the constraint {name(constraint)} raised {type(error).__name__}: {error}; "
                f"the values were {values!r} (inactive parameters are absent: use .get)"
            ) from error
        if allowed is None:
            raise SpaceError(f"the constraint {name(constraint)} returned None; return True or False")
        if not allowed:
            return constraint
    return None


def check(constraints: Sequence[Constraint], values: Mapping[str, Scalar]) -> None:
    """Refuse values that a constraint does not allow."""
    rejected = violated(constraints, values)
    if rejected is not None:
        raise SpaceError(f"the constraint {name(rejected)} does not allow {values!r}")


def name(function: Callable[..., Any]) -> str:
    """What a message calls the function."""
    return str(getattr(function, "__name__", None) or repr(function))
