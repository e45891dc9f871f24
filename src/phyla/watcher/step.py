"""Where the step of a foreign checkpoint comes from."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self, final

from phyla.errors import ConfigurationError

_INTEGER = re.compile(r"\d+")
_SUFFIX = re.compile(r"(?<=.)\.[A-Za-z][A-Za-z0-9]{0,11}$")
DIGITS_AT_MOST = 18


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepFrom:
    """Tells the step of a checkpoint, by default the last integer in the last part of its name.

    Attributes:
        pattern: a regular expression with a group `step`, searched for in the whole name.
        file: a JSON file in the checkpoint's directory that holds the step instead.
        keys: where it is in there, outermost first.
    """

    pattern: re.Pattern[str] | None = None
    file: str | None = None
    keys: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `json:FILE#KEY` or `json:FILE#KEY.KEY`, or else a regular expression with a group `step`.

        Raises:
            ConfigurationError: it is neither.
        """
        if text.startswith("json:"):
            file, mark, keys = text.removeprefix("json:").partition("#")
            if not (file and mark and keys) or file.startswith("/") or ".." in file.split("/"):
                raise ConfigurationError(
                    f"step {text!r} is not understood; write json:FILE#KEY, with the file relative to the "
                    "checkpoint, for example json:trainer_state.json#global_step"
                )
            return cls(file=file, keys=tuple(keys.split(".")))
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise ConfigurationError(f"step {text!r} is no regular expression: {error}") from error
        if "step" not in pattern.groupindex:
            raise ConfigurationError(
                f"step {text!r} has no group called step; write it like this: model_(?P<step>\\d+)\\.pt"
            )
        return cls(pattern=pattern)

    def of_name(self, name: str) -> int | None:
        """Return the step that a name tells; None where it tells none."""
        if self.pattern is not None:
            found = self.pattern.search(name)
            text = found.group("step") if found else None
            return _integer(text) if text is not None else None
        integers = _INTEGER.findall(_SUFFIX.sub("", name.rpartition("/")[2]))
        return _integer(integers[-1]) if integers else None

    def of_content(self, folder: Path) -> int:
        """Return the step that the JSON file tells.

        Raises:
            OSError: the file is missing, or cannot be read.
            ValueError: it is cut off, or has no integer there.
        """
        if self.file is None:
            raise ValueError("no file is named to read the step from")
        value = json.loads((folder / self.file).read_bytes())
        for key in self.keys:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{self.file} has {value!r} at {'.'.join(self.keys)}, which is no step")
        return value


def _integer(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= DIGITS_AT_MOST else None
