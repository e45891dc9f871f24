"""Checkpoints come into sight, and go: which suites run on them, and how soon."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from phyla.errors import StateError
from phyla.evaluation import Suite
from phyla.machine.commands import (
    Command,
    Insert,
    InsertCheckpoint,
    InsertGroup,
    InsertJobs,
    Reprioritise,
    SetCheckpointState,
    SetStudyState,
    Update,
)
from phyla.machine.jobs import moved
from phyla.machine.published_states import unscored, without_states_on
from phyla.machine.view import View
from phyla.records import (
    Checkpoint,
    CheckpointKind,
    CheckpointState,
    EvalEvent,
    EvalJob,
    Group,
    GroupState,
    JobKind,
    JobState,
    Priority,
    StudyState,
    shown,
)

AGGREGATE_PRIORITY = 0
"""Aggregations go before everything: their group is nearly done, and they are quick."""
SUITE_LEFT = "its suite was taken out before it was evaluated; it is filled in when the suite is given again"
"""Why a group was skipped that `backfill` queues again."""


def observe(
    view: View,
    suites: Sequence[Suite],
    found: Checkpoint,
    *,
    first_look: bool = False,
    rewinds: bool = True,
    fitness: str | None = None,
) -> list[Command]:
    """Note a checkpoint that was written or seen, and queue, or skip, each suite on it.

    Args:
        view: the study.
        suites: what is run on its checkpoints.
        found: the checkpoint; one with an `error` is quarantined; of one with an id only where it is now is noted.
        first_look: whether it may have been there before it was watched.
        rewinds: whether a lower step tells that training was rewound; a copy, whose time says nothing, does not.
        fitness: name of the suite that gives the trial its score.
    """
    if found.id:
        return [Update(replace(view.seen(found.id), path=found.path))]
    old = view.find_seen(found.name, found.index)
    if old is not None and _same(old, found):
        return []
    newest = view.newest_seen()
    now = view.now()
    study = view.study()
    seen = replace(
        found,
        study=study.id,
        number=0 if newest is None else newest.number + 1,
        branch=0 if newest is None else newest.branch,
    )
    if seen.kind is CheckpointKind.SEEN:
        state = CheckpointState.READY if found.error is None else CheckpointState.QUARANTINED
        seen = replace(seen, state=state, created_at=now)
    commands: list[Command] = []
    # One without a step, such as best.pt, says nothing about where training is.
    before = view.newest_seen(stepped=True) if seen.trial is None and seen.step >= 0 else None
    older = before is not None and seen.step < before.step
    if before is not None and older and rewinds and found.error is None and seen.written_at >= before.written_at:
        older = False
        seen = replace(seen, branch=seen.branch + 1)
        message = f"training was rewound from step {before.step} to {seen.step}: branch {seen.branch} begins"
        commands.append(_event(view, "rewound", message))
    if old is not None and old.state is CheckpointState.READY and not old.snapshot:
        commands += gone(view, old, f"{shown(found.name)} was overwritten")
    if found.error is not None:
        message = (
            f"{shown(found.name)} cannot be evaluated: {found.error}; it is looked at again when that changes"
        )
        return [*commands, InsertCheckpoint(seen), _event(view, "quarantined", message)]
    existed = first_look and seen.written_at < study.created_at
    groups: list[tuple[Group, Sequence[EvalJob]]] = []
    for suite in suites:
        group, tasks = _group(view, suite, seen, existed=existed, older=older, fitness=suite.name == fitness)
        groups.append((group, tasks))
        if group.state is GroupState.QUEUED and not older and group.guaranteed != "fitness":
            commands += _superseded(view, suite)
    return [*commands, InsertCheckpoint(seen, groups)]


def _same(old: Checkpoint, found: Checkpoint) -> bool:
    if found.error is not None:
        return old.state is CheckpointState.QUARANTINED and old.fingerprint == found.fingerprint
    return old.usable and (old.identity, old.fingerprint) == (found.identity, found.fingerprint)


def _group(
    view: View, suite: Suite, seen: Checkpoint, *, existed: bool, older: bool = False, fitness: bool = False
) -> tuple[Group, Sequence[EvalJob]]:
    now, policy, why = view.now(), suite.policy, None
    guaranteed = "fitness" if fitness else "milestone" if policy.is_milestone(seen.step) else None
    if guaranteed is None:
        last = view.last_queued_at(suite.name) if policy.throttle_s else None
        why = policy.skips(
            number=seen.number,
            existed=existed,
            busy=policy.skip_if_busy and view.busy(suite.name),
            since_last_s=None if last is None else now - last,
        )
        if older and policy.latest:
            why = why or "a newer checkpoint was seen before it (latest)"
    group = Group(
        study=view.study().id,
        suite=suite.name,
        seen=seen.id,
        trial=seen.trial if fitness else None,
        member=view.trial(seen.trial).member if fitness and seen.trial is not None else None,
        created_at=now,
        # What was written while a clock was ahead was written by now.
        not_before=0.0 if fitness else min(seen.written_at, now) + policy.start_delay_s,
    )
    if why is not None:
        return replace(group, state=GroupState.SKIPPED, why=why, ended_at=now), ()
    group = replace(
        group,
        priority=Priority.BACKFILL if (existed or older) and not fitness else Priority.FRESH,
        guaranteed=guaranteed,
        # A population is served in turn, so that nobody starves; everything else newest first.
        rank=float(seen.number if fitness else -seen.number),
    )
    return group, tuple(_jobs(view, suite, seen, group))


def _jobs(
    view: View, suite: Suite, seen: Checkpoint, group: Group, existing: Sequence[EvalJob] = ()
) -> Iterator[EvalJob]:
    """Yield the jobs that a group lacks: shards, and its aggregation if there is nothing left to evaluate."""
    now = view.now()
    shards = _shards(suite, existing)
    there = {(job.identity, job.shard) for job in existing if job.state is not JobState.CANCELLED}
    waits = any(job.state in (JobState.PENDING, JobState.RUNNING) for job in existing)
    for task in suite.tasks:
        count = shards[task.identity]
        lacking = [shard for shard in range(count) if (task.identity, shard) not in there]
        results = view.ledger(seen.identity, task.identity, group.replicate, count) if lacking else ()
        done = {result.shard for result in results}
        for shard in lacking:
            reused = shard in done
            waits = waits or not reused
            yield EvalJob(
                study=group.study,
                group=group.id,
                seen=seen.id,
                task=task.name,
                identity=task.identity,
                replicate=group.replicate,
                shard=shard,
                shards=count,
                state=JobState.COMPLETED if reused else JobState.PENDING,
                priority=group.priority,
                rank=group.rank,
                not_before=group.not_before,
                max_attempts=task.max_attempts,
                timeout_s=task.timeout_s,
                gpus=task.gpus,
                label=task.label,
                reused=reused,
                created_at=now,
                ended_at=now if reused else None,
            )
    if not waits:
        yield aggregation(view, group, seen.id)


def _shards(suite: Suite, jobs: Sequence[EvalJob]) -> dict[str, int]:
    """Return how many shards each eval task has: as many as when it was queued, whatever the suite says now."""
    queued = {job.identity: job.shards for job in jobs if job.state is not JobState.CANCELLED}
    return {task.identity: queued.get(task.identity, task.shards) for task in suite.tasks}


def aggregation(view: View, group: Group, seen: int) -> EvalJob:
    """Return the job that aggregates a group."""
    return EvalJob(
        study=group.study,
        group=group.id,
        seen=seen,
        task="",
        kind=JobKind.AGGREGATE,
        identity="",
        replicate=group.replicate,
        priority=AGGREGATE_PRIORITY,
        rank=group.rank,
        created_at=view.now(),
    )


def _superseded(view: View, suite: Suite) -> list[Command]:
    """Make room for a newer checkpoint: others of the suite that are still fresh wait behind, or are skipped."""
    commands: list[Command] = []
    for group in view.fresh_groups(suite.name):
        if group.guaranteed is not None:
            commands.append(Reprioritise(group.id, Priority.GUARANTEED))
        elif suite.policy.latest and not group.started:
            locked = view.locked_group(group.id)
            if locked is not None and locked.state is GroupState.QUEUED and not locked.started:
                why = "a newer checkpoint came before its evaluation began (latest)"
                commands += end_group(view, locked, GroupState.SKIPPED, why)
        else:
            commands.append(Reprioritise(group.id, Priority.BACKFILL))
    return commands


def end_group(view: View, group: Group, state: GroupState, why: str) -> list[Command]:
    """End a locked group and cancel what has not begun; what runs may finish for the ledger.

    A member that waits for its score waits no longer.
    """
    now = view.now()
    commands: list[Command] = [
        Update(moved(task, JobState.CANCELLED, error=why, ended_at=now))
        for task in view.group_jobs(group.id)
        if task.state is JobState.PENDING
    ]
    commands.append(Update(replace(group, state=state, why=why, ended_at=now)))
    if group.trial is None or group.member is None:
        return commands
    member = view.locked_member(group.member)
    changed = unscored(member, group.trial, group.replicate)
    return commands if changed == member else [*commands, Update(changed)]


def gone(view: View, seen: Checkpoint, why: str) -> list[Command]:
    """A checkpoint vanished, or was changed: nothing of its groups that has not ended can go on."""
    commands: list[Command] = []
    if seen.kind is CheckpointKind.SEEN:
        commands.append(Update(replace(seen, state=CheckpointState.GONE, error=why)))
    for group in view.groups_of(seen.id):
        locked = view.locked_group(group.id) if group.state is GroupState.QUEUED else None
        if locked is not None and locked.state is GroupState.QUEUED:
            commands += end_group(view, locked, GroupState.GONE, why)
    return [*commands, _event(view, "gone", why, seen.id)]


def set_unusable(view: View, name: str, damage: str | None, *, taker: int | None = None) -> list[Command]:
    """Mark a live checkpoint as lost or damaged, so that it is neither donor nor parent any more."""
    row = view.checkpoint(name)
    if row is None or row.state is not CheckpointState.LIVE:
        return []
    state = CheckpointState.LOST if damage is None else CheckpointState.DAMAGED
    commands: list[Command] = [SetCheckpointState(name, state, damage)]
    owner = None if row.trial is None else view.trial(row.trial).member
    if owner is not None and owner != taker:
        member = view.locked_member(owner)
        changed = without_states_on(member, name)
        if changed != member:
            commands.append(Update(changed))
    return commands


def repetition(view: View, suite: Suite, seen: Checkpoint, number: int, **facts: Any) -> InsertGroup:
    """Evaluate a checkpoint again, with other seeds."""
    now = view.now()
    group = Group(study=view.study().id, suite=suite.name, seen=seen.id, replicate=number, created_at=now, **facts)
    return InsertGroup(group, tuple(_jobs(view, suite, seen, group)))


def backfill(view: View, suites: Sequence[Suite], seen: Checkpoint) -> list[Command]:
    """Queue what suites miss on a checkpoint that still exists: whole groups, or eval tasks that were added.

    What waits for a suite that is not among them is skipped until that suite is back: nobody could evaluate it.
    """
    commands: list[Command] = []
    given, groups = {suite.name: suite for suite in suites}, view.groups_of(seen.id)
    for group in groups:
        suite = given.get(group.suite)
        leaves = suite is None and group.state is GroupState.QUEUED
        returns = suite is not None and group.why == SUITE_LEFT and seen.usable
        locked = view.locked_group(group.id) if leaves or returns else None
        if locked is None:
            continue
        if suite is not None and locked.state is GroupState.SKIPPED:
            commands += _queued_again(view, suite, seen, locked, (), "")
        elif suite is None and locked.state is GroupState.QUEUED:
            commands += end_group(view, locked, GroupState.SKIPPED, SUITE_LEFT)
    for suite in suites if seen.usable else ():
        first = next((group for group in groups if group.suite == suite.name and group.replicate == 0), None)
        if first is None:
            new, tasks = _group(view, suite, seen, existed=True)
            best = view.best_group(suite.name)
            if best is not None and best.seen == seen.id and new.state is GroupState.QUEUED:
                new = replace(new, guaranteed="best")
            commands.append(InsertGroup(new, tasks))
        elif first.state in (GroupState.QUEUED, GroupState.COMPLETE, GroupState.PARTIAL):
            commands += _added(view, suite, seen, first)
    return commands


def _added(view: View, suite: Suite, seen: Checkpoint, group: Group) -> list[Command]:
    """Extend a group by eval tasks that its suite has gained since, or that changed their identity."""
    if not _differs(suite, view.group_jobs(group.id)):
        return []
    locked = view.locked_group(group.id)
    if locked is None:
        return []
    # Some may have been claimed before the group was locked.
    withdrawn = _withdrawn(suite, view.group_jobs(group.id))
    why = "its suite has another version of it since, or none"
    if locked.state is GroupState.QUEUED:
        return _queued_again(view, suite, seen, locked, withdrawn, why)
    if view.study().state is StudyState.COMPLETED:
        # Nobody works for it any more: what it has stays.
        return []
    return _queued_again(view, suite, seen, locked, withdrawn, why, priority=Priority.BACKFILL, best=False)


def _queued_again(
    view: View,
    suite: Suite,
    seen: Checkpoint,
    group: Group,
    withdrawn: Sequence[EvalJob],
    why: str,
    **changes: Any,
) -> list[Command]:
    """Queue a locked group again: without some of its jobs, and with those that it lacks then."""
    now = view.now()
    left = [job for job in view.group_jobs(group.id) if job not in withdrawn]
    queued = replace(group, state=GroupState.QUEUED, why=None, ended_at=None, **changes)
    return [
        *(Update(moved(job, JobState.CANCELLED, error=why, ended_at=now)) for job in withdrawn),
        *([] if queued == group else [Update(queued)]),
        InsertJobs(tuple(_jobs(view, suite, seen, queued, left))),
    ]


def groups_on(view: View, seen: Checkpoint, suite: Suite) -> list[Group]:
    """Return the groups of a suite on a checkpoint: the first one, and repetitions."""
    return [group for group in view.groups_of(seen.id) if group.suite == suite.name]


def _first_group(view: View, seen: Checkpoint, suite: Suite) -> Group | None:
    return next((group for group in groups_on(view, seen, suite) if group.replicate == 0), None)


def _differs(suite: Suite, jobs: Sequence[EvalJob]) -> bool:
    """Return whether a group lacks jobs that its suite has, or has such that it does not have any more."""
    wanted = {(identity, shard) for identity, count in _shards(suite, jobs).items() for shard in range(count)}
    present = {(job.identity, job.shard) for job in jobs if job.state is not JobState.CANCELLED}
    return bool(_withdrawn(suite, jobs)) or not wanted <= present


def _withdrawn(suite: Suite, jobs: Sequence[EvalJob]) -> list[EvalJob]:
    """Return the jobs not wanted any more: obsolete shards, those that ask for others, a failed aggregation."""
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
    """Return what runs a suite on a checkpoint again, as a person asks.

    Eval tasks that failed, or were skipped, run once more. Where all have results, the whole suite runs with other
    seeds; that repetition is no part of a fitness.

    Raises:
        StateError: it is being evaluated, cannot be, or the study takes no more work.
    """
    what, study = f"suite {suite.name!r} on checkpoint {shown(seen.name)}", view.study()
    if study.state not in (StudyState.RUNNING, StudyState.DRAINING):
        raise StateError(f"{what} cannot run: {study.name!r} is {study.state}; let it go on first")
    if not seen.usable:
        raise StateError(f"{what} cannot run: the checkpoint is {seen.state}")
    groups = groups_on(view, seen, suite)
    if any(group.state is GroupState.QUEUED for group in groups):
        raise StateError(f"{what} is queued or running already")
    first = _first_group(view, seen, suite)
    locked = None if first is None else view.locked_group(first.id)
    if locked is not None and locked.state in (GroupState.PARTIAL, GroupState.SKIPPED):
        failed = [job for job in view.group_jobs(locked.id) if job.state is JobState.FAILED]
        wanted = {"priority": Priority.FRESH, "guaranteed": locked.guaranteed or "asked", "not_before": 0.0}
        return _queued_again(view, suite, seen, locked, failed, "it runs again", **wanted)
    number = max((group.replicate for group in groups), default=-1) + 1
    return [repetition(view, suite, seen, number, guaranteed="asked")]


def try_again(view: View, suites: Sequence[Suite], seen: Checkpoint) -> list[Command]:
    """Queue once more what failed for good on a checkpoint: eval tasks, and aggregations; nothing else."""
    commands: list[Command] = []
    given = {suite.name: suite for suite in suites}
    for group in view.groups_of(seen.id) if seen.usable else ():
        suite = given.get(group.suite)
        if suite is None or group.state not in (GroupState.QUEUED, GroupState.PARTIAL):
            continue
        locked = view.locked_group(group.id)
        failed = [job for job in view.group_jobs(group.id) if job.state is JobState.FAILED]
        if locked is not None and failed:
            commands += _queued_again(view, suite, seen, locked, failed, "it is tried again")
    # A study that is complete goes on for them.
    reopened = commands and view.study().state is StudyState.COMPLETED
    return [SetStudyState(StudyState.RUNNING), *commands] if reopened else commands


def drain(view: View, suites: Sequence[Suite], why: str) -> list[Command]:
    """No more checkpoints come: guarantee the final one, whatever a policy said of it."""
    final, top = view.newest_ready(), view.newest_seen(stepped=True)
    if final is not None and top is not None and top.usable and 0 <= final.step < top.step:
        # It was copied, or uploaded, before what is older.
        final = top
    commands: list[Command] = []
    if final is not None:
        commands = [command for suite in suites for command in _guaranteed(view, suite, final)]
    if view.study().state is StudyState.RUNNING:
        commands.append(SetStudyState(StudyState.DRAINING, why))
    return commands


def _guaranteed(view: View, suite: Suite, final: Checkpoint) -> list[Command]:
    group = _first_group(view, final, suite)
    locked = None if group is None else view.locked_group(group.id)
    if locked is None:
        return []
    if locked.state is GroupState.SKIPPED:
        wanted = {"priority": Priority.FRESH, "rank": -float(final.number), "guaranteed": "final"}
        return _queued_again(view, suite, final, locked, (), "", **wanted, not_before=0.0)
    if locked.state is not GroupState.QUEUED or locked.guaranteed is not None:
        return []
    priority = min(locked.priority, Priority.GUARANTEED)
    return [Update(replace(locked, guaranteed="final")), Reprioritise(locked.id, priority)]


def _event(view: View, kind: str, message: str, seen: int | None = None) -> Insert:
    return Insert(EvalEvent(study=view.study().id, kind=kind, seen=seen, message=message, created_at=view.now()))
