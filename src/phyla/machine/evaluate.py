"""Eval tasks: claimed, completed, failed, lost; and groups, which complete as a whole."""

from collections.abc import Sequence
from dataclasses import replace

from phyla.errors import LeaseLost
from phyla.evaluation import suite_named
from phyla.leases import Quarantine, after_failure
from phyla.machine.commands import TakeCheckpoint
from phyla.machine.evaluation_commands import (
    AnyCommand,
    EndEvalAttempt,
    InsertEvalAttempt,
    InsertEvalTasks,
    InsertEvent,
    InsertResult,
    SetRunState,
    StartGroup,
    UpdateEvalTask,
    UpdateGroup,
)
from phyla.machine.evaluation_view import EvalView
from phyla.machine.events import ClaimedEvaluation, Evaluated, EvaluationFailed, Observed
from phyla.machine.observe import again, aggregation, end_group, gone, observe
from phyla.machine.rules import Rules
from phyla.machine.score import score
from phyla.machine.unusable import set_unusable
from phyla.records import (
    AttemptState,
    EvalAttempt,
    EvalTaskKind,
    EvalTaskRecord,
    Group,
    GroupState,
    RunState,
    Scored,
    TrialState,
)

MAX_CLAIMS = 30
"""Claims of one eval task, lost workers included, before it is given up."""


def claim_evaluation(
    view: EvalView, worker: str, lease_s: float, *, holding: int | None = None, lost: frozenset[str] = frozenset()
) -> tuple[ClaimedEvaluation | None, list[AnyCommand]]:
    """Give a worker its next eval task.

    Args:
        view: the run, inside the transaction that will apply the commands.
        worker: the worker that asks for work.
        lease_s: seconds the claim lasts unless renewed.
        holding: the checkpoint that the worker has loaded.
        lost: checkpoints of a study that turned out not to be live while an earlier answer was applied.

    Returns:
        The work and the commands that make it true. Without work but with commands: apply them, ask again.
    """
    task = view.next_eval_task(holding)
    if task is None:
        return None, []
    seen = view.seen(task.seen)
    group = view.group(task.group)
    if seen.name in lost:
        return None, [*gone(view, seen, _why_gone(view, seen.name))]
    now = view.now()
    running = replace(task, state=TrialState.RUNNING, token=task.token + 1, worker=worker, started_at=now)
    attempt = EvalAttempt(
        task=task.id,
        token=running.token,
        run=task.run,
        worker=worker,
        state=AttemptState.RUNNING,
        claimed_at=now,
        expires_at=now + lease_s,
    )
    commands: list[AnyCommand] = []
    if view.population() is not None and task.kind is EvalTaskKind.EVALUATE:
        commands.append(TakeCheckpoint(seen.name))
    if not group.started:
        commands.append(StartGroup(group.id))
    commands += [UpdateEvalTask(running), InsertEvalAttempt(attempt)]
    return ClaimedEvaluation(task=running, group=group, seen=seen, expires_at=attempt.expires_at), commands


def _why_gone(view: EvalView, name: str) -> str:
    population = view.population()
    row = None if population is None else population.checkpoint(name)
    if row is not None and row.damage is not None:
        return f"the checkpoint is damaged: {row.damage}"
    return "the checkpoint was collected before its turn"


def complete_evaluation(view: EvalView, rules: Rules | None, done: Evaluated) -> tuple[bool, list[AnyCommand]]:
    """Accept a finished eval task while its token is the newest, even when it is late.

    Args:
        view: the run.
        rules: of the study whose fitness may hang on it; None for a directory.
        done: what was found.

    Returns:
        Whether it was accepted before, and the commands. Afterwards `settle_group` has to be asked.

    Raises:
        LeaseLost: a newer claim or a cancellation took the lease away.
    """
    group = view.locked_group(done.group)
    task = _owned(view, done.task, done.token)
    if task is None or group is None:
        return True, []
    now = view.now()
    commands: list[AnyCommand] = [
        UpdateEvalTask(replace(task, state=TrialState.COMPLETED, error=None, ended_at=now)),
        EndEvalAttempt(task=task.id, token=done.token, state=AttemptState.COMPLETED, ended_at=now),
    ]
    if done.result is not None:
        commands.append(InsertResult(replace(done.result, created_at=now)))
    if task.kind is EvalTaskKind.AGGREGATE and group.state is GroupState.QUEUED:
        commands += _aggregated(view, rules, group, done)
    return False, commands


def _aggregated(view: EvalView, rules: Rules | None, group: Group, done: Evaluated) -> list[AnyCommand]:
    tasks = _current(view.group_tasks(group.id))
    if any(task.state in (TrialState.PENDING, TrialState.RUNNING) for task in tasks):
        # The suite gained an eval task meanwhile: it is aggregated again after that.
        return []
    complete = all(task.state is TrialState.COMPLETED for task in tasks)
    why = None if complete else f"failed for good: {_last_lines(tasks)}"
    ended = replace(
        group,
        state=GroupState.COMPLETE if complete else GroupState.PARTIAL,
        values=done.values or {},
        best=complete and done.best,
        why=why,
        ended_at=view.now(),
    )
    commands: list[AnyCommand] = []
    if ended.best:
        former = view.best_group(group.suite)
        if former is not None and former.id != group.id:
            commands.append(UpdateGroup(replace(former, best=False)))
    commands += [UpdateGroup(ended), *(InsertEvent(event) for event in done.events)]
    return commands + score(view, rules, ended)


def settle_group(view: EvalView, rules: Rules | None, group_id: int) -> list[AnyCommand]:
    """Return what follows once an eval task of a group has ended: its aggregation, or the end of its group."""
    group = view.locked_group(group_id)
    if group is None or group.state is not GroupState.QUEUED or view.unfinished_tasks(group_id):
        return []
    tasks = view.group_tasks(group_id)
    aggregations = [task for task in tasks if task.kind is EvalTaskKind.AGGREGATE]
    evaluated = _current(tasks)
    if any(task.state is TrialState.FAILED for task in aggregations):
        error = next(task.error for task in reversed(aggregations) if task.state is TrialState.FAILED)
        return _partial(view, rules, group, f"its aggregation failed: {error}")
    if not any(task.state is TrialState.COMPLETED for task in evaluated):
        return _partial(view, rules, group, f"every eval task failed: {_last_lines(evaluated)}")
    return [InsertEvalTasks([aggregation(view, group, group.seen)])]


def _current(tasks: Sequence[EvalTaskRecord]) -> list[EvalTaskRecord]:
    """Return the evaluations that count: a suite may have got another version of an eval task since."""
    rows = [
        task for task in tasks if task.kind is EvalTaskKind.EVALUATE and task.state is not TrialState.CANCELLED
    ]
    newest = {row.task: row.identity for row in rows}
    return [row for row in rows if row.identity == newest[row.task]]


def _last_lines(tasks: Sequence[EvalTaskRecord]) -> str:
    """Return each eval task that failed with the last line of its error."""
    errors: dict[str, str] = {}
    for task in tasks:
        if task.state is not TrialState.COMPLETED:
            lines = (task.error or "").strip().splitlines()
            errors.setdefault(task.task, lines[-1] if lines else str(task.state))
    return "; ".join(f"{name} ({error})" for name, error in errors.items())


def _partial(view: EvalView, rules: Rules | None, group: Group, why: str) -> list[AnyCommand]:
    ended = replace(group, state=GroupState.PARTIAL, why=why, ended_at=view.now())
    return [UpdateGroup(ended), *score(view, rules, ended)]


def fail_evaluation(view: EvalView, failure: EvaluationFailed) -> list[AnyCommand]:
    """Queue the eval task again, or give it up. Afterwards `settle_group` has to be asked.

    Raises:
        LeaseLost: a newer claim or a cancellation took the lease away.
    """
    view.locked_group(failure.group)
    task = _owned(view, failure.task, failure.token)
    if task is None or task.state is TrialState.PENDING:
        return []
    now = view.now()
    end = EndEvalAttempt(
        task=task.id, token=failure.token, state=AttemptState.FAILED, ended_at=now, error=failure.error
    )
    if failure.gone:
        cancelled = replace(task, state=TrialState.CANCELLED, error=failure.error, ended_at=now)
        seen = view.seen(task.seen)
        population = view.population() if failure.damaged else None
        lost = [] if population is None else set_unusable(population, seen.name, failure.error)
        return [end, UpdateEvalTask(cancelled), *gone(view, seen, failure.error), *lost]
    after = after_failure(task.failures, max_attempts=task.max_attempts, retryable=failure.retryable)
    if isinstance(after, Quarantine) or task.token >= MAX_CLAIMS:
        return [end, _given_up(task, after.failures, failure.error, now)]
    return [end, _queued_again(view, replace(task, failures=after.failures, error=failure.error))]


def lose_evaluation(view: EvalView, task_id: int, token: int, error: str, *, counts: bool) -> list[AnyCommand]:
    """Handle an attempt whose worker is gone. Afterwards `settle_group` has to be asked.

    Args:
        view: the run.
        task_id: id of the eval task.
        token: the attempt's token.
        error: what is known about it.
        counts: whether it is the eval task's fault, so that it counts towards its `max_attempts`.
    """
    task = view.locked_eval_task(task_id)
    if task is None or task.token != token or task.state is not TrialState.RUNNING:
        return []
    now = view.now()
    end = EndEvalAttempt(task=task_id, token=token, state=AttemptState.LOST, ended_at=now, error=error)
    failures = task.failures + (1 if counts else 0)
    if failures >= task.max_attempts or task.token >= MAX_CLAIMS:
        return [end, _given_up(task, failures, error, now)]
    return [end, _queued_again(view, replace(task, failures=failures, error=error))]


def release_evaluation(view: EvalView, task_id: int, token: int) -> list[AnyCommand]:
    """Return an eval task to the queue, as a preempted worker does; this does not count as a failure.

    Raises:
        LeaseLost: a newer claim or a cancellation took the lease away.
    """
    task = _owned(view, task_id, token)
    if task is None or task.state is TrialState.PENDING:
        return []
    now = view.now()
    return [
        EndEvalAttempt(task=task_id, token=token, state=AttemptState.RELEASED, ended_at=now),
        _queued_again(view, task),
    ]


def finish_run(view: EvalView) -> list[AnyCommand]:
    """End a run that is draining once every group has ended."""
    if view.run().state is RunState.DRAINING and not view.open_groups():
        return [SetRunState(RunState.ENDED, view.run().message)]
    return []


def cancel_group(view: EvalView, group_id: int, why: str) -> list[AnyCommand]:
    """Skip a group that has not ended, as a person may ask."""
    group = view.locked_group(group_id)
    if group is None or group.state is not GroupState.QUEUED:
        return []
    return [*end_group(view, group, GroupState.SKIPPED, why)]


def observe_trial(view: EvalView, rules: Rules, found: Observed) -> list[AnyCommand]:
    """Note the checkpoint that a trial of a study left."""
    fitness = rules.suite_fitness
    return [*observe(view, rules.suites, found, fitness=fitness.suite if fitness else None)]


def replicate(view: EvalView, rules: Rules, subject: Scored, times: int) -> list[AnyCommand]:
    """Run the suite that gives fitness on a checkpoint again, with other seeds.

    What is already queued for that counts towards `times`.
    """
    assert rules.suite_fitness is not None
    seen = view.find_seen(subject.checkpoint, subject.index)
    if seen is None:
        return []
    suite = suite_named(rules.suites, rules.suite_fitness.suite)
    repeated = [group for group in view.groups_of(seen.id) if group.suite == suite.name and group.replicate > 0]
    queued = sum(group.state is GroupState.QUEUED for group in repeated)
    first = max((group.replicate for group in repeated), default=0) + 1
    return [again(view, suite, seen, subject, number) for number in range(first, first + times - queued)]


def _queued_again(view: EvalView, task: EvalTaskRecord) -> UpdateEvalTask:
    """Return a task to the queue, unless its group has ended already: then nobody waits for it."""
    group = view.group(task.group)
    if group.state is GroupState.QUEUED:
        return UpdateEvalTask(replace(task, state=TrialState.PENDING, worker=None))
    why = task.error or group.why or f"its group is {group.state}"
    return UpdateEvalTask(replace(task, state=TrialState.CANCELLED, error=why, ended_at=view.now()))


def _given_up(task: EvalTaskRecord, failures: int, error: str, now: float) -> UpdateEvalTask:
    return UpdateEvalTask(replace(task, state=TrialState.FAILED, failures=failures, error=error, ended_at=now))


def _owned(view: EvalView, task_id: int, token: int) -> EvalTaskRecord | None:
    """Return the task if the token is its newest and it can still end; None if it ended under that token."""
    task = view.locked_eval_task(task_id)
    if task is None:
        raise LeaseLost(f"there is no eval task {task_id} in this run")
    if task.token != token:
        raise LeaseLost(
            f"attempt {token} of eval task {task_id} was superseded by attempt {task.token} "
            f"(worker {task.worker}); its result does not count"
        )
    if task.state in (TrialState.RUNNING, TrialState.PENDING):
        return task
    if task.state is TrialState.COMPLETED:
        return None
    raise LeaseLost(f"eval task {task_id} is {task.state}" + (f" ({task.error})" if task.error else ""))


def groups_of_attempts(view: EvalView, attempts: Sequence[EvalAttempt]) -> list[int]:
    """Return the groups whose eval tasks these attempts were at, in order, each once."""
    tasks = (view.locked_eval_task(attempt.task) for attempt in attempts)
    return sorted({task.group for task in tasks if task is not None})
