"""What a person sees: lines, tables, and on a terminal something in place below them.

All of it goes through `show` (which commands import as `print`), `console` or a `Display`. These make control
characters visible: errors, names and paths come from a database or from training code, and must not command the
terminal.
"""

import builtins
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from typing import IO, Any, Self

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from phyla import settings

STOPPING = "stopping: what is running goes back to the queue (Ctrl-C stops at once)"
STOPPING_AT_ONCE = "stopping at once"

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x80-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that command a terminal, turn text around, or cannot be written: all but newline and tab."""

LOOKS = {"winner": "bold", "changed": "bold", "odd": "red"}
"""Styles of what is special in a page."""
NOTHING = "-"
"""Stands in a table for what there is not."""
UNCUT = 1_000_000
"""Columns of what goes into a file or a pipe, where nothing needs to be cut to a window."""


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


def console(stream: IO[str] | None = None) -> Console:
    """Return a console that colours nothing by itself; without a terminal it cuts only to `COLUMNS`."""
    made = _Visible(file=stream, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = settings.columns() or UNCUT
    return made


def table(headings: Sequence[str], rows: Iterable[Iterable[object]], styles: Iterable[str | None] = ()) -> Table:
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


@contextmanager
def _or_nowhere(stream: IO[str]) -> Iterator[None]:
    """Print; once the terminal or the reader has gone, or the disk is full, what follows goes nowhere.

    The run matters more than its lines.
    """
    try:
        yield
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())


class Display:
    """Prints lines; on a terminal, above a drawing, the last of which may stay.

    A script that prints results of its own has them on standard output, so that these lines go to `stderr`.
    """

    def __init__(self, *, stays: bool = False, stderr: bool = False, draws: bool = True) -> None:
        self._message = ""
        self.live: Live | None = None
        self._stream = sys.stderr if stderr else sys.stdout
        made = console(self._stream)
        if draws and self._stream.isatty() and not made.is_dumb_terminal:
            self.live = Live(
                console=made,
                get_renderable=self._drawn,
                refresh_per_second=4,
                transient=not stays,
                redirect_stdout=sys.stdout.isatty(),
            )
            self.live.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            with _or_nowhere(self._stream):
                self.live.stop()

    def draw(self) -> RenderableType:
        """Return what is drawn in place."""
        raise NotImplementedError

    def print(self, line: str, style: str = "") -> None:
        """Print a line."""
        with _or_nowhere(self._stream):
            if self.live is None:
                show(line, file=self._stream, flush=True)
            else:
                self.live.console.print(Text(line, style=style), soft_wrap=True)

    def interrupted(self) -> None:
        """Say what happens now; called inside a signal handler, where a terminal is not drawn on."""
        self._message = STOPPING_AT_ONCE if self._message else STOPPING
        if self.live is None:
            # After SIGHUP the terminal is gone, and after Ctrl-C the `tee` of a pipe. The run stops anyway.
            with suppress(OSError):
                os.write(2, f"{self._message}\n".encode())  # without any buffer, as a signal handler must

    def _drawn(self) -> RenderableType:
        message = [Text(self._message, style="bold yellow")] if self._message else []
        return Group(self.draw(), *message)
