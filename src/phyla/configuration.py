"""A study's configuration: what decides, and what only operates; as JSON and back."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, TypeAlias

from phyla import plugins
from phyla.errors import ConfigurationError, StudyChanged
from phyla.evaluation import Suite
from phyla.machine import Keeping, TrainRules
from phyla.records import Aim, Json, JsonObject, StartFrom, StudyRecord, read_object
from phyla.space import Parameter, Space
from phyla.space import check_extension as check_space_extension
from phyla.strategies import FromSuite, Strategy
from phyla.strategies.final import final_of
from phyla.system.code_digest import code_digest

Find: TypeAlias = Callable[[str], Callable[..., Any]]
"""Finds functions and classes that are not registered, by their stored names."""

OPERATING = ("lease_s", "max_attempts", "max_claims", "max_broken", "keep_best", "keep_front", "keep_every_steps")
"""Options that change nothing about which decisions are made; they may differ from run to run."""

FIXED = (
    "strategy.plugin",
    "strategy.members",
    "strategy.grid",
    "strategy.trials",
    "strategy.min_steps",
    "strategy.reduction_factor",
)
"""Settings of a strategy that an existing study cannot change, with all that is in them."""

_FIXED_SETTINGS = " or ".join(", ".join(name.removeprefix("strategy.") for name in FIXED[1:]).rsplit(", ", 1))


def to_config(
    rules: TrainRules,
    seed: int,
    train: Json = None,
    setup: str | None = None,
    *,
    start_from: Sequence[StartFrom] = (),
    name_of: Callable[[Callable[..., Any]], str] = plugins.reference,
) -> JsonObject:
    """Write a study's configuration as JSON.

    `train` is the reference of the training function, or the command as `plugins.encode` writes it, and `setup`
    a reference. `name_of` names functions and unregistered classes.
    """
    return {
        "seed": seed,
        "space": rules.space.config(name_of),
        "objective": plugins.encode(rules.objective, name_of),
        "aim": _aim(rules).to_json(),
        "strategy": plugins.encode(rules.strategy, name_of),
        "final": None if rules.final is None else asdict(rules.final),
        "options": {name: getattr(rules, name) for name in OPERATING},
        "suites": [plugins.encode(suite, name_of) for suite in rules.suites],
        "stopping": None
        if not rules.stopping
        else {
            "rules": [plugins.encode(rule, name_of) for rule in rules.stopping],
            "max_stops": rules.max_stops,
        },
        "start_from": [asdict(entry) for entry in start_from],
        "train": train,
        "setup": setup,
        "changes": [],
        # For commands that only read, collect or count, and make no rules.
        "keeping": asdict(rules.keeping),
        "plan": {
            "member_steps": rules.strategy.member_steps,
            "steps_per_trial": getattr(rules.strategy, "steps_per_trial", 0),
        },
    }


def _aim(rules: TrainRules) -> Aim:
    """Return the display of the fitness, named after the suite's metric if a strategy names one."""
    aim, fitness = Aim.of(rules.objective), rules.strategy.fitness
    if not isinstance(fitness, FromSuite) or fitness.metric is None:
        return aim
    description = f"{'maximize' if aim.maximize else 'minimize'} {fitness.metric} of suite {fitness.suite!r}"
    return replace(aim, name=fitness.metric, description=description)


def keeping_of(config: JsonObject) -> Keeping:
    """Read from a configuration what decides which checkpoints are kept; makes no strategy."""
    values: Any = read_object(config["keeping"])
    return Keeping(**values)


def from_config(
    config: JsonObject, find: Find = plugins.refuse, *, find_in_suites: Find | None = None
) -> TrainRules:
    """Make a study's rules from its configuration.

    Functions and classes that are not registered are refused by default. Pass `plugins.resolve` only for a
    configuration that the user gave, never for one from a database.
    """
    options: Any = config["options"]
    space: Any = config["space"]
    stopping: Any = config["stopping"] or {"rules": []}
    stops = {"max_stops": stopping["max_stops"]} if "max_stops" in stopping else {}
    return TrainRules(
        space=Space.from_config(space, find),
        objective=plugins.decode(config["objective"], find),
        strategy=plugins.decode(config["strategy"], find),
        suites=suites_from(config, find_in_suites or find),
        stopping=tuple(plugins.decode(rule, find) for rule in stopping["rules"]),
        final=final_of(config),
        **stops,
        **options,
    )


def make_resolver(rules: TrainRules) -> Find:
    """Return what finds the functions and classes that rules have, by their stored names, and no others."""
    known: dict[str, Callable[..., Any]] = {}

    def name_of(target: Callable[..., Any]) -> str:
        name = plugins.reference_here(target)
        known[plugins.portable(name)] = target
        return name

    rules.space.config(name_of)
    for plugin in (rules.objective, rules.strategy, *rules.stopping, *rules.suites):
        plugins.encode(plugin, name_of)
    return lambda name: known.get(plugins.portable(name)) or plugins.refuse(name)


def digest_rules(rules: TrainRules) -> dict[str, str]:
    """Return digests of the code that the user gave for decisions, by the names of its classes and functions."""
    digests: dict[str, str] = {}
    for target in _own_code([rules.space.constraints, rules.objective, rules.strategy, rules.stopping]):
        name = getattr(target, "__qualname__", type(target).__qualname__)
        digests[name] = digests.get(name, "") + code_digest(target)
    return digests


def _own_code(value: Any) -> Iterator[Callable[..., Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        yield from _own_code(type(value))
        yield from _own_code([getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _own_code(item)
    elif callable(value) and not f"{getattr(value, '__module__', '')}.".startswith("phyla."):
        yield value


def edited_code(code: Any, began: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what differs of the code that both have; training is named as in `code`, as it is stored."""
    names = [name for name in now if began.get(name, now[name]) != now[name]]
    return [code["name"] if name == "train" else name for name in names]


def suites_from(config: JsonObject, find: Find = plugins.refuse) -> tuple[Suite, ...]:
    """Make the suites of a study, or of a run, from its configuration; `find` as for `from_config`."""
    encoded: Any = config.get("suites", [])
    return tuple(plugins.decode(suite, find) for suite in encoded)


def differences(old: JsonObject, new: JsonObject) -> dict[str, tuple[Json, Json]]:
    """Return the settings that would decide differently: dotted name to (stored, given).

    A function of a file is the same wherever the file is.
    """
    return _compare(_deciding(old), _deciding(new))


def settings_digest(config: JsonObject) -> str:
    """Return a digest of what decides, and of the suites, by which two processes tell whether theirs are alike."""
    parts = {**dict(_flat(_deciding(config))), **dict(_flat({"suites": config.get("suites", [])}))}
    text = json.dumps({name: _portable(value) for name, value in parts.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def format_setting(value: Json) -> str:
    """Return a setting as messages show it."""
    return "nothing" if value is None else repr(value)


def suite_differences(old: JsonObject, new: JsonObject) -> dict[str, tuple[Json, Json]]:
    """Return how the suites of two configurations differ: dotted name to (stored, given)."""
    return _compare({"suites": old.get("suites", [])}, {"suites": new.get("suites", [])})


def command_differences(old: JsonObject, new: JsonObject) -> dict[str, tuple[Json, Json]]:
    """Return how the commands of two configurations differ that train: dotted name to (stored, given)."""
    commands = [config.get("train") for config in (old, new)]
    if not any(isinstance(command, Mapping) for command in commands):
        return {}
    return _compare({"train": commands[0]}, {"train": commands[1]})


def _compare(old: JsonObject, new: JsonObject) -> dict[str, tuple[Json, Json]]:
    """Compare dotted name by dotted name; where a command runs may differ from machine to machine."""
    before, after = dict(_flat(old)), dict(_flat(new))
    return {
        name: (before.get(name), after.get(name))
        for name in [*before, *(name for name in after if name not in before)]
        if not _alike(_portable(before.get(name)), _portable(after.get(name))) and not name.endswith(".cwd")
    }


def _alike(old: Json, new: Json) -> bool:
    """Whether two settings are equal as spaces compare values: 1 is 1.0, but True is not 1."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_alike, old, new))
    return old == new and isinstance(old, bool) == isinstance(new, bool)


def _portable(value: Json) -> Json:
    if isinstance(value, list):
        return [_portable(item) for item in value]
    return plugins.portable(value) if isinstance(value, str) else value


def check_unchanged(study: StudyRecord, before: JsonObject) -> None:
    """Reject a change of a study that was changed since it was read."""
    between = differences(before, study.config)
    if between:
        raise StudyChanged(
            f"study {study.name!r} was changed by another process at the same time ({', '.join(between)}), so "
            f"nothing was changed now; look at it with: phyla status {study.name}, then try again"
        )


def check_extension(
    changed: Mapping[str, tuple[Json, Json]], old: JsonObject, new: JsonObject, strategy: Strategy
) -> None:
    """Reject changes, as `differences` returns them, and a new strategy that an existing study cannot take."""
    refused = {
        name: values
        for name, values in changed.items()
        if not name.startswith(("strategy.", "stopping", "space.parameters", "space.initial"))
        or any(f"{name}.".startswith(f"{fixed}.") for fixed in FIXED)
    }
    if refused:
        raise ConfigurationError(
            "an existing study cannot be extended with another "
            + "; ".join(
                f"{name} (stored {format_setting(old)}, given {format_setting(new)})"
                for name, (old, new) in refused.items()
            )
            + ". What can change: the stopping rules, a space that gets wider, and settings of the strategy, "
            f"but not its kind, {_FIXED_SETTINGS}.{_advise_installing(refused)}"
        )
    stored: Any = old["strategy"]
    strategy.check_extension(stored)
    check_space_extension(_parameters(old), _parameters(new))


def _advise_installing(refused: Mapping[str, tuple[Json, Json]]) -> str:
    """Return what to do if a stored plug-in was registered by a package that is gone."""
    stored = [str(old) for name, (old, _) in refused.items() if name.endswith(".plugin")]
    gone = [name for name in stored if name.startswith(plugins.GROUPS) and plugins.find_plugin(name) is None]
    return f" No package here registers {', '.join(gone)}: install the one that did." if gone else ""


def _parameters(config: JsonObject) -> Mapping[str, Parameter]:
    space: Any = config["space"]
    return Space.from_config({"parameters": space["parameters"]}, plugins.refuse).parameters


def _deciding(config: JsonObject) -> JsonObject:
    names = ("seed", "space", "objective", "strategy", "stopping", "start_from")
    return {name: config.get(name) for name in names}


def _flat(value: Json, prefix: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            label = item.get("name", index) if isinstance(item, Mapping) else index
            yield from _flat(item, f"{prefix}.{label}")
    else:
        yield prefix, list(value) if isinstance(value, tuple) else value
