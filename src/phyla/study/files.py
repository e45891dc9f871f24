"""Reads files that users give: Python files that define studies and suites, suites in TOML, and schedules."""

import importlib
import json
import shlex
import sys
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from phyla import plugins
from phyla.controller import suites_from
from phyla.errors import ConfigurationError, NotImportable, StudyNotFound, UsageError
from phyla.evaluation import EvalTask, Policy, Suite
from phyla.evaluation.suite import check_aggregate, outlines, suite_named
from phyla.machine import TrainRules
from phyla.records import Goal, Maximize, Minimize, StudyRecord, StudyState
from phyla.study.places import names_in

if TYPE_CHECKING:
    from phyla.lineage import Schedule
    from phyla.store import Store

EXAMPLE = """  # at the top level of the file
  import phyla
  heldout = phyla.Suite("heldout", [my_eval_task], objective=phyla.Maximize("accuracy_mean"))"""
OBJECTIVES: Mapping[str, Callable[[str], Goal]] = {"maximize": Maximize, "minimize": Minimize}


def read_file(file: Path, what: str) -> ModuleType:
    """Run a study file or suite file up to where it runs a study, and return what it defines."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}" if not file.exists() else f"{file} is no file")
    if file.suffix != ".py":
        raise UsageError(f"{file}: a {what} file is Python code, so its name ends in .py")
    try:
        return plugins.study_module(file)
    except SyntaxError as error:
        raise UsageError(f"{error.filename or file}, line {error.lineno}: {error.msg}") from error
    except (SystemExit, Exception) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == file.resolve()]
        where = f"{file}, line {lines[-1]}:" if lines else f"{file}:"
        if not isinstance(error, SystemExit):
            raise UsageError(f"{where} {type(error).__name__}: {error}") from error
        raise UsageError(
            f"{where} the file ended itself with exit status {error.code} while it was read; what parses "
            f'arguments or ends the program belongs under `if __name__ == "__main__":`, the {what} above it'
        ) from error


def load_schedule(path: str | Path) -> "Schedule":
    """Read a schedule that `phyla export STUDY --what schedule --format json` wrote.

    Args:
        path: the file.

    Raises:
        UsageError: there is no such file, or it holds no schedule.
    """
    from phyla.lineage import Schedule

    try:
        value = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read the schedule {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(
            f"{path} is no JSON: {error}; export it with: phyla export STUDY --what schedule --format json"
        ) from error
    return Schedule.from_json(value)


def load_suites(text: str) -> tuple[Suite, ...]:
    """Return the suites that a text names.

    Args:
        text: `file.py` for all suites at the top level of a file, `file.py:name` or `module:name` for one of
            them by variable or by name, or `file.toml`.

    Raises:
        UsageError: there is no such file or suite, or it makes no sense; the message names the place.
    """
    if text.endswith(".toml"):
        return _from_toml(Path(text))
    if text.endswith(".py"):
        found = _suites_in(read_file(Path(text), "suite"))
        if not found:
            raise UsageError(f"{text} defines no suite. It needs a phyla.Suite in a variable:\n\n{EXAMPLE}")
        if twice := _twice(found):
            raise UsageError(f"{text} has several suites called {twice}; name one with {text}:VARIABLE")
        return found
    source, colon, name = text.rpartition(":")
    if not colon or not source or not name:
        raise UsageError(
            f"suite {text!r} is not understood; write file.py, file.py:name, module:name or file.toml"
        )
    module = _module(source, Path())
    suites = _suites_in(module)
    value = getattr(module, name, None)
    chosen = [value] if isinstance(value, Suite) else [suite for suite in suites if suite.name == name]
    if chosen:
        return (chosen[0],)
    raise UsageError(f"{source} has no suite {name!r}; it has {', '.join(s.name for s in suites) or 'none'}")


def chosen_suites(given: Suite | str | Sequence[Suite | str]) -> tuple[Suite, ...]:
    """Return suites, and those that texts name, once they make sense together."""
    many = [given] if isinstance(given, (Suite, str)) else list(given)
    found: list[Suite] = []
    for each in many:
        found += load_suites(each) if isinstance(each, str) else [each]
    if not found:
        raise ConfigurationError("there is no suite to evaluate: give at least one")
    if twice := _twice(found):
        raise ConfigurationError(f"several suites are called {twice}; give each a name of its own")
    check_objectives(found)
    return tuple(found)


def _twice(suites: Sequence[Suite]) -> str:
    counts = Counter(suite.name for suite in suites)
    return ", ".join(sorted(name for name, count in counts.items() if count > 1))


def check_objectives(suites: Sequence[Suite], rules: TrainRules | None = None) -> None:
    """Make sure that suites can give what their objectives name, and that of a study with these rules."""
    for suite in suites:
        if suite.objective is not None:
            check_aggregate(suite, suite.objective.metric, f"the objective of suite {suite.name!r}")
    if rules is not None and rules.suite_fitness is not None:
        suite = suite_named(suites, rules.suite_fitness.suite)
        where = "the objective" if rules.suite_fitness.metric is None else "FromSuite"
        for name in rules.aggregates.values():
            check_aggregate(suite, name, where)


def _suites_in(module: ModuleType) -> tuple[Suite, ...]:
    return tuple({id(value): value for value in vars(module).values() if isinstance(value, Suite)}.values())


def _module(source: str, folder: Path) -> ModuleType:
    if source.endswith(".py"):
        return read_file(folder / source, "suite")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(source)
    except Exception as error:
        raise UsageError(f"cannot import {source}: {type(error).__name__}: {error}") from error


def _callable(text: Any, folder: Path) -> Any:
    source, colon, name = str(text).rpartition(":")
    if not colon:
        raise UsageError(f"{text!r} names no function; write file.py:name or module:name")
    found: Any = _module(source, folder)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UsageError(f"{source} has no function {name!r}")
    return found


# Suites in TOML


def _from_toml(file: Path) -> tuple[Suite, ...]:
    try:
        raw = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file}: {error}") from error
    _check_keys(raw, ["suite"], str(file))
    tables = raw.get("suite", [])
    if not isinstance(tables, list) or not tables:
        raise UsageError(f"{file} defines no suite; write tables [[suite]] with name and tasks")
    suites = []
    for number, table in enumerate(tables, 1):
        where = f"{file}, suite {table.get('name', number)!r}"
        try:
            suites.append(_suite(table, file.parent, where))
        except (TypeError, ConfigurationError) as error:
            raise UsageError(f"{where}: {error}") from error
    return tuple(suites)


def _suite(table: Mapping[str, Any], folder: Path, where: str) -> Suite:
    suite: Suite = _made(
        Suite,
        {"name": "", **table},
        where,
        tasks=lambda given: tuple(_task(task, folder, where) for task in given),
        objective=lambda given: _objective(given, where),
        aggregates=lambda given: tuple(_aggregate(one, folder, where) for one in given),
        policy=lambda given: _made(Policy, given, f"{where}, policy"),
        load=lambda given: _callable(given, folder),
    )
    return suite


def _task(given: Any, folder: Path, where: str) -> EvalTask:
    settings = {"evaluate": given} if isinstance(given, str) else dict(given)
    _check_keys(settings, [f.name for f in fields(EvalTask)], f"{where}, eval task {settings.get('name', '')!r}")
    if "evaluate" not in settings:
        return EvalTask(**settings)
    function = _callable(settings.pop("evaluate"), folder)
    if isinstance(function, EvalTask):
        # Decorated in its file: what is given here comes on top.
        return replace(function, **settings)
    return EvalTask(**{"name": getattr(function, "__name__", ""), **settings}, evaluate=function)


def _objective(given: Any, where: str) -> Goal:
    if not isinstance(given, Mapping) or len(given) != 1 or not set(given) <= set(OBJECTIVES):
        raise UsageError(
            f'{where}: objective {given!r} is not understood; write objective = {{ maximize = "accuracy_mean" }}'
        )
    ((direction, metric),) = given.items()
    return OBJECTIVES[direction](metric)


def _aggregate(given: Any, folder: Path, where: str) -> Any:
    if isinstance(given, str):
        return _callable(given, folder)
    known = plugins.of_group("phyla.aggregators")
    name = given.get("name") if isinstance(given, Mapping) else None
    if name not in known:
        raise UsageError(
            f'{where}: aggregate {given!r} is not understood; write {{ name = "mean", metric = "accuracy" }} '
            f"with one of the names {', '.join(sorted(known))}, or a function as file.py:name"
        )
    settings = {key: value for key, value in given.items() if key != "name"}
    return _made(known[str(name)].load(), settings, f"{where}, aggregate {name!r}")


def _made(kind: Any, given: Any, where: str, **readers: Callable[[Any], Any]) -> Any:
    """Make a dataclass from a table; what is no plain setting of it has a reader."""
    _check_keys(given, [field.name for field in fields(kind)], where)
    return kind(**{key: readers[key](value) if key in readers else value for key, value in given.items()})


def _check_keys(given: Any, known: Sequence[str], where: str) -> None:
    if not isinstance(given, Mapping):
        raise UsageError(f"{where}: {given!r} must be a table")
    unknown = [key for key in given if key not in known]
    if unknown:
        raise UsageError(f"{where}: there is no key {unknown[0]!r}; the keys are {', '.join(known)}")


# Suites of watched runs


def runs_with(store: "Store", suites: Sequence[Suite]) -> list[str]:
    """Return the names of the watched runs whose suites are among these; of these the unended ones, if any."""
    given = {suite.name for suite in suites}
    found = [
        study
        for study in store.studies()
        if study.watched and given >= {suite.name for suite in outlines(study.config)}
    ]
    if not found:
        raise StudyNotFound(
            f"{store.url} has no watched run with the suites {', '.join(sorted(given)) or 'none'} alone; it has: "
            f"{names_in(store, watched=True)}"
        )
    return [run.name for run in found if run.state is not StudyState.COMPLETED] or [run.name for run in found]


def suites_of(store: "Store", name: str, given: "Suite | str | Sequence[Suite | str]") -> tuple[Suite, ...]:
    """Return the given suites that a run has; without any, those of its stored ones that name no code."""
    run = store.find_study(name)
    if run is None:
        raise StudyNotFound(
            f"there is no watched run {name!r} in {store.url}; there are: {names_in(store, watched=True)}"
        )
    if not run.watched:
        raise ConfigurationError(
            f"run {name!r} is that of a study; add workers that evaluate it with: "
            f"phyla worker FILE.py --study {shlex.quote(name)} --kinds evaluate (in Python: study.work())"
        )
    if not given:
        return _without_code(run)
    stored = [suite.name for suite in outlines(run.config)]
    chosen = {suite.name: suite for suite in chosen_suites(given)}
    missing = [each for each in stored if each not in chosen]
    if missing:
        raise ConfigurationError(
            f"run {name!r} has the suites {', '.join(stored)}, and {', '.join(missing)} was not given; add the "
            "file that defines it (in Python: to suites=)"
        )
    return tuple(chosen[each] for each in stored)


def _without_code(run: StudyRecord) -> tuple[Suite, ...]:
    """Return a run's suites from what is stored of them, where that names registered plug-ins only."""
    try:
        suites = suites_from(run.config)
    except NotImportable as error:
        raise ConfigurationError(
            f"run {run.name!r}: {error}: phyla worker FILE.py (in Python: suites=)"
        ) from error
    commands = [(suite, task) for suite in suites for task in suite.tasks if task.command is not None]
    if commands:
        suite, task = commands[0]
        raise ConfigurationError(
            f"run {run.name!r}: eval task {task.name!r} of suite {suite.name!r} is the command {task.command!r}; "
            "phyla runs no command that only the database names, so give the file that defines it: "
            "phyla worker FILE.py (in Python: suites=)"
        )
    return suites
