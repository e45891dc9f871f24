"""Reads the Python files that users give, and finds functions in them."""

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from phyla import study_modules
from phyla.errors import UsageError, ends_only_call, message_of


def read_file(file: Path, kind: str) -> ModuleType:
    """Run a study file or suite file up to where it runs a study, and return what it defines."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}" if not file.exists() else f"{file} is a directory, not a file")
    if file.suffix != ".py":
        raise UsageError(f"{file}: a {kind} file is Python code or TOML, so its name ends in .py or .toml")
    try:
        return study_modules.load(file)
    except SyntaxError as error:
        raise UsageError(f"{error.filename or file}, line {error.lineno}: {error.msg}") from error
    except BaseException as error:
        if not ends_only_call(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == file.resolve()]
        where = f"{file}, line {lines[-1]}:" if lines else f"{file}:"
        if not isinstance(error, SystemExit):
            message = f"{type(error).__name__}: {message_of(error)}"
            raise UsageError(f"{where} {message}{_advice_on(error, kind)}") from error
        raise UsageError(
            f"{where} the file ended itself with exit status {error.code} while it was read; give the "
            "arguments that it parses after --, and put what ends the program under "
            f'`if __name__ == "__main__":`, the {kind} above it'
        ) from error


def _advice_on(error: BaseException, kind: str) -> str:
    """Return a sentence to append: what to do about an error; empty for most errors."""
    # Packages that are imported get "beyond top-level package" instead.
    if not isinstance(error, ImportError) or "no known parent package" not in str(error):
        return ""
    module = "give it as package.module:NAME" if kind == "suite" else "start it with `python -m package.module`"
    return (
        f". A {kind} file is in no package: import what is beside it by its name (`from settings import lr`, not "
        f"`from .settings import lr`), or {module}"
    )


def module_named(source: str, folder: Path) -> ModuleType:
    """Return the module of `file.py`, which is looked up in a folder, or of a module name."""
    if source.endswith(".py"):
        return read_file(folder / source, "suite")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(source)
    except BaseException as error:
        if not ends_only_call(error):
            raise
        raise UsageError(f"cannot import {source}: {type(error).__name__}: {message_of(error)}") from error


def function_named(text: str, folder: Path) -> Any:
    """Return the function that `file.py:name` or `module:name` names; the file is looked for in a folder."""
    source, colon, name = text.rpartition(":")
    if not colon:
        raise UsageError(f"{text!r} names no function; write file.py:name or module:name")
    function: Any = module_named(source, folder)
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise UsageError(f"{source} has no function {name!r}")
    return function
