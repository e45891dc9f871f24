"""Evaluation driven on a store as a controller would, and a machine that drives two stores alike."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phyla import machine
from phyla.controller import Controller, StudyRecords
from phyla.errors import PhylaError
from phyla.evaluation import EvalTask, Policy, Suite
from phyla.machine import (
    Claimed,
    ClaimedEvaluation,
    Command,
    Completion,
    Evaluated,
    Failure,
    ParentGone,
    Room,
    Rules,
    TrainRules,
    WatchRules,
)
from phyla.machine.evaluating.observe import end_group
from phyla.records import (
    Attempt,
    Checkpoint,
    CheckpointKind,
    CheckpointState,
    EvalEvent,
    EvalJob,
    EvalResult,
    Group,
    GroupState,
    JobKind,
    JobState,
    JsonObject,
    Maximize,
    StudyKind,
    StudyRecord,
    StudyState,
    TrialRecord,
)
from phyla.space import Float, Space
from phyla.store import Reader, Store, Transaction
from phyla.strategies import PBT, FromSuite, Perturb, Truncation
from storing import LEASE_S, STEPS, WORKERS, VirtualClock, completion, everything_of, pbt, plain, rules

_T = TypeVar("_T")


def evaluate(_evaluation: Any) -> dict[str, float]:
    """Stands for an evaluation; never called here."""
    return {"score": 0.5}


LABEL = "a_100"
"""A label that LIKE would find in others."""
ROOM = Room(labels=(LABEL,))
ROOMS = (
    *(Room(gpus=gpus) for gpus in ((0, 0), (2, 2), (1, 8))),
    *(Room(labels=labels) for labels in (("nvlink", LABEL), ("A_100", "a2100"), (LABEL[:-1],))),
    Room(gpus=(1, 2), labels=(LABEL, "nvlink")),
    Room(resting=frozenset(EvalTask(name, evaluate).identity for name in "ac")),
)


def suites(policy: Policy | None = None, *, grown: bool = False) -> tuple[Suite, ...]:
    """Return two suites; grown, one of them has one more eval task and there is a third."""
    tasks = (
        EvalTask("a", evaluate, shards=2, max_attempts=2),
        EvalTask("b", evaluate, max_attempts=1, resources={"gpus": 2, "label": LABEL}),
    )
    more = (EvalTask("c", evaluate),)
    small = Suite("small", (EvalTask("d", evaluate, resources={"gpus": 8}),), policy=policy or Policy())
    if not grown:
        return Suite("s", tasks, policy=policy or Policy()), small
    return Suite("s", tasks + more), small, Suite("u", more)


def watching(of: Sequence[Suite]) -> WatchRules:
    """Return rules of a study without a population."""
    return WatchRules(suites=tuple(of), lease_s=LEASE_S, max_claims=5)


def found(name: str, step: int = 0, **more: Any) -> Checkpoint:
    """Return a checkpoint that somebody found."""
    fields = {"study": 1, "name": name, "step": step, "identity": f"id of {name}"}
    return Checkpoint(**{**fields, "kind": CheckpointKind.SEEN, **more})


def result(work: ClaimedEvaluation, *, duration_s: float = 1.0, score: float = 0.5) -> EvalResult:
    """Return what a worker found."""
    task = work.job
    return EvalResult(
        identity=work.seen.identity,
        task_identity=task.identity,
        replicate=task.replicate,
        shard=task.shard,
        shards=task.shards,
        study=task.study,
        statistics={"score": {"sum": score, "$float": math.nan}},
        files={"histogram": f"{task.id}.npy"},
        source="digest",
        duration_s=duration_s,
        worker=task.worker or "",
        created_at=0.0,
    )


def skip_group(tx: Transaction, group_id: int, why: str) -> None:
    """End a group early, unless it has ended."""
    group = tx.locked_group(group_id)
    if group is not None and group.state is GroupState.QUEUED:
        tx.apply(end_group(tx, group, GroupState.SKIPPED, why))


def evaluated(
    work: ClaimedEvaluation,
    score: float = 0.5,
    *,
    best: bool = False,
    former: int | None = None,
    event: bool = False,
) -> Evaluated:
    """Return what a worker says once it is done."""
    task = work.job
    values: JsonObject | None = None
    events: Sequence[EvalEvent] = ()
    entry = None
    if task.kind is JobKind.AGGREGATE:
        number = score if math.isfinite(score) else str(score)
        values = {"score": {"value": number, "stderr": 0.25}, "other": {"value": 1.0, "stderr": None}}
        if event:
            found_out = EvalEvent(
                study=task.study,
                kind="regression",
                seen=task.seen,
                suite=work.group.suite,
                message="worse \u2603",
                data={"by": math.inf},
                created_at=1.0,
            )
            events = (found_out,)
    else:
        entry = result(work, score=score, duration_s=0.5 + task.id % 3)
    return Evaluated(
        job=task.id,
        group=task.group,
        token=task.token,
        result=entry,
        values=values,
        best=best,
        former=former,
        events=events,
    )


@dataclass
class Evaluator:
    """Orders what the machine says into transactions on one study, as a controller does."""

    store: Store
    study: StudyRecord
    rules: Rules
    exclusive: bool = True

    def transaction(self) -> AbstractContextManager[Transaction]:
        return self.store.transaction(self.study.id, exclusive=self.exclusive, source=self.study.source)

    def look(self) -> AbstractContextManager[Reader]:
        return self.store.reader(self.study.id)

    def _do(self, act: Callable[[Transaction], _T]) -> _T:
        with self.transaction() as tx:
            return act(tx)

    def apply(self, tx: Transaction, commands: Sequence[Command]) -> None:
        """Apply commands, then aggregate or end the groups of which they ended a job."""
        tx.apply(commands)
        for group in machine.ended_groups(commands):
            tx.apply(machine.settle_group(tx, self.rules, group))

    def observe(self, *checkpoints: Checkpoint, existed: bool = False) -> None:
        def act(tx: Transaction) -> None:
            for checkpoint in checkpoints:
                tx.apply(machine.observe(tx, self.rules.suites, checkpoint, first_look=existed))

        self._do(act)

    def claim(self, worker: str = WORKERS[0], holding: int | None = None) -> ClaimedEvaluation | None:
        lost: frozenset[str] = frozenset()
        while True:
            try:
                return self._do(partial(self.claim_in, worker=worker, holding=holding, lost=lost))
            except ParentGone as error:
                lost |= {error.name}

    def claim_in(
        self,
        tx: Transaction,
        worker: str = WORKERS[0],
        holding: int | None = None,
        lost: frozenset[str] = frozenset(),
    ) -> ClaimedEvaluation | None:
        while True:
            work, commands = machine.claim_evaluation(tx, worker, LEASE_S, holding=holding, lost=lost, room=ROOM)
            self.apply(tx, commands)
            if work is not None or not commands:
                return work

    def complete(self, done: Evaluated) -> bool:
        def act(tx: Transaction) -> bool:
            answer, commands = machine.complete_evaluation(tx, self.rules, done)
            self.apply(tx, commands)
            return answer.repeated

        return self._do(act)

    def fail(self, failure: Failure) -> None:
        self._do(lambda tx: self.apply(tx, machine.fail(tx, self.rules, failure)))

    def release(self, work: ClaimedEvaluation) -> None:
        self._do(lambda tx: self.apply(tx, machine.release(tx, work.job.id, work.job.token)))

    def lose(self, worker: str, *, counts: bool) -> int:
        return self._do(lambda tx: self._lose(tx, tx.running(worker), counts=counts))

    def expire(self) -> int:
        return self._do(lambda tx: self._lose(tx, tx.expired(3), counts=False))

    def _lose(self, tx: Transaction, attempts: Sequence[Attempt], *, counts: bool) -> int:
        for one in attempts:
            self.apply(tx, machine.lose(tx, self.rules, one.job, one.token, "gone \u2603", counts=counts))
        return len(attempts)

    def renew(self, worker: str) -> None:
        self._do(lambda tx: tx.apply([machine.RenewAttempts(worker, tx.now() + LEASE_S)]))

    def backfill(self) -> None:
        def act(tx: Transaction) -> None:
            for seen in tx.all_seen():
                tx.apply(machine.backfill(tx, self.rules.suites, seen))

        self._do(act)

    def gone(self, seen: int) -> None:
        def act(tx: Transaction) -> None:
            row = tx.seen(seen)
            if row.state is CheckpointState.READY:
                tx.apply(machine.gone(tx, row, "it vanished"))

        self._do(act)

    def cancel(self, group: int) -> None:
        self._do(lambda tx: skip_group(tx, group, "a person said so"))

    def drain(self) -> None:
        self._do(lambda tx: tx.apply(machine.drain(tx, self.rules.suites, "no more come")))

    def finish(self) -> None:
        self._do(lambda tx: tx.apply(machine.finish_watching(tx)))

    def work(self, worker: str = WORKERS[0]) -> list[ClaimedEvaluation]:
        """Do everything that is to be done now."""
        done = []
        while (claimed := self.claim(worker)) is not None:
            self.complete(evaluated(claimed))
            done.append(claimed)
        return done


def trained(claimed: Claimed) -> Completion:
    """Return what a worker says that has trained a trial: each leaves a checkpoint of its own."""
    done = completion(claimed, metrics={})
    assert done.checkpoint is not None
    digest = f"{claimed.trial.study}/{done.checkpoint.name}"
    return replace(done, checkpoint=replace(done.checkpoint, identity=digest))


def ledger(evaluator: Evaluator) -> Any:
    """Return everything that can be read about a study whose checkpoints are evaluated."""
    with evaluator.look() as view:
        return [*everything_of(view), *plain(_ledger(view, suites(grown=True)))]


def _ledger(view: Reader, of: Sequence[Suite]) -> dict[str, Any]:
    seen, groups, tasks = view.all_seen(), view.groups(), view.eval_jobs()
    keys = sorted(
        {(row.identity, task.identity, task.replicate, task.shards) for row in seen for task in tasks if task.task}
    )
    names = [suite.name for suite in of]
    hows = sorted({task.identity for task in tasks})
    return {
        "seen": seen,
        "groups": groups,
        "tasks": tasks,
        "events": [view.events(), view.events(after=2)],
        "attempts": [view.attempts(task.id) for task in tasks],
        "newest attempts": [view.attempt(task.id, task.token) for task in tasks],
        "results": [view.ledger(*key) for key in keys],
        "durations": [view.mean_duration_s(how) for how in hows],
        "last results": [view.last_result_at(how) for how in hows],
        "failed": view.failed_evaluations(),
        "pages": [
            view.all_seen(after=1, limit=2),
            view.groups(after=1, limit=2),
            view.eval_jobs(after=1, limit=2),
            [view.groups(suite=name) for name in names],
            [view.ended_groups(since) for since in (0.0, *(group.ended_at for group in groups if group.ended_at))],
            [view.groups(suite=name, after=1, limit=1) for name in names],
        ],
        "single": [
            [view.seen(row.id) for row in seen],
            [view.group(group.id) for group in groups],
            [view.job(task.id) for task in tasks],
            [view.job(10_000), view.attempt(10_000, 1)],
        ],
        "newest": [view.newest_seen(), view.newest_seen(stepped=True), view.newest_ready()],
        "named": [view.find_seen(row.name, row.index) for row in seen] + [view.find_seen("nothing")],
        "of seen": [view.groups_of(row.id) for row in seen],
        "of groups": [[view.group_jobs(group.id), view.unfinished_jobs(group.id)] for group in groups],
        "of suites": [
            [
                view.fresh_groups(name),
                view.last_queued_at(name),
                view.busy(name),
                view.best_group(name),
                view.partial_in_a_row(name),
                view.backlog(name),
            ]
            for name in names
        ],
        "open": view.open_groups(),
        "next": [view.next_eval_job(None), *(view.next_eval_job(row.id) for row in seen)],
        "of some rooms": [
            view.next_eval_job(holding, room) for room in ROOMS for holding in (None, *(row.id for row in seen))
        ],
        "time spent": view.time_spent(),
        "waiting": [view.waiting(), view.waiting(ROOMS[-1].resting)],
        "not before": view.next_not_before(),
        "held paths": view.held_paths(),
    }


def check(evaluator: Evaluator, reopened: frozenset[int]) -> None:
    """Assert what must hold of every study at any time."""
    with evaluator.look() as view:
        groups = view.groups()
        by_group: dict[int, list[EvalJob]] = {}
        for job in view.eval_jobs():
            by_group.setdefault(job.group, []).append(job)
        seen = {row.id: row for row in view.all_seen()}
        for group in groups:
            _check_group(view, group, by_group.get(group.id, []), seen, reopened)
        jobs: list[TrialRecord | EvalJob] = [*view.trials(), *view.eval_jobs()]
        states = {job.id: (job.state, job.token) for job in jobs}
        assert len(states) == len(jobs), "ids are shared by all kinds"
        running = [attempt.job for attempt in view.running()]
        assert len(running) == len(set(running))
        for attempt in view.running():
            assert states[attempt.job] == (JobState.RUNNING, attempt.token)
        assert sum(state is JobState.RUNNING for state, _ in states.values()) == len(running)
        assert sorted(row.number for row in seen.values()) == list(range(len(seen)))


def _check_group(
    view: Reader, group: Group, jobs: Sequence[EvalJob], seen: dict[int, Checkpoint], reopened: frozenset[int]
) -> None:
    unfinished = sum(job.state in (JobState.PENDING, JobState.RUNNING) for job in jobs)
    assert unfinished == view.unfinished_jobs(group.id)
    aggregations = [job for job in jobs if job.kind is JobKind.AGGREGATE]
    assert sum(job.ended_at is None for job in aggregations) <= 1
    if group.state is GroupState.QUEUED:
        # Something of it will still happen, so it ends.
        assert unfinished, group
        assert seen[group.seen].usable
        return
    assert not any(job.state is JobState.PENDING for job in jobs), group
    assert group.best <= (group.state is GroupState.COMPLETE)
    if group.state is GroupState.COMPLETE:
        completed = sum(job.state is JobState.COMPLETED for job in aggregations)
        assert completed == 1 or (group.id in reopened and completed > 1)
        # What was cancelled and is wanted again is another job.
        again = {(job.kind, job.identity, job.shard): job.id for job in jobs if job.state is JobState.COMPLETED}
        for job in jobs:
            if job.state is JobState.CANCELLED:
                assert again[job.kind, job.identity, job.shard] > job.id
                continue
            assert job.state is JobState.COMPLETED
            if job.kind is JobKind.EVALUATE:
                identity = seen[group.seen].identity
                found = view.ledger(identity, job.identity, job.replicate, job.shards)
                assert job.shard in {result.shard for result in found}


def check_fitness(evaluator: Evaluator) -> None:
    """Assert that only complete groups gave trials their fitness, and so whatever members show."""
    with evaluator.look() as view:
        fitness = {trial.id: trial.fitness for trial in view.trials()}
        shown = [scored for member in view.members() for scored in (member.head, member.published) if scored]
        complete = {group.trial for group in view.groups() if group.state is GroupState.COMPLETE}
    for trial, value in fitness.items():
        assert value is None or trial in complete
    for scored in shown:
        assert scored.fitness is None or scored.trial in complete


def population_rules(size: int, *, quorum: float = 0.0, remeasure: int = 0) -> TrainRules:
    """Return rules by which the suite `s` gives fitness."""
    strategy = PBT(
        population_size=size,
        steps_per_trial=STEPS,
        total_steps=6 * STEPS,
        exploit=Truncation(0.5),
        explore=Perturb(),
        quorum=quorum,
        fitness=FromSuite("s", "score", max_lag=1, remeasure=remeasure, max_partial=4),
    )
    return TrainRules(
        space=Space(rate=Float(0.0, 1.0)),
        objective=Maximize("score"),
        strategy=strategy,
        lease_s=LEASE_S,
        max_attempts=2,
        max_claims=5,
        keep_best=1,
        suites=suites(),
    )


POLICIES = (
    Policy(),
    Policy(latest=True),
    Policy(skip_if_busy=True, milestone_every=3),
    Policy(throttle_s=3.0, start_delay_s=2.0),
    Policy(every=2, latest=True, milestone_every=4, backfill=False),
)
SCORES = (0.0, 0.25, 1.0, math.nan, -math.inf)


class EvaluatesAlike(RuleBasedStateMachine):
    """Drives the evaluation of a study on a store and on its oracle; answers and records must stay the same.

    Its checkpoints come from a directory, from its own population, or from that of another study.

    Args:
        store: the one under test.
        oracle: the one that is right.
        clock: the clock of both.
        interrupts: whether to roll work back now and then, after which ids may be given again or not.
    """

    def __init__(self, store: Store, oracle: Store, clock: VirtualClock, *, interrupts: bool) -> None:
        super().__init__()
        self.store = store
        self.oracle = oracle
        self.clock = clock
        self.interrupts = interrupts
        self.claims: list[ClaimedEvaluation] = []
        self.trials: list[Claimed] = []
        self.reopened: frozenset[int] = frozenset()
        self.population: StudyRecord | None = None

    @initialize(
        kind=st.sampled_from(("directory", "directory", "watching", "async", "sync", "measuring")),
        policy=st.sampled_from(POLICIES),
        size=st.integers(1, 3),
    )
    def create(self, kind: str, policy: Policy, size: int) -> None:
        # What went before must not show in what is drawn.
        self.clock.now = 1_000_000.0
        name = f"study {len(self.oracle.studies())}"
        agreed: Rules = watching(suites(policy))
        if kind != "directory":
            measures, quorum = int(kind == "measuring"), float(kind == "sync")
            own = population_rules(size, quorum=quorum, remeasure=measures)
            if kind == "watching":
                # It has fitness without its evaluations, which nobody makes.
                own = replace(rules(pbt(size)), suites=suites(policy)[1:])
            else:
                agreed = own
            population: StudyRecord = self.both(lambda store: store.create_study(name, {}, 7, size))
            self.population = self.study = population
            self.controllers = [Controller(store, population.id, own) for store in (self.store, self.oracle)]
        if kind == "watching":
            self.study = self.both(
                lambda store: store.create_study(
                    f"{name}, watched", {"nan": math.nan}, kind=StudyKind.STUDY, source=population.id
                )
            )
        if kind == "directory":
            self.study = self.both(
                lambda store: store.create_study(name, {"nan": math.nan}, kind=StudyKind.DIRECTORY, location="/c")
            )
        self.here = Evaluator(self.store, self.study, agreed)
        self.there = Evaluator(self.oracle, self.study, agreed)

    def both(self, act: Callable[[Store], Any]) -> Any:
        return self._same(lambda: act(self.store), lambda: act(self.oracle))

    def asked(self, act: Callable[[Evaluator], Any]) -> Any:
        return self._same(lambda: act(self.here), lambda: act(self.there))

    def trained(self, act: Callable[[Controller], Any]) -> Any:
        return self._same(lambda: act(self.controllers[0]), lambda: act(self.controllers[1]))

    def recorded(self, act: Callable[[StudyRecords], Any]) -> Any:
        population = self.study.id
        return self.both(lambda store: act(StudyRecords(store, population)))

    def _same(self, here: Callable[[], Any], there: Callable[[], Any]) -> Any:
        mine, right = _outcome(here), _outcome(there)
        assert plain(mine) == plain(right)
        return right

    # Where checkpoints come from

    @precondition(lambda self: self.population is None)
    @rule(
        number=st.integers(0, 4),
        step=st.integers(-1, 9),
        identity=st.integers(0, 3),
        version=st.integers(0, 1),
        snapshot=st.booleans(),
        existed=st.booleans(),
        error=st.sampled_from((None, None, None, "half of it is missing")),
    )
    def observe(
        self, number: int, step: int, identity: int, version: int, snapshot: bool, existed: bool, error: str | None
    ) -> None:
        checkpoint = found(
            f"c{number}",
            step,
            index=number % 2,
            identity=f"{self.study.name}: {identity}",
            fingerprint=f"f{version}",
            path=f"/c{number}",
            snapshot=snapshot,
            error=error,
            written_at=self.clock() - 1.0 if not existed else 0.0,
        )
        self.asked(lambda evaluator: evaluator.observe(checkpoint, existed=existed))

    @precondition(lambda self: self.study.kind is StudyKind.STUDY)
    @rule(data=st.data(), existed=st.booleans())
    def observe_source(self, data: st.DataObject, existed: bool) -> None:
        with self._source(self.oracle) as view:
            rows = view.checkpoints()
        if rows:
            row = data.draw(st.sampled_from(rows))
            seen = found(row.name, row.step, identity=row.digest, trial=row.trial)
            self.asked(lambda evaluator: evaluator.observe(seen, existed=existed))

    def _source(self, store: Store) -> AbstractContextManager[Reader]:
        assert self.population is not None
        return store.reader(self.population.id)

    @precondition(lambda self: self.population is not None)
    @rule(worker=st.sampled_from(WORKERS))
    def train(self, worker: str) -> None:
        self.trials += self.trained(lambda controller: controller.claim(worker))[0]

    @precondition(lambda self: self.trials)
    @rule(data=st.data())
    def trained_to_the_end(self, data: st.DataObject) -> None:
        trial = self.trials.pop(data.draw(st.integers(0, len(self.trials) - 1)))
        self.trained(lambda controller: controller.complete([trained(trial)]))

    @precondition(lambda self: self.population is not None)
    @rule(worker=st.sampled_from(WORKERS), count=st.integers(1, 6), score=st.sampled_from(SCORES))
    def generation(self, worker: str, count: int, score: float) -> None:
        for _ in range(count):
            self.train(worker)
            if self.trials:
                trial = self.trials.pop()
                self.trained(partial(Controller.complete, completions=[trained(trial)]))
            else:
                self.work(worker, 6, score)

    @precondition(lambda self: self.population is not None)
    @rule(delete=st.booleans())
    def collect(self, delete: bool) -> None:
        kept = self.trained(lambda controller: controller.retention())
        marked = self.recorded(lambda records: records.mark_deleting(kept.collectable))
        if delete:
            self.recorded(lambda records: records.set_checkpoints(marked, CheckpointState.DELETED))

    @precondition(lambda self: self.population is not None)
    @rule()
    def resume(self) -> None:
        assert self.population is not None
        study = self.population.id
        self.both(lambda store: store.set_state(study, StudyState.RUNNING))

    # Workers

    @rule(worker=st.sampled_from(WORKERS), holding=st.none() | st.integers(1, 6))
    def claim(self, worker: str, holding: int | None) -> None:
        work = self.asked(lambda evaluator: evaluator.claim(worker, holding))
        if work is not None:
            self.claims.append(work)

    @precondition(lambda self: self.claims)
    @rule(
        data=st.data(),
        score=st.sampled_from(SCORES),
        best=st.booleans(),
        late=st.booleans(),
        event=st.booleans(),
    )
    def complete(self, data: st.DataObject, score: float, best: bool, late: bool, event: bool) -> None:
        work = data.draw(st.sampled_from(self.claims[-6:]))
        former = None if late else self._best(work)
        done = evaluated(work, score, best=best, former=former, event=event)
        self.asked(lambda evaluator: evaluator.complete(done))

    def _best(self, work: ClaimedEvaluation) -> int | None:
        with self.there.look() as view:
            best = view.best_group(work.group.suite)
        return None if best is None else best.id

    @rule(worker=st.sampled_from(WORKERS), count=st.integers(1, 8), score=st.sampled_from(SCORES))
    def evaluate(self, worker: str, count: int, score: float) -> None:
        self.work(worker, count, score)

    def work(self, worker: str, count: int, score: float) -> None:
        holding = None
        for _ in range(count):
            work = self.asked(partial(Evaluator.claim, worker=worker, holding=holding))
            if work is None:
                return
            holding = work.seen.id
            done = evaluated(work, score, best=score == 1.0, former=self._best(work))
            self.asked(partial(Evaluator.complete, done=done))

    @precondition(lambda self: self.claims)
    @rule(
        data=st.data(),
        retryable=st.booleans(),
        gone=st.sampled_from((False, False, True)),
        damage=st.sampled_from((None, "a byte differs")),
    )
    def fail(self, data: st.DataObject, retryable: bool, gone: bool, damage: str | None) -> None:
        work = data.draw(st.sampled_from(self.claims[-6:]))
        failure = Failure(
            job=work.job.id,
            token=work.job.token,
            error="it broke \u2603",
            retryable=retryable,
            gone=work.seen.name if gone else None,
            damage=damage if gone else None,
        )
        self.asked(lambda evaluator: evaluator.fail(failure))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(self.claims[-6:]))
        self.asked(lambda evaluator: evaluator.release(work))

    @rule(worker=st.sampled_from(WORKERS), count=st.integers(1, 6))
    def break_down(self, worker: str, count: int) -> None:
        """Fail whatever comes, for good."""
        for _ in range(count):
            work = self.asked(partial(Evaluator.claim, worker=worker))
            if work is not None:
                failure = Failure(job=work.job.id, token=work.job.token, error="no \u2603", retryable=False)
                self.asked(partial(Evaluator.fail, failure=failure))

    @rule(worker=st.sampled_from(WORKERS), counts=st.booleans())
    def lose(self, worker: str, counts: bool) -> None:
        self.asked(lambda evaluator: evaluator.lose(worker, counts=counts))

    @rule()
    def expire(self) -> None:
        self.asked(lambda evaluator: evaluator.expire())

    @rule(worker=st.sampled_from(WORKERS))
    def renew(self, worker: str) -> None:
        self.asked(lambda evaluator: evaluator.renew(worker))

    @rule(seconds=st.sampled_from((0.25, 2.5, LEASE_S, 2 * LEASE_S, -3 * LEASE_S)))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    # What people and the watching process do

    @rule(grow=st.booleans())
    def backfill(self, grow: bool) -> None:
        if grow and self.study.watched:
            self.here.rules = self.there.rules = watching(suites(grown=True))
        ended = self._ended()
        self.asked(lambda evaluator: evaluator.backfill())
        self._reopened(ended)

    def _ended(self) -> set[int]:
        with self.there.look() as view:
            return {group.id for group in view.groups() if group.state is not GroupState.QUEUED}

    def _reopened(self, ended: set[int]) -> None:
        self.reopened |= ended - self._ended()

    @precondition(lambda self: self.clock() % 1 < 0.5)
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        with self.there.look() as view:
            seen = [row.id for row in view.all_seen()]
        if seen:
            chosen = data.draw(st.sampled_from(seen))
            self.asked(lambda evaluator: evaluator.gone(chosen))

    @precondition(lambda self: self.clock() % 1 >= 0.5)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        with self.there.look() as view:
            groups = [group.id for group in view.groups()]
        if groups:
            chosen = data.draw(st.sampled_from(groups))
            self.asked(lambda evaluator: evaluator.cancel(chosen))

    @precondition(lambda self: self.study.watched and self.clock() % 2 < 0.5)
    @rule()
    def drain(self) -> None:
        ended = self._ended()
        self.asked(lambda evaluator: evaluator.drain())
        self._reopened(ended)

    @rule()
    def finish(self) -> None:
        self.asked(lambda evaluator: evaluator.finish())

    @precondition(lambda self: self.study.watched)
    @rule(number=st.integers(0, 3))
    def set_config(self, number: int) -> None:
        config, before = {"number": number}, self.study.config
        self.both(lambda store: StudyRecords(store, self.study.id).store_config(config, before))

    @precondition(lambda self: self.interrupts)
    @rule(worker=st.sampled_from(WORKERS))
    def interrupt(self, worker: str) -> None:
        """Do a little of everything and roll it back."""
        self.asked(lambda evaluator: _interrupted(evaluator, worker))

    @invariant()
    def same(self) -> None:
        if hasattr(self, "here"):
            assert ledger(self.here) == ledger(self.there)
            self.both(lambda store: store.studies())
            if self.population is not None and self.study is not self.population:
                of = self.population
                mine, right = (Evaluator(store, of, self.here.rules) for store in (self.store, self.oracle))
                assert ledger(mine) == ledger(right)

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "here"):
            check(self.there, self.reopened)
            if self.study is self.population:
                check_fitness(self.there)


class _Interruption(Exception):
    """Ends a transaction from inside."""


def _interrupted(evaluator: Evaluator, worker: str) -> None:
    with suppress(_Interruption), evaluator.transaction() as tx:
        for number in range(2):
            tx.apply(machine.observe(tx, evaluator.rules.suites, found(f"interrupted {number}")))
        try:
            work = evaluator.claim_in(tx, worker)
        except ParentGone:
            work = None
        if work is not None:
            _, commands = machine.complete_evaluation(tx, evaluator.rules, evaluated(work, event=True))
            evaluator.apply(tx, commands)
        tx.apply(machine.drain(tx, evaluator.rules.suites, "x"))
        tx.apply(machine.finish_watching(tx))
        raise _Interruption


def _outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except PhylaError as error:
        return error
