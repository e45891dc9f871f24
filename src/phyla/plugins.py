"""Every extension point, in one file; built-ins register exactly as third parties do.

A plug-in is a frozen dataclass that is registered under one of the entry point groups in `GROUPS`. Its fields are
its settings: plain JSON values, functions, and other plug-ins. `encode` writes them as JSON, so that a later run
can tell whether it is the same study; nothing is pickled. A dataclass or function that is not registered becomes a
reference `module:name`, or `path/to/file.py:name` when it was defined in the file that was run.

**A stored reference is never imported.** A user who can write to the database must not be able to run code as the
users who read it. `decode` makes registered plug-ins and phyla's own settings. A reference to anything else goes
to the `find` that the caller passes, and is rejected without one. Pass `find=resolve`, which imports, only for
what came from the user: their study file, or the process that started this one.
"""

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

from phyla import study_modules
from phyla.errors import ConfigurationError, NotImportable, message_of
from phyla.records import UNLESS_NONE, Json
from phyla.validation import plain

GROUPS = (
    "phyla.strategies",  # phyla.strategies.Strategy
    "phyla.exploit",  # phyla.strategies.Exploit
    "phyla.explore",  # phyla.strategies.Explore
    "phyla.fitness",  # phyla.strategies.FitnessRule
    "phyla.stopping",  # phyla.strategies.StoppingRule
    "phyla.objectives",  # phyla.records.Objective
    "phyla.aggregators",  # phyla.evaluation.Aggregator
    "phyla.formats",  # phyla.watcher.CheckpointFormat
    "phyla.launchers",  # phyla.launchers.Launcher
    "phyla.trackers",  # phyla.integrations.trackers.Tracker
)
"""The groups of entry points, each with its contract."""
STORED_BY_NAME = ("phyla.formats", "phyla.launchers", "phyla.trackers")
"""Groups whose objects are never stored, so that encoding need not import them."""
OWN_SETTINGS = ("phyla.evaluation.", "phyla.records.")
"""Packages of pure dataclasses that `decode` makes although they are not registered, such as `Suite`."""

Find: TypeAlias = Callable[[str], Callable[..., Any]]
NameOf: TypeAlias = Callable[[Callable[..., Any]], str]


def _by_name(points: Iterable[EntryPoint]) -> Mapping[str, EntryPoint]:
    return {f"{point.group}/{point.name}": point for point in points if point.group in GROUPS}


@cache
def _own() -> Mapping[str, EntryPoint]:
    """Return phyla's own plug-ins: most studies have no others, and reading what all packages have takes long."""
    return _by_name(point for package in distributions(name="phyla") for point in package.entry_points)


@cache
def list_plugins() -> Mapping[str, EntryPoint]:
    """Return every registered plug-in by `group/name`; no other package's takes the name of one of phyla's."""
    points = entry_points()
    return {**_by_name(point for group in GROUPS for point in points.select(group=group)), **_own()}


def find_plugin(name: str) -> EntryPoint | None:
    """Return the plug-in that is registered as `group/name`, if any; references have a colon."""
    return None if ":" in name else _own().get(name) or list_plugins().get(name)


def of_group(group: str) -> Mapping[str, EntryPoint]:
    """Return the registered plug-ins of one group by name."""
    start = f"{group}/"
    return {
        name.removeprefix(start): list_plugins()[name] for name in sorted(list_plugins()) if name.startswith(start)
    }


def load(point: EntryPoint) -> Any:
    """Return a registered plug-in.

    Raises:
        NotImportable: its package cannot be imported, whatever that raises, or has no such class.
    """
    try:
        return point.load()
    except Exception as error:
        package = f" of package {point.dist.name}" if point.dist else ""
        which = f"{point.value}, which is plug-in {f'{point.group}/{point.name}'!r}{package}"
        raise NotImportable(f"cannot load {which}: {type(error).__name__}: {message_of(error)}") from error


@cache
def _names(*, own: bool) -> Mapping[type, str]:
    """Return the registered names by class: those of phyla's own plug-ins, or all."""
    names: dict[type, str] = {}
    for name, point in (_own() if own else list_plugins()).items():
        # A plug-in whose package is broken matters only when it is named.
        with suppress(NotImportable):
            if not name.startswith(STORED_BY_NAME):
                names[load(point)] = name
    return names


def encode(value: Any, name_of: NameOf | None = None) -> Json:
    """Write a plug-in, or anything its fields may hold, as JSON; `name_of` is by default `reference`.

    Raises:
        ConfigurationError: a setting is neither JSON, nor a dataclass, nor a function.
        NotImportable: a function or class cannot be found again by name.
    """
    value = plain(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [encode(item, name_of) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item, name_of) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        name = _names(own=kind.__module__.startswith("phyla.")).get(kind) or (name_of or reference)(kind)
        fields = [(f, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
        set_fields = {
            f.name: encode(item, name_of) for f, item in fields if item is not None or f.metadata != UNLESS_NONE
        }
        return {"plugin": name, **set_fields}
    if callable(value):
        return {"function": (name_of or reference)(value)}
    raise ConfigurationError(
        f"{value!r} cannot be stored with the study: settings are JSON values, frozen dataclasses or functions"
    )


def decode(value: Json, find: Find | None = None) -> Any:
    """Undo `encode`.

    Args:
        value: what `encode` gave, perhaps through JSON.
        find: finds functions and unregistered classes by name; by default they are refused, since the value may
            come from a database. Pass `phyla.plugins.resolve` for what the user gave.

    Raises:
        ConfigurationError: a plug-in is not installed here, or does not take these settings.
        NotImportable: a function or class is refused, or cannot be found by its name.
    """
    find = find or refuse
    if isinstance(value, (list, tuple)):
        return [decode(item, find) for item in value]
    if not isinstance(value, Mapping):
        return value
    if "function" in value and len(value) == 1:
        return find(str(value["function"]))
    settings = {key: decode(item, find) for key, item in value.items() if key != "plugin"}
    if "plugin" not in value:
        return settings
    name = str(value["plugin"])
    point = None if name.startswith(STORED_BY_NAME) else find_plugin(name)
    kind = _find_unregistered(name, find) if point is None else load(point)
    try:
        return kind(**settings)
    except TypeError as error:
        raise ConfigurationError(
            f"plug-in {name!r} does not take the stored settings {settings}: {error}; "
            "the study was made with another version of it"
        ) from error


def _find_unregistered(name: str, find: Find) -> Callable[..., Any]:
    if "/" in name and ":" not in name:
        group = name.split("/")[0]
        known = ", ".join(f"{group}/{plugin}" for plugin in sorted(of_group(group))) or "none"
        raise ConfigurationError(f"plug-in {name!r} is not installed here; there are: {known}")
    module, _, qualname = name.partition(":")
    if name.startswith(OWN_SETTINGS) and module in sys.modules:
        candidate = vars(sys.modules[module]).get(qualname)
        if isinstance(candidate, type) and candidate.__module__ == module and dataclasses.is_dataclass(candidate):
            return candidate
    return find(name)


def refuse(name: str) -> NoReturn:
    """Reject a reference that comes from a database."""
    raise NotImportable(
        f"the database names {name!r}, which is not a registered plug-in; phyla does not import what a database "
        "names, so give the file that defines it"
    )


def absent(name: str) -> Callable[..., NoReturn]:
    """Return a function that stands for a stored one where no function is called; calling it raises."""

    def stands_in(*_: object, **__: object) -> NoReturn:
        refuse(name)

    # The identity of an eval task has the name of its function.
    stands_in.__qualname__ = name.rpartition(":")[2]
    return stands_in


def portable(name: str) -> str:
    """Return a reference without the directory of its file, so that two machines may keep the file elsewhere."""
    source, colon, qualname = name.rpartition(":")
    return f"{Path(source).name}:{qualname}" if colon and source.endswith(".py") else name


def loaded_class(name: str) -> type[Any]:
    """Return a class that this process has loaded already, by the reference that it is stored under.

    Nothing is imported, and no attribute is computed: the name may come from a database.

    Raises:
        NotImportable: this process has no such class.
    """
    source, _, qualname = name.rpartition(":")
    modules = [sys.modules[source]] if source in sys.modules else []
    if source.endswith(".py"):
        modules = study_modules.of_file(Path(source).name)
    for module in modules:
        candidate: object = module
        for part in qualname.split("."):
            candidate = vars(candidate).get(part) if isinstance(candidate, type | ModuleType) else None
        if isinstance(candidate, type):
            return candidate
    raise NotImportable(
        f"the database names the class {name!r}, which this process has not loaded; import it at the top of the "
        "study file or the suite file"
    )


def reference(target: Callable[..., Any]) -> str:
    """Return the name under which another process finds a module-level function or class.

    Raises:
        NotImportable: there is no such name; the message says how to fix that.
    """
    name = getattr(target, "__qualname__", None)
    module = getattr(target, "__module__", None)
    if not name or not module:
        raise NotImportable(f"{target!r} has no name that a worker process could import; use a function")
    owner = getattr(target, "__self__", None)
    if owner is not None and not isinstance(owner, (type, ModuleType)):
        raise NotImportable(
            f"{name} of {module} is a method of an object, which a worker process does not have; use a function, "
            "or run with workers=0"
        )
    if "<" in name:
        raise NotImportable(
            f"{name} of {module} is a lambda or is defined inside another function, so a worker process cannot "
            "find it; define it at the top level of a file, or run with workers=0"
        )
    if not study_modules.is_study_file(module):
        return f"{module}:{name}"
    file = _globals_of(target, module).get("__file__")
    if file is None or not Path(file).is_file():  # `python - < file` names "<stdin>", `python <(...)` a pipe
        raise NotImportable(
            f"{name} was defined in a notebook, an interactive session or standard input, where a worker process "
            "cannot find it; move it into a file (in a notebook: %%writefile my_training.py, then `from "
            f"my_training import {name}`), or run with workers=0"
        )
    path = Path(file).resolve()
    if path.suffix != ".py":
        raise NotImportable(
            f"{name} was defined in {path}, which a worker process cannot import, since its name does not end in "
            f".py; rename it, or move {name} into a file whose name does, or run with workers=0"
        )
    return f"{path}:{name}"


def _globals_of(target: Callable[..., Any], module: str) -> Mapping[str, Any]:
    """Return the names of the module that defines a function or class.

    `python -m cProfile study.py` runs the file as a `__main__` that sys.modules does not have before Python 3.12,
    so functions, and the methods of a class, are asked first.
    """
    functions = vars(target).values() if isinstance(target, type) else [inspect.unwrap(target)]
    for function in functions:
        names: Mapping[str, Any] = getattr(function, "__globals__", {})
        if names.get("__name__") == module:
            return names
    return vars(sys.modules[module]) if module in sys.modules else {}


def reference_here(target: Callable[..., Any]) -> str:
    """Return a name for a function that never leaves this process, so that it need not be found again."""
    try:
        return reference(target)
    except NotImportable:
        return f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', repr(target))}"


def resolve(target: str) -> Callable[..., Any]:
    """Import a function or class by the name that `reference` gave it; never a name that comes from a database.

    Raises:
        NotImportable: the module, the file or the name does not exist, or importing it raised.
    """
    source, _, name = target.rpartition(":")
    try:
        candidate: Any = (
            study_modules.load(Path(source)) if source.endswith(".py") else importlib.import_module(source)
        )
        for part in name.split("."):
            candidate = getattr(candidate, part)
    except (ImportError, AttributeError, SyntaxError, OSError) as error:
        # Not one that the module itself imports.
        is_absent = isinstance(error, ModuleNotFoundError) and f"{source}.".startswith(f"{error.name}.")
        hint = "; put the directory that has it on PYTHONPATH, or install it" if is_absent else ""
        raise NotImportable(f"cannot import {name!r} from {source!r}: {error}{hint}") from error
    if not callable(candidate):
        raise NotImportable(f"{target!r} is {candidate!r}, which is not a function")
    return candidate  # type: ignore[no-any-return]  # callable, which is all that can be known
