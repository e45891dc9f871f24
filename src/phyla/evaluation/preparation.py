"""How a suite's checkpoints are prepared: converted once, before eval tasks read them."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from phyla.errors import ConfigurationError
from phyla.evaluation.command_line import split_command
from phyla.validation import check, check_function

FIELDS = ("checkpoint", "into", "step", "name")
"""Fields that the arguments of a preparing command may have in braces."""


@final
@dataclass(frozen=True, slots=True)
class Preparation:
    """A function, or a command, that makes of a checkpoint what eval tasks read, such as a Hugging Face folder.

    Args:
        function: `function(checkpoint, into)`, which writes into the empty directory `into`; or None when
            `command` is given.
        command: a command, as for an eval task, with the fields `{checkpoint}`, `{into}`, `{step}` and `{name}`.
        version: part of what identifies the results of the suite's eval tasks: change it when what it
            makes changes.
        timeout_s: seconds one attempt may take; None for no limit.
        max_attempts: attempts on one checkpoint that may fail before its eval tasks fail.
        cwd: where the command runs; by default where phyla was started. In a TOML file it is relative to the
            file, and by default the directory of the file.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    function: Callable[[Any, Path], object] | None = None
    command: Sequence[str] | str | None = None
    version: str = "1"
    timeout_s: float | None = None
    max_attempts: int = 3
    cwd: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.function is None) == (self.command is None):
            raise ConfigurationError("Preparation(...): give either function= or command=")
        if self.function is not None:
            check_function("Preparation: function", self.function, "a checkpoint and a directory")
        if self.command is not None:
            example = ("convert", "{checkpoint}", "{into}/weights")
            arguments = split_command("Preparation(", self.command, FIELDS, example)
            if not any("{into" in argument for argument in arguments):
                raise ConfigurationError(
                    f"Preparation(command={self.command!r}): no argument has {{into}}, the directory to write into"
                )
            object.__setattr__(self, "command", arguments)
        if self.cwd is not None:
            if self.command is None:
                raise ConfigurationError(f"Preparation(cwd={self.cwd!r}): only a command has cwd=")
            object.__setattr__(self, "cwd", str(Path(self.cwd).absolute()))
        check(self, max_attempts=1, timeout_s="(0, inf)")

    @property
    def name(self) -> str:
        """The name of the function, or the program."""
        if self.command is not None:
            return Path(self.command[0]).name
        return name_of(self.function)

    @property
    def identity(self) -> str:
        """How it prepares: function or command, and version."""
        how = [self.name if self.function is not None else None, self.command, self.version]
        return hashlib.sha256(json.dumps(how).encode()).hexdigest()[:32]


def name_of(function: object) -> str:
    """Return the name of a function, or of the class of an object that is called like one."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def preparation_of(prepare: object, of: str) -> Preparation | None:
    """Return the preparation that a suite was given: as one, as a function, or as a command.

    `of` is the beginning of the call, for messages.
    """
    if prepare is None or isinstance(prepare, Preparation):
        return prepare
    if callable(prepare):
        return Preparation(prepare)
    if isinstance(prepare, Sequence):
        return Preparation(command=prepare)
    raise ConfigurationError(
        f"{of}, prepare={prepare!r}): give a function prepare(checkpoint, into), a command with {{checkpoint}} "
        "and {into}, or a Preparation"
    )
