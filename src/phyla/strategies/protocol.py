"""What a strategy may see of the population and of its history; never the database."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from phyla.records import Member, MemberState, Scored, TrialRecord

Population: TypeAlias = Sequence[Member]
"""The members, by index, each with what it published. Members that were retired are left out."""


class History(Protocol):
    """Trials of the study, for strategies that look further back than what members published."""

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a trial, for walking its ancestry by `parent` and `jump_from`."""
        ...

    def results(self, generation: int) -> Sequence[TrialRecord]:
        """Return the completed training trials of a generation that have a fitness, by id."""
        ...

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        """Return the training trials that completed last, newest first, at most `count`."""
        ...

    def ended(self, step: int | None) -> Sequence[TrialRecord]:
        """Return the training trials that reached an age, broke, or were stopped by a rule, as they ended.

        Args:
            step: the least age of the weights, in steps, with which completed trials are included; None leaves
                completed trials out.
        """
        ...

    def unfinished(self) -> Sequence[TrialRecord]:
        """Return the trials that are running or queued for a retry, by id."""
        ...


def ranked(population: Population) -> list[Scored]:
    """Return what members published with a fitness, best first; of equal scores the higher index first."""
    scored = [one.published for one in population if one.published is not None and one.published.order is not None]
    return sorted(scored, key=_place, reverse=True)


def ranked_best(population: Population) -> list[Scored]:
    """Return the best that each member ever published, best first; of equal scores the higher index first."""
    return sorted([one.best for one in population if one.best is not None], key=_place, reverse=True)


def rank_of(member: Member, scores: Sequence[Scored]) -> int:
    """Return a member's place in what `ranked` returned; 0 is the best.

    Raises:
        ValueError: the member has no published fitness.
    """
    return [one.member for one in scores].index(member.index)


def lowest_generation(population: Population) -> int | None:
    """Return the lowest generation of the members that are not done; None if all are."""
    return min((one.generation for one in population if one.state is not MemberState.DONE), default=None)


def _place(scored: Scored) -> tuple[float, int]:
    assert scored.order is not None
    return scored.order, scored.member
