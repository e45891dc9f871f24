"""Where output goes: tables for a person, strict JSON for a program, files written at once.

What a person sees goes through `show` (which commands import as `print`) or `console`. Both make control
characters visible: errors, names and paths come from a database or from training code, and must not command the
terminal.
"""

import builtins
import csv
import io
import json
import os
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


def table(
    rows: Iterable[Mapping[str, object] | Sequence[tuple[str, object]]],
    *,
    right: Sequence[str] = (),
    elastic: Sequence[str] = (),
    wrapped: Sequence[str] = (),
    styles: Iterable[str] = (),
) -> Table:
    """Return a table of rows of one line each; markup in the cells means nothing, and None is a dash.

    Args:
        rows: the cells of each row by their headings, which all rows share; pairs, where two may be the same.
        right: columns that are aligned to the right.
        elastic: columns that are cut when there is too little room.
        wrapped: columns that take several lines then.
        styles: the style of each row, where rows have one.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for row, style in zip(rows, chain(styles, repeat("")), strict=False):
        cells = list(row.items()) if isinstance(row, Mapping) else row
        for name, _ in cells if not made.columns else ():
            made.add_column(
                name,
                justify="right" if name in right else "left",
                no_wrap=name not in elastic and name not in wrapped,
                overflow="ellipsis",
                min_width=min(8, len(name)) if name in elastic else None,
            )
        texts = (NOTHING if cell is None else " ".join(str(cell).split()) for _, cell in cells)
        made.add_row(*(Text(visible(text), no_wrap=True, overflow="ellipsis") for text in texts), style=style)
    return made


def picked(record: object, *names: str) -> dict[str, Any]:
    """Return some attributes of a record by name."""
    return {name: getattr(record, name) for name in names}


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


def print_json(value: Any) -> None:
    """Print a value as strict JSON."""
    print(to_json(value))


def csv_lines(rows: Iterable[Mapping[str, Any]], names: Iterable[str] | None = None) -> Iterator[str]:
    """Yield rows as lines of CSV, below a heading; objects and lists are JSON.

    Args:
        rows: they are read one by one.
        names: the columns; by default those of the first row.
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


def write_at_once(text: str) -> None:
    """Write to standard error without any buffer, as a signal handler must."""
    os.write(2, f"{text}\n".encode())


def write_file(path: Path, write: Callable[[Path], object], *, replace: bool) -> None:
    """Write a file completely or not at all.

    Args:
        path: the file.
        write: writes to the path it is given.
        replace: whether to replace a file that exists.

    Raises:
        UsageError: the file exists, or cannot be written.
    """
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
