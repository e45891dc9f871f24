"""TOML tables read as arguments of dataclasses or functions, by their types, and the JSON Schema of these tables.

A `Kind` is one type of value: how it is read, and how a schema describes it. Plug-ins need nothing for it but the
annotations of their fields.
"""

import collections.abc
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from phyla import plugins
from phyla.errors import UsageError
from phyla.records import Maximize, Minimize, Objective
from phyla.strategies import Exploit, Explore, FitnessRule, FromSuite, StoppingRule
from phyla.study.files.python import function_named
from phyla.validation import suggestion

Schema: TypeAlias = dict[str, Any]

GROUPS: Mapping[object, str] = {
    Exploit: "phyla.exploit",
    Explore: "phyla.explore",
    FitnessRule: "phyla.fitness",
    FromSuite: "phyla.fitness",
    StoppingRule: "phyla.stopping",
    Objective: "phyla.objectives",
    Maximize: "phyla.objectives",
    Minimize: "phyla.objectives",
}
"""Types of fields that hold a plug-in, and their plug-in groups."""
DIRECTIONS = ("maximize", "minimize")


@final
@dataclass(frozen=True, slots=True)
class Where:
    """A place in a file, for messages: `study.toml, pbt.exploit`."""

    file: Path
    key: str = ""
    imports: bool = True
    """Whether a value may name code to import."""

    def __str__(self) -> str:
        return f"{self.file}, {self.key}" if self.key else str(self.file)

    def at(self, key: str) -> "Where":
        """Return the place of a key of this table."""
        return replace(self, key=f"{self.key}.{key}".removeprefix("."))

    def entry(self, index: int, value: object) -> "Where":
        """Return the place of an entry of this list, which has the name of the table there, or its index."""
        named = value.get("name") if isinstance(value, Mapping) else None
        return replace(self, key=f"{self.key}[{named or index}]")


@final
@dataclass(frozen=True, slots=True)
class Kind:
    """One type of value.

    Attributes:
        words: what it is, for messages.
        fits: whether a value has the shape of one.
        schema: what JSON Schema says of it.
        read: returns what a value that fits stands for; raises a UsageError that names the place.
    """

    words: str
    fits: Callable[[Any], bool]
    schema: Schema
    read: Callable[[Any, Where], Any] = field(default=lambda value, where: value)

    def __call__(self, value: Any, where: Where) -> Any:
        """Read a value."""
        if not self.fits(value):
            raise UsageError(f"{where}: expected {self.words}, got {format_value(value)}")
        return self.read(value, where)


def format_value(value: Any) -> str:
    """Return a value as TOML, approximately."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and isinstance(value, bool) == (kinds == (bool,))


ANYTHING = Kind("a value", lambda value: True, {})
BOOL = Kind("true or false", _is(bool), {"type": "boolean"})
INT = Kind("an integer", _is(int), {"type": "integer"})
FLOAT = Kind("a number", _is(int, float), {"type": "number"})
TEXT = Kind("a text in quotes", _is(str), {"type": "string"})
TABLE = Kind("a table", _is(dict), {"type": "object"})
LIST = Kind("a list", _is(list), {"type": "array"})
FUNCTION = Kind(
    "a function, as file.py:name or module:name",
    _is(str),
    {"type": "string", "pattern": ":", "description": "A function, as file.py:name or module:name."},
    lambda value, where: locate_errors(where, _function, value, where),
)
PATH = Kind(
    "a path in quotes",
    _is(str),
    {"type": "string"},
    lambda value, where: where.file.parent / locate_errors(where, Path(value).expanduser),
)


def _function(name: str, where: Where) -> Any:
    if not where.imports:
        raise UsageError(f"{name!r}: a request names no code")
    return function_named(name, where.file.parent)


def locate_errors(where: Where, call: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Call a function; errors about what it was given get the place in the file."""
    try:
        return call(*args, **settings)
    except (UsageError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}") from error


def check_keys(value: Mapping[str, Any], known: Collection[str], where: Where) -> None:
    """Reject unknown keys."""
    for key in value:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}; {suggestion(key, known)}")


@cache
def kind_of(hint: Any) -> Kind:
    """Return the kind of a field by its type; what cannot be known of it is left to the dataclass."""
    scalars = {bool: BOOL, int: INT, float: FLOAT, str: TEXT, dict: TABLE, Path: PATH}
    if hint in scalars:
        return scalars[hint]
    if hint in GROUPS:
        return plugin(GROUPS[hint])
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _either(args)
    if origin is Literal:
        return Kind(" or ".join(map(format_value, args)), lambda value: value in args, {"enum": list(args)})
    if origin is tuple and args[-1] is not ...:
        kinds = [kind_of(member).schema for member in args]
        return replace(LIST, schema={**LIST.schema, "items": kinds, "minItems": len(args), "maxItems": len(args)})
    if origin in (list, tuple, collections.abc.Sequence, collections.abc.Iterable):
        return list_of(kind_of(args[0]))
    if origin in (dict, collections.abc.Mapping):
        return mapping_of(kind_of(args[1]))
    if origin is collections.abc.Callable:
        return FUNCTION
    return table(hint) if isinstance(hint, type) and is_dataclass(hint) else ANYTHING


def _either(hints: Sequence[Any]) -> Kind:
    """Return the kind of a union. TOML has no null: what may be None is left out, and a plug-in may be "none"."""
    groups = {GROUPS[hint] for hint in hints if hint in GROUPS}
    if groups:
        return plugin(groups.pop(), optional=types.NoneType in hints)
    kinds = [kind_of(hint) for hint in hints if hint is not types.NoneType]
    return any_of(*kinds) if len(kinds) > 1 else kinds[0]


def any_of(*kinds: Kind) -> Kind:
    """Return the kind of a union: the first kind that fits reads the value."""

    def read(value: Any, where: Where) -> Any:
        return next(kind for kind in kinds if kind.fits(value)).read(value, where)

    return Kind(
        " or ".join(kind.words for kind in kinds),
        lambda value: any(kind.fits(value) for kind in kinds),
        {"anyOf": [kind.schema for kind in kinds]},
        read,
    )


def list_of(kind: Kind) -> Kind:
    """Return the kind of a list."""

    def read(value: Any, where: Where) -> Any:
        return tuple(kind(item, where.entry(index, item)) for index, item in enumerate(value))

    return Kind(f"a list, each {kind.words}", _is(list), {"type": "array", "items": kind.schema}, read)


def mapping_of(kind: Kind) -> Kind:
    """Return the kind of a table with keys of the user's."""

    def read(value: Any, where: Where) -> Any:
        return {key: kind(item, where.at(key)) for key, item in value.items()}

    return Kind("a table", _is(dict), {"type": "object", "additionalProperties": kind.schema}, read)


def table(of: Callable[..., Any], make: Callable[..., Any] | None = None, /, **special: Kind) -> Kind:
    """Return the kind of a table whose keys are the arguments of a dataclass or a function.

    Args:
        of: the dataclass, or the function.
        make: makes something of the values; by default `of`, which then misses no required argument.
        **special: kinds of arguments whose type does not say it.
    """
    arguments = _arguments(of)
    needed = [name for name, default in arguments.items() if make is None and default is MISSING]
    defaults = {name: value for name, value in arguments.items() if isinstance(value, (bool, int, float, str))}
    kind = make_table(kinds_of(of, **special), needed, make or of, describe_fields(of), defaults)
    summary = (inspect.getdoc(of) or "").partition("\n")[0]
    return replace(kind, schema={"description": summary, **kind.schema})


def kinds_of(of: Callable[..., Any], **special: Kind) -> dict[str, Kind]:
    """Return the kinds of the arguments of a dataclass or a function."""
    try:
        hints = typing.get_type_hints(of, localns={"Json": Any})
    except NameError:
        # Names that only type checkers import: the dataclass checks its fields itself.
        hints = {}
    return {name: special.get(name) or kind_of(hints.get(name)) for name in _arguments(of)}


def _arguments(of: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of arguments by name; MISSING where there is none."""
    if not is_dataclass(of):
        empty = inspect.Parameter.empty
        parameters = inspect.signature(of).parameters.values()
        return {given.name: MISSING if given.default is empty else given.default for given in parameters}
    own = [field for field in fields(of) if field.init]
    return {field.name: field.default if field.default_factory is MISSING else None for field in own}


def make_table(
    kinds: Mapping[str, Kind],
    needed: Collection[str],
    make: Callable[..., Any],
    descriptions: Mapping[str, str],
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
) -> Kind:
    """Return the kind of a table that has these keys."""

    def read(value: Any, where: Where) -> Any:
        check_keys(value, kinds, where)
        for key in needed:
            if key not in value:
                raise UsageError(f"{where}: {key} is missing")
        return locate_errors(where, make, **{key: kinds[key](item, where.at(key)) for key, item in value.items()})

    properties = {
        key: {
            **kind.schema,
            **({"description": descriptions[key]} if key in descriptions else {}),
            **({"default": defaults[key]} if key in defaults else {}),
        }
        for key, kind in kinds.items()
    }
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return Kind("a table", _is(dict), {**schema, "required": list(needed)} if needed else schema, read)


def describe_fields(of: object) -> dict[str, str]:
    """Return the description of each argument in a docstring."""
    args = (inspect.getdoc(of) or "").partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {4}\**(\w+): (.*(?:\n {8}.*)*)", args, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


# Plug-ins


@cache
def plugin(group: str, *, optional: bool = False) -> Kind:
    """Return the kind of a registered plug-in: its name, or a table with `name` and its settings."""
    short = group.removeprefix("phyla.")
    schema: Schema = {"$ref": f"#/definitions/{short}"}
    words = "maximize METRIC or minimize METRIC, or a table" if short == "objectives" else "a name, or a table"
    return Kind(
        f"{words} with name and settings",
        _is(str, dict),
        {"anyOf": [{"const": "none"}, schema]} if optional else schema,
        partial(_plugin, group, optional),
    )


@cache
def registered(group: str, name: str) -> Kind:
    """Return the kind of the table of one plug-in's settings, without its name."""
    return table(plugins.load(plugins.of_group(group)[name]))


def _plugin(group: str, optional: bool, value: Any, where: Where) -> Any:
    if optional and value == "none":
        return None
    settings = {"name": value} if isinstance(value, str) else dict(value)
    if group == GROUPS[Objective]:
        settings = _goal(value) or settings
    known = plugins.of_group(group)
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in known:
        problem = f"there is no {name!r}" if isinstance(name, str) else f"{format_value(value)} has no name"
        example = 'write "minimize loss", or { maximize = "accuracy" }; ' if group == GROUPS[Objective] else ""
        raise UsageError(f"{where}: {problem}; {example}{suggestion(name, known)}")
    return registered(group, name)(settings, where)


def _goal(value: Any) -> dict[str, Any] | None:
    """Return the settings of `"minimize loss"`, or of `{ minimize = "loss" }`."""
    direction, _, metric = value.strip().partition(" ") if isinstance(value, str) else ("", "", "")
    if isinstance(value, Mapping) and len(value) == 1:
        ((direction, metric),) = value.items()
    return {"name": direction, "metric": metric.strip()} if direction in DIRECTIONS and metric else None


def definition(group: str) -> Schema:
    """Return the schema of the plug-ins of a group."""
    tables = {name: registered(group, name).schema for name in plugins.of_group(group)}
    alone = [name for name, schema in tables.items() if not schema.get("required")]
    choices: list[Schema] = [{"enum": alone}] if alone else []
    if group == GROUPS[Objective]:
        choices.append({"type": "string", "pattern": f"^({'|'.join(DIRECTIONS)}) +\\S"})
        choices += [make_table({direction: TEXT}, [direction], dict, {}).schema for direction in DIRECTIONS]
    for name, schema in tables.items():
        properties = {"name": {"const": name}, **schema["properties"]}
        choices.append({**schema, "properties": properties, "required": ["name", *schema.get("required", [])]})
    return {"anyOf": choices}
