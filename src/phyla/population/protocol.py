"""What a strategy may see of the population; never the database."""

from collections.abc import Sequence
from typing import Protocol

from phyla.records import Member, Scored, TrialRecord


class Population(Protocol):
    """The members as they were published, best first.

    Ranks order members by their published fitness, best first; ties by member index, higher first. Members
    without a published fitness have no rank. Every method costs at most a few indexed queries.
    """

    @property
    def size(self) -> int:
        """Number of members; those that were retired are among them, without a score or anything to take over."""
        ...

    def scored(self) -> int:
        """Return how many members have a published fitness."""
        ...

    def rank(self, member: Member) -> int:
        """Return how many members rank before a member that has a published fitness."""
        ...

    def at_rank(self, rank: int) -> Member:
        """Return the member at a rank in `0 .. scored() - 1`; 0 is the best."""
        ...

    def member(self, index: int) -> Member:
        """Return a member by its index in `0 .. size - 1`."""
        ...

    def vectors(self) -> Sequence[tuple[int, tuple[float, ...]]]:
        """Return index and sort keys of the members that may donate, by index; costs less than `members`.

        The sort keys are those of the goals that are traded off, or the one of a single fitness.
        """
        ...

    def lowest_generation(self) -> int | None:
        """Return the lowest generation of members that are not done; None if all are done."""
        ...

    def most_spent(self) -> int | None:
        """Return the most steps that a ready member has spent; None if no member is ready."""
        ...

    def elites(self) -> int:
        """Return how many members have an elite: the best finite score that they published, with its state.

        Always 0 unless the strategy `keeps` elites.
        """
        ...

    def elite_at_rank(self, rank: int) -> Scored:
        """Return the elite at a rank in `0 .. elites() - 1`; 0 is the best. Ties as for members."""
        ...

    def ranked_elites(self) -> Sequence[Scored]:
        """Return all elites by rank; costs as much as there are."""
        ...

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a trial, for walking its ancestry by `parent` and `jump_from`."""
        ...

    def members(self) -> Sequence[Member]:
        """Return all members by index; costs as much as there are members."""
        ...

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        """Return the training trials that completed last, newest first, at most so many."""
        ...

    def ended(self, step: int | None) -> Sequence[TrialRecord]:
        """Return the training trials that came to an age, broke, or were stopped by a rule, as they ended.

        Costs as much as there are of them.

        Args:
            step: the least age of the weights with which completed trials count, in steps; None for no
                completed ones.
        """
        ...

    def unfinished(self) -> Sequence[TrialRecord]:
        """Return the trials that are running or queued for a retry, by id."""
        ...

    def orders(self, generation: int, rank: int, count: int) -> Sequence[float]:
        """Return sort keys of the completed trials of a generation that have a fitness, best first.

        Costs as much as the last of them is far down; for one comparison use `ahead`.

        Args:
            generation: the trials' generation.
            rank: the rank of the first that is returned; 0 is the best.
            count: how many at most.
        """
        ...

    def ahead(self, generation: int, order: float) -> tuple[int, int]:
        """Return how many completed trials of a generation are better, and how many equal.

        Costs as much as there are of them.

        Args:
            generation: the trials' generation.
            order: the sort key to compare with, as in `Scored.order`.
        """
        ...

    def scored_in(self, generation: int) -> int:
        """Return how many completed trials of a generation have a fitness; a store may keep the number."""
        ...

    def next_age(self, after: int) -> int | None:
        """Return the lowest age above one, in steps, of weights with a published fitness; None without any."""
        ...

    def rank_among(self, ages: tuple[int, int], order: float, member: int) -> int:
        """Return how many members with a published fitness on weights of an age rank before a place.

        Args:
            ages: the youngest and the oldest, in steps.
            order: sort key of the place.
            member: member index of the place, for ties; need not be there.
        """
        ...

    def at_rank_among(self, ages: tuple[int, int], rank: int) -> tuple[float, int]:
        """Return sort key and index of the member at a rank among those whose published weights have an age.

        Args:
            ages: the youngest and the oldest, in steps.
            rank: 0 is the best.
        """
        ...
