"""State of a process that phyla shares with user code, and its changes since the start."""

import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from phyla import errors
from phyla.validation import check_ran

SHOWN = 4
"""Changes that a message names, at most."""
_MODULES = ("builtins", "io", "json", "os", "pathlib", "shutil", "sqlite3", "threading", "time")
_LIMITS = ("RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_NPROC")
_PLACES = (errors.StoreError, errors.CheckpointsAbsent, errors.CheckpointStorageFailed)
_PHYLA = str(Path(errors.__file__).parent)


@final
class Surroundings:
    """A snapshot of a process, with the state of a descriptor that stays open, taken before user code runs."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.calls, self._ran = 0, ""
        self._recursion = sys.getrecursionlimit()
        self._files = {} if descriptor is None else {descriptor: _file(descriptor)}
        self._limits = {name: _limit(name) for name in _LIMITS}
        modules = [sys.modules[name] for name in _MODULES if name in sys.modules]
        self._functions = [(module, name, value) for module in modules for name, value in vars(module).items()]

    def call(self, label: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call user code; restore the working directory, and the recursion limit if it was lowered."""
        self.calls, self._ran = self.calls + 1, label + _origin(function)
        before = _directory()
        try:
            return check_ran(function, _only_here(function, *arguments))
        finally:
            # First, since the rest calls functions.
            if sys.getrecursionlimit() < self._recursion:
                sys.setrecursionlimit(self._recursion)
            if before is not None and _directory() != before:
                with suppress(OSError):
                    os.chdir(before)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Run phyla's own code; raise `ProcessSpoiled` if it fails and user code has changed the process."""
        try:
            yield
        except Exception as error:
            changes: list[str] = []
            with suppress(Exception):  # what this needs may be spoiled itself
                changes = [*self._changes()] if self.calls and _is_own(error) else []
            if not changes:
                raise
            raise errors.ProcessSpoiled(
                f"after {self._ran}, phyla failed in the same process with {_describe_error(error)}. What has "
                f"changed there since it began may be the cause: {'; '.join(changes[:SHOWN])}. Let your function "
                "undo it before it returns, or do it in a process of its own"
            ) from error

    def _changes(self) -> Iterator[str]:
        for name, before in self._limits.items():
            if _limit(name) < before:
                yield f"{name} was lowered to {_limit(name):.0f}"
        for descriptor, file in self._files.items():
            if _file(descriptor) != file:
                yield f"file descriptor {descriptor}, which belongs to phyla, was closed"
        for module, name, value in self._functions:
            now = vars(module).get(name)
            if callable(value) and now is not value:
                yield f"{module.__name__}.{name} was replaced{_origin(now)}"


def _only_here(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call user code; a fork that returns from it ends there, as it would without phyla.

    Otherwise the fork would continue as a second worker, with the lease of this one.
    """
    here, status = os.getpid(), 1
    try:
        value, status = function(*arguments), 0
        if os.getpid() == here:
            return value
        text = f"process {os.getpid()}, which training or an eval task forked from {here}, returned and ends here"
        print(text, file=sys.stderr)  # noqa: T201
    except SystemExit as error:
        if os.getpid() == here:
            raise
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        if os.getpid() == here:
            raise
        traceback.print_exc()
    finally:
        if os.getpid() != here:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _origin(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


def _limit(name: str) -> float:
    limit = resource.getrlimit(getattr(resource, name))[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _directory() -> Path | None:
    """Return the working directory; None if it was deleted."""
    with suppress(OSError):
        return Path.cwd()
    return None


def _file(descriptor: int) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino
    return None


def _is_own(error: Exception) -> bool:
    """Return whether phyla itself failed, rather than its input or the disk."""
    full = any(cause is not None and errors.is_storage_error(cause) for cause in (error, error.__cause__))
    return not full and (isinstance(error, _PLACES) or not isinstance(error, errors.PhylaError))


def _describe_error(error: Exception) -> str:
    """Return the error, without advice on other causes, and its last place in phyla."""
    place, trace = "", (error.__cause__ or error).__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(_PHYLA):
            place = f" (phyla{code.co_filename.removeprefix(_PHYLA)}, line {trace.tb_lineno}, in {code.co_name})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {str(error).partition('; ')[0].partition('. ')[0]}{place}"
