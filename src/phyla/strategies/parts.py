"""Checks of a strategy or rule together with all the rules in its settings, before anything is trained."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from phyla.errors import ConfigurationError
from phyla.space import Space
from phyla.strategies.from_suite import FromSuite

_MEMBERS = (
    "population_size",
    "quorum",
    "line",
    "exclusive",
    "fitness",
    "member_steps",
    "keeps",
    "finished",
    "decide",
)
"""What every study needs of its strategy; `pareto` only those whose objective has trade-offs."""


def check_strategy(strategy: object) -> None:
    """Refuse what is no strategy, and classes in place of objects: of the strategy, and of rules in its settings.

    Raises:
        ConfigurationError: names the class and how to make one, or what the strategy or its fitness rule lacks.
    """
    if isinstance(strategy, type):
        raise ConfigurationError(f"strategy={strategy.__name__}: {_how_to_make(strategy)}")
    missing = [name for name in _MEMBERS if not hasattr(strategy, name)]
    if missing:
        raise ConfigurationError(
            f"strategy={strategy!r} is not a strategy: it has no {' and no '.join(missing)}. Use PBT(...), "
            "RandomSearch(...) or another one; your own derives from phyla.strategies.Strategy"
        )
    for part in _parts(strategy):
        for name, value in _settings(part):
            if isinstance(value, type) and is_dataclass(value):
                raise ConfigurationError(
                    f"{type(part).__name__}({name}=...) has {value.__name__}: {_how_to_make(value)}"
                )
    rule: Any = getattr(strategy, "fitness", None)
    if not callable(rule) and not isinstance(rule, FromSuite):
        raise ConfigurationError(
            f"{type(strategy).__name__}(fitness={rule!r}): this is no rule; give one, such as Last(), or "
            "a function of (values, objective)"
        )


def check_space(plugin: object, space: Space) -> None:
    """Let a plug-in, and the plug-ins in its settings, say whether they go with a search space.

    Whoever has a method `check_space(space)` is asked. It is optional, and meant for settings that name parameters
    or hold values of them: without it a mistake shows when a worker comes to it.

    Args:
        plugin: a strategy or a rule.
        space: the space that it will be used with.

    Raises:
        SpaceError: the space does not allow what the settings say; the message names plug-in, place and values.
        ConfigurationError: the settings make no sense with this space.
    """
    for part in _parts(plugin):
        check = getattr(part, "check_space", None)
        if check is not None:
            check(space)


def _parts(value: object) -> Iterator[object]:
    """Iterate over a plug-in and those in its settings, outer ones first."""
    if is_dataclass(value) and not isinstance(value, type):
        yield value
        for _, setting in _settings(value):
            yield from _parts(setting)


def _settings(part: Any) -> Iterator[tuple[str, object]]:
    """Iterate over the settings of a plug-in by name; over each item of those that are lists."""
    for field in fields(part):
        for value in _items(getattr(part, field.name)):
            yield field.name, value


def _items(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _items(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _items(item)
    else:
        yield value


def _how_to_make(kind: type) -> str:
    needed = fields(kind) if is_dataclass(kind) else ()
    required = [each.name for each in needed if each.default is MISSING and each.default_factory is MISSING]
    example = ", ".join(f"{name}=..." for name in required)
    return f"this is the class, not an object of it; make one, as in {kind.__name__}({example})"
