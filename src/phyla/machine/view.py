"""What the machine reads: one study inside one transaction."""

from collections.abc import Sequence
from typing import Protocol

from phyla.machine.evaluation_view import EvaluationView
from phyla.machine.queue_view import QueueView
from phyla.records import Checkpoint, Member, Report, TrialRecord
from phyla.strategies import History


class View(EvaluationView, QueueView, History, Protocol):
    """One study as a transaction sees it, its own writes included.

    Methods that say *locks* keep others off the row until the transaction ends.
    """

    @property
    def size(self) -> int:
        """Number of members, those that were retired included."""
        ...

    def members(self) -> Sequence[Member]:
        """Return all members by index, as one read; locks nothing."""
        ...

    def member(self, index: int) -> Member:
        """Return a member; locks nothing."""
        ...

    def locked_ready(self, seen: Member) -> Member | None:
        """Lock a ready member; None if another transaction has it locked, or changed it since it was seen."""
        ...

    def locked_member(self, index: int) -> Member:
        """Return a member; locks it."""
        ...

    def last_reports(self, trial_id: int, token: int, count: int) -> Sequence[Report]:
        """Return the last reports of one attempt, oldest first."""
        ...

    def averages(self, every: int, step: int, *, besides: int, limit: int) -> Sequence[float]:
        """Return the averages that trials besides one had at a mark, of the newest trials first; nan is possible.

        Args:
            every: distance of the marks.
            step: the mark.
            besides: id of the trial that is left out.
            limit: how many at most.
        """
        ...

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return a checkpoint's row."""
        ...

    def live_checkpoints(self) -> Sequence[Checkpoint]:
        """Return the checkpoints in state live, oldest first."""
        ...

    def held_checkpoints(self) -> frozenset[str]:
        """Return names of: each member's head, states and best; parents, progress of unfinished trials."""
        ...

    def best_trials(self, count: int) -> Sequence[TrialRecord]:
        """Return the completed trials with the best finite fitness and a live checkpoint, best first.

        Ties: the earlier trial first.
        """
        ...

    def broken_in_a_row(self) -> int:
        """Return how many trials failed since the last one completed and the study was last resumed."""
        ...

    def source(self) -> "View | None":
        """Return the study whose checkpoints these are, in the same transaction; None for a directory."""
        ...
