"""What is shown while a study runs: lines, and on a terminal something in place below them."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from phyla.errors import PhylaError, StoreError
from phyla.formatting import duration, fitness, format_count, score
from phyla.records import Member, summarize_error
from phyla.study.results.decision_log import decisions
from phyla.study.results.pages import lag_lines, members_table
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
"""Seconds after which a line says that nothing has completed, where nothing is drawn."""
BEAT_ENDS_S = 5.0
SPARKS = ("▁▂▃▄▅▆▇█", "_.-:=+*#")
"""Low to high, and what stands for it where an encoding lacks it."""
NARROW, WIDE = 70, 120
"""Columns below which a table of members has no hyperparameters, and from which it has decisions."""
STILL_STOPPING = "stopping: waiting for what is running (Ctrl-C stops at once)"


def display(study: "Declared", workers: int | None) -> "StudyDisplay | NotebookCell":
    """Return what shows a run that Python started: a cell of a notebook, or lines on standard error.

    Training in this process may draw progress bars of its own, so that nothing is drawn beside them.
    """
    if in_notebook():
        from phyla.study.results.notebook import NotebookCell

        return NotebookCell()
    return StudyDisplay(study.name, starting=starting(study, workers), stderr=True, draws=workers != 0)


def in_notebook() -> bool:
    """Return whether this is a notebook; IPython in a terminal is none."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def starting(study: "Declared", workers: int | None) -> str:
    """Return the first line of a run; the workers of a pool are not known yet."""
    told = [format_count(study.rules.strategy.population_size, "member")]
    told += [] if workers is None else [format_count(workers, "worker") if workers else "no worker"]
    watch = study.places.command("status", study.name, "--watch")
    return f"starting {study.name}: {', '.join(told)}; watch it elsewhere with: {watch}"


@final
class StudyDisplay(Display):
    """Shows a running study: drawn in place on a terminal, else a line whenever trials were completed.

    The first line says what is `starting`. A study that is new and runs well gets a hint, once. On standard error,
    where what is logged appears, failures are left to the log.
    """

    def __init__(
        self, study: str, hint: str = "", starting: str = "", *, stderr: bool = False, draws: bool = True
    ) -> None:
        self._hint = hint
        self._drawing: RenderableType = Text(f"{study}: starting")
        self._others = OTHER_LINES
        super().__init__(stays=True, stderr=stderr, draws=draws)
        self.seconds = 0.0
        self._started = self._spoke = time.monotonic()
        self._since = self._told_until = 0.0
        self._throttle = Throttle(LINES_EVERY_S if self.live is None else LIVE_EVERY_S)
        self._completed: int | None = None
        self._given_back = 0
        self._shows_failures = not stderr
        self._failures: Callable[[], list[Attempt]] | None = None
        self.results: Results | None = None
        if starting:
            self.print(starting)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beats, daemon=True)

    def __enter__(self) -> Self:
        if self.live is None:
            self._thread.start()
        return self

    def draw(self) -> RenderableType:
        """Return how far the study was at the last look."""
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
        """Print a line from time to time where nothing else does, also while this process trains."""
        while not self._ended.wait(max(0.01, self._spoke + QUIET_S - time.monotonic())):
            line, lags = f"still starting, for {duration(time.monotonic() - self._started)}", []
            with suppress(PhylaError):
                if self.results is not None:
                    progress = self.results.progress(0)
                    line = f"{progress_line(progress)}  {at_work(progress)}"
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
                # Showing is not worth ending a run for; training tells if the store is gone for good.
                self._failures = None

    def _look(self, results: "Results") -> None:
        room = 0 if self.live is None else self.live.console.height - self._others
        progress = results.progress(min(room, MEMBERS_SHOWN))
        if not self._since:
            # By the clock of the store, which may be that of another machine.
            self._since = self._told_until = progress.now - (time.monotonic() - self._started)
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
        elif progress.completed != self._completed:
            self._completed = progress.completed
            self.print("\n  ".join([progress_line(progress), *lag_lines(results)]))
            # What failed was told above, and that members start is no news.
            found = [one for one in decisions(results, limit=DECISIONS_SHOWN) if one.at > self._told_until]
            for one in reversed([one for one in found if one.kind not in ("started", "failed")]):
                self.print(f"  {one.words}")
                self._told_until = one.at

    def _draw(self, results: "Results", progress: "Progress", waiting: str, room: int) -> None:
        assert self.live is not None
        board = self.live.console
        lines = [*sparks(results, board), at_work(progress), *lag_lines(results)]
        found = decisions(results, limit=DECISIONS_SHOWN // (1 + (board.height < 30 or board.width < NARROW)))
        lines += ["", *(one.line for one in found), *([waiting] if waiting else [])]
        parts = [Text(line) for line in lines]
        alone = drawn(progress, (), parts, board.width)
        # The table has a heading of two lines; the cursor stands on the last one.
        self._others = len(board.render_lines(alone)) + 3
        members = foremost(progress, board.height - self._others)
        self._drawing = drawn(progress, members, parts, board.width)


def sparks(results: "Results", board: Console) -> list[str]:
    """Return lines that show how good the population was over time, high bars for high values."""
    found = results.course(max(8, min(40, board.width - 36)))
    if len(found) < 2:
        return []
    bars = SPARKS[board.options.ascii_only]
    return [
        f"{name:13} {spark(values, bars)} {score(values[0])} to {score(values[-1])}"
        for name, *values in zip(("best", "median", "worst quarter"), *found, strict=True)
    ]


def spark(values: Sequence[float], bars: str) -> str:
    """Return values as one bar each."""
    low, high = min(values), max(values)
    return "".join(bars[round((value - low) / ((high - low) or 1.0) * (len(bars) - 1))] for value in values)


def at_work(progress: "Progress") -> str:
    """Return how many workers do what."""
    gone = sum(attempt.job in progress.gone for attempt in progress.running)
    longest = [progress.now - attempt.claimed_at for attempt in progress.running]
    told = [f"{len(progress.running) - gone} training"]
    told += [f"{progress.evaluating} evaluating"] if progress.evaluating else []
    told += [f"{gone} held by workers that are gone"] if gone else []
    told += [f"the longest for {duration(max(longest))}"] if longest else []
    return f"workers: {', '.join(told)}"


def foremost(progress: "Progress", room: int, most: int = MEMBERS_SHOWN) -> Sequence[Member]:
    """Return the members for which there is room: all of them by index, or the best ones, best first."""
    members = progress.members[: max(0, min(room, most))]
    return sorted(members, key=lambda member: member.index) if len(members) == progress.size else members


def drawn(
    progress: "Progress", members: Sequence[Member], more: Sequence[RenderableType] = (), width: int = WIDE
) -> RenderableType:
    """Return how far a study is, more about it, and some of its members."""
    total = progress.total_steps
    line = Text(progress_line(progress))
    head: list[RenderableType] = [Text(progress.study.name, style="bold"), line]
    if width >= WIDE:
        bar = Table.grid(padding=(0, 1))
        length = progress.spent_steps if total else 0
        bar.add_row(head[0], ProgressBar(total=total or 1, completed=length, width=30), line)
        head = [bar]
    parts: list[RenderableType] = [*head, *more]
    parts += [members_rows(progress, members, width)] if members else []
    if len(members) < progress.size:
        states = Counter[str]()
        for cohort in progress.cohorts:
            states[cohort.state] += cohort.size
        told = ", ".join(f"{count} {state}" for state, count in states.items())
        parts.append(Text(f"the best {len(members)} of {progress.size} members ({told})"))
    return Group(*parts)


def members_rows(progress: "Progress", members: Sequence[Member], width: int = WIDE) -> Table:
    """Return a table of members; less of it where there is no room."""
    found = members_table(progress, members)
    columns = [0, 1, 3, 4, 5] if width < NARROW else range(7 if width < WIDE else 8)
    rows = [[row[column] for column in columns] for row in found.texts]
    return table([found.columns[column] for column in columns], rows, map(LOOKS.get, found.looks))


def progress_line(progress: "Progress") -> str:
    """Return how far a study is on one line."""
    counts = progress.counts
    parts = [f"{progress.completed}/{progress.planned_trials or '?'} trials"]
    parts += [f"{counts[state]} {state}" for state in ("failed", "cancelled") if counts.get(state)]
    best = progress.best
    if best is not None:
        parts += [f"front {len(progress.front)}"] if progress.aim.tradeoffs else []
        parts.append(f"best {fitness(best)} (member {best.member}, step {best.reached_step})")
    parts += [] if progress.left_s is None else [f"{duration(progress.left_s)} left"]
    return "  ".join(parts)


def waiting_line(progress: "Progress", since: float) -> str:
    """Return what went back to the queue, why, and until when at most; nothing if nothing did."""
    from phyla.worker.loop import MOST_PAUSE_S

    back = [one for one in progress.given_back if one.claimed_at >= since]
    if not back:
        return ""
    counts, last = Counter(one.worker for one in back), {one.worker: one.ended_at or 0.0 for one in back}
    next_s = min(at + min(MOST_PAUSE_S, 2.0 ** (counts[worker] - 1)) for worker, at in last.items()) - progress.now
    trials = ", ".join(map(str, sorted({one.job for one in back})))
    return (
        f"trial {trials}: {format_count(len(back), 'time')} back in the queue; next try within "
        f"{duration(next_s)}; the last time: {summarize_error(back[-1].error)}"
    )
