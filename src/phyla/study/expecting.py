"""How many trials a member is still expected to complete."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from phyla.population import FixedSchedule, Replay, SingleWorkerExplore
from phyla.records import Member, MemberState


def trials_left(strategy: Any, member: Member) -> int | None:
    """Return how many more trials a member is expected to complete; None if that cannot be known.

    It is known of a strategy that has `member_steps` and `steps_per_trial` (an integer, or None for one trial of
    all steps), and of ours whose trials differ in length. Trials that end early make it more.

    Args:
        strategy: the study's.
        member: one of its members.
    """
    if member.retired or member.state is MemberState.DONE:
        return 0
    if strategy.member_steps is None:
        return None
    spent, until = member.progress, int(strategy.member_steps)
    if isinstance(strategy, Replay):
        return len(strategy.trials) - member.generation
    if isinstance(strategy, SingleWorkerExplore):
        return _of_cycles(strategy, spent, until, member.generation % 4)
    length = getattr(strategy, "steps_per_trial", 0)
    if isinstance(strategy, FixedSchedule):
        return _between([spent, *(step for step, _ in strategy.schedule if step > spent), until], length)
    return None if length == 0 else _between([spent, until], length)


def _between(ends: Sequence[int], length: int | None) -> int:
    """Return how many trials of at most `length` steps it takes, each ending at the next end at the latest."""
    spans = (after - before for before, after in pairwise(ends) if after > before)
    return sum(1 if length is None else -(-span // length) for span in spans)


def _of_cycles(strategy: SingleWorkerExplore, spent: int, until: int, phase: int) -> int:
    lengths = [strategy.explore_steps] * 3 + [strategy.exploit_steps]
    whole = max(0, until - spent) // sum(lengths)
    left = max(0, until - spent) - whole * sum(lengths)
    trials = 4 * whole
    while left > 0:
        left -= lengths[phase]
        phase = (phase + 1) % 4
        trials += 1
    return trials
