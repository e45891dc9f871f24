"""Checks of a strategy or rule together with all the rules in its settings, before anything is trained."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from phyla.space import Space


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
        for field in fields(value):
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _parts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
