"""Output to the terminal: lines, tables, and a live display below them.

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

STOPPING = "stopping: running jobs return to the queue (Ctrl-C stops at once)"
STOPPING_AT_ONCE = "stopping at once"

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x80-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control, bidirectional and unwritable characters, except newline and tab."""

LOOKS = {"winner": "bold", "changed": "bold", "odd": "red"}
"""Styles of looks in a page."""
NOTHING = "-"
"""Placeholder for missing values in tables."""
UNCUT = 1_000_000
"""Width of output to a file or a pipe, where lines are not cut."""


def visible(text: str) -> str:
    """Return text with control characters escaped, as Python's `ascii` does, except newlines and tabs."""
    return _COMMANDS.sub(lambda match: ascii(match.group())[1:-1], text)


def show(*values: object, end: str = "\n", file: IO[str] | None = None, flush: bool = False) -> None:
    """Print values with control characters made visible; commands use it in place of `print`."""
    builtins.print(*(visible(str(value)) for value in values), end=end, file=file, flush=flush)


class _Visible(Console):
    """Escapes control characters in texts; markup and emoji codes are not interpreted."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        options = options or self.options
        cut = "~" if options.ascii_only else "…"  # which the encoding would write as six characters
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text).replace("…", cut), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; in a file or a pipe without trailing blanks."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(re.sub(" +$", "", captured.get(), flags=re.MULTILINE))


def console(stream: IO[str] | None = None) -> Console:
    """Return a console without automatic highlighting; without a terminal it cuts only to `COLUMNS`."""
    terminal = _Visible(file=stream, highlight=False, markup=False, emoji=False)
    if not terminal.is_terminal:
        terminal.width = settings.columns() or UNCUT
    return terminal


def table(headings: Sequence[str], rows: Iterable[Iterable[object]], styles: Iterable[str | None] = ()) -> Table:
    """Return a table with one line per row, in these styles; markup in cells is not interpreted, None is a dash.

    The first character of a heading may set the layout of its column: `>` aligned right, `~` cut if there is too
    little room, `=` wrapped, with words that are too long, such as paths, continued on the next line.
    """
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for heading in headings:
        mark = heading[:1]
        name = heading[1:] if mark and mark in ">~=" else heading
        grid.add_column(
            name,
            justify="right" if mark == ">" else "left",
            no_wrap=mark not in ("~", "="),
            overflow="fold" if mark == "=" else "ellipsis",
            min_width=min({"~": 9, "=": 11}[mark], len(name)) if mark in ("~", "=") else None,
        )
    for row, style in zip(rows, chain(styles, repeat("")), strict=False):
        texts = (NOTHING if cell is None else " ".join(str(cell).split()) for cell in row)
        wrapped = (heading.startswith("=") for heading in headings)
        grid.add_row(
            *(
                Text(visible(text), no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")
                for text, wraps in zip(texts, wrapped, strict=False)
            ),
            style=style,
        )
    return grid


def flush_output() -> None:
    """Write what was printed so far; `OSError` where that is not possible, and then nothing more is written."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout)  # Python would fail again when it exits.
        raise
    except (AttributeError, ValueError):
        pass  # training in this process has replaced or closed it


def _discard(stream: IO[str]) -> None:
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


@contextmanager
def _or_nowhere(stream: IO[str]) -> Iterator[None]:
    """Print; discard further output once the terminal or reader is gone, or the disk is full.

    The run matters more than its output.
    """
    try:
        yield
    except OSError:
        _discard(stream)


class Display:
    """Prints lines; on a terminal, above a live drawing, the last of which may stay.

    If a script prints its own results on standard output, these lines go to `stderr`.
    """

    def __init__(self, *, stays: bool = False, stderr: bool = False, draws: bool = True) -> None:
        settings.open_closed_output()
        self._message = ""
        self.live: Live | None = None
        self._stream = sys.stderr if stderr else sys.stdout
        terminal = console(self._stream)
        if draws and self._stream.isatty() and not terminal.is_dumb_terminal:
            self.live = Live(
                console=terminal,
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
        """Return the live drawing."""
        raise NotImplementedError

    def print(self, line: str, style: str = "") -> None:
        """Print a line."""
        with _or_nowhere(self._stream):
            if self.live is None:
                show(line, file=self._stream, flush=True)
            else:
                # The terminal folds this line. `soft_wrap=True` would also leave lines of the drawing to it, whose
                # height would then be larger than the one by which the cursor moves up. In a group, since `print`
                # joins texts to one without these settings.
                text = Text(line, style=style, no_wrap=True, overflow="ignore")
                self.live.console.print(Group(text), crop=False)

    def interrupted(self) -> None:
        """Show that the run is stopping; called inside a signal handler, where drawing is not safe."""
        self._message = STOPPING_AT_ONCE if self._message else STOPPING
        # A process that started without standard error may have any file in its place.
        if self.live is None and sys.__stderr__ is not None:
            # After SIGHUP the terminal is gone, and after Ctrl-C the `tee` of a pipe. The run stops anyway.
            with suppress(OSError):
                os.write(2, f"{self._message}\n".encode())  # without any buffer, as a signal handler must

    def _drawn(self) -> RenderableType:
        message = [Text(self._message, style="bold yellow")] if self._message else []
        return Group(self.draw(), *message)
