"""Watches a running study: looks at it from time to time and shows what it sees."""

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
ALL_SHOWN = 20
"""Members up to which a terminal shows all of them; of more it shows the best and the worst."""
BEST_SHOWN = 10
WORST_SHOWN = 3
OTHER_LINES = 8
"""Lines of the terminal that the rows of the table may not take."""
SHARE = 20
"""Looking takes at most this part of the time, however large the study is."""

STOPPING = "stopping: running trials go back to the queue; press Ctrl-C again to stop at once"
STOPPING_AT_ONCE = "stopping at once"


@final
class LiveDisplay:
    """Shows members, their scores and decisions in place.

    Args:
        study: name of the study.
    """

    def __init__(self, study: str) -> None:
        self._study = study
        self._console = console()
        self._shown: RenderableType = Text(f"{study}: starting")
        self._message = ""
        self._live = Live(console=self._console, get_renderable=self._rendered, refresh_per_second=4)
        self._live.start()

    def choose(self, members: Sequence[Member]) -> Sequence[Member]:
        """Return the members that there is room for: all of them, or the best and the worst."""
        best, worst = self._ends(members)
        return [*best, *worst]

    def _ends(self, members: Sequence[Member]) -> tuple[Sequence[Member], Sequence[Member]]:
        room = max(2, self._console.height - OTHER_LINES)
        if len(members) <= min(ALL_SHOWN, room):
            return members, ()
        ranked = sorted(members, key=_rank)
        worst = max(1, min(WORST_SHOWN, room // 4))
        return ranked[: max(1, min(BEST_SHOWN, room - worst - 1))], ranked[-worst:]

    def show(self, progress: "Progress", left_s: float | None) -> None:
        """Show how far it is."""
        best, worst = self._ends(progress.members)
        total = progress.total_steps
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(self._study, style="bold"),
            ProgressBar(total=total or 1, completed=progress.spent_steps if total else 0, width=30),
            Text(progress_line(progress, left_s)),
        )
        made = members_table(progress, [*best, *worst])
        parts: list[RenderableType] = [bar, made]
        if worst:
            made.rows[len(best) - 1].end_section = True
            states = Counter(member.state for member in progress.members)
            told = ", ".join(f"{count} {state}" for state, count in states.items())
            of = f"{len(best) + len(worst)} of {len(progress.members)} members"
            parts.append(Text(f"the best and the worst {of} ({told})"))
        self._shown = Group(*parts)

    def failed(self, attempt: Attempt) -> None:
        """Print what went wrong above the table."""
        self._console.print(Text(attempt.words, style="red"), soft_wrap=True)

    def interrupted(self, message: str) -> None:
        """Show what happens now below the table; nothing is printed inside a signal handler."""
        self._message = message

    def close(self) -> None:
        """Leave the last table on the terminal."""
        self._live.stop()

    def _rendered(self) -> RenderableType:
        return Group(self._shown, *([Text(self._message, style="bold yellow")] if self._message else []))


def _rank(member: Member) -> tuple[float, int]:
    order = member.head.order if member.head else None
    return (float("inf") if order is None else -order, member.index)


@final
class Watch:
    """Shows a running study: live on a terminal; else a line whenever trials were completed or one failed.

    It looks often enough for a person, and seldom enough for the study.

    Args:
        study: name of the study.
    """

    def __init__(self, study: str) -> None:
        self._live = LiveDisplay(study) if sys.stdout.isatty() else None
        self._completed: int | None = None
        self._started = time.monotonic()
        self._since = settings.system_clock()
        self._next = self._started
        self._failures: Callable[[], list[Attempt]] | None = None
        self._pace: Pace | None = None
        self._stopping = ""
        self._results: Results | None = None
        self.seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.monotonic() - self._started
        if self._results is not None:
            with suppress(StoreError):
                self._look(self._results)
        if self._live is not None:
            self._live.close()

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
        self._next = after + max(LINES_EVERY_S if self._live is None else LIVE_EVERY_S, SHARE * (after - before))

    def interrupted(self) -> None:
        """Say what happens now; called inside a signal handler."""
        self._stopping = STOPPING_AT_ONCE if self._stopping else STOPPING
        if self._live is not None:
            self._live.interrupted(self._stopping)
        else:
            write_at_once(self._stopping)

    def _look(self, results: "Results") -> None:
        if self._failures is None:
            self._failures = results.failures(self._since)
        for attempt in self._failures():
            if self._live is not None:
                self._live.failed(attempt)
            else:
                print(attempt.words, flush=True)
        progress = results.progress(lambda members: () if self._live is None else self._live.choose(members))
        if self._pace is None:
            self._pace = Pace(progress.now, progress.spent_steps)
        left_s = self._pace.left_s(progress.now, progress.spent_steps, progress.total_steps)
        if self._live is not None:
            self._live.show(progress, left_s)
        elif progress.completed != self._completed:
            self._completed = progress.completed
            print(progress_line(progress, left_s), flush=True)


@final
class Pace:
    """Estimates the time left from what was done since the first look.

    Args:
        now: time of the first look.
        spent: steps that were completed by then.
    """

    def __init__(self, now: float, spent: int) -> None:
        self._now = now
        self._spent = spent

    def left_s(self, now: float, spent: int, total: int | None) -> float | None:
        """Return the seconds left; None while nothing was completed, or without a total."""
        if total is None:
            return None
        if spent >= total:
            return 0.0
        done, elapsed = spent - self._spent, now - self._now
        return elapsed * (total - spent) / done if done > 0 and elapsed > 0 else None
