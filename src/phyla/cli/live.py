"""What is shown while something runs: lines, and on a terminal something in place below them."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self, final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from phyla import settings
from phyla.cli.output import console, write_at_once
from phyla.cli.output import show as print
from phyla.cli.status import members_table
from phyla.cli.words import progress_line
from phyla.errors import StoreError
from phyla.records import Attempt, Member

if TYPE_CHECKING:
    from phyla.study import Progress, Results

LIVE_EVERY_S = 0.25
LINES_EVERY_S = 1.0
SHARE = 20
"""Looking takes at most this part of the time, however large the study is."""
MEMBERS_SHOWN = 20
OTHER_LINES = 8
"""Lines of the terminal that the rows of the table may not take."""
STOPPING = "stopping: running trials go back to the queue; press Ctrl-C again to stop at once"
STOPPING_AT_ONCE = "stopping at once"


@final
class Screen:
    """Prints lines; on a terminal, unless it shall be plain, above something that is drawn in place.

    `stopping` is said of the first interruption; the last drawing `stays` on the terminal.
    """

    def __init__(
        self, draw: Callable[[], RenderableType], stopping: str, *, stays: bool = False, plain: bool = False
    ) -> None:
        self._draw = draw
        self._stopping = stopping
        self._message = ""
        self.live: Live | None = None
        if sys.stdout.isatty() and not plain:
            self.live = Live(
                console=console(), get_renderable=self._drawn, refresh_per_second=4, transient=not stays
            )
            self.live.start()

    def close(self) -> None:
        """Draw no more."""
        if self.live is not None:
            self.live.stop()

    def print(self, line: str, style: str = "") -> None:
        """Print a line."""
        if self.live is not None:
            self.live.console.print(Text(line, style=style), soft_wrap=True)
        else:
            print(line, flush=True)

    def interrupted(self) -> None:
        """Say what happens now; called inside a signal handler, where a terminal is not drawn on."""
        self._message = STOPPING_AT_ONCE if self._message else self._stopping
        if self.live is None:
            write_at_once(self._message)

    def _drawn(self) -> RenderableType:
        message = [Text(self._message, style="bold yellow")] if self._message else []
        return Group(self._draw(), *message)


@final
class StudyDisplay:
    """Shows a running study: its members on a terminal, else a line whenever trials were completed.

    It looks often enough for a person, and seldom enough for the study.
    """

    def __init__(self, study: str) -> None:
        self._study = study
        self._drawing: RenderableType = Text(f"{study}: starting")
        self._screen = Screen(lambda: self._drawing, STOPPING, stays=True)
        self.interrupted = self._screen.interrupted
        self.seconds = 0.0
        self._started = self._next = time.monotonic()
        self._since = settings.system_clock()
        self._completed: int | None = None
        self._first: Progress | None = None
        self._failures: Callable[[], list[Attempt]] | None = None
        self._results: Results | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.monotonic() - self._started
        if self._results is not None:
            with suppress(StoreError):
                self._look(self._results)
        self._screen.close()

    def progressed(self, results: "Results") -> None:
        """Look at the study if it is time; the last look is at the end."""
        self._results = results
        before = time.monotonic()
        if before < self._next:
            return
        try:
            self._look(results)
        except StoreError:
            # Showing is not worth ending a run for; training tells if the store is gone for good.
            self._failures = None
        after = time.monotonic()
        every = LINES_EVERY_S if self._screen.live is None else LIVE_EVERY_S
        self._next = after + max(every, SHARE * (after - before))

    def _look(self, results: "Results") -> None:
        if self._failures is None:
            self._failures = results.failures(self._since)
        for attempt in self._failures():
            self._screen.print(attempt.words, style="red")
        live = self._screen.live
        room = 0 if live is None else live.console.height - OTHER_LINES
        progress = results.progress(lambda members: foremost(members, room))
        first = self._first = self._first or progress
        left_s = time_left_s(progress.now - first.now, progress.spent_steps - first.spent_steps, progress)
        if live is not None:
            self._drawing = drawn(progress, foremost(progress.members, room), left_s)
        elif progress.completed != self._completed:
            self._completed = progress.completed
            print(progress_line(progress, left_s), flush=True)


def foremost(members: Sequence[Member], room: int) -> Sequence[Member]:
    """Return the members for which there is room: all of them by index, or the best ones, best first."""
    most = min(MEMBERS_SHOWN, max(0, room))
    if len(members) <= most:
        return members

    def rank(member: Member) -> tuple[float, int]:
        order = member.head.order if member.head else None
        return (float("inf") if order is None else -order, member.index)

    return sorted(members, key=rank)[:most]


def drawn(progress: "Progress", members: Sequence[Member], left_s: float | None) -> RenderableType:
    """Return how far a study is, and some of its members."""
    total = progress.total_steps
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        Text(progress.study.name, style="bold"),
        ProgressBar(total=total or 1, completed=progress.spent_steps if total else 0, width=30),
        Text(progress_line(progress, left_s)),
    )
    parts: list[RenderableType] = [bar, members_table(progress, members)]
    if len(members) < len(progress.members):
        states = Counter(member.state for member in progress.members)
        told = ", ".join(f"{count} {state}" for state, count in states.items())
        parts.append(Text(f"the best {len(members)} of {len(progress.members)} members ({told})"))
    return Group(*parts)


def time_left_s(elapsed_s: float, done: int, progress: "Progress") -> float | None:
    """Return the time left after some steps took some time; None while nothing was done, or without a total."""
    if progress.total_steps is None:
        return None
    left = max(0, progress.total_steps - progress.spent_steps)
    if left and (done <= 0 or elapsed_s <= 0):
        return None
    return elapsed_s * left / done if left else 0.0
