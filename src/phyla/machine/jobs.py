"""Common to jobs of every kind: transitions, leases and ownership."""

from dataclasses import replace
from typing import Any, TypeVar

from phyla.errors import IllegalTransition, LeaseLost
from phyla.machine.view import View
from phyla.records import Attempt, AttemptState, EvalJob, JobState, TrialRecord

J = TypeVar("J", bound=TrialRecord | EvalJob)

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset(
        # COMPLETED: a late completion whose token is still the newest counts.
        {JobState.RUNNING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.RUNNING: frozenset({JobState.PENDING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}),
    JobState.COMPLETED: frozenset(),
    # A failed job is withdrawn when its suite has another version of it.
    JobState.FAILED: frozenset({JobState.CANCELLED}),
    JobState.CANCELLED: frozenset(),
}


def change_state(job: J, to: JobState, **changes: Any) -> J:
    """Return a job in another state.

    Raises:
        IllegalTransition: the table forbids the move; with the job's state and what would be allowed.
    """
    if to not in TRANSITIONS[job.state]:
        allowed = ", ".join(sorted(TRANSITIONS[job.state])) or "nothing, it is final"
        raise IllegalTransition(
            f"{name_of(job)} is {job.state} and cannot become {to} (allowed: {allowed}); its attempts: {job.token}"
            + (f", the last error: {job.error}" if job.error else "")
        )
    return replace(job, state=to, **changes)


def start_job(job: J, worker: str, now: float) -> J:
    """Return a pending job as claimed by a worker."""
    return change_state(job, JobState.RUNNING, token=job.token + 1, worker=worker, started_at=now)


def lease(job: TrialRecord | EvalJob, lease_s: float) -> Attempt:
    """Return the attempt of a job that was just claimed."""
    assert job.worker is not None
    assert job.started_at is not None
    return Attempt(
        job=job.id,
        token=job.token,
        study=job.study,
        worker=job.worker,
        state=AttemptState.RUNNING,
        claimed_at=job.started_at,
        expires_at=job.started_at + lease_s,
    )


def lock_job(view: View, job_id: int) -> TrialRecord | EvalJob | None:
    """Return a job, or None; locks it, and its group before."""
    job = view.job(job_id)
    if not isinstance(job, EvalJob):
        return None if job is None else view.locked_trial(job_id)
    view.locked_group(job.group)
    return view.locked_eval_job(job_id)


def verify_token(job: J | None, job_id: int, token: int) -> J | None:
    """Return a job if the token is its newest and it can still end; None if it ended under that token.

    Raises:
        LeaseLost: a newer claim, a cancellation or a quarantine took the lease away.
    """
    if job is None:
        raise LeaseLost(f"this study has no job {job_id}; it may belong to another study")
    if job.token != token:
        raise LeaseLost(
            f"attempt {token} of {name_of(job)} was superseded by attempt {job.token} (worker {job.worker}); its "
            "result does not count"
        )
    if job.state in (JobState.RUNNING, JobState.PENDING):
        return job
    if job.state is JobState.COMPLETED or (isinstance(job, TrialRecord) and job.stop_reason is not None):
        return None
    raise LeaseLost(f"{name_of(job)} is {job.state}" + (f" ({job.error})" if job.error else ""))


def name_of(job: TrialRecord | EvalJob) -> str:
    """Return the name of a job in messages."""
    return f"trial {job.id}" if isinstance(job, TrialRecord) else f"eval job {job.id}"
