"""The table of transitions that trials (and later eval tasks) obey."""

from collections.abc import Iterable

from phyla.errors import IllegalTransition
from phyla.records import Attempt, TrialRecord, TrialState

TRANSITIONS: dict[TrialState, frozenset[TrialState]] = {
    TrialState.PENDING: frozenset(
        # COMPLETED: a late completion whose token is still the newest counts.
        {TrialState.RUNNING, TrialState.COMPLETED, TrialState.FAILED, TrialState.CANCELLED}
    ),
    TrialState.RUNNING: frozenset(
        {TrialState.PENDING, TrialState.COMPLETED, TrialState.FAILED, TrialState.CANCELLED}
    ),
    TrialState.COMPLETED: frozenset(),
    TrialState.FAILED: frozenset(),
    TrialState.CANCELLED: frozenset(),
}


def check_transition(trial: TrialRecord, to: TrialState, history: Iterable[Attempt] = ()) -> None:
    """Refuse a move that the table forbids.

    Raises:
        IllegalTransition: with the trial's state, the move, what would be allowed, and its attempts.
    """
    if to in TRANSITIONS[trial.state]:
        return
    allowed = ", ".join(sorted(TRANSITIONS[trial.state])) or "nothing, it is final"
    story = "; ".join(
        f"attempt {a.token} by {a.worker} {a.state}" + (f" ({a.error})" if a.error else "") for a in history
    )
    raise IllegalTransition(
        f"trial {trial.id} of member {trial.member} is {trial.state} and cannot become {to} "
        f"(allowed: {allowed}). History: {story or f'{trial.token} attempts'}."
    )


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> pending", "    [*] --> running"]
    for state, targets in TRANSITIONS.items():
        lines += [f"    {state} --> {target}" for target in sorted(targets)]
        if not targets:
            lines.append(f"    {state} --> [*]")
    return "\n".join(lines)
