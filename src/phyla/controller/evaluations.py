"""What the controller does about evaluation, in transactions on a run and, where it has one, its study."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import final

from phyla import machine
from phyla.errors import LeaseLost, StoreBusy
from phyla.evaluation import Suite
from phyla.failpoints import failpoint
from phyla.machine import (
    AnyCommand,
    ClaimedEvaluation,
    Ended,
    Evaluated,
    EvaluationAccepted,
    EvaluationFailed,
    Idle,
    LimitNotBefore,
    Observed,
    ParentGone,
    RenewEvalAttempts,
    Rules,
)
from phyla.records import Attempt, EvalAttempt, EvalEvent, RunRecord, RunState, Seen, SeenState, StudyState
from phyla.store import EvalTransaction, Store

EXPIRED_AT_ONCE = 100
BUSY_RETRIES = 3
CLOCK_SLACK_S = 1.0
"""By how much a claim may be ahead of the time before the clock counts as set back."""

BACKFILLED_AT_ONCE = 50


def accept(tx: EvalTransaction, rules: Rules | None, done: Evaluated) -> EvaluationAccepted | LeaseLost:
    """Accept a finished eval task and do what follows for its group."""
    try:
        repeated, commands = machine.complete_evaluation(tx, rules, done)
    except LeaseLost as error:
        return error
    tx.apply(commands)
    if not repeated:
        settle(tx, rules, [done.group])
    return EvaluationAccepted(task=done.task, repeated=repeated)


def settle(tx: EvalTransaction, rules: Rules | None, groups: Iterable[int]) -> None:
    """Aggregate or end groups whose eval tasks have ended."""
    for group in groups:
        tx.apply(machine.settle_group(tx, rules, group))


def claim(
    tx: EvalTransaction,
    rules: Rules | None,
    worker: str,
    lease_s: float,
    holding: int | None,
    lost: frozenset[str],
) -> ClaimedEvaluation | None:
    """Give a worker an eval task, or None when there is none to start now."""
    while True:
        claimed, commands = machine.claim_evaluation(tx, worker, lease_s, holding=holding, lost=lost)
        tx.apply(commands)
        if claimed is not None or not commands:
            return claimed


def set_back(attempts: Iterable[Attempt | EvalAttempt], now: float) -> list[str]:
    """Return the workers whose leases were given by a clock that was ahead, and not renewed since it was set back.

    A worker that is alive renews them soon. Those of a dead one are to end when one that is given now would.
    """
    ahead = (row for row in attempts if now + CLOCK_SLACK_S < row.claimed_at < row.expires_at)
    return sorted({row.worker for row in ahead})


def expire(tx: EvalTransaction, rules: Rules | None, suites: Sequence[Suite], lease_s: float) -> None:
    """Take leases back that ran out; shorten leases and waits that begin at a clock that was ahead."""
    now = tx.now()
    ahead = set_back(tx.claimed_ahead(now + lease_s), now)
    tx.apply([RenewEvalAttempts(worker, now + lease_s) for worker in ahead])
    if tx.next_not_before() is not None:
        delay_s = max((suite.policy.start_delay_s for suite in suites), default=0.0)
        tx.apply([LimitNotBefore(now + delay_s)])
    for attempt in tx.expired_evaluations(EXPIRED_AT_ONCE):
        error = f"the lease of worker {attempt.worker} ran out: it did not renew it for {lease_s:g} s"
        lose(tx, rules, [attempt], error, counts=False)


def lose(
    tx: EvalTransaction, rules: Rules | None, attempts: Sequence[EvalAttempt], error: str, *, counts: bool
) -> None:
    """Take back eval tasks whose worker is gone."""
    if not attempts:
        return
    for attempt in attempts:
        tx.apply(machine.lose_evaluation(tx, attempt.task, attempt.token, error, counts=counts))
    settle(tx, rules, machine.groups_of_attempts(tx, attempts))


@final
class RunController:
    """Answers workers and watchers about one run; every answer is one transaction.

    Args:
        store: where the run is remembered.
        run: the run.
        suites: what is run on its checkpoints.
        lease_s: seconds a claim lasts unless renewed.
        rules: of the study whose run it is; None for a directory or for somebody else's study.
    """

    def __init__(
        self,
        store: Store,
        run: RunRecord,
        suites: Sequence[Suite],
        *,
        lease_s: float,
        rules: Rules | None = None,
    ) -> None:
        self._store = store
        self._run = run
        self.suites = tuple(suites)
        self.lease_s = lease_s
        self._rules = rules
        self._looked_at = float("-inf")

    def _transaction(self) -> AbstractContextManager[EvalTransaction]:
        return self._store.evaluating(self._run, exclusive=False)

    def exchange(
        self, completions: Sequence[Evaluated], worker: str, count: int, holding: int | None = None
    ) -> tuple[list[EvaluationAccepted | LeaseLost], list[ClaimedEvaluation], Idle | Ended | None]:
        """Accept finished eval tasks and give a worker up to `count` new ones; with fewer, also say why.

        Raises:
            StoreError: the database failed.
        """
        lost: frozenset[str] = frozenset()
        busy = 0
        while True:
            try:
                if completions:
                    failpoint("evaluation.before_complete")
                with self._transaction() as tx:
                    answers = [accept(tx, self._rules, done) for done in completions]
                    claimed, rest = self._claim(tx, worker, count, holding, lost)
                    failpoint("evaluation.before_commit")
            except ParentGone as error:
                lost |= {error.name}
                continue
            except StoreBusy:
                busy += 1
                if busy > BUSY_RETRIES:
                    raise
                continue
            failpoint("evaluation.after_commit")
            return answers, claimed, rest

    def _claim(
        self, tx: EvalTransaction, worker: str, count: int, holding: int | None, lost: frozenset[str]
    ) -> tuple[list[ClaimedEvaluation], Idle | Ended | None]:
        if not count:
            return [], None
        now = tx.now()
        if not 0 <= now - self._looked_at < min(1.0, self.lease_s / 10):
            expire(tx, self._rules, self.suites, self.lease_s)
            self._looked_at = now
        claimed: list[ClaimedEvaluation] = []
        while len(claimed) < count:
            work = claim(tx, self._rules, worker, self.lease_s, holding, lost)
            if work is None:
                tx.apply(machine.finish_run(tx))
                if tx.run().state is RunState.ENDED:
                    return claimed, Ended(state=StudyState.COMPLETED, message=tx.run().message)
                until = tx.next_not_before()
                return claimed, Idle(
                    seconds=None if until is None else until - now, why="no checkpoint waits for evaluation"
                )
            claimed.append(work)
        return claimed, None

    def fail(self, failure: EvaluationFailed) -> None:
        """Record that an attempt failed.

        Raises:
            LeaseLost: a newer claim or a cancellation took the lease away.
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            tx.apply(machine.fail_evaluation(tx, failure))
            settle(tx, self._rules, [failure.group])

    def release(self, task: int, token: int) -> None:
        """Return an eval task to the queue; this does not count as a failure.

        Raises:
            LeaseLost: a newer claim or a cancellation took the lease away.
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            tx.apply(machine.release_evaluation(tx, task, token))

    def lose_worker(self, worker: str, error: str, *, counts: bool) -> int:
        """Take back everything a dead worker held; return how many attempts that were.

        Raises:
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            held = tx.running_evaluations(worker)
            lose(tx, self._rules, held, error, counts=counts)
            return len(held)

    def renew(self, worker: str) -> None:
        """Renew the leases of a worker that is known to be alive.

        Raises:
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            tx.apply([RenewEvalAttempts(worker, tx.now() + self.lease_s)])

    # What a watcher tells

    def observe(self, found: Sequence[Observed]) -> None:
        """Note checkpoints, oldest first, and queue or skip suites on them.

        Raises:
            StoreError: the database failed.
        """
        failpoint("watch.before_observe")
        with self._exclusive() as tx:
            for each in found:
                tx.apply([*machine.observe(tx, self.suites, each)])
        failpoint("watch.after_observe")

    def gone(self, seen: Mapping[int, str], *, unless_held: bool = False) -> frozenset[int]:
        """Note that checkpoints vanished.

        Args:
            seen: their ids, and why.
            unless_held: not those that a queued or best group refers to.

        Returns:
            Those of which it was noted, now or before.

        Raises:
            StoreError: the database failed.
        """
        if not seen:
            return frozenset()
        with self._exclusive() as tx:
            held = tx.held_paths() if unless_held else frozenset[int]()
            told = frozenset(seen) - held
            for number in sorted(told):
                row = tx.seen(number)
                if row.state is SeenState.READY:
                    tx.apply([*machine.gone(tx, row, seen[number])])
            return told

    def note(self, kind: str, message: str, *, seen: int | None = None) -> None:
        """Remember something that a person should know.

        Raises:
            StoreError: the database failed.
        """
        with self._exclusive() as tx:
            event = EvalEvent(run=self._run.id, kind=kind, seen=seen, message=message, created_at=tx.now())
            tx.apply([machine.InsertEvent(event)])

    def backfill(self) -> int:
        """Queue what suites miss on checkpoints that were seen before; return how many eval tasks that is.

        Raises:
            StoreError: the database failed.
        """
        added = 0
        after = 0
        while True:
            with self._exclusive() as tx:
                page = tx.all_seen(after=after, limit=BACKFILLED_AT_ONCE)
                for seen in page:
                    commands: list[AnyCommand] = [*machine.backfill(tx, self.suites, seen)]
                    added += len(commands)
                    tx.apply(commands)
            if not page:
                return added
            after = page[-1].id

    def drain(self, why: str) -> None:
        """Say that no more checkpoints come: the final one is guaranteed, then the run ends.

        Raises:
            StoreError: the database failed.
        """
        with self._exclusive() as tx:
            tx.apply([*machine.drain(tx, self.suites, why)])
            tx.apply(machine.finish_run(tx))
        failpoint("watch.after_drain")

    # What a watcher asks

    def seen(self, after: int = 0) -> list[Seen]:
        """Return the checkpoints seen, by id, from the first one whose id is above `after`.

        Raises:
            StoreError: the database failed.
        """
        with self._store.evaluations(self._run) as reader:
            return [*reader.all_seen(after=after)]

    def held(self) -> tuple[frozenset[int], Mapping[str, Seen]]:
        """Return which checkpoints queued or best groups refer to, and the best one of each suite.

        Raises:
            StoreError: the database failed.
        """
        with self._store.evaluations(self._run) as reader:
            best = {suite.name: reader.best_group(suite.name) for suite in self.suites}
            return reader.held_paths(), {name: reader.seen(g.seen) for name, g in best.items() if g is not None}

    def _exclusive(self) -> AbstractContextManager[EvalTransaction]:
        return self._store.evaluating(self._run, exclusive=True)
