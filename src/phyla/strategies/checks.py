"""Checks of a strategy's or rule's settings, when it is made.

All raise a ConfigurationError that names the plug-in, the setting, its value and the allowed values.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

from phyla.errors import ConfigurationError
from phyla.validation import check, setting_error, why_not_run

T = TypeVar("T")


def check_returned(plugin: object, method: str, value: T, *kinds: type) -> T:
    """Return the result of a plug-in's method; reject one of another type."""
    if not isinstance(value, kinds):
        names = ["None" if kind is type(None) else kind.__name__ for kind in kinds]
        wanted = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        call = f"{type(plugin).__name__}.{method}() returned {value!r}"
        raise ConfigurationError(f"{call}; it must return {wanted}")
    return value


def check_mapping(outcome: object, name: str) -> None:
    """Reject a field of a rule's outcome that is not a mapping."""
    value = getattr(outcome, name)
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{type(outcome).__name__}({name}={value!r}): must be a dict")


def check_arguments(plugin: object, name: str, *arguments: str) -> None:
    """Reject a function of a user, in a setting, that a call does not run, or that takes other arguments."""
    function = getattr(plugin, name)
    if not callable(function):
        raise setting_error(plugin, name, f"give a function of ({', '.join(arguments)})")
    if why := why_not_run(function):
        raise setting_error(plugin, name, f"it {why}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # it is not written in Python
    try:
        signature.bind(*arguments)
    except TypeError:
        own = f"{getattr(function, '__name__', repr(function))}{signature}"
        call = f"it is called with ({', '.join(arguments)}), and is {own}"
        raise setting_error(plugin, name, call) from None


def check_steps(plugin: Any) -> None:
    """Reject `total_steps` and `steps_per_trial` that are out of range, and trials longer than the training."""
    check(plugin, total_steps=1, steps_per_trial=1)
    if plugin.steps_per_trial is not None and plugin.steps_per_trial > plugin.total_steps:
        raise setting_error(plugin, "steps_per_trial total_steps", "a trial may not be longer than all training")


def check_rules(
    plugin: object, method: Literal["choose", "propose"], name: str, *, optional: bool = False
) -> None:
    """Reject a setting that is not a rule of this kind or a list of rules; None if optional."""
    for rule in items_of(getattr(plugin, name)):
        if not callable(getattr(rule, method, None)) and not (optional and rule is None):
            example = "Truncation()" if method == "choose" else "Perturb() or ExploreWith(function)"
            setting = f"{type(plugin).__name__}({name}={rule!r})"
            raise ConfigurationError(f"{setting}: not a rule, it has no {method}; give one, such as {example}")


def items_of(value: object) -> Iterator[object]:
    """Iterate over a setting, or over the items of its lists, at any depth."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from items_of(item)
    else:
        yield value
