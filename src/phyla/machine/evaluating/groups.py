"""Eval jobs, which are claimed and completed, and groups, which complete as a whole."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from phyla.errors import LeaseLost
from phyla.evaluation.suite import suite_named
from phyla.machine.capacity import NO_LIMIT, Room
from phyla.machine.commands import (
    Command,
    EndAttempt,
    Insert,
    InsertJobs,
    SetStudyState,
    StartGroup,
    TakeCheckpoint,
    Update,
)
from phyla.machine.evaluating import resting
from phyla.machine.evaluating.observe import aggregation, gone, set_unusable
from phyla.machine.evaluating.requeue import groups_on, repetition
from phyla.machine.evaluating.score import FINALIST, score
from phyla.machine.jobs import change_state, lease, start_job, verify_token
from phyla.machine.requests import Accepted, Claimed, ClaimedEvaluation, Evaluated, Failure
from phyla.machine.rules import Rules, TrainRules
from phyla.machine.view import View
from phyla.records import (
    Attempt,
    AttemptState,
    EvalEvent,
    EvalJob,
    EvalResult,
    Group,
    GroupState,
    JobKind,
    JobState,
    Scored,
    StudyKind,
    StudyState,
    TrialRecord,
    summarize_error,
)

CHANGED_SOURCE = "changed-source"
"""Kind of the event that the function of an eval task was edited under the same version."""


def claim_evaluation(
    view: View,
    worker: str,
    lease_s: float,
    *,
    holding: int | None = None,
    lost: frozenset[str] = frozenset(),
    room: Room = NO_LIMIT,
) -> tuple[ClaimedEvaluation | None, list[Command]]:
    """Give a worker its next eval job.

    Returns:
        The work and its commands. Without work but with commands: apply them and repeat the request.
    """
    rest = resting.asleep(view)
    job = view.next_eval_job(holding, replace(room, resting=rest))
    if job is None:
        resting_job = view.next_eval_job(holding, room) if rest and resting.is_ending(view) else None
        return None, [] if resting_job is None else [resting.give_up(view, resting_job)]
    seen = view.seen(job.seen)
    group = view.group(job.group)
    if seen.name in lost:
        return None, [*gone(view, seen, _why_gone(view, seen.name))]
    running = start_job(job, worker, view.now())
    commands: list[Command] = []
    if view.study().kind is not StudyKind.DIRECTORY and job.kind is JobKind.EVALUATE:
        commands.append(TakeCheckpoint(seen.name))
    if not group.started:
        commands.append(StartGroup(group.id))
    commands += [Update(running), Insert(lease(running, lease_s))]
    return ClaimedEvaluation(job=running, group=group, seen=seen), commands


def restore_claim(view: View, attempt: Attempt) -> Claimed | ClaimedEvaluation:
    """Return the claim of a running attempt again."""
    job = view.job(attempt.job)
    if isinstance(job, TrialRecord):
        return Claimed(trial=job, expires_at=attempt.expires_at)
    assert job is not None
    return ClaimedEvaluation(job=job, group=view.group(job.group), seen=view.seen(job.seen))


def _why_gone(view: View, name: str) -> str:
    source = view.source()
    row = None if source is None else source.checkpoint(name)
    if row is not None and row.error is not None:
        return f"the checkpoint is damaged: {row.error}"
    return "the checkpoint was collected before its turn"


def complete_evaluation(view: View, rules: Rules, done: Evaluated) -> tuple[Accepted, list[Command]]:
    """Accept a finished eval job while its token is the newest, even when it is late.

    Returns:
        The answer and the commands. The caller then calls `settle_group`.
    """
    group = view.locked_group(done.group)
    job = verify_token(view.locked_eval_job(done.job), done.job, done.token)
    if job is None or group is None:
        return Accepted(job=done.job, repeated=True), []
    if job.group != group.id or not _is_of(view, job, group, done.result):
        raise LeaseLost(
            f"the result for eval job {job.id} is that of another job, which had this number before the store was "
            "restored from a backup, or lost its last commits. It does not count"
        )
    now = view.now()
    ended: list[Command] = []
    if job.kind is JobKind.AGGREGATE and group.state is GroupState.QUEUED:
        ended = _finish_aggregation(view, rules, group, done)
    # A failed aggregation is repeated when the study resumes, perhaps with a corrected suite.
    state = JobState.FAILED if ended and done.failed else JobState.COMPLETED
    error = _errors((), done.failed) if state is JobState.FAILED else None
    commands: list[Command] = [
        Update(change_state(job, state, error=error, ended_at=now)),
        EndAttempt(job=job.id, token=done.token, state=AttemptState.COMPLETED, ended_at=now),
    ]
    if done.result is not None:
        commands.append(Insert(replace(done.result, created_at=now)))
    return Accepted(job=done.job), commands + ended


def _is_of(view: View, job: EvalJob, group: Group, result: EvalResult | None) -> bool:
    """Return whether a result is that of a job."""
    if result is None:
        return job.kind is JobKind.AGGREGATE
    key = result.identity, result.task_identity, result.replicate, result.shard, result.shards
    return key == (view.seen(group.seen).identity, job.identity, job.replicate, job.shard, job.shards)


def _finish_aggregation(view: View, rules: Rules, group: Group, done: Evaluated) -> list[Command]:
    """End a group; without commands it is aggregated again."""
    jobs = _current(view.group_jobs(group.id))
    if any(job.state in (JobState.PENDING, JobState.RUNNING) for job in jobs):
        # The suite gained an eval task in the meantime.
        return []
    former = view.best_group(group.suite)
    if done.best and (None if former is None else former.id) != done.former:
        # Another group became the best in the meantime.
        return []
    complete = not done.failed and all(job.state is JobState.COMPLETED for job in jobs)
    why = None if complete else f"failed for good: {_errors(jobs, done.failed)}"
    ended = replace(
        group,
        state=GroupState.COMPLETE if complete else GroupState.PARTIAL,
        values=done.values or {},
        best=complete and done.best,
        why=why,
        ended_at=view.now(),
    )
    commands: list[Command] = []
    if ended.best and former is not None and former.id != group.id:
        commands.append(Update(replace(former, best=False)))
    commands += [Update(ended), *(Insert(event) for event in done.events if is_news(view, event))]
    return commands + score(view, rules, ended)


def is_news(view: View, event: EvalEvent) -> bool:
    """Return whether to note an event: that an eval task was edited is said once, not for each checkpoint."""
    known = (event.kind, event.suite, event.message)
    return event.kind != CHANGED_SOURCE or known not in (
        (past.kind, past.suite, past.message) for past in view.events()
    )


def ended_groups(commands: Sequence[Command]) -> list[int]:
    """Return the groups in which commands end a job; call `settle_group` for each after applying them."""
    jobs = (command.record for command in commands if isinstance(command, Update))
    return sorted({job.group for job in jobs if isinstance(job, EvalJob) and job.ended_at is not None})


def settle_group(view: View, rules: Rules, group_id: int) -> list[Command]:
    """Return the commands after the end of a job: its group's aggregation or end."""
    group = view.locked_group(group_id)
    if group is None or group.state is not GroupState.QUEUED or view.unfinished_jobs(group_id):
        return []
    jobs = view.group_jobs(group_id)
    failed = [job for job in jobs if job.kind is JobKind.AGGREGATE and job.state is JobState.FAILED]
    if failed:
        return _partial(view, rules, group, f"its aggregation failed: {summarize_error(failed[-1].error)}")
    evaluated = _current(jobs)
    if not any(job.state is JobState.COMPLETED for job in evaluated):
        return _partial(view, rules, group, f"every eval task failed: {_errors(evaluated, {})}")
    return [InsertJobs([aggregation(view, group, group.seen)])]


def _current(tasks: Sequence[EvalJob]) -> list[EvalJob]:
    """Return the valid evaluations: the suite may have another version of an eval task now."""
    rows = [task for task in tasks if task.kind is JobKind.EVALUATE and task.state is not JobState.CANCELLED]
    newest = {row.task: row.identity for row in rows}
    return [row for row in rows if row.identity == newest[row.task]]


def _errors(tasks: Sequence[EvalJob], unusable: Mapping[str, str]) -> str:
    """Return the eval tasks that failed or have unusable results, with their errors."""
    errors = {name: summarize_error(error) for name, error in unusable.items()}
    for task in tasks:
        if task.state is not JobState.COMPLETED:
            errors.setdefault(task.task, summarize_error(task.error))
    names: dict[str, list[str]] = {}
    for name, error in errors.items():
        names.setdefault(error, []).append(name)
    return "; ".join(f"{', '.join(alike)} ({error})" for error, alike in names.items())


def _partial(view: View, rules: Rules, group: Group, why: str) -> list[Command]:
    ended = replace(group, state=GroupState.PARTIAL, why=why, ended_at=view.now())
    return [Update(ended), *score(view, rules, ended)]


def without_checkpoint(view: View, job: EvalJob, failure: Failure) -> list[Command]:
    """End the jobs queued on a checkpoint that vanished or was changed."""
    cancelled = change_state(job, JobState.CANCELLED, error=failure.error, ended_at=view.now())
    seen = view.seen(job.seen)
    # Groups are locked before members.
    commands: list[Command] = [Update(cancelled), *gone(view, seen, failure.error)]
    # A final would else evaluate it again.
    lost = failure.damage is not None or view.group(job.group).guaranteed == FINALIST
    source = view.source() if lost else None
    return commands if source is None else [*commands, *set_unusable(source, seen.name, failure.damage)]


def queue_again(view: View, job: EvalJob) -> Update:
    """Return a job to the queue, or cancel it if its group has ended."""
    group = view.group(job.group)
    if group.state is GroupState.QUEUED:
        return Update(change_state(job, JobState.PENDING, worker=None))
    why = job.error or group.why or f"its group is {group.state}"
    return Update(change_state(job, JobState.CANCELLED, error=why, ended_at=view.now()))


def finish_watching(view: View) -> list[Command]:
    """End a study that is draining once every group has ended."""
    if view.study().state is StudyState.DRAINING and not view.open_groups():
        return [SetStudyState(StudyState.COMPLETED, view.study().message)]
    return []


def replicate(
    view: View, rules: TrainRules, subject: Scored, times: int, *, guaranteed: str = "fitness"
) -> list[Command]:
    """Run the suite that gives fitness on a checkpoint again, with other seeds.

    Queued repetitions count towards `times`. They count for the trial's score if they are guaranteed for that.
    """
    assert rules.suite_fitness is not None
    seen = view.find_seen(subject.checkpoint, subject.index)
    if seen is None:
        return []
    suite = suite_named(rules.suites, rules.suite_fitness.suite)
    repeated = [group for group in groups_on(view, seen, suite) if group.replicate > 0]
    queued = sum(group.state is GroupState.QUEUED for group in repeated)
    first = max((group.replicate for group in repeated), default=0) + 1
    # They are waited for, so they have the highest priority.
    scored = {"trial": subject.trial, "member": subject.member} if guaranteed == "fitness" else {}
    return [
        repetition(view, suite, seen, number, rank=float(-number), guaranteed=guaranteed, **scored)
        for number in range(first, first + times - queued)
    ]
