"""Where output goes: tables for a person, strict JSON for a program, files written at once.

What a person sees goes through `show` (which commands import as `print`) or `console`. Both make control
characters visible: errors, names and paths come from a database or from training code, and must not command the
terminal.
"""

import builtins
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from phyla import settings
from phyla.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x80-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that command a terminal, turn text around, or cannot be written: all but newline and tab."""

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


def console(*, stderr: bool = False) -> "Console":
    """Return a console that colours nothing by itself; without a terminal it cuts only to `COLUMNS`."""
    from rich.console import Console
    from rich.segment import Segment

    class Visible(Console):
        """Makes control characters in texts visible; markup and emoji codes in them mean nothing."""

        def render(
            self, renderable: "RenderableType", options: "ConsoleOptions | None" = None
        ) -> "Iterable[Segment]":
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(visible(segment.text), segment.style)

    made = Visible(highlight=False, markup=False, emoji=False, stderr=stderr)
    if made.is_terminal:
        return made
    width = settings.columns() or UNCUT
    return Visible(highlight=False, markup=False, emoji=False, stderr=stderr, width=width)


def page_width(out: "Console") -> int:
    """Return how many columns of tables may stand side by side."""
    return WIDE if out.width == UNCUT else out.width


def table(*columns: str, right: Sequence[str] = (), elastic: Sequence[str] = ()) -> "Table":
    """Return an empty table; fill it with `add_row`.

    Args:
        columns: their headings.
        right: those that are aligned to the right.
        elastic: those that are cut when there is too little room.
    """
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name not in elastic,
            overflow="ellipsis",
            min_width=min(8, len(name)) if name in elastic else None,
        )
    return made


def add_row(made: "Table", *cells: object, style: str = "") -> None:
    """Add a row of one line; markup in the cells means nothing."""
    from rich.text import Text

    made.add_row(
        *(Text(visible(" ".join(str(cell).split())), no_wrap=True, overflow="ellipsis") for cell in cells),
        style=style,
    )


def to_json(value: Any) -> str:
    """Return a value as strict JSON; nan and infinities as text."""
    from phyla.records import strict

    return json.dumps(strict(value), indent=2, allow_nan=False)


def print_json(value: Any) -> None:
    """Print a value as strict JSON."""
    print(to_json(value))


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
