"""The table of transitions that jobs obey."""

from collections.abc import Iterable

from phyla.errors import IllegalTransition
from phyla.records import Attempt, EvalJob, JobState, TrialRecord

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset(
        # COMPLETED: a late completion whose token is still the newest counts.
        {JobState.RUNNING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.RUNNING: frozenset({JobState.PENDING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}),
    JobState.COMPLETED: frozenset(),
    # What failed is withdrawn when its suite has another version of it.
    JobState.FAILED: frozenset({JobState.CANCELLED}),
    JobState.CANCELLED: frozenset(),
}


def check_transition(job: TrialRecord | EvalJob, to: JobState, history: Iterable[Attempt] = ()) -> None:
    """Refuse a move that the table forbids.

    Raises:
        IllegalTransition: with the job's state, the move, what would be allowed, and its attempts.
    """
    if to in TRANSITIONS[job.state]:
        return
    allowed = ", ".join(sorted(TRANSITIONS[job.state])) or "nothing, it is final"
    story = "; ".join(
        f"attempt {a.token} by {a.worker} {a.state}" + (f" ({a.error})" if a.error else "") for a in history
    )
    what = f"eval job {job.id}"
    if isinstance(job, TrialRecord):
        what = f"trial {job.id} of member {job.member}"
    raise IllegalTransition(
        f"{what} is {job.state} and cannot become {to} (allowed: {allowed}). "
        f"History: {story or f'{job.token} attempts'}."
    )


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> pending", "    [*] --> running"]
    for state, targets in TRANSITIONS.items():
        lines += [f"    {state} --> {target}" for target in sorted(targets)]
        if not targets:
            lines.append(f"    {state} --> [*]")
    return "\n".join(lines)
