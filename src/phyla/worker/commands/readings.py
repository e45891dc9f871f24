"""Reads the reports of a running command: JSON lines, its output, and TensorBoard's event files."""

import json
import re
import struct
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from phyla.errors import ConfigurationError, MetricsUnreadable
from phyla.validation import suggestion

LINE_BYTES = 1 << 20
"""Maximum length of a line; longer lines are truncated."""
EVENTS_S = 1.0
"""Interval of searching for event files."""
SHOWN = 120
"""Characters of a line that an error shows."""
COLORS = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
"""Escape sequences of terminals, whose numbers and letters are none of the text (ECMA-48, 5.4)."""
_HEADER = struct.Struct("<QI")


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """The report of one line: metrics, their step if it has one, and whether `{save_to}` is complete for it."""

    metrics: Mapping[str, Any]
    step: int | None
    where: str
    saved: bool = False


@final
class Lines:
    """The complete new lines of a growing file; an incomplete line waits for its end."""

    def __init__(self, path: Path, ends: bytes = b"\n") -> None:
        self.path = path
        self._ends = re.compile(b"[" + ends + b"]")
        self._at = 0
        self._number = 0
        self._rest = b""
        self._waiting: deque[bytes] = deque()
        self._gone = False

    def read(self, *, last: bool = False) -> Iterator[tuple[str, bytes]]:
        """Iterate over new lines, each with its place; with `last` also over one that has no end."""
        if self._gone:
            return
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            self._gone = True
            raise MetricsUnreadable(f"the command deleted {self.path}, which is read while it runs") from None
        with file:
            if file.seek(0, 2) < self._at:
                self._at, self._rest = 0, b""
                raise MetricsUnreadable(f"{self.path} became shorter: append lines to it, in mode 'a' or with >>")
            file.seek(self._at)
            while True:
                while self._waiting:
                    yield self._next(self._waiting.popleft())
                if not (chunk := file.read(LINE_BYTES)):
                    break
                self._at += len(chunk)
                pieces = self._ends.split(chunk)
                pieces[0] = self._rest + pieces[0]
                self._rest = pieces.pop()[:LINE_BYTES]
                self._waiting.extend(pieces)
        if last and self._rest:
            line, self._rest = self._rest, b""
            yield self._next(line)

    def _next(self, line: bytes) -> tuple[str, bytes]:
        self._number += 1
        return f"{self.path}, line {self._number}", line[:LINE_BYTES]


@final
class Readings:
    """All reports of a command, in the order in which they are read.

    A metric that several outputs have is read from the first of them, from the moment that it has it: a progress
    bar on standard error may show another number under the same name.

    Args:
        needed: metrics of the objective. In JSON lines, other fields that are not numbers are ignored.
    """

    def __init__(
        self,
        metrics: Path,
        outputs: Sequence[Path],
        patterns: Mapping[str, str],
        events: "EventFileReading",
        needed: Collection[str] = (),
    ) -> None:
        self._lines, self._outputs, self.events = (
            Lines(metrics),
            [Lines(path, b"\r\n") for path in outputs],
            events,
        )
        self._patterns = {name: re.compile(pattern) for name, pattern in patterns.items()}
        self._needed = needed
        self._from: dict[str, int] = {}
        self._steps: dict[int, int] = {}

    def read(self, *, last: bool = False) -> Iterator[Reading]:
        """Iterate over new readings.

        Raises:
            MetricsUnreadable: names the file and the line; the next call continues after it.
        """
        for where, line in self._lines.read(last=last):
            if line.strip():
                yield _reading(where, line, self._needed)
        for place, output in enumerate(self._outputs if self._patterns else ()):
            for where, line in output.read(last=last):
                text = COLORS.sub(b"", line).decode(errors="replace")
                yield from self._search_line(place, where, text)
        yield from self.events.read(last=last)

    def _search_line(self, place: int, where: str, line: str) -> Iterator[Reading]:
        values = {}
        for name, pattern in self._patterns.items():
            match = pattern.search(line)
            if match is None or match[1] is None:
                continue
            if name == "step" or place <= self._from.get(name, place):
                self._from[name] = place
                try:
                    values[name] = float(match[1])
                except ValueError:
                    raise MetricsUnreadable(
                        f"{where}: the regular expression of {name!r} found {match[1]!r:.{SHOWN}}, not a number"
                    ) from None
        if "step" in values:
            self._steps[place] = _whole(values.pop("step"), where)
        if values:
            yield Reading(values, self._steps.get(place), where)


def _reading(where: str, line: bytes, needed: Collection[str]) -> Reading:
    text = line.decode(errors="replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MetricsUnreadable(
            f"{where} is not JSON ({error}): {text!r:.{SHOWN}}. Write one object a line, such as "
            '{"step": 10, "loss": 0.3}'
        ) from None
    if not isinstance(value, dict):
        raise MetricsUnreadable(f"{where} is not a JSON object: {text!r:.{SHOWN}}")
    step = value.pop("step", None)
    saved = value.pop("saved", False)
    if saved not in (True, False) or (saved and step is None):
        raise MetricsUnreadable(f'{where}: {text!r:.{SHOWN}}; write {{"step": 25, "saved": true}}')
    metrics = _metrics(value, needed)
    return Reading(metrics, None if step is None else _whole(step, where), where, saved=bool(saved))


def _metrics(fields: Mapping[str, Any], needed: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Return the fields that are numbers, by their full names, and all that the objective needs."""
    found: dict[str, Any] = {}
    for key, value in fields.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            found |= _metrics(value, needed, f"{name}/")
        elif name in needed or _is_number(value):
            found[name] = value
    return found


def _is_number(value: object) -> bool:
    with suppress(ValueError):
        value = float(value) if isinstance(value, str) else value
    return isinstance(value, int | float)


def _whole(step: object, where: str) -> int:
    number = isinstance(step, (int, float)) and not isinstance(step, bool)
    if not number or step != step or abs(step) >= 2**63 or int(step) != step:  # type: ignore[call-overload,arg-type]
        raise MetricsUnreadable(f"{where}: step {step!r:.{SHOWN}} is not an integer")
    return int(step)  # type: ignore[call-overload,no-any-return]


@final
@dataclass
class EventFileReading:
    """Scalars from the event files of TensorBoard that a command writes.

    Attributes:
        folder: what globs are relative to.
        wanted: name to (glob, tag).
        tags: those read so far, wanted or not.
    """

    folder: Path
    wanted: Mapping[str, tuple[str, str]]
    tags: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._event: Any = event_class()() if self.wanted else None
        self._folders: dict[str, Path] = {}
        # Those of earlier attempts have been read.
        self._at = {file: file.stat().st_size for file in self._find_files()}
        self._looked_at = time.monotonic()

    def _find_files(self) -> dict[Path, dict[str, str]]:
        """Return the files that match, each with the names of its tags."""
        files: dict[Path, dict[str, str]] = {}
        for name, (glob, tag) in self.wanted.items():
            # An absolute glob may have been made with {working_dir} or {save_to}.
            root, pattern = (Path("/"), glob.lstrip("/")) if glob.startswith("/") else (self.folder, glob)
            for file in sorted(root.glob(pattern)):
                if file.is_file():
                    files.setdefault(file, {})[tag] = name
        return files

    def read(self, *, last: bool = False) -> Iterator[Reading]:
        """Iterate over new scalars, at intervals; an incomplete event waits for its end."""
        now = time.monotonic()
        if not self.wanted or (not last and now - self._looked_at < EVENTS_S):
            return
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        self._looked_at, event = now, self._event
        for path, names in self._find_files().items():
            with path.open("rb") as file:
                while True:
                    file.seek(self._at.get(path, 0))
                    header = file.read(_HEADER.size)
                    length = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else 0
                    if length > LINE_BYTES << 10:
                        self._at[path] = file.seek(0, 2)
                        raise MetricsUnreadable(f"{path} is not an event file of TensorBoard")
                    body = file.read(length + 4)
                    if len(header) < _HEADER.size or len(body) < length + 4:
                        break
                    self._at[path] = file.tell()
                    try:
                        event.ParseFromString(body[:-4])
                    except DecodeError:
                        raise MetricsUnreadable(f"{path} is not an event file of TensorBoard") from None
                    for value in event.summary.value:
                        self.tags.add(value.tag)
                        if value.tag in names:
                            self._check_folder(names[value.tag], path)
                            values = {names[value.tag]: _number(value)}
                            yield Reading(values, int(event.step), f"{path}, tag {value.tag}")

    def _check_folder(self, name: str, path: Path) -> None:
        """Reject a scalar that is in two directories: of two runs of TensorBoard, which are two curves."""
        first = self._folders.setdefault(name, path.parent)
        if first != path.parent:
            glob, tag = self.wanted[name]
            raise MetricsUnreadable(
                f"{name!r}: the files that match {glob!r} have the tag {tag!r} in two directories, {first} and "
                f"{path.parent}; write a glob that matches only one of them"
            )

    def explain_missing(self, name: str) -> str:
        """Return why nothing was read for a name."""
        glob, tag = self.wanted[name]
        files = f"files that match {self.folder / glob}"
        if not self.tags:
            return f"nothing was read from {files}"
        return f"the tag {tag!r} is not in {files}; {suggestion(tag, sorted(self.tags))}"


def event_class() -> Any:
    """Return the class of TensorBoard's events."""
    try:
        from tensorboardX.proto.event_pb2 import Event
    except ImportError:
        raise ConfigurationError(
            'Command(tensorboard=...) needs tensorboardX: pip install "phyla[tensorboard]"'
        ) from None
    return Event


def _number(value: Any) -> float:
    """Return a scalar, which newer writers store as a tensor."""
    if not value.HasField("tensor"):
        return float(value.simple_value)
    tensor = value.tensor
    packed = {1: "<f", 2: "<d"}.get(tensor.dtype)
    if packed and len(tensor.tensor_content) == struct.calcsize(packed):
        return float(struct.unpack(packed, tensor.tensor_content)[0])
    return float([*tensor.float_val, *tensor.double_val, float("nan")][0])
