"""The client of runs that are no study of ours: checkpoints in directories, or somebody else's study."""

from collections.abc import Collection, Sequence
from typing import TypeAlias, final

from phyla.api import Answer, CollectResult, Given, GroupResults
from phyla.controller import RunController
from phyla.errors import LeaseLost
from phyla.machine import ClaimedEvaluation, Completion, Ended, Evaluated, EvaluationFailed, Idle
from phyla.records import EvalResult, EvalTaskRecord, Group, RunRecord, RunState, StudyState, WorkKind
from phyla.settings import Clock, system_clock
from phyla.store import EvalReader, Store

EVALUATE_ONLY = frozenset({WorkKind.EVALUATE})
IDLE_LOOK_S = 1.0
"""How often a run without work is asked again by a worker that others keep busy."""

_Served: TypeAlias = tuple[RunRecord, RunController]


@final
class RunClient:
    """Speaks with several runs through their store.

    A worker gets work of the checkpoint that it has loaded; then of the most urgent class; and among runs
    that are equally urgent, of one after the other.

    Args:
        store: where the runs are remembered.
        runs: each run with what decides about it.
        clock: tells when to ask runs without work again.
    """

    def __init__(self, store: Store, runs: Sequence[_Served], *, clock: Clock = system_clock) -> None:
        self._store = store
        self._runs = {run.id: (run, controller) for run, controller in runs}
        self._clock = clock
        self._run_of_task: dict[int, int] = {}
        self._run_of_group: dict[int, int] = {}
        self._asked_at: dict[int, float] = {}
        self._changes = store.changes()
        self._last = 0

    def exchange(
        self,
        completions: Sequence[Completion | Evaluated],
        worker: str,
        count: int,
        *,
        kinds: Collection[WorkKind] = EVALUATE_ONLY,
        holding: int | None = None,
    ) -> tuple[list[Answer], list[Given], Idle | Ended | None]:
        """Hand in finished eval tasks and claim up to `count` new ones; atomically, if there is one run."""
        finished = [done for done in completions if isinstance(done, Evaluated)]
        if len(self._runs) == 1:
            (served,) = self._runs.values()
            answers, given, rest = served[1].exchange(finished, worker, count, holding)
            self._remember(served[0].id, given)
            return [*answers], [*given], rest
        told: list[Answer] = []
        for done in finished:
            run = self._run_of_task.get(done.task)
            if run is None:
                told.append(LeaseLost(f"eval task {done.task} was not claimed by this process"))
                continue
            handed_in, _, _ = self._runs[run][1].exchange([done], worker, 0)
            told += handed_in
            del self._run_of_task[done.task]
        claimed, rest = self._claim(worker, count, holding)
        return told, claimed, rest

    def _claim(self, worker: str, count: int, holding: int | None) -> tuple[list[Given], Idle | Ended | None]:
        claimed: list[Given] = []
        if not count:
            return claimed, None
        messages: list[str | None] = []
        idle: list[Idle] = []
        for run, has_work in self._in_turn(holding):
            now = self._clock()
            if not has_work and 0 <= now - self._asked_at.get(run, float("-inf")) < IDLE_LOOK_S:
                # Asking costs a transaction that writes; it only matters for leases that ran out, and at the end.
                idle.append(Idle(seconds=None, why="no checkpoint waits for evaluation"))
                continue
            _, given, rest = self._runs[run][1].exchange((), worker, count - len(claimed), holding)
            self._remember(run, given)
            claimed += given
            if given:
                self._last = run
            if isinstance(rest, Ended):
                messages.append(rest.message)
            elif isinstance(rest, Idle):
                self._asked_at[run] = now
                idle.append(rest)
            if len(claimed) == count:
                return claimed, None
        if len(messages) == len(self._runs):
            return claimed, Ended(state=StudyState.COMPLETED, message="; ".join(m for m in messages if m) or None)
        waits = [rest.seconds for rest in idle if rest.seconds is not None]
        return claimed, Idle(seconds=min(waits, default=None), why="no checkpoint waits for evaluation")

    def _in_turn(self, holding: int | None) -> list[tuple[int, bool]]:
        """Return the runs in the order in which to ask them, and whether each has something to do."""
        next_of: dict[int, EvalTaskRecord | None] = {}
        for run, _ in self._runs.values():
            with self._store.evaluations(run) as reader:
                next_of[run.id] = reader.next_eval_task(holding)

        def urgency(run: int) -> tuple[float, bool, int]:
            task = next_of[run]
            if task is None:
                return float("inf"), False, run
            return task.priority, task.seen != holding, (run - self._last - 1) % (max(self._runs) + 1)

        return [(run, next_of[run] is not None) for run in sorted(self._runs, key=urgency)]

    def _remember(self, run: int, given: Sequence[ClaimedEvaluation]) -> None:
        for work in given:
            self._run_of_task[work.task.id] = run
            self._run_of_group[work.task.group] = run

    def fail_evaluation(self, failure: EvaluationFailed) -> None:
        """Record that an attempt failed."""
        self._controller(failure.task).fail(failure)

    def release_evaluation(self, task: int, token: int) -> None:
        """Return an eval task to the queue."""
        self._controller(task).release(task, token)

    def _controller(self, task: int) -> RunController:
        run = self._run_of_task.get(task, next(iter(self._runs)) if len(self._runs) == 1 else None)
        if run is None:
            raise LeaseLost(f"eval task {task} was not claimed by this process")
        return self._runs[run][1]

    def group_results(self, group: int) -> GroupResults:
        """Return what the ledger has of a group."""
        run = self._run_of_group.get(group, next(iter(self._runs)))
        with self._store.evaluations(self._runs[run][0]) as reader:
            return group_results(reader, group)

    def best_group(self, suite: str, *, run: int) -> Group | None:
        """Return the best complete group of a suite of a run so far."""
        with self._store.evaluations(self._runs[run][0]) as reader:
            best = reader.best_group(suite)
        if best is not None:
            self._run_of_group[best.id] = run
        return best

    def renew(self, worker: str) -> None:
        """Renew all leases of a worker."""
        for _, controller in self._runs.values():
            controller.renew(worker)

    def lose_worker(self, worker: str, error: str, *, counts: bool) -> int:
        """Take back all that a dead worker held."""
        return sum(controller.lose_worker(worker, error, counts=counts) for _, controller in self._runs.values())

    def wait(self, seconds: float) -> None:
        """Return once something was committed, or after `seconds` at the latest."""
        self._changes.wait(seconds)

    def is_active(self) -> bool:
        """Return whether there may be more work."""
        states = {run.id: run.state for run in self._store.runs()}
        return any(states.get(run, RunState.ENDED) is not RunState.ENDED for run in self._runs)

    def give_up(self, message: str) -> None:
        """Do nothing: what is not done stays queued, for whoever evaluates next."""

    def recover(self) -> None:
        """Do nothing: the watcher removes what is left over."""

    def collect(self) -> CollectResult:
        """Do nothing: checkpoints in a directory are not ours to delete; the watcher removes its snapshots."""
        return CollectResult(deleted=(), freed_bytes=0)


def group_results(reader: EvalReader, group_id: int) -> GroupResults:
    """Read what the ledger has of a group."""
    group = reader.group(group_id)
    seen = reader.seen(group.seen)
    tasks = [task for task in reader.group_tasks(group_id) if task.task]
    results: dict[str, Sequence[EvalResult]] = {}
    for task in tasks:
        if task.identity not in results:
            results[task.identity] = reader.results(seen.identity, task.identity, group.replicate, task.shards)
    return GroupResults(group=group, tasks=tasks, results=results)
