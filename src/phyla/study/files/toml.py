"""Studies and suites in TOML files, and the JSON Schema of a study file.

A mistake in a file raises a `UsageError` that names the key.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from phyla import plugins
from phyla.errors import UsageError
from phyla.evaluation import EvalTask, Preparation, Suite
from phyla.records import Objective, StartFrom
from phyla.space import Choice, Float, Int, Ordinal, Parameter, Space
from phyla.store.sqlite_url import PREFIX, read_sqlite_url, sqlite_url
from phyla.strategies import Final, StoppingRule
from phyla.study.declaration import Retention, Retries
from phyla.study.files.tables import (
    ANYTHING,
    BOOL,
    FLOAT,
    FUNCTION,
    GROUPS,
    INT,
    LIST,
    PATH,
    TABLE,
    TEXT,
    Kind,
    Schema,
    Where,
    any_of,
    check_keys,
    definition,
    describe_fields,
    kind_of,
    kinds_of,
    list_of,
    locate_errors,
    make_table,
    plugin,
    registered,
    table,
)
from phyla.study.study import Study
from phyla.worker import Command
from phyla.worker.commands import placeholders

STRATEGIES = "phyla.strategies"
AGGREGATORS = "phyla.aggregators"
HARNESS = "lm_eval"
"""The key with the tasks of a suite of lm-evaluation-harness."""
STUDY_KEYS = ("command", "space")
"""Keys of a study file that a suite file does not have."""
OUTPUTS = ("metrics", "tensorboard", "resources")
"""Settings of `Command` that are tables of their own."""
OF_RUNS = ("command", "eval", "home", "storage", "checkpoints", "start_from", *OUTPUTS)
"""Keys that matter only where the study runs."""


def read_studies(file: Path) -> list[Study]:
    """Return the study of a TOML file; none if it is a suite file."""
    raw = _parsed(file)
    if "suite" in raw and not set(STUDY_KEYS) & set(raw):
        return []
    return [study_of(raw, Where(file))]


def study_of(raw: Mapping[str, Any], where: Where, *, runs: bool = True) -> Study:
    """Return the study of a table; one that does not run anything has neither command nor suites."""
    keys, strategies = _keys(), plugins.of_group(STRATEGIES)
    if not runs:
        keys = {key: kind for key, kind in keys.items() if key not in OF_RUNS}
    check_keys(raw, [*keys, *strategies], where)
    for key in ("name", *STUDY_KEYS, "objective"):
        if key not in raw and (runs or key != "command"):
            raise UsageError(f"{where}: {key} is missing")
    arguments = {key: keys[key](value, where.at(key)) for key, value in raw.items() if key in keys}
    chosen = [key for key in raw if key in strategies]
    if len(chosen) != 1:
        problem = f"it has the strategies {' and '.join(chosen)}" if chosen else "it has no strategy"
        raise UsageError(
            f"{where}: {problem}; write one table such as [pbt]; there are {', '.join(sorted(strategies))}"
        )
    strategy = registered(STRATEGIES, chosen[0])(raw[chosen[0]], where.at(chosen[0]))
    initial, constraints = arguments.pop("initial", ()), arguments.pop("constraints", ())
    space = locate_errors(
        where.at("space"), Space, arguments.pop("space"), initial=initial, constraints=constraints
    )
    if runs:
        command = {"cwd": where.file.parent.absolute(), **arguments.pop("command")}
        outputs = {key: arguments.pop(key) for key in OUTPUTS if key in arguments}
        arguments["train"] = locate_errors(where.at("command"), Command, **command, **outputs)
        locate_errors(where.at("command"), arguments["train"].check_space, space)
    arguments["suites"] = arguments.pop("eval", ())
    study: Study = locate_errors(where, Study, space=space, strategy=strategy, **arguments)
    return study


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not text in UTF-8, as TOML has to be; save it as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: {error}") from error


def read_suites(file: Path) -> tuple[Suite, ...]:
    """Return the suites of a TOML file."""
    raw, where = _parsed(file), Where(file)
    if set(STUDY_KEYS) & set(raw):
        raise UsageError(
            f"{file} is a study file, not a suite file; run it with its suites in [[eval]]: phyla run {file}"
        )
    check_keys(raw, ["suite"], where)
    if not raw.get("suite"):
        raise UsageError(f"{file} defines no suite; write tables [[suite]] with name and tasks, or lm_eval")
    suites: tuple[Suite, ...] = _suites()(raw["suite"], where.at("suite"))
    return suites


def schema() -> Schema:
    """Return the JSON Schema of a study file, with the plug-ins that are installed."""
    keys, descriptions = _keys(), {**describe_fields(Command), **describe_fields(Study), **DESCRIPTIONS}
    strategies = {name: registered(STRATEGIES, name).schema for name in plugins.of_group(STRATEGIES)}
    whole = make_table(keys, ["name", *STUDY_KEYS, "objective"], dict, descriptions).schema
    groups = sorted({*GROUPS.values(), AGGREGATORS})
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A phyla study file",
        **whole,
        "properties": {**whole["properties"], **strategies},
        "oneOf": [{"required": [name]} for name in strategies],
        "definitions": {
            **{group.removeprefix("phyla."): definition(group) for group in groups},
            "arguments": list_of(any_of(TEXT, ARGUMENTS)).schema,
            "lm_eval": harness_suite().schema,
            "parameter": PARAMETER.schema,
            "space": {"type": "object", "minProperties": 1, "additionalProperties": _IN_SPACE},
        },
    }


DESCRIPTIONS = {
    "command": "The command of one trial: its arguments as a list; a nested list is left out when one of its "
    "values is absent. Or a table with arguments and settings.",
    "space": "The hyperparameters; a table of tables is a group.",
    "objective": 'What is selected for, such as "minimize loss".',
    "initial": "Starting points: the i-th table is for member i; names that it leaves out are drawn.",
    "constraints": "Functions that take the hyperparameters and return whether they are allowed.",
    "eval": "Suites that are run on every checkpoint.",
}
"""Of the keys that the arguments of `Study` do not describe."""


ARGUMENTS = Kind("a list of texts, perhaps with lists in it", LIST.fits, {"$ref": "#/definitions/arguments"})


def _working_directory(value: str, where: Where) -> str:
    """Return where a command runs; only the text of the file may have placeholders."""
    folder = str(locate_errors(where, Path(value).expanduser))
    return str(locate_errors(where, placeholders.locate, folder, where.file.parent.absolute()))


@cache
def _keys() -> Mapping[str, Kind]:
    """Return the keys of a study file, but for the strategies."""
    folder = replace(PATH, read=_working_directory)
    about = {"nodes": "Machines that each trial runs on.", "gpus": "GPUs on each of them."}
    machines = make_table(dict.fromkeys(about, INT), (), dict, about)
    settings = kinds_of(Command, arguments=ARGUMENTS, cwd=folder, resources=machines)
    outputs = {key: settings.pop(key) for key in OUTPUTS}
    in_full = make_table(settings, ["arguments"], dict, describe_fields(Command))
    start = any_of(PATH, table(StartFrom, path=PATH))
    return {
        "name": TEXT,
        "command": any_of(replace(ARGUMENTS, read=lambda value, where: {"arguments": value}), in_full),
        "objective": plugin(GROUPS[Objective]),
        "space": Kind("a table", TABLE.fits, {"$ref": "#/definitions/space"}, _group),
        "seed": INT,
        "home": PATH,
        "storage": Kind("a URL in quotes", TEXT.fits, TEXT.schema, _storage),
        "checkpoints": PATH,
        "start_from": list_of(start),
        "stopping": list_of(plugin(GROUPS[StoppingRule])),
        "final": table(Final),
        "retention": table(Retention),
        "retries": table(Retries),
        **outputs,
        "initial": list_of(TABLE),
        "constraints": list_of(FUNCTION),
        "eval": _suites(),
    }


def _storage(value: str, where: Where) -> str:
    """Return the URL of a store; the path of a SQLite file is relative to the study file."""
    if not value.startswith(PREFIX):
        return value
    return sqlite_url(where.file.parent.absolute() / locate_errors(where, read_sqlite_url, value))


# Spaces


def _group(value: Mapping[str, Any], where: Where) -> dict[str, Any]:
    """Return a space, or a group in it: a table all of whose values are tables is a group."""
    return {key: (_group if _is_group(item) else PARAMETER)(item, where.at(key)) for key, item in value.items()}


def _is_group(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(item, dict) for item in value.values())


def _parameter(**settings: Any) -> Parameter:
    options = {key: value for key, value in settings.items() if key in ("initial", "default", "when")}
    rest = {key: value for key, value in settings.items() if key not in options}
    if "choices" in rest:
        ordered = rest.pop("ordered", False)
        values = rest.pop("choices")
        if rest:
            raise UsageError(f"choices and {min(rest)} exclude each other: it is either a list or a range")
        return (Ordinal if ordered else Choice)(values, **options)
    if "low" not in rest or "high" not in rest:
        raise UsageError("give low and high, as in { low = 1e-4, high = 0.1, log = true }, or choices = [...]")
    if "ordered" in rest:
        raise UsageError("ordered belongs to choices; a range has an order")
    low, high, step = rest["low"], rest["high"], rest.get("step", 1)
    integer = rest.pop("int", None)
    if integer is None and all(isinstance(number, int) for number in (low, high, step)):
        raise UsageError(
            f"low = {low} and high = {high} are whole numbers; add int = true for whole numbers only, or "
            "int = false for all numbers between them"
        )
    return (Int if integer else Float)(**rest, **options)


_RANGE_OR_LIST = make_table(
    {
        "low": FLOAT,
        "high": FLOAT,
        "log": kind_of(bool | Literal["1-x"]),
        "int": BOOL,
        "step": FLOAT,
        "choices": list_of(ANYTHING),
        "ordered": BOOL,
        "initial": ANYTHING,
        "default": ANYTHING,
        "when": TABLE,
    },
    (),
    _parameter,
    {
        **describe_fields(Float),
        "int": "Whether only whole numbers are allowed.",
        "choices": "The values of which one is chosen, without an order.",
        "ordered": "Whether the choices have an order, so that exploring goes to a neighbour.",
    },
)
PARAMETER = replace(
    _RANGE_OR_LIST,
    words="a table, such as { low = 1e-4, high = 0.1, log = true } or { choices = [32, 64] }",
    schema={**_RANGE_OR_LIST.schema, "anyOf": [{"required": ["low", "high"]}, {"required": ["choices"]}]},
)
_IN_SPACE = {"anyOf": [{"$ref": "#/definitions/parameter"}, {"$ref": "#/definitions/space"}]}


# Suites


@cache
def _suites() -> Kind:
    task = _with_command(EvalTask, _task)
    named = replace(FUNCTION, read=lambda value, where: task.read({"evaluate": value}, where))
    aggregate = any_of(
        FUNCTION, replace(plugin(AGGREGATORS), fits=TABLE.fits, words="a table with name and metric")
    )
    tasks = list_of(any_of(named, task))
    suite = table(Suite, tasks=tasks, aggregates=list_of(aggregate), prepare=_preparation())

    def read_suite(value: Mapping[str, Any], where: Where) -> Any:
        if HARNESS in value:
            return harness_suite()(value, where)
        check_keys(value, [*suite.schema["properties"], HARNESS], where)
        return suite(value, where)

    schema = {"anyOf": [suite.schema, {"$ref": f"#/definitions/{HARNESS}"}]}
    return list_of(replace(suite, schema=schema, read=read_suite))


@cache
def harness_suite() -> Kind:
    """Return the kind of a suite of lm-evaluation-harness: its tasks, and what else `lm_eval.suite` takes."""
    from phyla.integrations.lm_eval import suite

    kinds, descriptions = kinds_of(suite, include_path=PATH, prepare=_preparation()), describe_fields(suite)
    kinds[HARNESS], descriptions[HARNESS] = kinds.pop("tasks"), descriptions.pop("tasks")
    return make_table(kinds, [HARNESS], lambda lm_eval, **more: suite(lm_eval, **more), descriptions)


def _preparation() -> Kind:
    """Return the kind of what prepares checkpoints: a function, a command with fields in braces, or a table."""
    own = _with_command(Preparation)

    def read(value: Any, where: Where) -> Any:
        if not isinstance(value, Mapping):
            named = isinstance(value, str) and "{" not in value
            value = {"function" if named else "command": value}
        return own.read(value, where)

    kind = any_of(replace(TEXT, words="a function, a command in quotes"), kind_of(list[str]), own)
    return replace(kind, read=read)


def _with_command(of: Any, make: Callable[..., Any] | None = None) -> Kind:
    """Return the kind of a table that may have a command, which runs in the directory of the file."""
    own = table(of, make, command=any_of(TEXT, kind_of(list[str])), cwd=PATH)

    def read(value: Mapping[str, Any], where: Where) -> Any:
        return own.read({"cwd": "", **value} if "command" in value else value, where)

    return replace(own, read=read)


def _task(**settings: Any) -> EvalTask:
    function = settings.pop("evaluate", None)
    if isinstance(function, EvalTask):
        # Decorated in its file: the arguments here are added.
        return replace(function, **settings)
    return EvalTask(**{"name": getattr(function, "__name__", ""), **settings}, evaluate=function)
