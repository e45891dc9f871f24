"""Validation of names and settings of a user, with errors that suggest the intended one."""

import functools
import inspect
import re
import reprlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from phyla.errors import ConfigurationError, UsageError, WrongArgument

T = TypeVar("T")
NAME = re.compile(r"\w[\w.-]{0,99}")
"""What studies, suites, eval tasks, labels and pools may be called: it leads nowhere else as part of a path."""
MOST_MEMBERS = 1_000_000
MOST_SECONDS = 1_000_000_000
PRINTABLE = 10**4000
MOST_STEPS = 2**53
"""Up to here every integer is a float as well, in JSON and in other languages."""

Wanted: TypeAlias = int | str | tuple[object, ...]
"""An integer of at least this, a number in an interval such as "(0, 1]", which excludes 0, or one of a tuple."""


def nearest(name: object, names: Iterable[str]) -> str | None:
    """Return the known name that was probably meant: a similar one, or one that contains the unknown one."""
    import difflib

    folded = {known.lower(): known for known in names}
    wanted = str(name).lower()
    near = difflib.get_close_matches(wanted, folded, n=1)
    inside = [known for known in folded if wanted and (wanted in known or known in wanted)]
    matches = near or sorted(inside, key=lambda known: abs(len(known) - len(wanted)))
    return folded[matches[0]] if matches else None


def suggestion(name: object, names: Iterable[str]) -> str:
    """Return what to do about an unknown name: the nearest known one, and all of them."""
    listed = list(names)
    near = nearest(name, listed)
    hint = "" if near is None else f"did you mean {near!r}? "
    return f"{hint}choose from {', '.join(map(repr, listed)) or 'none'}"


def look_up(label: str, name: str, among: Mapping[str, T]) -> T:
    """Return the item of a name; `ConfigurationError` lists the known names."""
    if name not in among:
        raise ConfigurationError(f"unknown {label} {name!r}; {suggestion(name, among)}")
    return among[name]


def check_name(label: str, name: object, more: str = "") -> None:
    """Reject an invalid `NAME`; `label` names it in the error, and `more` gives an example."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(f"{label}: use up to 100 letters, digits, '_', '-' and '.'{more}")


def check_function(label: str, function: object, takes: str) -> None:
    """Reject what a call would not run to its end; `label` names it in the error."""
    if not callable(function):
        raise ConfigurationError(f"{label}={function!r}: must be a function that takes {takes}")
    if why := why_not_run(function):
        raise ConfigurationError(f"{label}={function!r} {why}")


def why_not_run(function: object) -> str | None:
    """Return why a call of a function would not run it, and what to do; None if it would."""
    for code in (function, type(function).__call__):
        if inspect.iscoroutinefunction(code):
            return "is async: write `def`, and call asyncio.run in it"
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            return "is a generator, so a call runs nothing: leave out yield"
    return None


def check_ran(function: object, value: T) -> T:
    """Return what a function of a user returned; reject a coroutine, of which nothing has run."""
    if inspect.iscoroutine(value):
        value.close()
        raise ConfigurationError(
            f"{function!r} returned a coroutine, so nothing was run: let it return asyncio.run(...) of that"
        )
    return value


def plain(value: Any) -> Any:
    """Return a number of NumPy or another library as Python's own; everything else as it is."""
    if isinstance(value, bool | float):
        return value
    if isinstance(value, Integral):
        return printable(int(value))
    return float(value) if isinstance(value, Real) else value


def printable(number: int, label: str = "a number", kind: type[UsageError] = ConfigurationError) -> int:
    """Return a whole number; reject one with more digits than Python prints, which no message could show."""
    if abs(number) >= PRINTABLE:
        raise kind(f"{label} has more than 4,000 digits; give a smaller one")
    return number


def check_integer(name: str, value: Any, least: int = 1, most: int | None = None, plugin: str = "") -> int:
    """Return an argument, or a setting of a plug-in, as an int; reject non-integers and values out of range."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most and value > most):
        up = f", at most {most:,}" if most else ""
        hint = f"; did you mean {int(value)}?" if isinstance(value, float) and value.is_integer() else ""
        setting = f"{plugin}({name}={value!r})" if plugin else f"{name}={value!r}"
        raise ConfigurationError(f"{setting}: must be an integer of at least {least}{up}{hint}")
    return value


def check(plugin: Any, **wanted: Wanted) -> None:
    """Reject invalid settings of a plug-in; None is allowed where it is the default.

    Numbers become Python's own.
    """
    defaults = {field.name: field.default for field in fields(plugin)}
    for name, want in wanted.items():
        value = getattr(plugin, name)
        if value is not None or defaults[name] is not None:
            checked = check_value(type(plugin).__name__, name, value, want)
            if checked is not value:
                object.__setattr__(plugin, name, checked)


def check_value(plugin: str, name: str, value: Any, want: Wanted) -> Any:
    """Return one value of a setting, with numbers as Python's own; reject an invalid one."""
    value = plain(value)
    setting = f"{plugin}({name}={value!r})"
    if isinstance(want, tuple):
        if value not in want:
            raise ConfigurationError(f"{setting}: choose {', '.join(map(repr, want[:-1]))} or {want[-1]!r}")
    elif isinstance(want, int):
        check_integer(name, value, want, plugin=plugin)
        most = MOST_MEMBERS if name in ("population_size", "members") else MOST_STEPS
        if value > most:
            raise ConfigurationError(f"{setting}: must be at most {most:,}")
    else:
        low, high = map(float, want[1:-1].split(","))
        excluded = [low] * (want[0] == "(") + [high] * (want[-1] == ")")
        # An integer may be too large for a float.
        number = (
            isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        )
        if not number or not low <= value <= high or value in excluded:
            kind = "finite number" if "inf" in want else "number"
            raise ConfigurationError(f"{setting}: must be a {kind} in {want}")
    return value


def setting_error(plugin: object, names: str, why: str) -> ConfigurationError:
    """Return the error about settings of a plug-in, whose names come in one text, with what to do."""
    settings = ", ".join(f"{name}={getattr(plugin, name)!r}" for name in names.split())
    return ConfigurationError(f"{type(plugin).__name__}({settings}): {why}")


def suggest_arguments(*kinds: type[Any], hints: Mapping[str, str] = MappingProxyType({})) -> None:
    """Make constructors suggest the intended name for an unknown keyword argument, or give the hint for it.

    They raise `WrongArgument` then, and where a value is of a type that they cannot take.
    """
    for kind in kinds:
        setattr(kind, "__init__", _suggesting(kind, hints))  # noqa: B010  # mypy refuses the assignment


def brief(value: object) -> str:
    """Return a value on a few characters, for a message."""
    try:
        return reprlib.repr(value)
    except ValueError:  # it has more digits than Python prints
        return "..."


def _suggesting(kind: type[Any], hints: Mapping[str, str]) -> Any:
    original = kind.__init__
    names = [name for name in list(inspect.signature(original).parameters)[1:] if name != "_"]

    @functools.wraps(original)
    def init(self: Any, *args: Any, **settings: Any) -> None:
        for name in settings.keys() - set(names):
            hint = hints.get(name) or suggestion(name, names)
            raise WrongArgument(f"{kind.__name__}({name}=...): unknown argument; {hint}")
        try:
            original(self, *args, **settings)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            values = ", ".join(
                [*map(brief, args), *(f"{name}={brief(value)}" for name, value in settings.items())]
            )
            raise WrongArgument(f"{kind.__name__}({values}): {error}") from error

    return init
