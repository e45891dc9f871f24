"""What the machine reads: one study inside one transaction."""

from collections.abc import Sequence
from typing import Protocol

from phyla.machine.evaluation_view import EvalView
from phyla.records import Attempt, Checkpoint, Member, Report, StudyRecord, TrialRecord
from phyla.strategies import History


class View(History, Protocol):
    """One study as a transaction sees it, its own writes included.

    Methods that say *locks* keep others off the row until the transaction ends.
    """

    def now(self) -> float:
        """Return the database's time, in seconds since the epoch; one value throughout the transaction."""
        ...

    def study(self) -> StudyRecord:
        """Return the study."""
        ...

    def new_trial_id(self) -> int:
        """Return an id that no other trial of this store has or gets."""
        ...

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

    def next_pending(self) -> TrialRecord | None:
        """Return the pending trial with the lowest id; locks it and passes over locked ones."""
        ...

    def locked_trial(self, trial_id: int) -> TrialRecord | None:
        """Return a trial of this study, or None; locks it."""
        ...

    def locked_member(self, index: int) -> Member:
        """Return a member; locks it."""
        ...

    def attempt(self, trial_id: int, token: int) -> Attempt | None:
        """Return one attempt."""
        ...

    def attempts(self, trial_id: int) -> Sequence[Attempt]:
        """Return the attempts of a trial, oldest first."""
        ...

    def expired(self, limit: int) -> Sequence[Attempt]:
        """Return running attempts whose lease ran out before `now()`, longest first."""
        ...

    def claimed_ahead(self, expires_after: float) -> Sequence[Attempt]:
        """Return running attempts claimed after `now()` whose lease lasts beyond a time; first to end first.

        There are some after the clock was set back.
        """
        ...

    def running(self, worker: str | None = None) -> Sequence[Attempt]:
        """Return the running attempts of one worker, or all of them."""
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

    def evaluation(self) -> "EvalView | None":
        """Return the evaluation of this study's checkpoints, in the same transaction; None without suites."""
        ...

    def awaited_groups(self) -> int:
        """Return how many of the study's own evaluation groups are queued."""
        ...
