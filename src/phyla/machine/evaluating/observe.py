"""Registration and loss of checkpoints: which suites run on them, and with which priority."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from phyla.evaluation import Suite
from phyla.machine.commands import (
    Command,
    Insert,
    InsertCheckpoint,
    Reprioritise,
    SetCheckpointState,
    Update,
)
from phyla.machine.jobs import change_state
from phyla.machine.published_states import give_no_score, without_states_on
from phyla.machine.view import View
from phyla.records import (
    GROWS,
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
    escape_name,
)

AGGREGATE_PRIORITY = 0
"""Aggregations have the highest priority: their group is nearly done, and they are quick."""
SUITE_LEFT = "its suite was removed before the evaluation; it is backfilled when the suite returns"
"""Reason of a skipped group that `backfill` queues again."""


def observe(
    view: View,
    suites: Sequence[Suite],
    checkpoint: Checkpoint,
    *,
    first_look: bool = False,
    rewinds: bool = True,
    fitness: str | None = None,
) -> list[Command]:
    """Register a checkpoint, and queue or skip each suite on it.

    Args:
        view: the study.
        suites: the suites to run on its checkpoints.
        checkpoint: with an `error` it is quarantined; with an id it is known, and what was added or moved since is
            recorded.
        first_look: whether it may be older than the watch.
        rewinds: whether a lower step means that training was rewound; not for copies, whose times are unreliable.
        fitness: name of the suite that scores the trial.
    """
    if checkpoint.id:
        changed = {name: getattr(checkpoint, name) for name in GROWS}
        return [Update(replace(view.seen(checkpoint.id), **changed))]
    old = view.find_seen(checkpoint.name, checkpoint.index)
    if old is not None and _same(old, checkpoint):
        return []
    newest = view.newest_seen()
    now = view.now()
    study = view.study()
    seen = replace(
        checkpoint,
        study=study.id,
        number=0 if newest is None else newest.number + 1,
        branch=0 if newest is None else newest.branch,
    )
    if seen.kind is CheckpointKind.SEEN:
        state = CheckpointState.READY if checkpoint.error is None else CheckpointState.QUARANTINED
        seen = replace(seen, state=state, created_at=now)
    commands: list[Command] = []
    # A checkpoint without a step, such as best.pt, does not show the progress of training.
    before = view.newest_seen(stepped=True) if seen.trial is None and seen.step >= 0 else None
    older = before is not None and seen.step < before.step
    if (
        before is not None
        and older
        and rewinds
        and checkpoint.error is None
        and seen.written_at >= before.written_at
    ):
        older = False
        seen = replace(seen, branch=seen.branch + 1)
        message = f"training was rewound from step {before.step} to {seen.step}: branch {seen.branch} begins"
        commands.append(_event(view, "rewound", message))
    if old is not None and old.state is CheckpointState.READY and not old.snapshot:
        commands += gone(view, old, f"{escape_name(checkpoint.name)} was overwritten")
    if checkpoint.error is not None:
        why = f"cannot be evaluated: {checkpoint.error}; it is checked again when its files change"
        message = f"{escape_name(checkpoint.name)} {why}"
        return [*commands, InsertCheckpoint(seen), _event(view, "quarantined", message)]
    existed = first_look and seen.written_at < study.created_at
    groups: list[tuple[Group, Sequence[EvalJob]]] = []
    for suite in suites:
        group, tasks = make_group(view, suite, seen, existed=existed, older=older, fitness=suite.name == fitness)
        groups.append((group, tasks))
        if group.state is GroupState.QUEUED and not older and group.guaranteed != "fitness":
            commands += _superseded(view, suite)
    return [*commands, InsertCheckpoint(seen, groups)]


def _same(old: Checkpoint, checkpoint: Checkpoint) -> bool:
    if checkpoint.error is not None:
        return old.state is CheckpointState.QUARANTINED and old.fingerprint == checkpoint.fingerprint
    return old.usable and (old.identity, old.fingerprint) == (checkpoint.identity, checkpoint.fingerprint)


def make_group(
    view: View, suite: Suite, seen: Checkpoint, *, existed: bool, older: bool = False, fitness: bool = False
) -> tuple[Group, Sequence[EvalJob]]:
    """Return the group of a suite on a checkpoint, queued with its jobs, or skipped with the reason."""
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
            why = why or "a newer checkpoint was registered first (latest)"
    group = Group(
        study=view.study().id,
        suite=suite.name,
        seen=seen.id,
        trial=seen.trial if fitness else None,
        member=view.trial(seen.trial).member if fitness and seen.trial is not None else None,
        created_at=now,
        # The clock of the writer may have been ahead.
        not_before=0.0 if fitness else min(seen.written_at, now) + policy.start_delay_s,
    )
    if why is not None:
        return replace(group, state=GroupState.SKIPPED, why=why, ended_at=now), ()
    group = replace(
        group,
        priority=Priority.BACKFILL if (existed or older) and not fitness else Priority.FRESH,
        guaranteed=guaranteed,
        # Members of a population take turns, so that none starves; all else is newest first.
        rank=float(seen.number if fitness else -seen.number),
    )
    return group, tuple(make_jobs(view, suite, seen, group))


def make_jobs(
    view: View, suite: Suite, seen: Checkpoint, group: Group, existing: Sequence[EvalJob] = ()
) -> Iterator[EvalJob]:
    """Yield the missing jobs of a group: shards, or its aggregation if all are evaluated."""
    now = view.now()
    shards = count_shards(suite, existing)
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


def count_shards(suite: Suite, jobs: Sequence[EvalJob]) -> dict[str, int]:
    """Return the number of shards of each eval task when it was queued; the suite may have changed since."""
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
    """Make room for a newer checkpoint: other fresh groups of the suite get a lower priority or are skipped."""
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
    """End a locked group and cancel its pending jobs; running jobs may finish for the ledger.

    Members no longer wait for its score.
    """
    now = view.now()
    commands: list[Command] = [
        Update(change_state(task, JobState.CANCELLED, error=why, ended_at=now))
        for task in view.group_jobs(group.id)
        if task.state is JobState.PENDING
    ]
    commands.append(Update(replace(group, state=state, why=why, ended_at=now)))
    if group.trial is None or group.member is None:
        return commands
    member = view.locked_member(group.member)
    changed = give_no_score(member, group.trial, group.replicate)
    return commands if changed == member else [*commands, Update(changed)]


def gone(view: View, seen: Checkpoint, why: str) -> list[Command]:
    """Handle a checkpoint that vanished or changed: its open groups end."""
    commands: list[Command] = []
    if seen.kind is CheckpointKind.SEEN:
        commands.append(Update(replace(seen, state=CheckpointState.GONE, error=why)))
    for group in view.groups_of(seen.id):
        locked = view.locked_group(group.id) if group.state is GroupState.QUEUED else None
        if locked is not None and locked.state is GroupState.QUEUED:
            commands += end_group(view, locked, GroupState.GONE, why)
    return [*commands, _event(view, "gone", why, seen.id)]


def set_unusable(view: View, name: str, damage: str | None, *, taker: int | None = None) -> list[Command]:
    """Mark a live checkpoint as lost or damaged, so that it can be neither donor nor parent."""
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


def _event(view: View, kind: str, message: str, seen: int | None = None) -> Insert:
    return Insert(EvalEvent(study=view.study().id, kind=kind, seen=seen, message=message, created_at=view.now()))
