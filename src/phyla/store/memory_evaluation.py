"""The evaluation of a run in memory: for tests, simulations and as the oracle of the other stores."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, final

from phyla.machine import AnyCommand
from phyla.machine.evaluation_commands import (
    EndEvalAttempt,
    EvalCommand,
    InsertEvalAttempt,
    InsertEvalTasks,
    InsertEvent,
    InsertGroup,
    InsertResult,
    InsertSeen,
    LimitNotBefore,
    RenewEvalAttempts,
    Reprioritise,
    SetRunState,
    StartGroup,
    UpdateEvalTask,
    UpdateGroup,
    UpdateSeen,
)
from phyla.records import (
    EvalAttempt,
    EvalEvent,
    EvalResult,
    EvalTaskRecord,
    Group,
    GroupState,
    Priority,
    RunRecord,
    Seen,
    TrialState,
)
from phyla.store.evaluation import NEWEST_DURATIONS
from phyla.store.memory_tables import Ledger, LedgerKey, urgency
from phyla.store.table import Changes

if TYPE_CHECKING:
    from phyla.store.memory_transaction import MemoryTransaction

_OPEN = (TrialState.PENDING, TrialState.RUNNING)


@final
class MemoryEvaluation:
    """One transaction on a run; changes are made at once and undone when the block raises."""

    def __init__(self, ledger: Ledger, run: int, now: float, population: "MemoryTransaction | None") -> None:
        self._l = ledger
        self._id = run
        self._now = now
        self._population = population
        self._changes = population.changes if population else Changes()

    # What can be read

    def now(self) -> float:
        """Return the time, one value throughout the transaction."""
        return self._now

    def run(self) -> RunRecord:
        """Return the run."""
        return self._l.runs[self._id]

    def population(self) -> "MemoryTransaction | None":
        """Return the study, in the same transaction."""
        return self._population

    def seen(self, seen_id: int) -> Seen:
        """Return a checkpoint that was seen."""
        found = self._l.seen.get(seen_id)
        if found is None or found.run != self._id:
            raise KeyError(f"run {self._id} has seen no checkpoint {seen_id}")
        return found

    def all_seen(self, *, after: int = 0, limit: int | None = None) -> Sequence[Seen]:
        """Return the checkpoints seen, by id."""
        return [s for key, s in sorted(self._l.seen.items()) if key > after and s.run == self._id][:limit]

    def find_seen(self, name: str, index: int = 0) -> Seen | None:
        """Return the newest version of a checkpoint."""
        found = self._l.by_name.of((self._id, name, index))
        return self._l.seen[max(found)] if found else None

    def newest_seen(self) -> Seen | None:
        """Return the checkpoint with the highest number."""
        return self._l.last(self._l.by_number, self._id)

    def newest_ready(self) -> Seen | None:
        """Return the checkpoint in state ready with the highest number."""
        return self._l.last(self._l.ready, self._id)

    def shards_done(self, identity: str, task_identity: str, replicate: int, shards: int) -> frozenset[int]:
        """Return which shards the ledger has."""
        return frozenset(r.shard for r in self.results(identity, task_identity, replicate, shards))

    def results(self, identity: str, task_identity: str, replicate: int, shards: int) -> Sequence[EvalResult]:
        """Return the ledger's entries by shard."""
        keys = self._l.shards.of((identity, task_identity, replicate, shards))
        return [self._l.results[key] for key in sorted(keys)]

    def mean_duration_s(self, task_identity: str) -> float | None:
        """Return how long a shard took on average, of the newest results."""
        mine = [r for r in self._l.results.values() if r.task_identity == task_identity]
        newest = sorted(mine, key=lambda r: (r.created_at, r.duration_s), reverse=True)[:NEWEST_DURATIONS]
        took = [result.duration_s for result in newest]
        return sum(took) / len(took) if took else None

    def groups(self, *, suite: str | None = None, after: int = 0, limit: int | None = None) -> Sequence[Group]:
        """Return groups by id."""
        mine = [
            group
            for key, group in sorted(self._l.groups.items())
            if key > after and group.run == self._id and suite in (None, group.suite)
        ]
        return mine[:limit]

    def group(self, group_id: int) -> Group:
        """Return a group."""
        found = self.locked_group(group_id)
        if found is None:
            raise KeyError(f"run {self._id} has no group {group_id}")
        return found

    def locked_group(self, group_id: int) -> Group | None:
        """Return a group of this run, or None."""
        found = self._l.groups.get(group_id)
        return found if found is not None and found.run == self._id else None

    def find_group(self, seen: int, suite: str, replicate: int = 0) -> Group | None:
        """Return a group by its key."""
        key = (suite, replicate)
        return next((g for g in self.groups_of(seen) if (g.suite, g.replicate) == key), None)

    def groups_of(self, seen: int) -> Sequence[Group]:
        """Return the groups on one checkpoint."""
        return [self._l.groups[key] for key in sorted(self._l.on_seen.of(seen))]

    def _queued(self) -> list[Group]:
        return [self._l.groups[key] for key in sorted(self._l.queued.of(self._id))]

    def fresh_groups(self, suite: str) -> Sequence[Group]:
        """Return the queued groups of class fresh that no population waits for."""
        return [
            group
            for group in self._queued()
            if group.suite == suite and group.priority == Priority.FRESH and group.guaranteed != "fitness"
        ]

    def last_queued_at(self, suite: str) -> float | None:
        """Return when the newest group that was not skipped was created."""
        return max(
            (g.created_at for g in self.groups(suite=suite) if g.state is not GroupState.SKIPPED), default=None
        )

    def busy(self, suite: str) -> bool:
        """Return whether a started group has not ended."""
        return any(group.suite == suite and group.started for group in self._queued())

    def best_group(self, suite: str) -> Group | None:
        """Return the group marked best."""
        best = [self._l.groups[key] for key in sorted(self._l.best.of(self._id))]
        return next((group for group in best if group.suite == suite), None)

    def partial_in_a_row(self, suite: str) -> int:
        """Return how many groups ended partial since the last one ended complete."""
        complete = [g.ended_at or 0.0 for g in self.groups(suite=suite) if g.state is GroupState.COMPLETE]
        last = max(complete, default=float("-inf"))
        partial = [g.ended_at or 0.0 for g in self.groups(suite=suite) if g.state is GroupState.PARTIAL]
        return sum(ended > last for ended in partial)

    def open_groups(self) -> int:
        """Return how many groups are queued."""
        return self._l.queued.count(self._id)

    def eval_tasks(self, *, after: int = 0, limit: int | None = None) -> Sequence[EvalTaskRecord]:
        """Return eval tasks by id."""
        return [t for key, t in sorted(self._l.tasks.items()) if key > after and t.run == self._id][:limit]

    def next_eval_task(self, holding: int | None) -> EvalTaskRecord | None:
        """Return the pending eval task to run next."""
        first = next((task for task in self._pending() if task.not_before <= self._now), None)
        if first is None or holding is None or first.seen == holding:
            return first
        same = [self._l.tasks[key] for key in self._l.pending_on.of((self._id, holding))]
        held = [task for task in same if task.not_before <= self._now and task.priority == first.priority]
        return min(held, key=urgency, default=first)

    def _pending(self) -> Iterator[EvalTaskRecord]:
        """Iterate over the pending eval tasks of this run, most urgent first."""
        for (run, *_), key in self._l.pending.since((self._id,)):
            if run != self._id:
                return
            yield self._l.tasks[key]

    def next_not_before(self) -> float | None:
        """Return when the earliest pending eval task may start that may not start yet."""
        return min((task.not_before for task in self._pending() if task.not_before > self._now), default=None)

    def locked_eval_task(self, task_id: int) -> EvalTaskRecord | None:
        """Return an eval task of this run, or None."""
        found = self._l.tasks.get(task_id)
        return found if found is not None and found.run == self._id else None

    def group_tasks(self, group: int) -> Sequence[EvalTaskRecord]:
        """Return the eval tasks of a group."""
        return [self._l.tasks[key] for key in sorted(self._l.in_group.of(group))]

    def unfinished_tasks(self, group: int) -> int:
        """Return how many eval tasks of a group are pending or running."""
        return sum(task.state in _OPEN for task in self.group_tasks(group))

    def eval_attempt(self, task: int, token: int) -> EvalAttempt | None:
        """Return one attempt."""
        return self._l.attempts.get((task, token))

    def eval_attempts(self, task: int) -> Sequence[EvalAttempt]:
        """Return the attempts of an eval task."""
        return [attempt for (of, _), attempt in sorted(self._l.attempts.items()) if of == task]

    def running_evaluations(self, worker: str | None = None) -> Sequence[EvalAttempt]:
        """Return the running attempts of one worker, or all of them."""
        running = [self._l.attempts[key] for key in sorted(self._l.running.of(self._id))]
        return [attempt for attempt in running if worker in (None, attempt.worker)]

    def expired_evaluations(self, limit: int) -> Sequence[EvalAttempt]:
        """Return running attempts whose lease ran out, longest first."""
        late = [attempt for attempt in self.running_evaluations() if attempt.expires_at < self._now]
        return sorted(late, key=lambda a: (a.expires_at, a.task))[:limit]

    def claimed_ahead(self, expires_after: float) -> Sequence[EvalAttempt]:
        """Return running attempts that were claimed after `now()`, and whose lease lasts beyond a time."""
        running = self.running_evaluations()
        ahead = [row for row in running if row.expires_at > expires_after and row.claimed_at > self._now]
        return sorted(ahead, key=lambda row: (row.expires_at, row.task))

    def events(self, *, after: int = 0) -> Sequence[EvalEvent]:
        """Return events by id."""
        return [e for key, e in sorted(self._l.events.items()) if key > after and e.run == self._id]

    def held_paths(self) -> frozenset[int]:
        """Return ids of the checkpoints seen that a queued or best group refers to."""
        held = (*self._l.best.of(self._id), *self._l.queued.of(self._id))
        return frozenset(self._l.groups[key].seen for key in held)

    # What can be changed

    def apply(self, commands: Sequence[AnyCommand]) -> list[str]:
        """Apply commands in order, those of the run's study too."""
        marked: list[str] = []
        for command in commands:
            if isinstance(command, EvalCommand):
                self.apply_one(command)
            elif self._population is None:
                raise TypeError(f"{command!r} needs a study, and run {self.run().name!r} has none")
            else:
                marked += self._population.apply([command])
        return marked

    def apply_one(self, command: EvalCommand) -> None:
        """Apply one command about evaluation."""
        tables = self._l
        match command:
            case InsertSeen(seen, groups):
                seen = replace(seen, id=next(reversed(tables.seen), 0) + 1)
                self._changes.set(tables.seen, seen.id, seen)
                for group, tasks in groups:
                    self._insert_group(replace(group, seen=seen.id), tasks)
            case InsertGroup(group, tasks):
                self._insert_group(group, tasks)
            case UpdateSeen(seen):
                self._changes.set(tables.seen, seen.id, seen)
            case UpdateGroup(group):
                self._changes.set(tables.groups, group.id, group)
            case StartGroup(group_id):
                self._changes.set(tables.groups, group_id, replace(tables.groups[group_id], started=True))
            case Reprioritise(group_id, priority):
                self._changes.set(tables.groups, group_id, replace(tables.groups[group_id], priority=priority))
                for task in self.group_tasks(group_id):
                    if task.state is TrialState.PENDING and task.task:
                        self._changes.set(tables.tasks, task.id, replace(task, priority=priority))
            case InsertEvalTasks(tasks):
                for task in tasks:
                    self._insert_task(task)
            case UpdateEvalTask(task):
                self._changes.set(tables.tasks, task.id, task)
            case InsertEvalAttempt(attempt):
                self._changes.set(tables.attempts, (attempt.task, attempt.token), attempt)
            case EndEvalAttempt():
                key = (command.task, command.token)
                ended = replace(
                    tables.attempts[key], state=command.state, ended_at=command.ended_at, error=command.error
                )
                self._changes.set(tables.attempts, key, ended)
            case RenewEvalAttempts(worker, expires_at):
                for attempt in self.running_evaluations(worker):
                    renewed = replace(attempt, expires_at=expires_at)
                    self._changes.set(tables.attempts, (attempt.task, attempt.token), renewed)
            case LimitNotBefore(latest):
                for task in [task for task in self._pending() if task.not_before > latest]:
                    self._changes.set(tables.tasks, task.id, replace(task, not_before=latest))
            case InsertResult(r):
                if _ledger_key(r) not in tables.results:
                    self._changes.set(tables.results, _ledger_key(r), r)
            case InsertEvent(event):
                event = replace(event, id=next(reversed(tables.events), 0) + 1)
                self._changes.set(tables.events, event.id, event)
            case SetRunState(state, message):
                changed = replace(self.run(), state=state, message=message)
                self._changes.set(tables.runs, self._id, changed)

    def _insert_group(self, group: Group, tasks: Sequence[EvalTaskRecord]) -> None:
        group = replace(group, id=next(reversed(self._l.groups), 0) + 1)
        self._changes.set(self._l.groups, group.id, group)
        for task in tasks:
            self._insert_task(replace(task, group=group.id, seen=group.seen))

    def _insert_task(self, task: EvalTaskRecord) -> None:
        task = replace(task, id=next(reversed(self._l.tasks), 0) + 1)
        self._changes.set(self._l.tasks, task.id, task)

    def undo(self) -> None:
        """Take everything back, newest first."""
        self._changes.undo()


def _ledger_key(result: EvalResult) -> LedgerKey:
    return result.identity, result.task_identity, result.replicate, result.shard, result.shards
