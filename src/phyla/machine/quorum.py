"""Which members are compared, and when: a quorum instead of a barrier.

How far a member has come is counted in grid lines of its progress, so nobody waits for training that overshoots.
A member may decide once enough members have published a state at as many lines. It sees only those, each as it
was when it had come as far. So scores are never compared across different amounts of training.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from phyla.machine.rules import TrainRules
from phyla.machine.states import best_of
from phyla.records import Member, MemberState
from phyla.strategies import Strategy


def needed(quorum: float, members: int) -> int:
    """Return how many of `members` must have come as far as a member before it may decide, itself included.

    Below a quorum of 1, one straggler never stops a population: at most all but one are needed, or both of two.
    """
    need = math.ceil(quorum * members - 1e-9)
    return need if quorum >= 1 else min(need, max(2, members - 1))


def peers(member: Member, population: Sequence[Member], rules: TrainRules) -> list[Member] | None:
    """Return the members that a member is compared with, itself included; None if too few have come as far.

    Each has one published state: its newest that is not a grid line ahead of the member, else the oldest that is
    kept; and its best is the best that it had published by then. Where nobody waits (quorum 0, or a member that
    has not published anything) they are all members, each at its newest state.
    """
    strategy = rules.strategy
    own = member.published
    if strategy.quorum <= 0 or own is None:
        return [as_of(one, None, strategy) for one in population]
    line = strategy.line(own.progress)
    counted = [one for one in population if not _given_up(one, strategy)]
    come = [one for one in counted if _has_come(one, line, strategy)]
    if len(come) < needed(strategy.quorum, len(counted)):
        return None
    if strategy.quorum >= 1:
        # Only a member that joined late has nothing to show from then; nobody is ahead otherwise.
        come = [one for one in come if _shows(one, line, strategy)]
    return [as_of(one, line, strategy) for one in come]


def as_of(member: Member, line: int | None, strategy: Strategy) -> Member:
    """Return a member with its newest state that is not ahead of a grid line; with no line, its newest."""
    judged = [state for state in member.states if state.judged]
    known = judged if line is None else [one for one in judged if strategy.line(one.progress) <= line]
    best = member.best
    if best is not None and line is not None and strategy.line(best.progress) > line:
        best = None
    if strategy.keeps_best:
        best = best_of(best, reversed(known or judged[-1:]))
    return replace(member, states=tuple(known[:1] or judged[-1:]), best=best)


def _has_come(member: Member, line: int, strategy: Strategy) -> bool:
    """Return whether a member has published a state at a grid line, or has ended, so that it never will."""
    newest = member.published
    if newest is None:
        return False
    if strategy.line(newest.progress) < line:
        return member.state is MemberState.DONE and all(state.judged for state in member.states)
    # Evaluations may overtake each other: the state that it is compared by must not wait for its score.
    early = [state for state in member.states if strategy.line(state.progress) <= line]
    return not early or any(state.judged for state in early)


def _shows(member: Member, line: int, strategy: Strategy) -> bool:
    """Return whether a member published a state that is not ahead of a grid line."""
    return any(state.judged and strategy.line(state.progress) <= line for state in member.states)


def _given_up(member: Member, strategy: Strategy) -> bool:
    """Return whether nobody waits for a member: it ended early, or every state it published was lost."""
    return member.state is MemberState.DONE and (not member.states or not strategy.finished(member))
