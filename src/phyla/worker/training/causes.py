"""Errors of training and their places: as a stored cause, and in the worker's log."""

import inspect
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phyla.errors import CommandFailed, TrialError, line_of, message_of
from phyla.records import Cause
from phyla.worker.commands.command import Command

ERROR_CHARACTERS = 4000
MESSAGE_CHARACTERS = 500
COMMAND_CHARACTERS = 200
OUTPUT_LINES = 10
"""Last lines of a command's output that an error shows; the log has all of it."""


def log_error(error: BaseException, heading: str, train: Callable[..., object] | None, log: Path | None) -> Cause:
    """Write an error with its full traceback to the log; return the cause to store."""
    if log is not None:
        try:
            write_log(log, heading, error)
        except OSError:
            # The end of the traceback is stored in any case.
            log = None
    return cause_of(error, train, log)


def cause_of(error: BaseException, train: Callable[..., object] | None, log: Path | None) -> Cause:
    """Return the error and its place; for errors of phyla's own, the place where a given function begins."""
    module = type(error).__module__
    kind = type(error).__qualname__
    if module not in ("builtins", "__main__") and not module.startswith("phyla."):
        kind = f"{module}.{kind}"
    first = next(iter(message_of(error).strip().splitlines()), "")[:MESSAGE_CHARACTERS]
    if isinstance(error, SystemExit):
        first = "; ".join(filter(None, (first, "return instead of calling sys.exit, or raise what went wrong")))
    file, line = line_of(error) or (None if train is None else _beginning(train)) or (None, None)
    return Cause(
        kind=f"{kind}, {error.how}" if isinstance(error, CommandFailed) else kind,
        error=_printable(f"{kind}: {first}" if first else kind),
        file=None if file is None else _printable(file),
        line=line,
        log=None if log is None else str(log),
    )


def _printable(text: str) -> str:
    """Return a text whose control characters, and half characters, are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def traceback_of(error: BaseException) -> str:
    """Return the end of the traceback, with the last lines of the output of a command that failed."""
    output = "\n".join(_output_of(error).splitlines()[-OUTPUT_LINES:])
    text = "".join(traceback.format_exception(error))
    if output:
        text = f"{text}the last lines of its output:\n{output}\n"
    return text if len(text) <= ERROR_CHARACTERS else f"Traceback, its end:\n{text[-ERROR_CHARACTERS:]}"


def _output_of(error: BaseException) -> str:
    """Return the output of a command that failed or timed out, if it was captured."""
    if not isinstance(error, (subprocess.CalledProcessError, subprocess.TimeoutExpired)):
        return ""
    parts: list[Any] = [error.stdout, error.stderr]
    return "".join(
        part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in parts if part
    )


def write_log(log: Path, heading: str, error: BaseException) -> None:
    """Append the full traceback, and all output of a command that failed, to a worker's log."""
    output = _output_of(error)
    # phyla's own errors are complete in their message.
    own = isinstance(error, TrialError)
    lines = traceback.format_exception_only(error) if own else traceback.format_exception(error)
    text = "".join(lines) + (f"its output:\n{output.rstrip()}\n" if output else "")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {heading}\n{text}")


def _beginning(train: Callable[..., object]) -> tuple[str, int | None] | None:
    if isinstance(train, Command):
        return f"the command {train}"[:COMMAND_CHARACTERS], None
    code: Any = getattr(inspect.unwrap(train), "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)
