"""The display of a running study: lines, and on a terminal a live view below them."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from phyla.errors import PhylaError, StoreError
from phyla.formatting import duration, format_count, score
from phyla.records import Member, StudyState
from phyla.study.results.decision_log import decisions
from phyla.study.results.pages.live import progress_line, waiting_line, workers_line
from phyla.study.results.pages.study import lag_lines, members_table
from phyla.study.results.progress import Throttle
from phyla.terminal import LOOKS, STOPPING, Display, table

if TYPE_CHECKING:
    from phyla.records import Attempt
    from phyla.study.declaration import Declared
    from phyla.study.results.notebook import NotebookCell
    from phyla.study.results.progress import Progress
    from phyla.study.results.results import Results

LIVE_EVERY_S = 0.25
LINES_EVERY_S = 1.0
MEMBERS_SHOWN = 20
OTHER_LINES = 16
"""Lines of the terminal that the rows of the table may not take, before it is known."""
DECISIONS_SHOWN = 4
QUIET_S = 30.0
"""Seconds without output after which a line reports progress, where nothing is drawn in place."""
BEAT_ENDS_S = 5.0
SPARKS = ("▁▂▃▄▅▆▇█", "_.-:=+*#")
"""Bars from low to high, and their substitutes in encodings that lack them."""
BAR, LEAST_BAR = 30, 8
"""Columns of the progress bar, and where the terminal is narrow."""
NARROWEST, NARROW, WIDE = 50, 70, 120
"""Columns below which a table of members omits the best score, or hyperparameters, and from which it includes
decisions."""
STILL_STOPPING = "stopping: waiting for what is running (Ctrl-C stops at once)"


def display(study: "Declared", workers: int | None) -> "StudyDisplay | NotebookCell":
    """Return the display of a run that Python started: a notebook cell, or lines on standard error.

    Training in this process may draw progress bars of its own, so that nothing is drawn beside them.
    """
    if in_notebook():
        from phyla.study.results.notebook import NotebookCell

        return NotebookCell()
    return StudyDisplay(study.name, starting=starting_line(study, workers), stderr=True, draws=workers != 0)


def in_notebook() -> bool:
    """Return whether this is a notebook; IPython in a terminal does not count."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def starting_line(study: "Declared", workers: int | None) -> str:
    """Return the first line of a run; the workers of a pool are not known yet."""
    parts = [format_count(study.rules.strategy.population_size, "member")]
    parts += [] if workers is None else [format_count(workers, "worker") if workers else "no worker"]
    watch = study.places.command("status", study.name, "--watch")
    return f"starting {study.name}: {', '.join(parts)}; watch it elsewhere with: {watch}"


@final
class StudyDisplay(Display):
    """Shows a running study: drawn in place on a terminal, else a line whenever trials were completed.

    `starting` is the first line, unless the study is complete already. A new study without failures gets a hint,
    once. On standard error, where the log appears, failures are left to the log.
    """

    def __init__(
        self, study: str, hint: str = "", starting: str = "", *, stderr: bool = False, draws: bool = True
    ) -> None:
        self._starting, self._hint = starting, hint
        self._drawing: RenderableType = Text(f"{study}: starting")
        self._others = OTHER_LINES
        super().__init__(stays=True, stderr=stderr, draws=draws)
        self.seconds = 0.0
        self._started = self._spoke = time.monotonic()
        self._since = self._printed_until = 0.0
        self._throttle = Throttle(LINES_EVERY_S if self.live is None else LIVE_EVERY_S)
        self._counted: tuple[object, ...] = ()
        self._given_back = 0
        self._shows_failures = not stderr
        self._failures: Callable[[], list[Attempt]] | None = None
        self.results: Results | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beats, daemon=True)

    def __enter__(self) -> Self:
        if self.live is None:
            self._thread.start()
        return self

    def draw(self) -> RenderableType:
        """Return the progress of the study at the last look."""
        return self._drawing

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self.live is None:
            self._thread.join(BEAT_ENDS_S)  # Else it might hold on to the store, which is then not closed.
        self.seconds = time.monotonic() - self._started
        if self.results is not None:
            with suppress(StoreError):
                self._look(self.results)
        super().__exit__(*error)

    def print(self, line: str, style: str = "") -> None:
        """Print a line."""
        self._spoke = time.monotonic()
        super().print(line, style)

    def _beats(self) -> None:
        """Print a line from time to time if nothing else does, even while this process trains."""
        while not self._ended.wait(max(0.01, self._spoke + QUIET_S - time.monotonic())):
            line, lags = f"still starting, for {duration(time.monotonic() - self._started)}", []
            with suppress(PhylaError):
                if self.results is not None:
                    progress = self.results.progress(0)
                    line = f"{progress_line(progress)}  {workers_line(progress)}"
                    lags = lag_lines(self.results)
                if self._message == STOPPING:
                    line = f"{STILL_STOPPING}  {line}"
                if time.monotonic() - self._spoke >= QUIET_S:
                    self.print("\n  ".join([line, *lags]))

    def progressed(self, results: "Results") -> None:
        """Look at the study if it is time; the last look is at the end."""
        self.results = results
        with self._throttle.turn() as due:
            try:
                if due:
                    self._look(results)
            except StoreError:
                # A display must not end a run; training raises if the store is gone for good.
                self._failures = None

    def _look(self, results: "Results") -> None:
        room = 0 if self.live is None else self.live.console.height - self._others
        progress = results.progress(min(room, MEMBERS_SHOWN))
        if not self._since:
            # By the clock of the store, which may be that of another machine.
            self._since = self._printed_until = progress.now - (time.monotonic() - self._started)
            if self._starting and progress.study.state is not StudyState.COMPLETED:
                self.print(self._starting)
        if self._shows_failures:
            self._failures = self._failures or results.failures(self._since)
            for attempt in self._failures():
                self.print(attempt.words, style="red")
                self._hint = ""
        if self._hint and progress.study.created_at >= self._since:
            self.print(self._hint)
        self._hint = ""
        waiting = "" if self._message else waiting_line(progress, self._since)
        if self.live is not None:
            self._draw(results, progress, waiting, room)
        elif waiting and len(progress.given_back) != self._given_back:
            self._given_back = len(progress.given_back)
            self.print(waiting)
        elif (counts := (progress.completed, progress.planned_trials, progress.final)) != self._counted:
            self._counted = counts
            self.print("\n  ".join([progress_line(progress), *lag_lines(results)]))
            # Failures were printed above, and starting members are no news.
            since = self._printed_until
            for decision in reversed(decisions(results, limit=DECISIONS_SHOWN)):
                if decision.at > since and decision.kind not in ("started", "failed"):
                    self.print(f"  {decision.words}")
                    self._printed_until = decision.at

    def _draw(self, results: "Results", progress: "Progress", waiting: str, room: int) -> None:
        assert self.live is not None
        board = self.live.console
        lines = [*sparks(results, board), workers_line(progress), *lag_lines(results)]
        newest = decisions(results, limit=DECISIONS_SHOWN // (1 + (board.height < 30 or board.width < NARROW)))
        lines += ["", *(decision.line for decision in newest), *([waiting] if waiting else [])]
        parts = [Text(line) for line in lines]
        alone = draw_study(progress, (), parts, board.width)
        # The table has a heading of two lines; the cursor stands on the last one.
        self._others = len(board.render_lines(alone)) + 3
        members = choose_members(progress, board.height - self._others)
        self._drawing = draw_study(progress, members, parts, board.width)


def sparks(results: "Results", board: Console) -> list[str]:
    """Return sparklines of the population's fitness over time."""
    quantiles = results.course(max(8, min(40, board.width - 36)))
    if len(quantiles) < 2:
        return []
    bars = SPARKS[board.options.ascii_only]
    return [
        f"{name:13} {spark(values, bars)} {score(values[0])} to {score(values[-1])}"
        for name, *values in zip(("best", "median", "worst quarter"), *quantiles, strict=True)
    ]


def spark(values: Sequence[float], bars: str) -> str:
    """Return values as one bar each."""
    halves = [value / 2 for value in values]  # whose differences are numbers, however large they are
    low, high = min(halves), max(halves)
    return "".join(bars[round((half - low) / ((high - low) or 1.0) * (len(bars) - 1))] for half in halves)


def choose_members(progress: "Progress", room: int, most: int = MEMBERS_SHOWN) -> Sequence[Member]:
    """Return the members that fit: all of them by index, or the best ones, best first."""
    members = progress.members[: max(0, min(room, most))]
    return sorted(members, key=lambda member: member.index) if len(members) == progress.size else members


def draw_study(
    progress: "Progress", members: Sequence[Member], more: Sequence[RenderableType] = (), width: int = WIDE
) -> RenderableType:
    """Return the progress of a study, more details, and some of its members."""
    total = progress.total_steps
    line = Text(progress_line(progress))
    name = Text(progress.study.name, style="bold")
    room = max(LEAST_BAR, min(BAR, width - name.cell_len - 1))
    bar = ProgressBar(total=total or 1, completed=progress.spent_steps if total else 0, width=room)
    head = Table.grid(padding=(0, 1))
    head.add_row(name, bar, *([line] if width >= WIDE else []))
    parts: list[RenderableType] = [head, *([] if width >= WIDE else [line]), *more]
    parts += [members_rows(progress, members, width)] if members else []
    note = members_table(progress, members).note
    return Group(*parts, *([Text(note)] if note else []))


def members_rows(progress: "Progress", members: Sequence[Member], width: int = WIDE) -> Table:
    """Return a table of members, with fewer columns where the terminal is narrow."""
    content = members_table(progress, members)
    columns: Sequence[int] = range(7 if width < WIDE else 8)
    if width < NARROW:
        columns = [0, 1, 3, 5] if width < NARROWEST else [0, 1, 3, 4, 5]
    rows = [[row[column] for column in columns] for row in content.texts]
    return table([content.columns[column] for column in columns], rows, map(LOOKS.get, content.looks))
