"""Checks of the arguments of Space: parameters, the conditions between them, constraints and starting points.

Also its parameters as JSON, and the changes that are allowed once values are in use.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from phyla.errors import SpaceError, message_of
from phyla.space.choices import Choice, Ordinal
from phyla.space.params import Params, Scalar, as_when, flatten, is_same, run_check
from phyla.space.ranges import Float, Int
from phyla.validation import suggestion, why_not_run

Parameter: TypeAlias = Float | Int | Choice | Ordinal
"""Any of the four kinds of parameter."""

Constraint: TypeAlias = Callable[..., bool]
"""Returns whether Params are allowed."""

Conditions: TypeAlias = tuple[tuple[str, tuple[Scalar, ...]], ...]

Plan: TypeAlias = tuple[tuple[str, Parameter, Conditions], ...]
"""Names, parameters and conditions, with every parameter after those that it depends on."""

KINDS: dict[str, type[Parameter]] = {kind.kind: kind for kind in (Float, Int, Choice, Ordinal)}


def parameters(mapping: object, keywords: dict[str, Any]) -> dict[str, Parameter]:
    """The parameters of a space by full name, in order, with full names in their `when`."""
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
            raise SpaceError(
                f"{name}: {parameter!r} is not a parameter; write Float(low, high), Int(low, high), Choice([...]) "
                "or Ordinal([...]), and keep what never changes out of the space"
            )
    return {name: _resolve_conditions(name, flat) for name in flat}


def _resolve_conditions(name: str, parameters: Mapping[str, Parameter]) -> Parameter:
    """The parameter with full names in its `when`, and the values as the named parameters hold them."""
    parameter = parameters[name]
    if parameter.when is None:
        return parameter
    when: dict[str, tuple[Scalar, ...]] = {}
    for written, values in conditions(parameter):
        target = written.removeprefix("/")
        if target not in parameters:
            raise SpaceError(
                f"{name}: when names {written!r}, which is not a parameter; {suggestion(written, parameters)}"
            )
        if target in when:
            raise SpaceError(f"{name}: when names {target!r} twice; write all of its values in one list")
        try:
            when[target] = tuple(parameters[target].check(value) for value in values)
        except SpaceError as error:
            raise SpaceError(f"{name}: when={parameter.when!r} can never hold for {target!r}: {error}") from None
    return dataclasses.replace(parameter, when=when)


def conditions(parameter: Parameter) -> Conditions:
    """The conditions of an active parameter, as (name, values) pairs."""
    return tuple((as_when(parameter.when) or {}).items())


def make_plan(parameters: Mapping[str, Parameter]) -> Plan:
    """The parameters, each after those that its conditions name, else in the order given."""
    plan: dict[str, tuple[str, Parameter, Conditions]] = {}

    def place(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circle = " -> ".join((*path[path.index(name) :], name))
            raise SpaceError(f"the conditions form a circle: {circle}; remove one of them")
        if name not in plan:
            needed = conditions(parameters[name])
            for parent, _ in needed:
                place(parent, (*path, name))
            plan[name] = name, parameters[name], needed

    for name in parameters:
        place(name, ())
    return tuple(plan.values())


def hold(needed: Conditions, values: Mapping[str, Scalar]) -> bool:
    """Whether all conditions hold for the values of the parameters that are active so far."""
    return all(name in values and values[name] in allowed for name, allowed in needed)


def unmet(needed: Conditions, values: Mapping[str, Scalar]) -> str:
    """Why the conditions do not hold for `values`, as text."""
    name, allowed = next((name, allowed) for name, allowed in needed if not hold(((name, allowed),), values))
    wanted = repr(allowed[0]) if len(allowed) == 1 else f"one of {list(allowed)!r}"
    state = f"that is {values[name]!r}" if name in values else f"{name!r} has no value"
    return f"it is active only when {name!r} is {wanted}, and {state}"


def check_list(option: str, value: object) -> list[Any]:
    """The constraints, or the starting points (`initial`), that Space was given."""
    noun = "functions" if option == "constraints" else "starting points"
    if isinstance(value, Parameter):
        raise SpaceError(
            f"{option!r} is an option of Space; give a parameter of that name as Space({{{option!r}: {value!r}}})"
        )
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        alone = callable(value) if option == "constraints" else isinstance(value, Mapping)
        instead = f"; write {option}=[{name_of(value)}]" if alone else f", got {value!r}"
        raise SpaceError(f"{option} must be a list of {noun}{instead}")
    for constraint in value if option == "constraints" else ():
        if not callable(constraint):
            raise SpaceError(f"a constraint must be a function, got {constraint!r}")
        if why := why_not_run(constraint):
            raise SpaceError(f"the constraint {name_of(constraint)} {why}")
    return list(value)


def starting_point(point: object, plan: Plan, constraints: Sequence[Constraint]) -> dict[str, Scalar]:
    """One starting point of a space, flat and in canonical form."""
    if not isinstance(point, Mapping):
        raise SpaceError(f"must map names to values, got {point!r}")
    flat = flatten(point)
    refuse_unknown(flat, [name for name, _, _ in plan])
    known: dict[str, Scalar] = {}
    open_: set[str] = set()
    for name, parameter, needed in plan:
        if hold(needed, known):
            if name in flat:
                known[name] = run_check(parameter.check, flat[name], name)
            elif parameter.initial is not None and not isinstance(parameter.initial, tuple):
                known[name] = parameter.initial
            else:
                open_.add(name)
        elif name in flat:
            raise SpaceError(f"{name}: cannot start at {flat[name]!r}: {unmet(needed, known)}")
        elif all(parent in open_ or hold(((parent, allowed),), known) for parent, allowed in needed):
            open_.add(name)
    # Only a complete point can be checked now; others are checked when they are drawn.
    if not open_:
        require(constraints, known)
    return {name: known[name] for name in known if name in flat}


def refuse_unknown(names: Iterable[str], known: Collection[str]) -> None:
    """Reject names that are no parameters."""
    for name in names:
        if name not in known:
            raise SpaceError(f"unknown parameter {name!r}; {suggestion(name, known)}")


def find_violated(constraints: Sequence[Constraint], values: Mapping[str, Scalar]) -> Constraint | None:
    """The first constraint that does not allow the flat values; None when all do."""
    for constraint in constraints:
        try:
            allowed: object = constraint(Params.of_flat(values))
        except Exception as error:
            what = f"{type(error).__name__}: {message_of(error)}"
            why = f"raised {what}; the values were {values!r} (inactive ones are absent)"
            raise SpaceError(f"the constraint {name_of(constraint)} {why}") from error
        if allowed is None:
            raise SpaceError(f"the constraint {name_of(constraint)} returned None; return True or False")
        if not allowed:
            return constraint
    return None


def require(constraints: Sequence[Constraint], values: Mapping[str, Scalar]) -> None:
    """Reject values that a constraint does not allow."""
    rejected = find_violated(constraints, values)
    if rejected is not None:
        raise SpaceError(f"the constraint {name_of(rejected)} does not allow {values!r}")


def name_of(constraint: object) -> str:
    """The name of a function in messages."""
    return str(getattr(constraint, "__name__", None) or repr(constraint))


def describe_parameter(name: str, parameter: Parameter) -> dict[str, Any]:
    """A parameter in JSON types; names in `when` are written from the top, with a leading "/"."""
    entry: dict[str, Any] = {"name": name, "kind": parameter.kind}
    for attribute in dataclasses.fields(parameter):
        value = getattr(parameter, attribute.name)
        entry[attribute.name] = list(value) if isinstance(value, tuple) else value
    if parameter.when is not None:
        entry["when"] = {f"/{parent}": list(values) for parent, values in conditions(parameter)}
    return entry


def read_parameter(entry: Mapping[str, Any]) -> tuple[str, Parameter]:
    """The name and the parameter that `describe_parameter` described."""
    try:
        options = {key: value for key, value in entry.items() if key not in ("name", "kind")}
        return entry["name"], KINDS[entry["kind"]](**options)
    except (AttributeError, KeyError, TypeError, SpaceError) as error:
        raise SpaceError(f"{entry!r} does not describe a parameter: {error}") from error


def check_extension(old: Mapping[str, Parameter], new: Mapping[str, Parameter]) -> None:
    """Reject parameters for which old values may be invalid, and list all that is narrowed.

    Bounds may be widened, by whole steps where there are any, values added, and parameters added that have a
    default. Where members start may change.
    """
    problems = [f"{name} is gone" for name in old if name not in new]
    problems += [
        f"{name}: {problem}"
        for name, before in old.items()
        if name in new
        for problem in _find_narrowing(before, new[name])
    ]
    problems += [
        f"{name} is new and has no default: give the value that earlier trials had, as in default=..."
        for name, parameter in new.items()
        if name not in old and parameter.default is None
    ]
    if problems:
        raise SpaceError(f"the space of a study that exists can only be widened: {'; '.join(problems)}")


def _find_narrowing(old: Parameter, new: Parameter) -> Iterator[str]:
    if conditions(old) != conditions(new):
        yield f"when was {old.when!r}, now {new.when!r}"
    if isinstance(old, Float | Int) and isinstance(new, Float | Int) and old.kind == new.kind:
        narrower = {"low": new.low > old.low, "high": new.high < old.high, "log": new.log != old.log}
        for name in (name for name, is_narrower in narrower.items() if is_narrower):
            yield f"{name} was {getattr(old, name)!r}, now {getattr(new, name)!r}"
        off = math.remainder(old.low - new.low, new.step) if new.step else 0.0  # of the new grid
        if old.step != new.step or abs(off) > 1e-6 * (new.step or 1):
            yield f"step was {old.step!r} from {old.low!r}, now {new.step!r} from {new.low!r}"
    elif isinstance(old, Choice) and isinstance(new, Choice):
        missing = [value for value in old.values if not any(is_same(value, other) for other in new.values)]
        if missing:
            yield f"the values {missing!r} are gone"
    elif isinstance(old, Ordinal) and isinstance(new, Ordinal):
        # In the old order, with new ones between.
        common = [value for value in new.values if any(is_same(value, other) for other in old.values)]
        if len(common) < len(old.values) or not all(map(is_same, common, old.values)):
            yield f"the values were {list(old.values)!r}, now {list(new.values)!r}"
    else:
        yield f"it was {old!r}, now {new!r}"
