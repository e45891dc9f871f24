"""Attempts at jobs of every kind that end without a result: failed, released, lost.

Each kind of job adds its handling of requeued and given-up jobs, and of unusable checkpoints.
"""

from dataclasses import asdict, replace
from typing import TypeAlias

from phyla.machine import finish
from phyla.machine.commands import Command, EndAttempt, Update
from phyla.machine.evaluating import groups, resting
from phyla.machine.jobs import change_state, lock_job, verify_token
from phyla.machine.requests import Failure
from phyla.machine.rules import Rules, TrainRules
from phyla.machine.view import View
from phyla.records import AttemptState, EvalJob, JobState, TrialRecord

Job: TypeAlias = TrialRecord | EvalJob


def fail(view: View, rules: Rules, failure: Failure) -> list[Command]:
    """Queue a job again, or give it up.

    A job whose checkpoint cannot be used has not failed: a trial continues without its progress, or is cancelled
    if its parent is unusable, so that its member decides again; an evaluation ends with its checkpoint.
    """
    job = verify_token(lock_job(view, failure.job), failure.job, failure.token)
    if job is None or job.state is JobState.PENDING:
        return []
    if failure.gone is not None:
        outcome = _without(view, job, failure, failure.gone)
        if outcome is not None:
            state, commands = outcome
            return [_end_attempt(view, failure, state), *commands]
    commands = [_end_attempt(view, failure, AttemptState.FAILED)]
    failures = job.failures + 1
    given_up = not failure.retryable or failures >= _most(job, rules) or job.token >= rules.max_claims
    # Before the trial's own failure is counted.
    stop = finish.stop_for(view, failure) if isinstance(job, TrialRecord) else []
    if given_up:
        commands += _give_up(view, rules, job, failures, failure.error)
    else:
        commands.append(_queue_again(view, replace(job, failures=failures, error=failure.error)))
    return commands + stop


def release(view: View, job_id: int, token: int, error: str | None = None) -> list[Command]:
    """Return a job to the queue, as a preempted worker does; this does not count as a failure.

    The error is the job's own message, if it requested to run again later.
    """
    job = verify_token(lock_job(view, job_id), job_id, token)
    if job is None or job.state is JobState.PENDING:
        return []
    end = EndAttempt(job=job_id, token=token, state=AttemptState.RELEASED, ended_at=view.now(), error=error)
    return [end, _queue_again(view, job)]


def lose(view: View, rules: Rules, job_id: int, token: int, error: str, *, counts: bool) -> list[Command]:
    """Handle an attempt whose worker is gone: its lease expired, or its process died."""
    job = lock_job(view, job_id)
    if job is None or job.token != token or job.state is not JobState.RUNNING:
        return []
    end = EndAttempt(job=job_id, token=token, state=AttemptState.LOST, ended_at=view.now(), error=error)
    failures = job.failures + (1 if counts else 0)
    if failures >= _most(job, rules) or job.token >= rules.max_claims:
        return [end, *_give_up(view, rules, job, failures, error)]
    return [end, _queue_again(view, replace(job, failures=failures, error=error))]


def _end_attempt(view: View, failure: Failure, state: AttemptState) -> EndAttempt:
    return EndAttempt(
        job=failure.job,
        token=failure.token,
        state=state,
        ended_at=view.now(),
        error=failure.error,
        outcome=None if failure.cause is None else {"cause": asdict(failure.cause)},
        timings=failure.timings,
    )


def _most(job: Job, rules: Rules) -> int:
    """Return how many attempts may fail."""
    return job.max_attempts if isinstance(job, EvalJob) else _population(rules).max_attempts


def _without(view: View, job: Job, failure: Failure, name: str) -> tuple[AttemptState, list[Command]] | None:
    """Return the attempt's end and the commands if a checkpoint is unusable; None if it is not needed."""
    if isinstance(job, EvalJob):
        return AttemptState.CANCELLED, groups.without_checkpoint(view, job, failure)
    return finish.without_checkpoint(view, job, failure, name)


def _give_up(view: View, rules: Rules, job: Job, failures: int, error: str) -> list[Command]:
    if isinstance(job, EvalJob):
        failed = change_state(job, JobState.FAILED, failures=failures, error=error, ended_at=view.now())
        return [Update(failed), *resting.begin_rest(view, failed)]
    return finish.quarantine(view, _population(rules), job, failures, error)


def _queue_again(view: View, job: Job) -> Command:
    if isinstance(job, EvalJob):
        return groups.queue_again(view, job)
    return Update(change_state(job, JobState.PENDING, worker=None))


def _population(rules: Rules) -> TrainRules:
    assert isinstance(rules, TrainRules)
    return rules
