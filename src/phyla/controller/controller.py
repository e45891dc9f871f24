"""The controller. It may die between any two calls; another one answers the same."""

import logging
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias, final

from phyla import machine
from phyla.controller import evaluations
from phyla.controller.configuration import check_unchanged, differences
from phyla.errors import ConfigurationError, LeaseLost, StoreBusy, StoreError
from phyla.failpoints import failpoint
from phyla.machine import (
    Accepted,
    ClaimAnswer,
    Claimed,
    ClaimedEvaluation,
    Completion,
    Ended,
    Evaluated,
    EvaluationAccepted,
    EvaluationFailed,
    Failure,
    Idle,
    Imported,
    MarkDeleting,
    NoWork,
    Outdated,
    ParentGone,
    RenewAttempts,
    Retention,
    Rules,
    SetCheckpointState,
    SetConfig,
    SetStudyState,
    Standing,
    Stopped,
)
from phyla.records import (
    Checkpoint,
    CheckpointState,
    Json,
    JsonObject,
    Report,
    StudyRecord,
    StudyState,
    WorkKind,
)
from phyla.store import Store, Transaction

Answer: TypeAlias = Accepted | Stopped | EvaluationAccepted | LeaseLost
LOG = logging.getLogger("phyla")
TRAIN_ONLY = frozenset({WorkKind.TRAIN})
EXPIRED_AT_ONCE = 100
BUSY_RETRIES = 3


@final
class Controller:
    """Answers workers about one study; every answer is one transaction.

    Each transaction compares the stored configuration with that of the rules. Where it was changed, finished work
    still counts, and nothing is decided, stopped or collected: that needs a process with the new settings.

    Args:
        store: where the study is remembered.
        study: its id.
        rules: what its decisions go by.
        config: the stored configuration that the rules were made from; None for the one that is found first.
    """

    def __init__(self, store: Store, study: int, rules: Rules, config: JsonObject | None = None) -> None:
        self._store = store
        self._study = study
        self.rules = rules
        self._config = config
        self._seen: JsonObject | None = None
        self._outdated: str | None = None
        self._looked_at = float("-inf")

    def claim(self, worker: str, count: int = 1) -> tuple[list[Claimed], NoWork | None]:
        """Give a worker up to `count` trials; with fewer, also say why.

        Raises:
            StoreError: the database failed.
        """
        _, claimed, rest = self.complete((), worker, count)
        return [work for work in claimed if isinstance(work, Claimed)], rest

    def complete(
        self,
        completions: Sequence[Completion | Evaluated],
        worker: str | None = None,
        count: int = 0,
        *,
        kinds: Collection[WorkKind] = TRAIN_ONLY,
        holding: int | None = None,
    ) -> tuple[list[Answer], list[Claimed | ClaimedEvaluation], NoWork | None]:
        """Accept finished work and, in the same transaction, give the worker its next.

        A completion whose lease is gone is answered with the error, and one that a rule stops with the reason;
        neither holds up the others. Eval tasks are given out before trials, so that scores come while they
        matter. If a strategy or one of its rules raises, the completions still count, and the study is stopped
        with what it raised.

        Raises:
            StoreError: the database failed.
        """
        gone: frozenset[str] = frozenset()
        busy = 0
        while True:
            deciding = False
            try:
                if completions:
                    failpoint("trial.before_complete")
                with self._transaction() as tx:
                    accepted = [self._accept(tx, done) for done in completions]
                    claimed: list[Claimed | ClaimedEvaluation] = []
                    rest: NoWork | None = None
                    if worker and count and self._outdated is not None:
                        rest = Outdated(why=self._outdated)
                    elif worker and count:
                        deciding = True
                        claimed, rest = self._claim(tx, self.rules, worker, count, gone, kinds, holding)
                        deciding = False
                    if claimed:
                        failpoint("claim.before_commit")
                    failpoint("store.before_commit")
            except ParentGone as error:
                gone |= {error.name}
                continue
            except StoreBusy:
                # A deadlock that the database resolved, or a crowd: the same request can be made again.
                busy += 1
                if busy > BUSY_RETRIES:
                    raise
                continue
            except Exception as error:
                if not deciding or isinstance(error, StoreError):
                    raise
                accepted, _, _ = self.complete(completions)
                return accepted, [], self._undecided(error)
            failpoint("store.after_commit")
            if claimed:
                failpoint("claim.after_commit")
            failpoint("reply.before")
            return accepted, claimed, rest

    def _accept(self, tx: Transaction, done: Completion | Evaluated) -> Answer:
        rules = self.rules
        if isinstance(done, Evaluated):
            evaluation = tx.evaluation()
            if evaluation is None:
                return LeaseLost(f"this study has no suites, so there is no eval task {done.task}")
            return evaluations.accept(evaluation, rules, done)
        try:
            answer, commands = machine.complete(tx, self._judging, done)
        except LeaseLost as error:
            return error
        tx.apply(commands)
        if commands and isinstance(answer, Accepted) and self._outdated is not None:
            # Whether its member has trained all its steps depends on settings that this process does not have.
            tx.apply(machine.reopen(tx, tx.trial(answer.trial).member))
        return answer

    def _claim(
        self,
        tx: Transaction,
        rules: Rules,
        worker: str,
        count: int,
        gone: frozenset[str],
        kinds: Collection[WorkKind],
        holding: int | None,
    ) -> tuple[list[Claimed | ClaimedEvaluation], NoWork | None]:
        self._expire(tx, rules)
        claimed: list[Claimed | ClaimedEvaluation] = []
        rounds = 0
        evaluation = tx.evaluation() if WorkKind.EVALUATE in kinds and rules.suites else None
        while len(claimed) < count:
            if evaluation is not None and tx.study().state is StudyState.RUNNING:
                work = evaluations.claim(evaluation, rules, worker, rules.lease_s, holding, gone)
                if work is not None:
                    claimed.append(work)
                    continue
            if WorkKind.TRAIN not in kinds:
                return claimed, self._nothing_to_evaluate(tx)
            answer: ClaimAnswer | None
            answer, commands = machine.claim(tx, rules, worker, gone)
            tx.apply(commands)
            if isinstance(answer, Claimed):
                claimed.append(answer)
            elif answer is None:
                rounds += 1
                if rounds > 2 * tx.size + 10:
                    return claimed, self._give_up(tx)
            else:
                return claimed, answer
        return claimed, None

    def _nothing_to_evaluate(self, tx: Transaction) -> NoWork:
        study = tx.study()
        if study.state is StudyState.RUNNING:
            return Idle(seconds=None, why="no checkpoint waits for evaluation")
        return Ended(state=study.state, message=study.message)

    def _give_up(self, tx: Transaction) -> Ended:
        """End a study whose strategy changes state again and again and starts nothing."""
        message = "the strategy was asked again and again and started nothing; this is a defect of the strategy"
        tx.apply([SetStudyState(StudyState.FAILED, message)])
        return Ended(state=StudyState.FAILED, message=message)

    def _undecided(self, error: Exception) -> Ended:
        """End a study about which no decision can be taken."""
        *_, last = traceback.extract_tb(error.__traceback__)
        message = (
            f"{type(self.rules.strategy).__name__} could not decide: {type(error).__name__}: {error} "
            f"({last.filename}, line {last.lineno}). Completed trials are kept, and running ones finish. Fix "
            "it, then run the study again."
        )
        LOG.exception(message)
        with self._transaction() as tx:
            if tx.study().state is StudyState.RUNNING:
                tx.apply([SetStudyState(StudyState.FAILED, message)])
        return Ended(state=StudyState.FAILED, message=message)

    def _expire(self, tx: Transaction, rules: Rules) -> None:
        """Take leases back that ran out; looked at from time to time, by whoever claims."""
        now = tx.now()
        if 0 <= now - self._looked_at < min(1.0, rules.lease_s / 10):
            return
        ahead = evaluations.set_back(tx.claimed_ahead(now + rules.lease_s), now)
        tx.apply([RenewAttempts(worker, now + rules.lease_s) for worker in ahead])
        for attempt in tx.expired(EXPIRED_AT_ONCE):
            error = f"the lease of worker {attempt.worker} ran out: it did not renew it for {rules.lease_s:g} s"
            tx.apply(machine.lose(tx, rules, attempt.trial, attempt.token, error, counts=False))
        evaluation = tx.evaluation() if rules.suites else None
        if evaluation is not None:
            evaluations.expire(evaluation, rules, rules.suites, rules.lease_s)
        self._looked_at = now

    def fail(self, failure: Failure) -> None:
        """Record that an attempt failed.

        Raises:
            LeaseLost: a newer claim, a cancellation or a quarantine took the lease away.
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            tx.apply(machine.fail(tx, self.rules, failure))

    def fail_evaluation(self, failure: EvaluationFailed) -> None:
        """Record that an attempt at an eval task failed.

        Raises:
            LeaseLost: a newer claim or a cancellation took the lease away.
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            evaluation = tx.evaluation()
            if evaluation is None:
                raise LeaseLost(f"this study has no suites, so there is no eval task {failure.task}")
            tx.apply(machine.fail_evaluation(evaluation, failure))
            evaluations.settle(evaluation, self.rules, [failure.group])

    def release_evaluation(self, task: int, token: int) -> None:
        """Return an eval task to the queue; this does not count as a failure.

        Raises:
            LeaseLost: a newer claim or a cancellation took the lease away.
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            evaluation = tx.evaluation()
            if evaluation is not None:
                tx.apply(machine.release_evaluation(evaluation, task, token))

    def release(self, trial: int, token: int) -> None:
        """Return a trial to the queue; this does not count as a failure.

        Raises:
            LeaseLost: a newer claim, a cancellation or a quarantine took the lease away.
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            tx.apply(machine.release(tx, trial, token))

    def lose_worker(self, worker: str, error: str, *, counts: bool) -> int:
        """Take back everything a dead worker held; return how many attempts that were.

        Args:
            worker: the dead process.
            error: what is known about its end.
            counts: whether the trials are to blame, so that it counts towards `max_attempts`.

        Raises:
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            held = tx.running(worker)
            for attempt in held:
                tx.apply(machine.lose(tx, self.rules, attempt.trial, attempt.token, error, counts=counts))
            evaluation = tx.evaluation() if self.rules.suites else None
            evaluating = evaluation.running_evaluations(worker) if evaluation is not None else ()
            if evaluation is not None:
                evaluations.lose(evaluation, self.rules, evaluating, error, counts=counts)
            return len(held) + len(evaluating)

    def renew(self, worker: str) -> None:
        """Renew the leases of a worker that is known to be alive.

        Raises:
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            expires_at = tx.now() + self.rules.lease_s
            tx.apply([RenewAttempts(worker, expires_at)])
            if self.rules.suites and tx.evaluation() is not None:
                tx.apply([machine.RenewEvalAttempts(worker, expires_at)])

    def report(self, trial: int, token: int, reports: Sequence[Report]) -> Standing:
        """Store what training reported so far, let rules stop it, and say how its attempt stands.

        Raises:
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            standing, commands = machine.report(tx, self._judging, trial, token, reports)
            tx.apply(commands)
            return standing

    def save_progress(self, trial: int, token: int, checkpoint: Checkpoint) -> None:
        """Remember where a retry of the trial resumes.

        Raises:
            LeaseLost: a newer claim, a cancellation or a quarantine took the lease away.
            StoreError: the database failed.
        """
        with self._transaction() as tx:
            tx.apply(machine.save_progress(tx, trial, token, checkpoint))

    def change(
        self,
        config: JsonObject,
        changes: Mapping[str, tuple[Json, Json]],
        *,
        before: JsonObject | None = None,
        fresh: bool = False,
    ) -> StudyRecord:
        """Store another configuration, that of this controller's rules, and let the population follow it.

        Trials that are running go on as they were decided, except those of members that are retired. Decisions
        that others are taking now come first; those that follow go by this configuration, wherever they are taken.

        Args:
            config: the new configuration.
            changes: what differs, by dotted name: (stored, given); kept with its time.
            before: the stored configuration that the changes were made to.
            fresh: whether new members start fresh.

        Returns:
            The study as it is then.

        Raises:
            ConfigurationError: new members would have nothing to train.
            StudyChanged: another change came between.
            StoreError: the database failed.
        """
        busy = 0
        while True:
            try:
                return self._change(config, changes, before, fresh=fresh)
            except StoreBusy:
                busy += 1
                if busy > BUSY_RETRIES:
                    raise

    def _change(
        self,
        config: JsonObject,
        changes: Mapping[str, tuple[Json, Json]],
        before: JsonObject | None,
        *,
        fresh: bool,
    ) -> StudyRecord:
        rules = self.rules
        strategy = rules.strategy
        with self._store.transaction(self._study, exclusive=True, alone=True) as tx:
            stored = tx.study().config
            if before is not None:
                check_unchanged(tx.study(), before)
            earlier: Any = stored.get("changes", [])
            told: dict[str, Json] = {name: list(values) for name, values in changes.items()}
            entry: Json = {"at": tx.now(), "changes": told}
            tx.apply([SetConfig({**config, "changes": [*earlier, entry]})])
            active = sum(not tx.member(index).retired for index in range(tx.size))
            beside = machine.youngest(tx)
            if strategy.population_size > active and strategy.finished(beside):
                raise ConfigurationError(
                    f"the study cannot grow to {strategy.population_size} members: all {active} have spent their "
                    f"{beside.progress} steps, and new ones join where the others are, so they would have "
                    "nothing to train; raise total_steps as well"
                )
            for number in range(strategy.population_size - active):
                tx.apply(machine.join(tx, rules, beside, number, fresh=fresh))
            gone = machine.to_retire(tx, max(0, active - strategy.population_size))
            for index in gone:
                tx.apply(machine.retire(tx, index))
            if tx.study().state is StudyState.COMPLETED:
                tx.apply(machine.reopen_study(tx, rules))
            failpoint("change.before_commit")
            study = tx.study()
        failpoint("change.after_commit")
        return study

    def awaits_imports(self) -> bool:
        """Return whether no member has got its import yet.

        Raises:
            StoreError: the database failed.
        """
        with self._store.reader(self._study) as reader:
            return machine.awaits_imports(reader)

    def import_checkpoints(self, imports: Sequence[Imported]) -> bool:
        """Let every member start from a checkpoint that was brought here; all at once.

        Returns:
            Whether they do; False if somebody else was quicker.

        Raises:
            StoreError: the database failed.
        """
        with self._store.transaction(self._study, exclusive=True) as tx:
            if not machine.awaits_imports(tx):
                return False
            for index in range(tx.size):
                tx.apply(machine.import_start(tx, index, imports))
            failpoint("import.before_commit")
        failpoint("import.after_commit")
        return True

    def retention(self) -> Retention:
        """Return which checkpoints are kept and which may go; changes nothing.

        Where the settings were changed, none may.

        Raises:
            StoreError: the database failed.
        """
        with self._store.reader(self._study) as reader:
            self._compare(reader.study().config)
            found = machine.retention(reader, self.rules.keeping)
        if self._outdated is None:
            return found
        kept = [(row, "the study has settings that this process does not have") for row in found.collectable]
        return replace(found, kept=(*found.kept, *kept), collectable=())

    def mark_deleting(self, candidates: Sequence[Checkpoint]) -> list[str]:
        """Mark checkpoints for deletion, except those a trial took since they were looked at.

        Raises:
            StoreError: the database failed.
        """
        return mark_deleting(self._store, self._study, candidates)

    def set_checkpoints(self, names: Sequence[str], state: CheckpointState) -> None:
        """Set the state of checkpoints whose bytes were deleted or found missing.

        Raises:
            StoreError: the database failed.
        """
        if names:
            with self._transaction() as tx:
                tx.apply([SetCheckpointState(name, state) for name in names])

    def set_unusable(self, name: str, damage: str | None) -> None:
        """Mark a checkpoint as lost or damaged, so that it is no donor, no parent and not the best any more.

        Args:
            name: the checkpoint.
            damage: what is wrong with its files; None if there are none any more.

        Raises:
            StoreError: the database failed.
        """
        with self._store.transaction(self._study, exclusive=True) as tx:
            tx.apply(machine.set_unusable(tx, name, damage))

    @property
    def _judging(self) -> Rules:
        """The rules by which running trials are judged: none of them is stopped by settings that were changed."""
        return self.rules if self._outdated is None else replace(self.rules, stopping=())

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Open a transaction, and compare the settings of the study with those of this process."""
        while True:
            known = self._outdated
            # Settings that this process does not have may be those of a strategy that is exclusive.
            exclusive = known is not None or self.rules.exclusive
            with self._store.transaction(self._study, exclusive=exclusive) as tx:
                self._compare(tx.study().config)
                if self._outdated == known:
                    yield tx
                    return

    def _compare(self, stored: JsonObject) -> None:
        """Find out whether the stored configuration decides differently from that of the rules."""
        if self._config is None:
            self._config = stored
        if stored is self._seen or stored == self._seen:
            return
        changed = differences(self._config, stored)
        self._seen = stored
        why = (
            f"the settings of the study were changed ({', '.join(changed)}). This process has handed in its work "
            "and takes no more; start it again with the changed study file"
        )
        self._outdated = why if changed else None


def mark_deleting(store: Store, study: int, candidates: Sequence[Checkpoint]) -> list[str]:
    """Mark checkpoints of a study for deletion, except those a trial took since they were looked at.

    Raises:
        StoreError: the database failed.
    """
    if not candidates:
        return []
    with store.transaction(study, exclusive=True) as tx:
        marked = tx.apply([MarkDeleting(row.name, row.taken) for row in candidates])
    failpoint("gc.after_mark")
    return marked
