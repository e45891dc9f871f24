"""Checks of a strategy's or rule's settings, when it is made.

All raise a ConfigurationError that names the plug-in, the setting, the value, and what it has to be.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Literal, TypeAlias

from phyla.errors import ConfigurationError

MOST_MEMBERS = 1_000_000
MOST_SECONDS = 1_000_000_000
MOST_STEPS = 2**53
"""Up to here every integer is a float as well, in JSON and in other languages."""

Wanted: TypeAlias = int | str | tuple[object, ...]
"""An integer of at least this, a number in an interval such as "(0, 1]", which excludes 0, or one of a tuple."""


def check(plugin: Any, **wanted: Wanted) -> None:
    """Refuse settings of a plug-in that are not as wanted; None is allowed where it is the default."""
    defaults = {one.name: one.default for one in fields(plugin)}
    for name, want in wanted.items():
        value = getattr(plugin, name)
        if value is not None or defaults[name] is not None:
            check_value(type(plugin).__name__, name, value, want)


def check_value(plugin: str, name: str, value: Any, want: Wanted) -> None:
    """Refuse one value of a setting."""
    given = f"{plugin}({name}={value!r})"
    if isinstance(want, tuple):
        if value not in want:
            raise ConfigurationError(f"{given}: choose {', '.join(map(repr, want[:-1]))} or {want[-1]!r}")
    elif isinstance(want, int):
        if isinstance(value, bool) or not isinstance(value, int) or value < want:
            raise ConfigurationError(f"{given}: must be an integer of at least {want}")
        most = MOST_MEMBERS if name in ("population_size", "members") else MOST_STEPS
        if value > most:
            raise ConfigurationError(f"{given}: must be at most {most:,}")
    else:
        low, high = map(float, want[1:-1].split(","))
        excluded = [low] * (want[0] == "(") + [high] * (want[-1] == ")")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high or value in excluded:
            kind = "finite number" if "inf" in want else "number"
            raise ConfigurationError(f"{given}: must be a {kind} in {want}")


def refused(plugin: object, names: str, why: str) -> ConfigurationError:
    """Return the error about settings of a plug-in, whose names come in one text, with what to do."""
    given = ", ".join(f"{name}={getattr(plugin, name)!r}" for name in names.split())
    return ConfigurationError(f"{type(plugin).__name__}({given}): {why}")


def check_steps(plugin: Any) -> None:
    """Refuse `total_steps` and `steps_per_trial` that are out of range, and trials longer than the training."""
    check(plugin, total_steps=1, steps_per_trial=1)
    if plugin.steps_per_trial is not None and plugin.steps_per_trial > plugin.total_steps:
        raise refused(plugin, "steps_per_trial total_steps", "a trial may not be longer than all training")


def check_rules(
    plugin: object, method: Literal["choose", "propose"], name: str, *, optional: bool = False
) -> None:
    """Refuse a setting that is not an exploit rule, or explore rule, or a list of such; None where optional."""
    for rule in items_of(getattr(plugin, name)):
        if not callable(getattr(rule, method, None)) and not (optional and rule is None):
            example = "Truncation()" if method == "choose" else "Perturb() or ExploreWith(function)"
            given = f"{type(plugin).__name__}({name}={rule!r})"
            raise ConfigurationError(f"{given}: not a rule, it has no {method}; give one, such as {example}")


def items_of(value: object) -> Iterator[object]:
    """Iterate over a setting, or over what it lists, however deep."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from items_of(item)
    else:
        yield value
