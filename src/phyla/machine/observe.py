"""Checkpoints come into sight: which suites run on them, and how soon."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from phyla.evaluation import EvalTask, Skip, Suite, decide
from phyla.machine.commands import UpdateMember
from phyla.machine.evaluation_commands import (
    AnyCommand,
    InsertEvalTasks,
    InsertEvent,
    InsertGroup,
    InsertSeen,
    Reprioritise,
    SetRunState,
    UpdateEvalTask,
    UpdateGroup,
    UpdateSeen,
)
from phyla.machine.evaluation_view import EvalView
from phyla.machine.events import Observed
from phyla.machine.states import unscored
from phyla.records import (
    EvalEvent,
    EvalTaskKind,
    EvalTaskRecord,
    Group,
    GroupState,
    Priority,
    RunState,
    Scored,
    Seen,
    SeenState,
    TrialState,
    shown,
)

AGGREGATE_PRIORITY = 0
"""Aggregations go before everything: their group is nearly done, and they are quick."""


def observe(
    view: EvalView, suites: Sequence[Suite], found: Observed, *, fitness: str | None = None
) -> list[AnyCommand]:
    """Note a checkpoint and queue, or skip, each suite on it.

    Args:
        view: the run, inside the transaction that will apply the commands.
        suites: what is run on its checkpoints.
        found: the checkpoint.
        fitness: name of the suite that a population waits for.
    """
    old = view.find_seen(found.name, found.index)
    if old is not None and _same(old, found):
        return []
    newest = view.newest_seen()
    now = view.now()
    run = view.run()
    seen = Seen(
        run=run.id,
        number=0 if newest is None else newest.number + 1,
        name=found.name,
        index=found.index,
        step=found.step,
        branch=_branch(newest, found),
        state=SeenState.READY if found.error is None else SeenState.QUARANTINED,
        identity=found.identity,
        weak=found.weak,
        fingerprint=found.fingerprint,
        path=found.path,
        paths=found.paths,
        snapshot=found.snapshot,
        size_bytes=found.size_bytes,
        trial=found.trial,
        error=found.error,
        seen_at=now,
        written_at=found.written_at,
    )
    commands: list[AnyCommand] = []
    if old is not None and old.state is SeenState.READY and not old.snapshot:
        commands += gone(view, old, f"{shown(found.name)} was overwritten")
    if found.error is not None:
        message = (
            f"{shown(found.name)} cannot be evaluated: {found.error}; it is looked at again when that changes"
        )
        return [*commands, InsertSeen(seen), _event(view, "quarantined", message)]
    if newest is not None and seen.branch > newest.branch:
        message = f"training was rewound from step {newest.step} to {seen.step}: branch {seen.branch} begins"
        commands.append(_event(view, "rewound", message))
    groups: list[tuple[Group, Sequence[EvalTaskRecord]]] = []
    for suite in suites:
        group, tasks = _group(view, suite, seen, found, fitness=suite.name == fitness)
        groups.append((group, tasks))
        if group.state is GroupState.QUEUED and group.guaranteed != "fitness":
            commands += _superseded(view, suite)
    return [*commands, InsertSeen(seen, groups)]


def _same(old: Seen, found: Observed) -> bool:
    if found.error is not None:
        return old.state is SeenState.QUARANTINED and old.fingerprint == found.fingerprint
    return old.state is SeenState.READY and (old.identity, old.fingerprint) == (
        found.identity,
        found.fingerprint,
    )


def _branch(newest: Seen | None, found: Observed) -> int:
    if newest is None:
        return 0
    rewound = found.trial is None and 0 <= found.step < newest.step and found.written_at >= newest.written_at
    return newest.branch + (1 if rewound else 0)


def _group(
    view: EvalView, suite: Suite, seen: Seen, found: Observed, *, fitness: bool
) -> tuple[Group, Sequence[EvalTaskRecord]]:
    now = view.now()
    last = view.last_queued_at(suite.name) if suite.policy.throttle_s else None
    decided = decide(
        suite.policy,
        number=seen.number,
        step=seen.step,
        existed=found.existed,
        busy=suite.policy.skip_if_busy and view.busy(suite.name),
        since_last_s=None if last is None else now - last,
        fitness=fitness,
    )
    run = view.run()
    group = Group(
        run=run.id,
        suite=suite.name,
        study=run.study if found.trial is not None and found.member is not None else None,
        trial=found.trial if fitness else None,
        member=found.member if fitness else None,
        created_at=now,
        # What was written while a clock was ahead was written by now.
        not_before=0.0 if fitness else min(found.written_at, now) + suite.policy.start_delay_s,
    )
    if isinstance(decided, Skip):
        return replace(group, state=GroupState.SKIPPED, why=decided.why, ended_at=now), ()
    group = replace(
        group,
        priority=decided.priority,
        guaranteed=decided.guaranteed,
        # A population is served in turn, so that nobody starves; everything else newest first.
        rank=float(seen.number if fitness else -seen.number),
    )
    return group, tuple(_tasks(view, suite.tasks, seen, group))


def _tasks(
    view: EvalView, tasks: Sequence[EvalTask], seen: Seen, group: Group, *, aggregate: bool = True
) -> Iterator[EvalTaskRecord]:
    now = view.now()
    missing = False
    for task in tasks:
        done = view.shards_done(seen.identity, task.identity, group.replicate, task.shards)
        for shard in range(task.shards):
            reused = shard in done
            missing = missing or not reused
            yield EvalTaskRecord(
                run=group.run,
                group=group.id,
                seen=seen.id,
                task=task.name,
                identity=task.identity,
                replicate=group.replicate,
                shard=shard,
                shards=task.shards,
                state=TrialState.COMPLETED if reused else TrialState.PENDING,
                priority=group.priority,
                rank=group.rank,
                not_before=group.not_before,
                max_attempts=task.max_attempts,
                timeout_s=task.timeout_s,
                reused=reused,
                created_at=now,
                ended_at=now if reused else None,
            )
    if aggregate and not missing:
        yield aggregation(view, group, seen.id)


def aggregation(view: EvalView, group: Group, seen: int) -> EvalTaskRecord:
    """Return the task that aggregates a group."""
    return EvalTaskRecord(
        run=group.run,
        group=group.id,
        seen=seen,
        task="",
        kind=EvalTaskKind.AGGREGATE,
        identity="",
        replicate=group.replicate,
        priority=AGGREGATE_PRIORITY,
        rank=group.rank,
        created_at=view.now(),
    )


def _superseded(view: EvalView, suite: Suite) -> list[AnyCommand]:
    """Make room for a newer checkpoint: others of the suite that are still fresh wait behind, or are skipped."""
    commands: list[AnyCommand] = []
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


def end_group(view: EvalView, group: Group, state: GroupState, why: str) -> list[AnyCommand]:
    """End a locked group and cancel what has not begun; what runs may finish for the ledger.

    A member that waits for its score waits no longer.
    """
    now = view.now()
    commands: list[AnyCommand] = [
        UpdateEvalTask(replace(task, state=TrialState.CANCELLED, error=why, ended_at=now))
        for task in view.group_tasks(group.id)
        if task.state is TrialState.PENDING
    ]
    commands.append(UpdateGroup(replace(group, state=state, why=why, ended_at=now)))
    population = view.population()
    if population is None or group.trial is None or group.member is None:
        return commands
    member = population.locked_member(group.member)
    changed = unscored(member, group.trial, group.replicate)
    return commands if changed == member else [*commands, UpdateMember(changed)]


def gone(view: EvalView, seen: Seen, why: str) -> list[AnyCommand]:
    """A checkpoint vanished, or was changed: nothing of its groups that has not ended can go on."""
    commands: list[AnyCommand] = [UpdateSeen(replace(seen, state=SeenState.GONE, error=why))]
    for group in view.groups_of(seen.id):
        locked = view.locked_group(group.id) if group.state is GroupState.QUEUED else None
        if locked is not None and locked.state is GroupState.QUEUED:
            commands += end_group(view, locked, GroupState.GONE, why)
    return [*commands, _event(view, "gone", why, seen.id)]


def again(view: EvalView, suite: Suite, seen: Seen, subject: Scored, number: int) -> InsertGroup:
    """Evaluate a donor's checkpoint again, with other seeds, before anything else: a member waits for it."""
    run = view.run()
    group = Group(
        run=run.id,
        suite=suite.name,
        seen=seen.id,
        replicate=number,
        guaranteed="fitness",
        rank=float(-number),
        study=run.study,
        trial=subject.trial,
        member=subject.member,
        created_at=view.now(),
    )
    return InsertGroup(group, tuple(_tasks(view, suite.tasks, seen, group)))


def backfill(view: EvalView, suites: Sequence[Suite], seen: Seen) -> list[AnyCommand]:
    """Queue what suites miss on a checkpoint that still exists: whole groups, or eval tasks that were added."""
    commands: list[AnyCommand] = []
    if seen.state is not SeenState.READY:
        return commands
    for suite in suites:
        group = view.find_group(seen.id, suite.name)
        if group is None:
            found = Observed(
                name=seen.name, step=seen.step, identity=seen.identity, written_at=seen.written_at, existed=True
            )
            new, tasks = _group(view, suite, seen, found, fitness=False)
            best = view.best_group(suite.name)
            if best is not None and best.seen == seen.id and new.state is GroupState.QUEUED:
                new = replace(new, guaranteed="best")
            commands.append(InsertGroup(replace(new, seen=seen.id), tasks))
        elif group.state in (GroupState.QUEUED, GroupState.COMPLETE, GroupState.PARTIAL):
            commands += _added(view, suite, seen, group)
    return commands


def _added(view: EvalView, suite: Suite, seen: Seen, group: Group) -> list[AnyCommand]:
    """Extend a group by eval tasks that its suite has gained since, or that changed their identity."""
    rows = [row for row in view.group_tasks(group.id) if row.kind is EvalTaskKind.EVALUATE]
    present = {row.identity for row in rows}
    wanted = {task.identity for task in suite.tasks}
    missing = [task for task in suite.tasks if task.identity not in present]
    obsolete = [
        row for row in rows if row.identity not in wanted and row.state in (TrialState.PENDING, TrialState.FAILED)
    ]
    # The suite may have other aggregates or another objective by now.
    unaggregated = [
        row
        for row in view.group_tasks(group.id)
        if row.kind is EvalTaskKind.AGGREGATE and row.state is TrialState.FAILED
    ]
    wanted_again = [row for row in rows if row.identity in wanted and row.state is TrialState.CANCELLED]
    if not (missing or obsolete or wanted_again or unaggregated):
        return []
    locked = view.locked_group(group.id)
    if locked is None:
        return []
    now = view.now()
    why = "its suite has another version of it since, or none"
    changed: list[AnyCommand] = [
        UpdateEvalTask(replace(row, state=TrialState.CANCELLED, error=why, ended_at=now)) for row in obsolete
    ]
    changed += [
        UpdateEvalTask(replace(row, state=TrialState.CANCELLED, error="aggregated again", ended_at=now))
        for row in unaggregated
    ]
    changed += [
        UpdateEvalTask(replace(row, state=TrialState.PENDING, error=None, ended_at=None)) for row in wanted_again
    ]
    ended = locked.state is not GroupState.QUEUED
    opened = locked
    if ended:
        opened = replace(
            locked, state=GroupState.QUEUED, priority=Priority.BACKFILL, best=False, why=None, ended_at=None
        )
    tasks = list(_tasks(view, missing, seen, opened, aggregate=False))
    open_still = [
        row
        for row in view.group_tasks(group.id)
        if row.state in (TrialState.PENDING, TrialState.RUNNING) and row not in obsolete
    ]
    if not open_still and not wanted_again and all(task.reused for task in tasks):
        tasks.append(aggregation(view, opened, seen.id))
    return [*changed, *([UpdateGroup(opened)] if ended else []), InsertEvalTasks(tasks)]


def drain(view: EvalView, suites: Sequence[Suite], why: str) -> list[AnyCommand]:
    """No more checkpoints come: guarantee the final one, whatever a policy said of it."""
    commands: list[AnyCommand] = []
    final = view.newest_ready()
    if final is not None:
        for suite in suites:
            group = view.find_group(final.id, suite.name)
            if group is not None and group.state is GroupState.SKIPPED:
                locked = view.locked_group(group.id)
                if locked is not None and locked.state is GroupState.SKIPPED:
                    queued = replace(
                        locked,
                        state=GroupState.QUEUED,
                        priority=Priority.FRESH,
                        rank=-float(final.number),
                        guaranteed="final",
                        not_before=0.0,
                        why=None,
                        ended_at=None,
                    )
                    present = {task.identity for task in view.group_tasks(group.id)}
                    revived = [
                        UpdateEvalTask(
                            replace(
                                task,
                                state=TrialState.PENDING,
                                priority=queued.priority if task.task else AGGREGATE_PRIORITY,
                                rank=queued.rank,
                                not_before=0.0,
                                error=None,
                                ended_at=None,
                            )
                        )
                        for task in view.group_tasks(group.id)
                        if task.state is TrialState.CANCELLED
                    ]
                    missing = [task for task in suite.tasks if task.identity not in present]
                    tasks = list(_tasks(view, missing, final, queued, aggregate=not revived))
                    commands += [UpdateGroup(queued), *revived, InsertEvalTasks(tasks)]
            elif group is not None and group.state is GroupState.QUEUED and group.guaranteed is None:
                locked = view.locked_group(group.id)
                if locked is not None and locked.state is GroupState.QUEUED:
                    commands += [
                        UpdateGroup(replace(locked, guaranteed="final")),
                        Reprioritise(group.id, min(group.priority, Priority.GUARANTEED)),
                    ]
    if view.run().state is RunState.FOLLOWING:
        commands.append(SetRunState(RunState.DRAINING, why))
    return commands


def _event(view: EvalView, kind: str, message: str, seen: int | None = None) -> InsertEvent:
    return InsertEvent(EvalEvent(run=view.run().id, kind=kind, seen=seen, message=message, created_at=view.now()))
