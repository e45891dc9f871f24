"""What a strategy may see of the population; never the database."""

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

    def lowest_generation(self) -> int | None:
        """Return the lowest generation of members that are not done; None if all are done."""
        ...

    def elites(self) -> int:
        """Return how many members have an elite: the best finite score that they published, with its state.

        Always 0 unless the strategy `keeps` elites.
        """
        ...

    def elite_at_rank(self, rank: int) -> Scored:
        """Return the elite at a rank in `0 .. elites() - 1`; 0 is the best. Ties as for members."""
        ...

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a trial, for walking its ancestry by `parent` and `jump_from`."""
        ...
