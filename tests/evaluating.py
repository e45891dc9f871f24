"""Evaluation driven on a store as a controller would, and a machine that drives two stores alike."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phyla import machine
from phyla.controller import Controller
from phyla.errors import PhylaError
from phyla.evaluation import EvalTask, Policy, Suite
from phyla.machine import (
    Claimed,
    ClaimedEvaluation,
    Completion,
    Evaluated,
    EvaluationFailed,
    Observed,
    ParentGone,
    Rules,
)
from phyla.records import (
    CheckpointState,
    EvalEvent,
    EvalResult,
    EvalTaskKind,
    GroupState,
    JsonObject,
    Maximize,
    RunKind,
    RunRecord,
    SeenState,
    StudyState,
    TrialState,
)
from phyla.space import Float, Space
from phyla.store import EvalReader, EvalTransaction, Store
from phyla.strategies import PBT, FromSuite, Perturb, Truncation
from storing import LEASE_S, STEPS, VirtualClock, completion, everything, plain

WORKERS = ("host:1:1", "host:2:1")
_T = TypeVar("_T")


def evaluate(_evaluation: Any) -> dict[str, float]:
    """Stands for an evaluation; never called here."""
    return {"score": 0.5}


def suites(policy: Policy | None = None, *, grown: bool = False) -> tuple[Suite, ...]:
    """Return two suites; grown, one of them has one more eval task and there is a third."""
    tasks = (EvalTask("a", evaluate, shards=2, max_attempts=2), EvalTask("b", evaluate, max_attempts=1))
    more = (EvalTask("c", evaluate),)
    small = Suite("small", (EvalTask("d", evaluate),), policy=policy or Policy())
    if not grown:
        return Suite("s", tasks, policy=policy or Policy()), small
    return Suite("s", tasks + more), small, Suite("u", more)


def found(name: str, step: int = 0, **more: Any) -> Observed:
    """Return a checkpoint that somebody found."""
    return Observed(**{"name": name, "step": step, "identity": f"id of {name}", "written_at": 0.0, **more})


def result(work: ClaimedEvaluation, *, duration_s: float = 1.0, score: float = 0.5) -> EvalResult:
    """Return what a worker found."""
    task = work.task
    return EvalResult(
        identity=work.seen.identity,
        task_identity=task.identity,
        replicate=task.replicate,
        shard=task.shard,
        shards=task.shards,
        run=task.run,
        statistics={"score": {"sum": score, "$float": math.nan}},
        files={"histogram": f"{task.id}.npy"},
        source="digest",
        duration_s=duration_s,
        load_s=0.25,
        worker=task.worker or "",
        created_at=0.0,
    )


def evaluated(
    work: ClaimedEvaluation, score: float = 0.5, *, best: bool = False, event: bool = False
) -> Evaluated:
    """Return what a worker says once it is done."""
    task = work.task
    values: JsonObject | None = None
    events: Sequence[EvalEvent] = ()
    entry = None
    if task.kind is EvalTaskKind.AGGREGATE:
        number = score if math.isfinite(score) else str(score)
        values = {"score": {"value": number, "stderr": 0.25}, "other": {"value": 1.0, "stderr": None}}
        if event:
            found_out = EvalEvent(
                run=task.run,
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
        task=task.id, group=task.group, token=task.token, result=entry, values=values, best=best, events=events
    )


@dataclass
class Evaluator:
    """Orders what the machine says into transactions on one run, as a controller does."""

    store: Store
    run: RunRecord
    suites: tuple[Suite, ...]
    rules: Rules | None = None
    exclusive: bool = True

    def _do(self, act: Callable[[EvalTransaction], _T]) -> _T:
        with self.store.evaluating(self.run, exclusive=self.exclusive) as tx:
            return act(tx)

    def observe(self, *checkpoints: Observed) -> None:
        def act(tx: EvalTransaction) -> None:
            for checkpoint in checkpoints:
                tx.apply(machine.observe(tx, self.suites, checkpoint))

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
        tx: EvalTransaction,
        worker: str = WORKERS[0],
        holding: int | None = None,
        lost: frozenset[str] = frozenset(),
    ) -> ClaimedEvaluation | None:
        while True:
            work, commands = machine.claim_evaluation(tx, worker, LEASE_S, holding=holding, lost=lost)
            tx.apply(commands)
            if work is not None or not commands:
                return work

    def settle(self, tx: EvalTransaction, groups: Sequence[int]) -> None:
        for group in groups:
            tx.apply(machine.settle_group(tx, self.rules, group))

    def complete(self, done: Evaluated) -> bool:
        def act(tx: EvalTransaction) -> bool:
            repeated, commands = machine.complete_evaluation(tx, self.rules, done)
            tx.apply(commands)
            self.settle(tx, [done.group])
            return repeated

        return self._do(act)

    def fail(self, failure: EvaluationFailed) -> None:
        def act(tx: EvalTransaction) -> None:
            tx.apply(machine.fail_evaluation(tx, failure))
            self.settle(tx, [failure.group])

        self._do(act)

    def release(self, work: ClaimedEvaluation) -> None:
        self._do(lambda tx: tx.apply(machine.release_evaluation(tx, work.task.id, work.task.token)))

    def lose(self, worker: str, *, counts: bool) -> int:
        return self._do(lambda tx: self._lose(tx, tx.running_evaluations(worker), counts=counts))

    def expire(self) -> int:
        return self._do(lambda tx: self._lose(tx, tx.expired_evaluations(3), counts=False))

    def _lose(self, tx: EvalTransaction, attempts: Sequence[Any], *, counts: bool) -> int:
        groups = machine.groups_of_attempts(tx, attempts)
        for attempt in attempts:
            tx.apply(machine.lose_evaluation(tx, attempt.task, attempt.token, "gone \u2603", counts=counts))
        self.settle(tx, groups)
        return len(attempts)

    def renew(self, worker: str) -> None:
        self._do(lambda tx: tx.apply([machine.RenewEvalAttempts(worker, tx.now() + LEASE_S)]))

    def backfill(self) -> None:
        def act(tx: EvalTransaction) -> None:
            for seen in tx.all_seen():
                tx.apply(machine.backfill(tx, self.suites, seen))

        self._do(act)

    def gone(self, seen: int) -> None:
        def act(tx: EvalTransaction) -> None:
            row = tx.seen(seen)
            if row.state is SeenState.READY:
                tx.apply(machine.gone(tx, row, "it vanished"))
                self.settle(tx, [])

        self._do(act)

    def cancel(self, group: int) -> None:
        def act(tx: EvalTransaction) -> None:
            tx.apply(machine.cancel_group(tx, group, "a person said so"))
            self.settle(tx, [])

        self._do(act)

    def drain(self) -> None:
        self._do(lambda tx: tx.apply(machine.drain(tx, self.suites, "no more come")))

    def finish(self) -> None:
        self._do(lambda tx: tx.apply(machine.finish_run(tx)))

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
    return replace(done, checkpoint=replace(done.checkpoint, digest=digest))


def ledger(store: Store, run: RunRecord, of: Sequence[Suite]) -> Any:
    """Return everything that can be read about a run."""
    with store.evaluations(run) as view:
        return plain(_ledger(view, of))


def _ledger(view: EvalReader, of: Sequence[Suite]) -> dict[str, Any]:
    seen, groups, tasks = view.all_seen(), view.groups(), view.eval_tasks()
    keys = sorted(
        {(row.identity, task.identity, task.replicate, task.shards) for row in seen for task in tasks if task.task}
    )
    names = [suite.name for suite in of]
    hows = sorted({task.identity for task in tasks})
    return {
        "run": view.run(),
        "now": view.now(),
        "seen": seen,
        "groups": groups,
        "tasks": tasks,
        "events": [view.events(), view.events(after=2)],
        "attempts": [view.eval_attempts(task.id) for task in tasks],
        "newest attempts": [view.eval_attempt(task.id, task.token) for task in tasks],
        "results": [view.results(*key) for key in keys],
        "shards": [view.shards_done(*key) for key in keys],
        "durations": [view.mean_duration_s(how) for how in hows],
        "pages": [
            view.all_seen(after=1, limit=2),
            view.groups(after=1, limit=2),
            view.eval_tasks(after=1, limit=2),
            [view.groups(suite=name) for name in names],
            [view.groups(suite=name, after=1, limit=1) for name in names],
        ],
        "single": [
            [view.seen(row.id) for row in seen],
            [view.group(group.id) for group in groups],
            [view.locked_group(group.id) for group in groups],
            [view.locked_eval_task(task.id) for task in tasks],
            [view.locked_group(10_000), view.locked_eval_task(10_000), view.eval_attempt(10_000, 1)],
        ],
        "newest": [view.newest_seen(), view.newest_ready()],
        "named": [view.find_seen(row.name, row.index) for row in seen] + [view.find_seen("nothing")],
        "of seen": [
            [view.groups_of(row.id), view.find_group(row.id, "s"), view.find_group(row.id, "s", 1)] for row in seen
        ],
        "of groups": [[view.group_tasks(group.id), view.unfinished_tasks(group.id)] for group in groups],
        "of suites": [
            [
                view.fresh_groups(name),
                view.last_queued_at(name),
                view.busy(name),
                view.best_group(name),
                view.partial_in_a_row(name),
            ]
            for name in names
        ],
        "open": view.open_groups(),
        "next": [view.next_eval_task(None), *(view.next_eval_task(row.id) for row in seen)],
        "not before": view.next_not_before(),
        "running": [view.running_evaluations(), *(view.running_evaluations(worker) for worker in WORKERS)],
        "expired": view.expired_evaluations(2),
        "claimed ahead": view.claimed_ahead(view.now()),
        "held": view.held_paths(),
    }


def of_study(store: Store, study: int) -> list[Any]:
    """Return what a study can be asked about the evaluation of its checkpoints, and everything else."""
    with store.reader(study) as view:
        own = view.evaluation()
        asked = {
            "own": None if own is None else own.run(),
            "awaited": view.awaited_groups(),
        }
    return [everything(store, study), plain(asked)]


def check(store: Store, run: RunRecord, reopened: frozenset[int]) -> None:
    """Assert what must hold of every run at any time."""
    with store.evaluations(run) as view:
        groups = view.groups()
        by_group: dict[int, list[Any]] = {}
        for task in view.eval_tasks():
            by_group.setdefault(task.group, []).append(task)
        seen = {row.id: row for row in view.all_seen()}
        for group in groups:
            tasks = by_group.get(group.id, [])
            _check_group(view, group, tasks, seen, reopened)
        running = [attempt.task for attempt in view.running_evaluations()]
        assert len(running) == len(set(running))
        states = {task.id: (task.state, task.token) for tasks in by_group.values() for task in tasks}
        for attempt in view.running_evaluations():
            assert states[attempt.task] == (TrialState.RUNNING, attempt.token)
        assert sum(state is TrialState.RUNNING for state, _ in states.values()) == len(running)
        assert sorted(row.number for row in seen.values()) == list(range(len(seen)))


def _check_group(
    view: EvalReader, group: Any, tasks: list[Any], seen: dict[int, Any], reopened: frozenset[int]
) -> None:
    unfinished = sum(task.state in (TrialState.PENDING, TrialState.RUNNING) for task in tasks)
    assert unfinished == view.unfinished_tasks(group.id)
    aggregations = [task for task in tasks if task.kind is EvalTaskKind.AGGREGATE]
    assert sum(task.ended_at is None for task in aggregations) <= 1
    if group.state is GroupState.QUEUED:
        # Something of it will still happen, so it ends.
        assert unfinished, group
        assert seen[group.seen].state is SeenState.READY
        return
    assert not any(task.state is TrialState.PENDING for task in tasks), group
    assert group.best <= (group.state is GroupState.COMPLETE)
    if group.state is GroupState.COMPLETE:
        completed = sum(task.state is TrialState.COMPLETED for task in aggregations)
        assert completed == 1 or (group.id in reopened and completed > 1)
        for task in tasks:
            assert task.state is TrialState.COMPLETED
            if task.kind is EvalTaskKind.EVALUATE:
                identity = seen[group.seen].identity
                done = view.shards_done(identity, task.identity, task.replicate, task.shards)
                assert task.shard in done


def check_fitness(store: Store, study: int) -> None:
    """Assert that only complete groups gave trials their fitness, and so whatever members show."""
    with store.reader(study) as view:
        own = view.evaluation()
        assert own is not None
        run = own.run()
        fitness = {trial.id: trial.fitness for trial in view.trials()}
        shown = [scored for member in view.members() for scored in (member.head, member.published) if scored]
    with store.evaluations(run) as view:
        complete = {group.trial for group in view.groups() if group.state is GroupState.COMPLETE}
    for trial, value in fitness.items():
        assert value is None or trial in complete
    for scored in shown:
        assert scored.fitness is None or scored.trial in complete


def population_rules(size: int, *, quorum: float = 0.0, remeasure: int = 0) -> Rules:
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
    return Rules(
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
    """Drives the evaluation of a run on a store and on its oracle; answers and records must stay the same.

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
        self.study: int | None = None

    @initialize(
        kind=st.sampled_from(("directory", "directory", "async", "sync", "measuring")),
        policy=st.sampled_from(POLICIES),
        size=st.integers(1, 3),
    )
    def create(self, kind: str, policy: Policy, size: int) -> None:
        # What went before must not show in what is drawn.
        self.clock.now = 1_000_000.0
        name = f"run {len(self.oracle.runs())}"
        agreed, offered = None, suites(policy)
        if kind != "directory":
            agreed = population_rules(
                size, quorum=1.0 if kind == "sync" else 0.0, remeasure=1 if kind == "measuring" else 0
            )
            offered = agreed.suites
            self.both(lambda store: store.create_study(name, {}, 7, size))
            study = self.oracle.find_study(name)
            assert study is not None
            self.study = study.id
            self.controllers = [Controller(store, study.id, agreed) for store in (self.store, self.oracle)]
        of = RunKind.DIRECTORY if agreed is None else RunKind.STUDY
        self.run = self.both(lambda store: store.create_run(name, of, {"nan": math.nan}, study=self.study))
        self.here = Evaluator(self.store, self.run, offered, agreed)
        self.there = Evaluator(self.oracle, self.run, offered, agreed)

    def both(self, act: Callable[[Store], Any]) -> Any:
        return self._same(lambda: act(self.store), lambda: act(self.oracle))

    def asked(self, act: Callable[[Evaluator], Any]) -> Any:
        return self._same(lambda: act(self.here), lambda: act(self.there))

    def trained(self, act: Callable[[Controller], Any]) -> Any:
        return self._same(lambda: act(self.controllers[0]), lambda: act(self.controllers[1]))

    def _same(self, here: Callable[[], Any], there: Callable[[], Any]) -> Any:
        mine, right = _outcome(here), _outcome(there)
        assert plain(mine) == plain(right)
        return right

    # Where checkpoints come from

    @precondition(lambda self: self.study is None)
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
            identity=f"{self.run.name}: {identity}",
            fingerprint=f"f{version}",
            path=f"/c{number}",
            snapshot=snapshot,
            existed=existed,
            error=error,
            written_at=self.clock() - 1.0,
        )
        self.asked(lambda evaluator: evaluator.observe(checkpoint))

    @precondition(lambda self: self.study is not None)
    @rule(worker=st.sampled_from(WORKERS))
    def train(self, worker: str) -> None:
        self.trials += self.trained(lambda controller: controller.claim(worker))[0]

    @precondition(lambda self: self.trials)
    @rule(data=st.data())
    def trained_to_the_end(self, data: st.DataObject) -> None:
        trial = self.trials.pop(data.draw(st.integers(0, len(self.trials) - 1)))
        self.trained(lambda controller: controller.complete([trained(trial)]))

    @precondition(lambda self: self.study is not None)
    @rule(worker=st.sampled_from(WORKERS), count=st.integers(1, 6), score=st.sampled_from(SCORES))
    def generation(self, worker: str, count: int, score: float) -> None:
        for _ in range(count):
            self.train(worker)
            if self.trials:
                trial = self.trials.pop()
                self.trained(partial(Controller.complete, completions=[trained(trial)]))
            else:
                self.work(worker, 6, score)

    @precondition(lambda self: self.study is not None)
    @rule(delete=st.booleans())
    def collect(self, delete: bool) -> None:
        kept = self.trained(lambda controller: controller.retention())
        marked = self.trained(lambda controller: controller.mark_deleting(kept.collectable))
        if delete:
            self.trained(lambda controller: controller.set_checkpoints(marked, CheckpointState.DELETED))

    @precondition(lambda self: self.study is not None)
    @rule()
    def resume(self) -> None:
        study = self.study
        assert study is not None
        self.both(lambda store: store.set_state(study, StudyState.RUNNING))

    # Workers

    @rule(worker=st.sampled_from(WORKERS), holding=st.none() | st.integers(1, 6))
    def claim(self, worker: str, holding: int | None) -> None:
        work = self.asked(lambda evaluator: evaluator.claim(worker, holding))
        if work is not None:
            self.claims.append(work)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), score=st.sampled_from(SCORES), best=st.booleans(), event=st.booleans())
    def complete(self, data: st.DataObject, score: float, best: bool, event: bool) -> None:
        work = data.draw(st.sampled_from(self.claims[-6:]))
        done = evaluated(work, score, best=best, event=event)
        self.asked(lambda evaluator: evaluator.complete(done))

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
            self.asked(partial(Evaluator.complete, done=evaluated(work, score, best=score == 1.0)))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), retryable=st.booleans(), gone=st.sampled_from((False, False, True)))
    def fail(self, data: st.DataObject, retryable: bool, gone: bool) -> None:
        task = data.draw(st.sampled_from(self.claims[-6:])).task
        failure = EvaluationFailed(
            task=task.id,
            group=task.group,
            token=task.token,
            error="it broke \u2603",
            retryable=retryable,
            gone=gone,
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
                task = work.task
                failure = EvaluationFailed(
                    task=task.id, group=task.group, token=task.token, error="no \u2603", retryable=False
                )
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

    @rule(seconds=st.sampled_from((0.25, 2.5, LEASE_S, 2 * LEASE_S)))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    # What people and the watching process do

    @rule(grow=st.booleans())
    def backfill(self, grow: bool) -> None:
        if grow and self.study is None:
            self.here.suites = self.there.suites = suites(grown=True)
        with self.oracle.evaluations(self.run) as view:
            ended = {group.id for group in view.groups() if group.state is not GroupState.QUEUED}
        self.asked(lambda evaluator: evaluator.backfill())
        self._reopened(ended)

    def _reopened(self, ended: set[int]) -> None:
        with self.oracle.evaluations(self.run) as view:
            self.reopened |= {group.id for group in view.groups() if group.id in ended and group.ended_at is None}

    @precondition(lambda self: self.clock() % 1 < 0.5)
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        with self.oracle.evaluations(self.run) as view:
            seen = [row.id for row in view.all_seen()]
        if seen:
            chosen = data.draw(st.sampled_from(seen))
            self.asked(lambda evaluator: evaluator.gone(chosen))

    @precondition(lambda self: self.clock() % 1 >= 0.5)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        with self.oracle.evaluations(self.run) as view:
            groups = [group.id for group in view.groups()]
        if groups:
            chosen = data.draw(st.sampled_from(groups))
            self.asked(lambda evaluator: evaluator.cancel(chosen))

    @precondition(lambda self: self.clock() % 2 < 0.5)
    @rule()
    def drain(self) -> None:
        with self.oracle.evaluations(self.run) as view:
            ended = {group.id for group in view.groups() if group.state is not GroupState.QUEUED}
        self.asked(lambda evaluator: evaluator.drain())
        self._reopened(ended)

    @rule()
    def finish(self) -> None:
        self.asked(lambda evaluator: evaluator.finish())

    @rule(number=st.integers(0, 3))
    def set_config(self, number: int) -> None:
        self.both(lambda store: store.set_run_config(self.run.id, {"number": number}))

    @precondition(lambda self: self.interrupts)
    @rule(worker=st.sampled_from(WORKERS))
    def interrupt(self, worker: str) -> None:
        """Do a little of everything and roll it back."""
        self.asked(lambda evaluator: _interrupted(evaluator, worker))

    @invariant()
    def same(self) -> None:
        if hasattr(self, "here"):
            offered = suites(grown=True)
            assert ledger(self.store, self.run, offered) == ledger(self.oracle, self.run, offered)
            assert self.both(lambda store: store.find_run(self.run.name)) is not None
            if self.study is not None:
                assert of_study(self.store, self.study) == of_study(self.oracle, self.study)

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "here"):
            check(self.oracle, self.run, self.reopened)
            if self.study is not None:
                check_fitness(self.oracle, self.study)


class _Interruption(Exception):
    """Ends a transaction from inside."""


def _interrupted(evaluator: Evaluator, worker: str) -> None:
    with suppress(_Interruption), evaluator.store.evaluating(evaluator.run) as tx:
        for number in range(2):
            tx.apply(machine.observe(tx, evaluator.suites, found(f"interrupted {number}")))
        try:
            work = evaluator.claim_in(tx, worker)
        except ParentGone:
            work = None
        if work is not None:
            _, commands = machine.complete_evaluation(tx, evaluator.rules, evaluated(work, event=True))
            tx.apply(commands)
            tx.apply(machine.settle_group(tx, evaluator.rules, work.group.id))
        tx.apply(machine.drain(tx, evaluator.suites, "x"))
        tx.apply(machine.finish_run(tx))
        raise _Interruption


def _outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except PhylaError as error:
        return error
