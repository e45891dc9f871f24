"""Where output goes: tables for a person, strict JSON for a program, files written at once.

What a person sees goes through `show` (which commands import as `print`) or `console`. Both make control
characters visible: errors, names and paths come from a database or from training code, and must not command the
terminal.
"""

import builtins
import csv
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from phyla import settings
from phyla.errors import UsageError
from phyla.records import strict

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x80-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that command a terminal, turn text around, or cannot be written: all but newline and tab."""

NOTHING = "-"
"""Stands in a table for what there is not."""
UNCUT = 1_000_000
"""Columns of what goes into a file or a pipe, where nothing needs to be cut to a window."""
WIDE = 160
"""Columns up to which tables stand side by side there."""


def visible(text: str) -> str:
    """Return text with control characters written out, as Python's `ascii` does; newlines and tabs stay."""
    return _COMMANDS.sub(lambda found: ascii(found.group())[1:-1], text)


def show(*values: object, end: str = "\n", file: IO[str] | None = None, flush: bool = False) -> None:
    """Print values with control characters made visible; commands use it in place of `print`."""
    builtins.print(*(visible(str(value)) for value in values), end=end, file=file, flush=flush)


class _Visible(Console):
    """Makes control characters in texts visible; markup and emoji codes in them mean nothing."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; in a file or a pipe without the blanks that fill a table's rows."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(re.sub(" +$", "", captured.get(), flags=re.MULTILINE))


def console() -> Console:
    """Return a console that colours nothing by itself; without a terminal it cuts only to `COLUMNS`."""
    made = _Visible(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = settings.columns() or UNCUT
    return made


def page_width() -> int:
    """Return how many columns of tables may stand side by side."""
    width = console().width
    return WIDE if width == UNCUT else width


def table(headings: Sequence[str], rows: Iterable[Iterable[object]], styles: Iterable[str] = ()) -> Table:
    """Return a table of rows of one line each, in these styles; markup in cells means nothing, None is a dash.

    The first character of a heading may say how its column is set: `>` to the right, `~` cut where there is too
    little room, `=` on several lines there.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for heading in headings:
        mark = heading[:1]
        name = heading[1:] if mark and mark in ">~=" else heading
        made.add_column(
            name,
            justify="right" if mark == ">" else "left",
            no_wrap=mark not in ("~", "="),
            overflow="ellipsis",
            min_width=min({"~": 9, "=": 11}[mark], len(name)) if mark in ("~", "=") else None,
        )
    for row, style in zip(rows, chain(styles, repeat("")), strict=False):
        texts = (NOTHING if cell is None else " ".join(str(cell).split()) for cell in row)
        cut = (not heading.startswith("=") for heading in headings)
        made.add_row(
            *(
                Text(visible(text), no_wrap=one, overflow="ellipsis")
                for text, one in zip(texts, cut, strict=False)
            ),
            style=style,
        )
    return made


def print_table(
    headings: Sequence[str],
    rows: Iterable[Iterable[object]],
    styles: Iterable[str] = (),
    *,
    caption: str | None = None,
    gap: bool = False,
) -> None:
    """Print a table, with an empty line before it if there shall be a gap; print nothing without rows."""
    made = table(headings, rows, styles)
    if made.rows:
        if gap:
            show()
        console().print(made)
        if caption:
            show(caption)


def picked(record: object, *names: str, **renamed: str) -> dict[str, Any]:
    """Return some attributes of a record by name, others by another name; nothing of None."""
    chosen = {**{name: name for name in names}, **renamed}
    return {name: getattr(record, attribute) for name, attribute in chosen.items()} if record is not None else {}


def to_json(value: Any, indent: int | None = 2) -> str:
    """Return a value as strict JSON: records as objects; paths, nan and infinities as text."""
    return json.dumps(strict(_plain(value)), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as strict JSON."""
    print(to_json(value, indent), flush=True)


def csv_lines(rows: Iterable[Mapping[str, Any]], names: Iterable[str] | None = None) -> Iterator[str]:
    """Yield rows, one by one, as lines of CSV below a heading; objects and lists are JSON.

    The columns are by default those of the first row.
    """
    text = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(text, list(names or row), lineterminator="\n")
            writer.writeheader()
        cells = {name: json.dumps(cell) for name, cell in row.items() if isinstance(cell, (Mapping, list, tuple))}
        writer.writerow({**row, **cells})
        yield text.getvalue()
        text.seek(0)
        text.truncate()


def write_file(path: Path, write: Callable[[Path], object], *, replace: bool) -> None:
    """Let a function write a file completely or not at all; one that exists stays unless it may be replaced."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory; name a file")
    if path.exists() and not replace:
        raise UsageError(f"{path} exists; delete it first, or choose another name")
    try:
        with tempfile.TemporaryDirectory(prefix=".phyla-", dir=path.parent) as folder:
            written = Path(folder, path.name)
            write(written)
            written.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
