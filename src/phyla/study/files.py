"""Reads files that users give: Python files that define studies and suites, and schedules."""

import json
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from phyla import plugins
from phyla.errors import UsageError

if TYPE_CHECKING:
    from phyla.lineage import Schedule


def read_file(file: Path, what: str) -> ModuleType:
    """Run a file up to where it runs a study, and return what it defines.

    Args:
        file: the file.
        what: what is looked for in there, for messages: `study`, `suite`.

    Raises:
        UsageError: there is no such file, it is no Python code, or it raised; the message names the line.
    """
    if not file.is_file():
        raise UsageError(f"there is no file {file}" if not file.exists() else f"{file} is no file")
    if file.suffix != ".py":
        raise UsageError(f"{file}: a {what} file is Python code, so its name ends in .py")
    try:
        return plugins.study_module(file)
    except SyntaxError as error:
        raise UsageError(f"{error.filename or file}, line {error.lineno}: {error.msg}") from error
    except SystemExit as error:
        raise UsageError(
            f"{_place_in(file, error)} the file ended itself with exit status {error.code} while it was read; "
            'what parses arguments or ends the program belongs under `if __name__ == "__main__":`, '
            f"the {what} above it"
        ) from error
    except Exception as error:
        raise UsageError(f"{_place_in(file, error)} {type(error).__name__}: {error}") from error


def _place_in(file: Path, error: BaseException) -> str:
    """Return the line of the file where an error came up."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == file.resolve()
    ]
    return f"{file}, line {lines[-1]}:" if lines else f"{file}:"


def load_schedule(path: str | Path) -> "Schedule":
    """Read a schedule that `phyla export STUDY --what schedule --format json` wrote.

    Args:
        path: the file.

    Raises:
        UsageError: there is no such file, or it holds no schedule.
    """
    from phyla.lineage import Schedule

    try:
        value = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read the schedule {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(
            f"{path} is no JSON: {error}; export it with: phyla export STUDY --what schedule --format json"
        ) from error
    return Schedule.from_json(value)
