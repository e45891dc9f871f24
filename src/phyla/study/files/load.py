"""Reads files that users give: studies and suites in Python (those in TOML are in `toml.py`), and schedules."""

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from phyla import plugins, study_modules
from phyla.configuration import suite_differences, suites_from
from phyla.errors import ConfigurationError, NotImportable, RunChanged, StudyNotFound, UsageError
from phyla.evaluation import Suite
from phyla.evaluation.suite import outlines
from phyla.records import Json, JsonObject, StudyRecord, StudyState
from phyla.study.files.python import module_named, read_file
from phyla.study.places import names_in
from phyla.study.validation import check_suites

if TYPE_CHECKING:
    from phyla.lineage import Schedule
    from phyla.store import Store
    from phyla.study.study import Study

EXAMPLE = """  # at the top level of the file
  import phyla
  heldout = phyla.Suite("heldout", [my_eval_task], objective=phyla.Maximize("accuracy_mean"))"""


def load_studies(path: str | Path, *, to_run: bool = False) -> "list[Study]":
    """Return the studies that a study file defines.

    Args:
        path: a Python file, whose studies are in variables at its top level; or a TOML file, which has one study.
        to_run: whether to reject a file that trains in its own loop.

    Returns:
        The studies, in order; none where the file defines only suites.

    Raises:
        UsageError: there is no such file, or it is invalid; the message names the place.
    """
    file = Path(path)
    if file.suffix == ".toml":
        from phyla.study.files.toml import read_studies

        return read_studies(file)
    from phyla.study.study import Study

    module = read_file(file, "study")
    if to_run and getattr(module, study_modules.HAS_LOOP, False):
        raise UsageError(
            f"{file} trains in a loop of its own (phyla.attach, or study.ask); start it with: python {file}"
        )
    values = vars(module).values()
    return list({id(value): value for value in values if isinstance(value, Study)}.values())


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
            f"{path} is not JSON: {error}; export it with: phyla export STUDY --what schedule --format json"
        ) from error
    return Schedule.from_json(value)


def load_suites(text: str) -> tuple[Suite, ...]:
    """Return the suites that a text names.

    Args:
        text: `file.py` for all suites at the top level of a file, `file.py:name` or `module:name` for one of
            them by variable or by name, or `file.toml`.

    Raises:
        UsageError: there is no such file or suite, or it is invalid; the message names the place.
    """
    if text.endswith(".toml"):
        from phyla.study.files.toml import read_suites

        return read_suites(Path(text))
    if text.endswith(".py"):
        suites = _suites_in(read_file(Path(text), "suite"))
        if not suites:
            raise UsageError(f"{text} defines no suite. It needs a phyla.Suite in a variable:\n\n{EXAMPLE}")
        if twice := _twice(suites):
            raise UsageError(f"{text} has several suites called {twice}; name one with {text}:VARIABLE")
        return suites
    source, colon, name = text.rpartition(":")
    if not colon or not source or not name:
        raise UsageError(
            f"suite {text!r} is not understood; write file.py, file.py:name, module:name or file.toml"
        )
    module = module_named(source, Path())
    suites = _suites_in(module)
    value = getattr(module, name, None)
    chosen = [value] if isinstance(value, Suite) else [suite for suite in suites if suite.name == name]
    if chosen:
        return (chosen[0],)
    raise UsageError(f"{source} has no suite {name!r}; it has {', '.join(s.name for s in suites) or 'none'}")


def chosen_suites(sources: Suite | str | Sequence[Suite | str]) -> tuple[Suite, ...]:
    """Return suites, given directly or by file, after checking them together."""
    chosen = [sources] if isinstance(sources, (Suite, str)) else list(sources)
    suites: list[Suite] = []
    for source in chosen:
        suites += load_suites(source) if isinstance(source, str) else [source]
    if not suites:
        raise ConfigurationError("there is no suite to evaluate: give at least one, as with --suite suites.py")
    if twice := _twice(suites):
        raise ConfigurationError(f"several suites are called {twice}; give each a name of its own")
    check_suites(suites)
    return tuple(suites)


def _twice(suites: Sequence[Suite]) -> str:
    counts = Counter(suite.name for suite in suites)
    return ", ".join(sorted(name for name, count in counts.items() if count > 1))


def _suites_in(module: ModuleType) -> tuple[Suite, ...]:
    return tuple({id(value): value for value in vars(module).values() if isinstance(value, Suite)}.values())


# Suites of watched runs


def runs_with(store: "Store", suites: Sequence[Suite]) -> list[str]:
    """Return the names of the watched runs whose suites are among these; of these the unended ones, if any.

    Runs with other suites of the same names are left out, and so are those whose suites are from the same file in
    another directory, if there is one with suites of this very file. A single run is returned even if its suites
    differ.

    Raises:
        StudyNotFound: there is no such run.
        RunChanged: there are several with suites of these names, and the suites of all of them differ.
    """
    configs: dict[str, Json] = {suite.name: plugins.encode(suite) for suite in suites}
    runs = [
        study
        for study in store.studies()
        if study.watched and configs.keys() >= {suite.name for suite in outlines(study.config)}
    ]
    if not runs:
        raise StudyNotFound(
            f"{store.url} has no watched run with the suites {', '.join(sorted(configs)) or 'none'} alone; it "
            f"has: {names_in(store, watched=True)}"
        )
    if len(runs) > 1:
        same: dict[int, JsonObject] = {
            run.id: {"suites": [configs[suite.name] for suite in outlines(run.config)]} for run in runs
        }
        names = ", ".join(repr(run.name) for run in runs)
        runs = [run for run in runs if run.config["suites"] == same[run.id]["suites"]] or [
            run for run in runs if not suite_differences(run.config, same[run.id])
        ]
        if not runs:
            raise RunChanged(
                f"the watched runs {names} have suites of these names ({', '.join(sorted(configs))}), and those "
                "of the suite file differ; give the file that the run is watched with, or compare with one of "
                "them: phyla worker FILE --study NAME (in Python: names=)"
            )
    return [run.name for run in runs if run.state is not StudyState.COMPLETED] or [run.name for run in runs]


def suites_of(store: "Store", name: str, sources: "Suite | str | Sequence[Suite | str]") -> tuple[Suite, ...]:
    """Return the given suites that a run has; without any, those of its stored ones that name no code."""
    run = store.find_study(name)
    if run is None:
        raise StudyNotFound(
            f"there is no watched run {name!r} in {store.url}; there are: {names_in(store, watched=True)}"
        )
    if not run.watched:
        raise ConfigurationError(
            f"run {name!r} is that of a study; add workers that evaluate it with: "
            f"phyla worker FILE --study {shlex.quote(name)} --kinds evaluate (in Python: study.work())"
        )
    if not sources:
        return _without_code(run)
    stored = [suite.name for suite in outlines(run.config)]
    chosen = {suite.name: suite for suite in chosen_suites(sources)}
    missing = [name for name in stored if name not in chosen]
    if missing:
        raise ConfigurationError(
            f"run {name!r} has the suites {', '.join(stored)}, and {', '.join(missing)} was not given; add the "
            "file that defines it (in Python: to suites=)"
        )
    return tuple(chosen[name] for name in stored)


def _without_code(run: StudyRecord) -> tuple[Suite, ...]:
    """Return a run's stored suites, where they name registered plug-ins only."""
    try:
        suites = suites_from(run.config)
    except NotImportable as error:
        raise ConfigurationError(f"run {run.name!r}: {error}: phyla worker FILE (in Python: suites=)") from error
    commands = [(suite, task) for suite in suites for task in suite.tasks if task.command is not None]
    if commands:
        suite, task = commands[0]
        raise ConfigurationError(
            f"run {run.name!r}: eval task {task.name!r} of suite {suite.name!r} is the command {task.command!r}; "
            "phyla runs no command that only the database names, so give the file that defines it: "
            "phyla worker FILE (in Python: suites=)"
        )
    return suites
