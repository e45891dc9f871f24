"""Checks of a strategy's or rule's settings, when it is made.

All raise a ConfigurationError that names the plug-in, the setting, the value, and what it has to be.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from phyla.errors import ConfigurationError

MOST_MEMBERS = 1_000_000
MOST_SECONDS = 1_000_000_000
MOST_STEPS = 2**53
"""Up to here every integer is a float as well, in JSON and in other languages."""


def check_integers(plugin: object, **least: int) -> None:
    """Refuse settings of a plug-in that are not integers, too small, or larger than any study could use."""
    for name, lowest in least.items():
        check_integer(type(plugin).__name__, name, getattr(plugin, name), lowest)


def check_integer(plugin: str, name: str, value: object, least: int) -> None:
    """Refuse a value of a setting as `check_integers` does."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{plugin}({name}={value!r}): must be an integer of at least {least}")
    most = MOST_MEMBERS if name in ("population_size", "members") else MOST_STEPS
    if value > most:
        raise ConfigurationError(f"{plugin}({name}={value!r}): must be at most {most:,}")


def check_share(plugin: object, **intervals: str) -> None:
    """Refuse settings of a plug-in that are not numbers in an interval, such as "(0, 1]": above 0, at most 1."""
    for name, interval in intervals.items():
        value = getattr(plugin, name)
        low, high = map(float, interval[1:-1].split(","))
        excluded = [low] * (interval[0] == "(") + [high] * (interval[-1] == ")")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high or value in excluded:
            raise ConfigurationError(f"{type(plugin).__name__}({name}={value!r}): must be a number in {interval}")


def check_choice(plugin: object, name: str, *choices: object) -> None:
    """Refuse a setting of a plug-in that is none of the choices."""
    value = getattr(plugin, name)
    if value not in choices:
        known = ", ".join(map(repr, choices[:-1]))
        raise ConfigurationError(f"{type(plugin).__name__}({name}={value!r}): choose {known} or {choices[-1]!r}")


def check_steps(plugin: Any) -> None:
    """Refuse `total_steps` and `steps_per_trial` that are out of range, and trials longer than the training."""
    check_integers(plugin, total_steps=1)
    if plugin.steps_per_trial is None:
        return
    check_integers(plugin, steps_per_trial=1)
    if plugin.steps_per_trial > plugin.total_steps:
        raise ConfigurationError(
            f"{type(plugin).__name__}(steps_per_trial={plugin.steps_per_trial}, total_steps={plugin.total_steps}):"
            " a trial may not be longer than the whole training of a member; lower steps_per_trial or raise "
            "total_steps"
        )


def check_rules(
    plugin: object, method: Literal["choose", "propose"], name: str, *, optional: bool = False
) -> None:
    """Refuse a setting that is not an exploit rule, or explore rule, or a list of such; None where optional."""
    for rule in items_of(getattr(plugin, name)):
        if not callable(getattr(rule, method, None)) and not (optional and rule is None):
            example = "Truncation()" if method == "choose" else "Perturb() or ExploreWith(function)"
            raise ConfigurationError(
                f"{type(plugin).__name__}({name}={rule!r}): not a rule, it has no {method}; give one, "
                f"such as {example}"
            )


def items_of(value: object) -> Iterator[object]:
    """Iterate over a setting, or over what it lists, however deep."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from items_of(item)
    else:
        yield value
