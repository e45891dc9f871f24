"""What forked programs do to their standard streams before they begin: arguments `first` of `forked.Forked`."""

import os
import sys
from collections.abc import Callable
from functools import partial


def written_to(path: str, *numbers: int) -> Callable[[], None]:
    """Let a program write into a file, 1 what it prints, 2 its errors."""
    return partial(_write_to, path, numbers)


def closed(*numbers: int) -> Callable[[], None]:
    """Close streams, as those of services may be."""
    return partial(_close, numbers)


def on_terminal(name: str, *numbers: int) -> Callable[[], None]:
    """Begin a session on a terminal, with these streams."""
    return partial(_take_terminal, name, numbers)


def _write_to(path: str, numbers: tuple[int, ...]) -> None:
    file = os.open(path, os.O_WRONLY)
    _use(file, numbers)


def _close(numbers: tuple[int, ...]) -> None:
    for number in numbers:
        os.close(number)
        name = ("stdin", "stdout", "stderr")[number]
        setattr(sys, name, None)
        setattr(sys, f"__{name}__", None)


def _take_terminal(name: str, numbers: tuple[int, ...]) -> None:
    os.setsid()
    terminal = os.open(name, os.O_RDWR)  # which controls the session, since it has no other
    _use(terminal, numbers)


def _use(file: int, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        os.dup2(file, number)
        # What Python knows of a stream, such as whether it can be rewound, is of the file that it was.
        if number:
            old = (sys.stdout, sys.stderr)[number - 1]
            new = os.fdopen(number, "w", 1, old.encoding, old.errors, closefd=False)
        else:
            new = os.fdopen(0, closefd=False)
        setattr(sys, ("stdin", "stdout", "stderr")[number], new)
    os.close(file)
