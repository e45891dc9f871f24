"""Published states of a member: its newest states, which other members may compare with and take over."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from phyla.machine.retention import KEPT
from phyla.machine.rules import TrainRules
from phyla.records import Member, MemberState, Scored


def states_kept(rules: TrainRules) -> int:
    """Return how many states of each member are kept."""
    fitness = rules.suite_fitness
    # Plus the states that wait for evaluation, and one more while training continues from it.
    return KEPT if fitness is None else KEPT + fitness.max_lag + 1


def publish_state(member: Member, newest: Scored, rules: TrainRules, **changes: Any) -> Member:
    """Return a member with one more published state; the best of the states that drop out is kept.

    Of the states at one grid line, the first is compared. A later one, of a trial that ended early, drops out.
    """
    line, before = rules.strategy.line, member.states
    if len(before) > 1 and line(before[0].progress) == line(before[1].progress):
        before = before[1:]
    states = (newest, *before)
    count = states_kept(rules)
    best = best_of(member.best, states[count:][::-1]) if rules.strategy.keeps_best else None
    return replace(member, states=states[:count], best=best, **changes)


def best_of(best: Scored | None, states: Iterable[Scored]) -> Scored | None:
    """Return the best state with a finite score, the first of equals; None without one."""
    for state in states:
        if state.can_donate and (best is None or (state.order or 0.0) > (best.order or 0.0)):
            best = state
    return best


def replace_score(member: Member, state: Scored) -> Member:
    """Return a member with another score in its state of a trial, if it still publishes that state."""
    states = tuple(state if other.trial == state.trial else other for other in member.states)
    best = member.best
    if best is not None and best.trial == state.trial:
        best = state if state.can_donate else None
    return replace(member, states=states, best=best)


def deciding_again(member: Member, **changes: Any) -> Member:
    """Return a member whose trial ended without a result."""
    return replace(member, state=MemberState.READY, current_trial=None, measures_left=0, **changes)


def without_trial(member: Member, trial: int) -> Member:
    """Return a member that no longer publishes the state of a trial."""
    states = tuple(state for state in member.states if state.trial != trial)
    best = None if member.best is not None and member.best.trial == trial else member.best
    return replace(member, states=states, best=best)


def give_no_score(member: Member, trial: int, replicate: int) -> Member:
    """Return a member whose state of a trial gets no score: its group of the fitness suite ended without one.

    The member continues, and others no longer wait for the score. An unconfirmed state is withdrawn.
    """
    if replicate > 0:
        return without_trial(member, trial)

    def mark_judged(state: Scored) -> Scored:
        return replace(state, measurements=1) if state.trial == trial and not state.judged else state

    head = None if member.head is None else mark_judged(member.head)
    return replace(member, head=head, states=tuple(map(mark_judged, member.states)))


def without_states_on(member: Member, name: str) -> Member:
    """Return a member that no longer publishes states on a checkpoint."""
    states = tuple(state for state in member.states if state.checkpoint != name)
    best = None if member.best is not None and member.best.checkpoint == name else member.best
    return replace(member, states=states, best=best)
