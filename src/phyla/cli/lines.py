"""Plain lines about a running study, for pipes and logs."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, final

from phyla.cli.output import show as print
from phyla.cli.watching import write_at_once
from phyla.cli.words import progress_line
from phyla.records import Attempt, Member

if TYPE_CHECKING:
    from phyla.study import Progress


@final
class LinesDisplay:
    """Prints a line whenever trials were completed, and one for each failed attempt."""

    def __init__(self) -> None:
        self._completed: int | None = None

    def choose(self, members: Sequence[Member]) -> Iterable[Member]:
        """No member's trial is shown."""
        return ()

    def show(self, progress: "Progress", left_s: float | None) -> None:
        """Print how far it is, if that is news."""
        if progress.completed != self._completed:
            self._completed = progress.completed
            print(progress_line(progress, left_s), flush=True)

    def failed(self, attempt: Attempt) -> None:
        """Print what went wrong."""
        print(attempt.words, flush=True)

    def interrupted(self, message: str) -> None:
        """Print what happens now."""
        write_at_once(message)

    def close(self) -> None:
        """Nothing is open."""
