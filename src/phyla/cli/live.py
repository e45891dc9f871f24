"""A live table of members on the terminal."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from phyla.cli.output import console
from phyla.cli.status import members_table
from phyla.cli.words import progress_line
from phyla.records import Attempt, Member

if TYPE_CHECKING:
    from phyla.study import Progress

ALL_SHOWN = 20
"""Members up to which all of them are shown."""
BEST_SHOWN = 10
WORST_SHOWN = 3
OTHER_LINES = 8
"""Lines of the terminal that the rows of the table may not take."""
BAR_WIDTH = 30


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
        self._live = Live(
            console=self._console, get_renderable=self._rendered, refresh_per_second=4, transient=False
        )
        self._live.start()

    def choose(self, members: Sequence[Member]) -> Iterable[Member]:
        """Return the members that there is room for: all of them, or the best and the worst."""
        best, worst = self._ends(members)
        return [*best, *worst]

    def _ends(self, members: Sequence[Member]) -> tuple[list[Member], list[Member]]:
        room = max(2, self._console.height - OTHER_LINES)
        if len(members) <= min(ALL_SHOWN, room):
            return list(members), []
        ranked = sorted(members, key=_rank)
        worst = max(1, min(WORST_SHOWN, room // 4))
        return ranked[: max(1, min(BEST_SHOWN, room - worst - 1))], ranked[-worst:]

    def show(self, progress: "Progress", left_s: float | None) -> None:
        """Show how far it is."""
        best, worst = self._ends(progress.members)
        made = members_table(progress, [*best, *worst])
        if worst:
            made.rows[len(best) - 1].end_section = True
        bar = Table.grid(padding=(0, 1))
        total = progress.total_steps
        bar.add_row(
            Text(self._study, style="bold"),
            ProgressBar(total=total or 1, completed=progress.spent_steps if total else 0, width=BAR_WIDTH),
            Text(progress_line(progress, left_s)),
        )
        parts: list[RenderableType] = [bar, made]
        if worst:
            parts.append(Text(_others(progress, len(best) + len(worst))))
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
        if not self._message:
            return self._shown
        return Group(self._shown, Text(self._message, style="bold yellow"))


def _rank(member: Member) -> tuple[float, int]:
    order = member.head.order if member.head else None
    return (float("inf") if order is None else -order, member.index)


def _others(progress: "Progress", shown: int) -> str:
    states: dict[str, int] = {}
    for member in progress.members:
        states[member.state] = states.get(member.state, 0) + 1
    told = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"the best and the worst {shown} of {len(progress.members)} members ({told})"
