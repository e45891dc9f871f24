"""The members to compare, by a quorum instead of a barrier.

Progress is counted in grid lines, so no member waits for training that overshoots. A member may decide once enough
members have published a state at as many lines. It sees only those, each as it was at the same progress, so
scores are never compared across different amounts of training.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import final

from phyla.machine.published_states import best_of
from phyla.machine.rules import TrainRules
from phyla.records import Member, MemberState
from phyla.strategies import Strategy
from phyla.strategies.strategy import Compared


def quorum_size(quorum: float, members: int) -> int:
    """Return how many of `members` must have reached a member's progress before it may decide, itself included.

    Below a quorum of 1, one straggler never stops a population: at most all but one are needed, or both of two.
    """
    need = math.ceil(quorum * members - 1e-9)
    return need if quorum >= 1 else min(need, max(2, members - 1))


def peers(member: Member, population: Sequence[Member], rules: TrainRules) -> list[Member] | None:
    """Return the members to compare a member with, itself included; None if too few have reached its progress.

    Each is as it was at the same progress, see `as_of`. Without waiting (quorum 0, or a member without published
    states) they are all members in their current state.
    """
    strategy = rules.strategy
    own = member.published
    if strategy.quorum <= 0 or own is None:
        return as_of(population, math.inf, strategy)
    line, line_of = strategy.line(own.progress), cache(strategy.line)
    counted = [peer for peer in population if not _is_given_up(peer, strategy)]
    come = [peer for peer in counted if _has_come(peer, line, line_of)]
    if len(come) < quorum_size(strategy.quorum, len(counted)):
        return None
    seen = as_of(come, line, strategy)
    # With a full quorum, only a member that joined late has no state from that line.
    return seen if strategy.quorum < 1 else [peer for peer in seen if line_of(peer.states[0].progress) <= line]


@final
class Comparisons:
    """Members to compare, found once for all decisions of a transaction about members at the same grid line."""

    def __init__(self) -> None:
        self._population: Sequence[Member] = ()
        self._by_line: dict[int | None, Compared | None] = {}

    def peers(self, member: Member, population: Sequence[Member], rules: TrainRules) -> Compared | None:
        """Return the `peers` of a member; found again once another member publishes, or ends."""
        # Of a thousand members, a decision changes one; the others are the same objects.
        changed = [pair for pair in zip(population, self._population, strict=False) if pair[0] is not pair[1]]
        same = all(_published(new) == _published(old) for new, old in changed)
        if len(population) != len(self._population) or not same:
            self._by_line = {}
        self._population = tuple(population)
        own = member.published
        line = None if own is None else rules.strategy.line(own.progress)
        if line not in self._by_line:
            found = peers(member, population, rules)
            self._by_line[line] = None if found is None else Compared(found)
        return self._by_line[line]


def as_of(population: Sequence[Member], line: float, strategy: Strategy) -> list[Member]:
    """Return members with their states as of a grid line, or else the oldest kept state.

    Of several states at that line, since trials may end early, it is the first.
    """
    line_of, elites = cache(strategy.line), strategy.keeps_best
    past: list[Member] = []
    for member in population:
        states, best = [state for state in member.states if state.judged], member.best
        at = [state for state in states if line_of(state.progress) == line]
        known = at[-1:] + [state for state in states if line_of(state.progress) < line] or states[-1:]
        if best is not None and line_of(best.progress) > line:
            best = None
        if elites:
            best = best_of(best, reversed(known))
        same = len(known) == len(member.states) and best is member.best
        past.append(member if same else replace(member, states=tuple(known), best=best))
    return past


def _published(member: Member) -> tuple[object, ...]:
    """Return what others see of a member when they decide."""
    return member.states, member.best, member.state is MemberState.DONE


def _has_come(member: Member, line: int, line_of: Callable[[int], int]) -> bool:
    """Return whether a member has published a state at a grid line, or has ended."""
    newest = member.published
    if newest is None:
        return False
    if line_of(newest.progress) < line:
        return member.state is MemberState.DONE and all(state.judged for state in member.states)
    # Evaluations may overtake each other: the compared state must have its score.
    at = [state for state in member.states if line_of(state.progress) == line]
    early = at[-1:] or [state for state in member.states if line_of(state.progress) < line]
    return not early or any(state.judged for state in early)


def _is_given_up(member: Member, strategy: Strategy) -> bool:
    """Return whether no member waits for this one: it ended early, or all its published states were lost."""
    return member.state is MemberState.DONE and (not member.states or not strategy.finished(member))
