"""More groups of registered checkpoints: backfill, retries, repetitions, and the final checkpoint."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from phyla.errors import StateError
from phyla.evaluation import Suite
from phyla.machine.commands import (
    Command,
    InsertGroup,
    InsertJobs,
    Reprioritise,
    SetStudyState,
    Update,
)
from phyla.machine.evaluating.observe import SUITE_LEFT, count_shards, end_group, make_group, make_jobs
from phyla.machine.jobs import change_state
from phyla.machine.view import View
from phyla.records import (
    WORST,
    Checkpoint,
    EvalJob,
    Goal,
    Group,
    GroupState,
    JobKind,
    JobState,
    Priority,
    StudyState,
    escape_name,
)


def repetition(view: View, suite: Suite, seen: Checkpoint, number: int, **facts: Any) -> InsertGroup:
    """Evaluate a checkpoint again, with other seeds."""
    now = view.now()
    group = Group(study=view.study().id, suite=suite.name, seen=seen.id, replicate=number, created_at=now, **facts)
    return InsertGroup(group, tuple(make_jobs(view, suite, seen, group)))


def backfill(view: View, suites: Sequence[Suite], seen: Checkpoint) -> list[Command]:
    """Queue missing evaluations of an existing checkpoint: whole groups, or added eval tasks.

    Groups of a removed suite are skipped until the suite returns, because no worker could evaluate them. The best
    group of a suite is found again, since its objective may have changed.
    """
    commands: list[Command] = []
    by_name, groups = {suite.name: suite for suite in suites}, view.groups_of(seen.id)
    for group in groups:
        suite = by_name.get(group.suite)
        leaves = suite is None and group.state is GroupState.QUEUED
        returns = suite is not None and group.why == SUITE_LEFT and seen.usable
        locked = view.locked_group(group.id) if leaves or returns else None
        if locked is None:
            continue
        if suite is not None and locked.state is GroupState.SKIPPED:
            commands += _queue_again(view, suite, seen, locked, (), "")
        elif suite is None and locked.state is GroupState.QUEUED:
            commands += end_group(view, locked, GroupState.SKIPPED, SUITE_LEFT)
    for suite in suites:
        first = next((group for group in groups if group.suite == suite.name and group.replicate == 0), None)
        if first is not None and first.state is GroupState.COMPLETE:
            commands += _elect(view, suite, first)
        if not seen.usable:
            continue
        if first is None:
            new, tasks = make_group(view, suite, seen, existed=True)
            best = view.best_group(suite.name)
            if best is not None and best.seen == seen.id and new.state is GroupState.QUEUED:
                new = replace(new, guaranteed="best")
            commands.append(InsertGroup(new, tasks))
        elif first.state in (GroupState.QUEUED, GroupState.COMPLETE, GroupState.PARTIAL):
            commands += _add_tasks(view, suite, seen, first)
    return commands


def _elect(view: View, suite: Suite, group: Group) -> list[Command]:
    """Return the commands that make a complete group the best one, if it is better by the suite's objective."""
    goal = suite.objective
    if goal is None:
        return []
    former = view.best_group(suite.name)
    if _order(goal, group) <= (WORST if former is None else _order(goal, former)):
        return []
    locked = view.locked_group(group.id)
    if locked is None or locked.state is not GroupState.COMPLETE or _differs(suite, view.group_jobs(group.id)):
        return []
    deposed = [] if former is None else [Update(replace(former, best=False))]
    return [*deposed, Update(replace(locked, best=True))]


def _order(goal: Goal, group: Group) -> float:
    """Return the sort key of a group; it is the worst one without the goal's metric."""
    known: Any = group.values.get(goal.metric)
    return WORST if known is None else goal.order(float(known["value"]))


def _add_tasks(view: View, suite: Suite, seen: Checkpoint, group: Group) -> list[Command]:
    """Extend a group by eval tasks that were added to its suite or changed their identity."""
    if not _differs(suite, view.group_jobs(group.id)):
        return []
    locked = view.locked_group(group.id)
    if locked is None:
        return []
    # Some jobs may have been claimed before the group was locked.
    withdrawn = _withdrawn(suite, view.group_jobs(group.id))
    why = "its suite has another version of it now, or none"
    if locked.state is GroupState.QUEUED:
        return _queue_again(view, suite, seen, locked, withdrawn, why)
    if view.study().state is StudyState.COMPLETED:
        # No worker can evaluate it; its results are kept.
        return []
    return _queue_again(view, suite, seen, locked, withdrawn, why, priority=Priority.BACKFILL, best=False)


def _queue_again(
    view: View,
    suite: Suite,
    seen: Checkpoint,
    group: Group,
    withdrawn: Sequence[EvalJob],
    why: str,
    **changes: Any,
) -> list[Command]:
    """Queue a locked group again, with some jobs withdrawn and missing jobs added."""
    now = view.now()
    remaining = [job for job in view.group_jobs(group.id) if job not in withdrawn]
    queued = replace(group, state=GroupState.QUEUED, why=None, ended_at=None, **changes)
    return [
        *(Update(change_state(job, JobState.CANCELLED, error=why, ended_at=now)) for job in withdrawn),
        *([] if queued == group else [Update(queued)]),
        InsertJobs(tuple(make_jobs(view, suite, seen, queued, remaining))),
    ]


def groups_on(view: View, seen: Checkpoint, suite: Suite) -> list[Group]:
    """Return the groups of a suite on a checkpoint: the first one, and repetitions."""
    return [group for group in view.groups_of(seen.id) if group.suite == suite.name]


def _first_group(view: View, seen: Checkpoint, suite: Suite) -> Group | None:
    return next((group for group in groups_on(view, seen, suite) if group.replicate == 0), None)


def _differs(suite: Suite, jobs: Sequence[EvalJob]) -> bool:
    """Return whether the jobs of a group differ from those of its suite."""
    wanted = {(identity, shard) for identity, count in count_shards(suite, jobs).items() for shard in range(count)}
    present = {(job.identity, job.shard) for job in jobs if job.state is not JobState.CANCELLED}
    return bool(_withdrawn(suite, jobs)) or not wanted <= present


def _withdrawn(suite: Suite, jobs: Sequence[EvalJob]) -> list[EvalJob]:
    """Return the outdated jobs: obsolete shards, shards with other resources, a failed aggregation."""
    asking = {task.identity: (task.gpus, task.label) for task in suite.tasks}
    return [
        job
        for job in jobs
        # An aggregation has no identity.
        if (job.state is JobState.FAILED and job.identity not in asking)
        or (
            job.state is JobState.PENDING
            and job.kind is JobKind.EVALUATE
            and asking.get(job.identity) != (job.gpus, job.label)
        )
    ]


def evaluate_again(view: View, suite: Suite, seen: Checkpoint) -> list[Command]:
    """Return the commands that run a suite on a checkpoint again, at a user's request.

    Eval tasks that failed or were skipped run again. If all have results, the whole suite runs with other seeds;
    that repetition is not part of a fitness.

    Raises:
        StateError: it is already queued, it cannot be evaluated, or the study accepts no more work.
    """
    evaluation, study = f"suite {suite.name!r} on checkpoint {escape_name(seen.name)}", view.study()
    if study.state not in (StudyState.RUNNING, StudyState.DRAINING):
        raise StateError(f"{evaluation} cannot run: {study.name!r} is {study.state}; resume it first")
    if not seen.usable:
        raise StateError(f"{evaluation} cannot run: the checkpoint is {seen.state}")
    groups = groups_on(view, seen, suite)
    if any(group.state is GroupState.QUEUED for group in groups):
        raise StateError(f"{evaluation} is already queued or running")
    first = _first_group(view, seen, suite)
    locked = None if first is None else view.locked_group(first.id)
    if locked is not None and locked.state in (GroupState.PARTIAL, GroupState.SKIPPED):
        failed = [job for job in view.group_jobs(locked.id) if job.state is JobState.FAILED]
        changes = {"priority": Priority.FRESH, "guaranteed": locked.guaranteed or "asked", "not_before": 0.0}
        return _queue_again(view, suite, seen, locked, failed, "it runs again", **changes)
    number = max((group.replicate for group in groups), default=-1) + 1
    return [repetition(view, suite, seen, number, guaranteed="asked")]


def try_again(view: View, suites: Sequence[Suite], seen: Checkpoint) -> list[Command]:
    """Requeue permanently failed eval tasks and aggregations of a checkpoint."""
    commands: list[Command] = []
    by_name = {suite.name: suite for suite in suites}
    for group in view.groups_of(seen.id) if seen.usable else ():
        suite = by_name.get(group.suite)
        if suite is None or group.state not in (GroupState.QUEUED, GroupState.PARTIAL):
            continue
        locked = view.locked_group(group.id)
        failed = [job for job in view.group_jobs(group.id) if job.state is JobState.FAILED]
        if locked is not None and failed:
            commands += _queue_again(view, suite, seen, locked, failed, "it is tried again")
    # A completed study resumes for them.
    reopened = commands and view.study().state is StudyState.COMPLETED
    return [SetStudyState(StudyState.RUNNING), *commands] if reopened else commands


def drain(view: View, suites: Sequence[Suite], why: str) -> list[Command]:
    """Queue the final checkpoint when no more will come, even if a policy skipped it."""
    final, top = view.newest_ready(), view.newest_seen(stepped=True)
    if final is not None and top is not None and top.usable and 0 <= final.step < top.step:
        # It was copied or uploaded before an older checkpoint.
        final = top
    commands: list[Command] = []
    if final is not None:
        commands = [command for suite in suites for command in _guarantee_suite(view, suite, final)]
    if view.study().state is StudyState.RUNNING:
        commands.append(SetStudyState(StudyState.DRAINING, why))
    return commands


def _guarantee_suite(view: View, suite: Suite, final: Checkpoint) -> list[Command]:
    group = _first_group(view, final, suite)
    locked = None if group is None else view.locked_group(group.id)
    if locked is None:
        return []
    if locked.state is GroupState.SKIPPED:
        wanted = {"priority": Priority.FRESH, "rank": -float(final.number), "guaranteed": "final"}
        return _queue_again(view, suite, final, locked, (), "", **wanted, not_before=0.0)
    if locked.state is not GroupState.QUEUED or locked.guaranteed is not None:
        return []
    priority = min(locked.priority, Priority.GUARANTEED)
    return [Update(replace(locked, guaranteed="final")), Reprioritise(locked.id, priority)]
