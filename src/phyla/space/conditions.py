"""Conditions between parameters: how their names resolve, in which order they are met, when they hold."""

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

from phyla.arguments import suggestion
from phyla.errors import SpaceError
from phyla.space.discrete import Choice, Ordinal
from phyla.space.numeric import Float, Int
from phyla.space.scalars import Scalar, as_when

Parameter: TypeAlias = Float | Int | Choice | Ordinal
"""Any of the four kinds of parameter."""

Conditions: TypeAlias = tuple[tuple[str, tuple[Scalar, ...]], ...]

Plan: TypeAlias = tuple[tuple[str, Parameter, Conditions], ...]
"""Names, parameters and conditions, with every parameter after those that it depends on."""


def resolved(name: str, parameters: Mapping[str, Parameter]) -> Parameter:
    """The parameter with absolute names in its `when`, and the values as the named parameters hold them.

    A name is looked up next to the parameter, in its group, and then from the top; with a leading "/" only
    from the top.
    """
    parameter = parameters[name]
    if parameter.when is None:
        return parameter
    when: dict[str, tuple[Scalar, ...]] = {}
    for written, values in conditions(parameter):
        target = written.removeprefix("/")
        sibling = f"{name.rpartition('/')[0]}/{written}".removeprefix("/")
        if not written.startswith("/") and sibling in parameters:
            target = sibling
        if target not in parameters:
            raise SpaceError(
                f"{name}: when names {written!r}, which is no parameter; {suggestion(written, parameters)}"
            )
        if target in when:
            raise SpaceError(f"{name}: when names {target!r} twice; write all of its values in one list")
        try:
            when[target] = tuple(parameters[target].check(value) for value in values)
        except SpaceError as error:
            raise SpaceError(f"{name}: when={parameter.when!r} can never hold for {target!r}: {error}") from None
    return dataclasses.replace(parameter, when=when)


def conditions(parameter: Parameter) -> Conditions:
    """What must hold for the parameter to be active: (name, values) pairs."""
    return tuple((as_when(parameter.when) or {}).items())


def ordered(parameters: Mapping[str, Parameter]) -> list[str]:
    """The names, each after those that its conditions name, else in the order given."""
    order: dict[str, None] = {}

    def place(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circle = " -> ".join((*path[path.index(name) :], name))
            raise SpaceError(f"the conditions form a circle: {circle}; remove one of them")
        if name not in order:
            for parent, _ in conditions(parameters[name]):
                place(parent, (*path, name))
            order[name] = None

    for name in parameters:
        place(name, ())
    return list(order)


def hold(needed: Conditions, values: Mapping[str, Scalar]) -> bool:
    """Whether all conditions hold for the values of the parameters that are active so far."""
    return all(name in values and values[name] in allowed for name, allowed in needed)


def unmet(needed: Conditions, values: Mapping[str, Scalar]) -> str:
    """Why the conditions do not hold for `values`, in words."""
    name, allowed = next((name, allowed) for name, allowed in needed if not hold(((name, allowed),), values))
    wanted = repr(allowed[0]) if len(allowed) == 1 else f"one of {list(allowed)!r}"
    found = f"that is {values[name]!r}" if name in values else f"{name!r} has no value"
    return f"it is active only when {name!r} is {wanted}, and {found}"
