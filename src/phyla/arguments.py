"""Names: which ones are allowed, which one was meant, and constructors that say so."""

import functools
import inspect
import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from phyla.errors import ConfigurationError, WrongArgument

T = TypeVar("T")
NAME = re.compile(r"\w[\w.-]{0,99}")
"""What studies, suites, eval tasks, labels and pools may be called: it leads nowhere else as part of a path."""


def nearest(name: object, names: Iterable[str]) -> str | None:
    """Return the known name that was probably meant: one that is alike, or has the unknown one in it."""
    import difflib

    folded = {known.lower(): known for known in names}
    wanted = str(name).lower()
    near = difflib.get_close_matches(wanted, folded, n=1)
    inside = [known for known in folded if wanted and (wanted in known or known in wanted)]
    found = near or sorted(inside, key=lambda known: abs(len(known) - len(wanted)))
    return folded[found[0]] if found else None


def suggestion(name: object, names: Iterable[str]) -> str:
    """Return what to do about an unknown name: the nearest known one, and all of them."""
    listed = list(names)
    near = nearest(name, listed)
    hint = "" if near is None else f"did you mean {near!r}? "
    return f"{hint}the names are {', '.join(map(repr, listed)) or 'none'}"


def known(what: str, name: str, among: Mapping[str, T]) -> T:
    """Return what has a name; `ConfigurationError` says which names there are."""
    if name not in among:
        raise ConfigurationError(f"there is no {what} {name!r}; {suggestion(name, among)}")
    return among[name]


def check_name(what: str, name: object, more: str = "") -> None:
    """Refuse what is no `NAME`; `what` says what it is, and `more` gives an example."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(f"{what}: use up to 100 letters, digits, '_', '-' and '.'{more}")


def check_integer(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Refuse an argument that is no integer, or out of range."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most and value > most):
        up = f", at most {most:,}" if most else ""
        raise ConfigurationError(f"{name}={value!r}: must be an integer of at least {least}{up}")


def suggest_arguments(*kinds: type[Any]) -> None:
    """Let constructors answer an unknown keyword argument with the one that was probably meant.

    They raise `WrongArgument` then, and where a value is of a type that they cannot take.
    """
    for kind in kinds:
        setattr(kind, "__init__", _suggesting(kind))  # noqa: B010  # mypy refuses the assignment


def _suggesting(kind: type[Any]) -> Any:
    made = kind.__init__
    names = [name for name in list(inspect.signature(made).parameters)[1:] if name != "_"]

    @functools.wraps(made)
    def init(self: Any, *args: Any, **settings: Any) -> None:
        for name in settings.keys() - set(names):
            raise WrongArgument(f"{kind.__name__}({name}=...): unknown argument; {suggestion(name, names)}")
        try:
            made(self, *args, **settings)
        except (TypeError, ValueError, OverflowError) as error:
            given = ", ".join([*map(reprlib.repr, args), *(f"{n}={reprlib.repr(v)}" for n, v in settings.items())])
            raise WrongArgument(f"{kind.__name__}({given}): {error}") from error

    return init
