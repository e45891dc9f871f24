"""The controller. It may die between any two calls; another controller gives the same answers."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from typing import final

from phyla import machine
from phyla.checkpoints import claim_digest, parse_name
from phyla.configuration import differences
from phyla.errors import LeaseLost, StateError, StoreError, ends_only_call, with_place
from phyla.machine import (
    NO_LIMIT,
    Accepted,
    Answer,
    Claimed,
    ClaimedEvaluation,
    Command,
    Completion,
    Ended,
    Evaluated,
    Failure,
    Idle,
    KeptCheckpoints,
    LimitNotBefore,
    NoTime,
    NotJudged,
    NoWork,
    Outdated,
    ParentGone,
    RenewAttempts,
    ReportAnswer,
    Room,
    Rules,
    SetStudyState,
    TrainRules,
    Work,
)
from phyla.records import Attempt, Checkpoint, JsonObject, MemberState, Report, StudyState, WorkKind
from phyla.store import Reader, Store, Transaction
from phyla.store.retry import repeatable
from phyla.system.failpoints import failpoint

LOG = logging.getLogger("phyla")
TRAIN_ONLY = frozenset({WorkKind.TRAIN})
EVALUATE_ONLY = frozenset({WorkKind.EVALUATE})
EXPIRED_AT_ONCE = 100
CLOCK_SLACK_S = 1.0
"""How far a claim may lie in the future before the clock counts as set back."""


@final
class Controller:
    """Answers requests of workers about one study, each in one transaction; it may raise `StoreError`.

    Each transaction compares the stored configuration with that of the rules. If it was changed, finished work
    still counts, but decisions, stops and collections need a process with the new settings.

    Args:
        store: the store of the study.
        study: its id.
        rules: the rules of its decisions.
        config: the configuration from which the rules were made; None for the first that is read.
        source: id of the study that it watches, if any.
    """

    def __init__(
        self,
        store: Store,
        study: int,
        rules: Rules,
        config: JsonObject | None = None,
        *,
        source: int | None = None,
    ) -> None:
        self._store = store
        self._study = study
        self._source = source
        self.rules = rules
        self._config = config
        self._seen: JsonObject | None = None
        self._outdated: str | None = None
        self._looked_at = float("-inf")

    @property
    def population(self) -> TrainRules:
        """The rules of a study with a population."""
        assert isinstance(self.rules, TrainRules)
        return self.rules

    @property
    def outdated(self) -> bool:
        """Whether the stored settings differed from the rules in the last transaction."""
        return self._outdated is not None

    def claim(self, worker: str, count: int = 1) -> tuple[list[Claimed], NoWork | None]:
        """Give a worker up to `count` trials, and the reason if there are fewer."""
        _, claimed, rest = self.complete((), worker, count)
        return [work for work in claimed if isinstance(work, Claimed)], rest

    @repeatable
    def complete(
        self,
        completions: Sequence[Completion | Evaluated],
        worker: str | None = None,
        count: int = 0,
        *,
        kinds: AbstractSet[WorkKind] = TRAIN_ONLY,
        holding: int | None = None,
        room: Room = NO_LIMIT,
        whole: bool = False,
        held: AbstractSet[int] | None = None,
    ) -> tuple[list[Answer], list[Work], NoWork | None]:
        """Accept finished work and, in the same transaction, give the worker its next.

        The answer to a completion is the error if its lease is gone, or the reason if a rule stops it; the others
        are not affected. Eval jobs are handed out before trials, so that scores arrive while they matter. With
        `whole`, and no completions, it hands out `count` trials or none. If a strategy or one of its rules raises,
        the completions still count, and the study fails with the error. With `held`, the jobs that the worker
        knows it holds, other jobs leased to it come first, because the answer with them was lost.
        """
        gone: frozenset[str] = frozenset()
        while True:
            deciding = False
            try:
                if completions:
                    failpoint("job.before_complete")
                with self._transaction() as tx:
                    accepted = [self._accept(tx, done) for done in completions]
                    claimed: list[Work] = []
                    rest: NoWork | None = None
                    if worker is not None and count and self._outdated is not None:
                        rest = Outdated(why=self._outdated)
                    elif worker is not None and count:
                        deciding = True
                        claimed, rest = self._claim(tx, worker, count, gone, kinds, holding, room, held, whole)
                        deciding = False
                        if whole and 0 < len(claimed) < count:
                            raise _TooFew(_alone(tx, len(claimed), count, self.population.strategy.quorum))
                    if claimed:
                        failpoint("claim.before_commit")
                    failpoint("store.before_commit")
            except ParentGone as error:
                gone |= {error.name}
                continue
            except _TooFew as error:
                if error.never is not None:
                    raise error.never from None
                return [], [], Idle(seconds=None, why="too few members can train now")
            except BaseException as error:
                of_strategy = deciding and isinstance(self.rules, TrainRules) and ends_only_call(error)
                if not of_strategy or isinstance(error, StoreError):
                    raise
                accepted, _, _ = self.complete(completions)
                return accepted, [], self._undecided(error)
            failpoint("store.after_commit")
            if claimed:
                failpoint("claim.after_commit")
            failpoint("reply.before")
            return accepted, claimed, rest

    def _accept(self, tx: Transaction, done: Completion | Evaluated) -> Answer:
        answer: Answer
        try:
            if isinstance(done, Evaluated):
                answer, commands = machine.complete_evaluation(tx, self.rules, done)
            else:
                answer, commands = machine.complete(tx, self._judging, done)
                _verify_claims(tx, commands)
        except LeaseLost as error:
            return error
        except NotJudged as error:
            return self._return_unjudged(tx, done, error)
        self._apply(tx, commands)
        if (
            commands
            and isinstance(done, Completion)
            and isinstance(answer, Accepted)
            and self._outdated is not None
        ):
            # Whether its member has finished depends on the new settings, which this process does not have.
            tx.apply(machine.reopen(tx, tx.trial(answer.job).member))
        return answer

    def _return_unjudged(self, tx: Transaction, done: Completion | Evaluated, error: NotJudged) -> LeaseLost:
        """Queue a job again whose fitness could not be computed, and fail the study: the next would meet it."""
        job, what = (done.job, "Its evaluation") if isinstance(done, Evaluated) else (done.trial, "It")
        message = (
            f"the fitness of {error} could not be computed: {with_place(error.__cause__ or error)}. {what} is "
            "queued again; completed trials are kept. Fix the error, then run the study again."
        )
        LOG.error(message, exc_info=error.__cause__)
        self._apply(tx, machine.release(tx, job, done.token, message))
        if tx.study().state is StudyState.RUNNING:
            tx.apply([SetStudyState(StudyState.FAILED, message)])
        return LeaseLost(message)

    def _apply(self, tx: Transaction, commands: Sequence[Command]) -> None:
        """Apply commands, then aggregate or end the groups whose jobs they ended."""
        tx.apply(commands)
        for group in machine.ended_groups(commands):
            tx.apply(machine.settle_group(tx, self.rules, group))

    def _claim(
        self,
        tx: Transaction,
        worker: str,
        count: int,
        gone: frozenset[str],
        kinds: AbstractSet[WorkKind],
        holding: int | None,
        room: Room,
        held: AbstractSet[int] | None,
        whole: bool,
    ) -> tuple[list[Work], NoWork | None]:
        self._expire(tx)
        rules = self.rules
        # Jobs leased to the worker whose answer was lost.
        lost = [] if held is None else [attempt for attempt in tx.running(worker) if attempt.job not in held]
        claimed: list[Work] = [machine.restore_claim(tx, attempt) for attempt in lost[:count]]
        late: NoTime | None = None
        rounds, comparisons = 0, machine.Comparisons()
        evaluates = WorkKind.EVALUATE in kinds and bool(rules.suites)
        while len(claimed) < count:
            if evaluates and tx.study().state in (StudyState.RUNNING, StudyState.DRAINING):
                work = self._claim_evaluation(tx, worker, holding, gone, room)
                if isinstance(work, ClaimedEvaluation):
                    claimed.append(work)
                    continue
                late = work
            if WorkKind.TRAIN not in kinds or not isinstance(rules, TrainRules):
                return claimed, late or self._nothing_to_evaluate(tx)
            fills = whole and bool(claimed)
            answer, commands = machine.claim(tx, rules, worker, gone, fills=fills, comparisons=comparisons)
            if isinstance(answer, Claimed) and room.left_s is not None:
                expected_s = machine.expected_s(answer.trial, tx.last_completed(machine.RECENT))
                if not room.holds(expected_s):
                    # The decision is not stored; the next claim repeats it.
                    return claimed, _no_time("a trial", expected_s, room)
            tx.apply(commands)
            if isinstance(answer, Claimed):
                claimed.append(answer)
            elif answer is None:
                rounds += 1
                if rounds > 2 * tx.study().population_size + 10:
                    return claimed, self._give_up(tx)
            else:
                return claimed, answer
        return claimed, None

    def _claim_evaluation(
        self, tx: Transaction, worker: str, holding: int | None, gone: frozenset[str], room: Room
    ) -> ClaimedEvaluation | NoTime | None:
        """Give a worker an eval job; None if none can start now."""
        while True:
            claimed, commands = machine.claim_evaluation(
                tx, worker, self.rules.lease_s, holding=holding, lost=gone, room=room
            )
            if claimed is not None and room.left_s is not None:
                expected_s = tx.mean_duration_s(claimed.job.identity)
                if not room.holds(expected_s):
                    return _no_time(f"eval task {claimed.job.task!r}", expected_s, room)
            self._apply(tx, commands)
            if claimed is not None or not commands:
                return claimed

    def _nothing_to_evaluate(self, tx: Transaction) -> NoWork:
        tx.apply(machine.finish_watching(tx))
        study = tx.study()
        if study.state not in (StudyState.RUNNING, StudyState.DRAINING):
            return Ended(state=study.state, message=study.message)
        until = tx.next_not_before()
        seconds = None if until is None else until - tx.now()
        return Idle(seconds=seconds, why="no checkpoint waits for evaluation")

    def _give_up(self, tx: Transaction) -> Ended:
        """Fail a study whose strategy keeps changing state without starting a trial."""
        message = "the strategy made no progress after repeated calls; this is a bug in the strategy"
        tx.apply([SetStudyState(StudyState.FAILED, message)])
        return Ended(state=StudyState.FAILED, message=message)

    def _undecided(self, error: BaseException) -> Ended:
        """Fail a study whose strategy raised an error."""
        message = (
            f"{type(self.population.strategy).__name__} could not decide: {with_place(error)}. "
            "Completed trials are kept, and running ones finish. Fix the error, then run the study again."
        )
        LOG.exception(message)
        with self._transaction() as tx:
            if tx.study().state is StudyState.RUNNING:
                tx.apply([SetStudyState(StudyState.FAILED, message)])
        return Ended(state=StudyState.FAILED, message=message)

    def _expire(self, tx: Transaction) -> None:
        """Take back expired leases; claims check this periodically.

        Leases and waits that were set by a clock that was ahead are shortened.
        """
        now, lease_s = tx.now(), self.rules.lease_s
        if 0 <= now - self._looked_at < min(1.0, lease_s / 10):
            return
        ahead = _set_back(tx.claimed_ahead(now + lease_s), now)
        tx.apply([RenewAttempts(worker, now + lease_s) for worker in ahead])
        if self.rules.suites and tx.next_not_before() is not None:
            delay_s = max(suite.policy.start_delay_s for suite in self.rules.suites)
            tx.apply([LimitNotBefore(now + delay_s)])
        for attempt in tx.expired(EXPIRED_AT_ONCE):
            error = f"the lease of worker {attempt.worker} expired: it was not renewed for {lease_s:g} s"
            self._apply(tx, machine.lose(tx, self.rules, attempt.job, attempt.token, error, counts=False))
        self._looked_at = now

    @repeatable
    def fail(self, failure: Failure) -> None:
        """Record that an attempt at a job failed.

        Raises:
            LeaseLost: a newer claim, a cancellation or a quarantine took the lease away.
        """
        with self._transaction() as tx:
            self._apply(tx, machine.fail(tx, self.rules, failure))

    @repeatable
    def release(self, job: int, token: int, error: str | None = None) -> None:
        """Return a job to the queue, with its message if any; this does not count as a failure.

        Raises:
            LeaseLost: a newer claim, a cancellation or a quarantine took the lease away.
        """
        with self._transaction() as tx:
            self._apply(tx, machine.release(tx, job, token, error))

    @repeatable
    def lose_worker(self, worker: str, error: str, *, counts: bool) -> int:
        """Take back all jobs of a dead worker; return the number of attempts."""
        with self._transaction() as tx:
            held = tx.running(worker)
            for attempt in held:
                self._apply(tx, machine.lose(tx, self.rules, attempt.job, attempt.token, error, counts=counts))
            return len(held)

    @repeatable
    def renew(self, worker: str) -> None:
        """Renew the leases of a worker that is known to be alive."""
        with self._transaction() as tx:
            tx.apply([RenewAttempts(worker, tx.now() + self.rules.lease_s)])

    def report(self, trial: int, token: int, reports: Sequence[Report]) -> ReportAnswer:
        """Store the reports of training, apply stopping rules, and return the state of the attempt."""
        with self._transaction() as tx:
            standing, commands = machine.report(tx, self._judging, trial, token, reports)
            tx.apply(commands)
            return standing

    @repeatable
    def save_progress(self, trial: int, token: int, checkpoint: Checkpoint) -> None:
        """Record the checkpoint from which a retry of the trial resumes.

        Raises:
            LeaseLost: a newer claim, a cancellation or a quarantine took the lease away.
        """
        with self._transaction() as tx:
            commands = machine.save_progress(tx, trial, token, checkpoint)
            _verify_claims(tx, commands)
            tx.apply(commands)

    @repeatable
    def retention(self) -> KeptCheckpoints:
        """Return which checkpoints to keep and which to collect; read-only.

        If the settings were changed, none is collectable.
        """
        with self._store.reader(self._study) as reader:
            self._compare(reader.study().config)
            checkpoints = machine.retention(reader, self.population.keeping)
        if self._outdated is None:
            return checkpoints
        withheld = [(row, "the settings of the study were changed") for row in checkpoints.collectable]
        return replace(checkpoints, kept=(*checkpoints.kept, *withheld), collectable=())

    @property
    def _judging(self) -> TrainRules:
        """The rules that judge running trials; outdated stopping rules do not apply."""
        return self.population if self._outdated is None else replace(self.population, stopping=())

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Open a transaction, and compare the settings of the study with those of this process."""
        while True:
            known = self._outdated
            # The new settings may be those of an exclusive strategy.
            exclusive = isinstance(self.rules, TrainRules) and (known is not None or self.rules.exclusive)
            with self._store.transaction(self._study, exclusive=exclusive, source=self._source) as tx:
                if isinstance(self.rules, TrainRules):
                    self._compare(tx.study().config)
                if self._outdated == known:
                    yield tx
                    return

    def _compare(self, stored: JsonObject) -> None:
        """Check whether the stored configuration leads to other decisions than that of the rules."""
        if self._config is None:
            self._config = stored
        if stored == self._seen:
            return
        changed = differences(self._config, stored)
        self._seen = stored
        why = (
            f"the settings of the study were changed ({', '.join(changed)}). This process has submitted its "
            "results and accepts no more work; restart it with the changed study file"
        )
        self._outdated = why if changed else None


def _no_time(work: str, expected_s: float | None, room: Room) -> NoTime:
    if expected_s is None:
        return NoTime(why=f"there is no time left for {work}")
    return NoTime(why=f"{work} takes about {expected_s:.3g} s, and {room.left_s:.3g} s are left")


class _TooFew(Exception):
    """Rolls back a partial claim when all trials or none were requested."""

    def __init__(self, never: StateError | None) -> None:
        super().__init__()
        self.never = never


def _alone(tx: Transaction, claimed: int, count: int, quorum: float) -> StateError | None:
    """Return the error if the requested trials can never train at once; None if waiting may help."""
    if len(tx.running()) > claimed or tx.open_groups():
        return None
    members = [member for member in tx.members() if not member.retired]
    done = sum(member.state is MemberState.DONE for member in members)
    advice = f"Request {claimed}, and in the next study a number that divides the population"
    if len(members) % count == 0:
        later = f"; in the next study, use a quorum above {quorum:g}" if quorum < 1 else ""
        advice = f"Request {claimed}, or leave out whole=True{later}"
    return StateError(
        f"cannot hand out {count} trials at once: {claimed} of {len(members)} members can train now, {done} have "
        f"finished or were given up, and no running trial can make more members ready. {advice}"
    )


def claimed_attempt(reader: Reader, claim: tuple[int, int, str]) -> Attempt | None:
    """Return the attempt whose claim is in the name of a checkpoint; None if the store does not have it.

    A store that was restored from a backup gives out the same trials and tokens again, perhaps while workers that
    got them before are still training.
    """
    trial, token, digest = claim
    attempt = reader.attempt(trial, token)
    fits = attempt is not None and claim_digest(attempt.worker, attempt.claimed_at) == digest
    return attempt if fits else None


def _verify_claims(tx: Transaction, commands: Sequence[Command]) -> None:
    """Reject new checkpoints of attempts that the store does not have."""
    for command in commands:
        match command:
            case machine.Insert(Checkpoint() as added) | machine.InsertCheckpoint(added):
                made = None if added.weak else parse_name(added.name)
                if made is not None and made.claim is not None and claimed_attempt(tx, made.claim) is None:
                    trial, token, _ = made.claim
                    raise LeaseLost(
                        f"attempt {token} of trial {trial}, which left checkpoint {added.name}, is not in the "
                        "store: the store was restored from a backup, or lost its last commits. The result does "
                        "not count"
                    )


def _set_back(attempts: Iterable[Attempt], now: float) -> list[str]:
    """Return the workers with leases from a clock that was ahead, not renewed since it was set back.

    Live workers renew them soon. Those of dead workers must expire when a new lease would.
    """
    ahead = (row for row in attempts if now + CLOCK_SLACK_S < row.claimed_at < row.expires_at)
    return sorted({row.worker for row in ahead})
