"""A study on a virtual clock: the real controller and store, with workers that only take their time."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from phyla.controller import Controller, StudyRecords
from phyla.evaluation.suite import suite_named
from phyla.machine import (
    Claimed,
    ClaimedEvaluation,
    Completion,
    Ended,
    Evaluated,
    Failure,
    Idle,
    RenewAttempts,
    Room,
    TrainRules,
)
from phyla.records import (
    Checkpoint,
    CheckpointState,
    EvalResult,
    JobKind,
    JsonObject,
    TrialRecord,
    WorkKind,
)
from phyla.store import open_store
from phyla.testing.conditions import Conditions, Fitness
from phyla.testing.outcome import EvaluationLag, SimulatedRun

HOUR = 3600.0
IN_VAIN = 10_000
"""After this many workers in a row leave without progress, the run counts as stuck."""


@dataclass(slots=True, eq=False)
class _Worker:
    """One slot for a worker: its process may be replaced (`life` counts them up), its place stays.

    Since `began` it loads for `load_s`, trains or evaluates for `busy_s`, and saves for `save_s`.
    """

    index: int
    kinds: frozenset[WorkKind]
    name: str = ""
    life: int = 0
    work: Claimed | ClaimedEvaluation | None = None
    began: float = 0.0
    load_s: float = 0.0
    busy_s: float = 0.0
    save_s: float = 0.0
    holding: int | None = None
    idle_since: float | None = None
    gone_since: float | None = None

    def steps_done(self, now: float) -> int:
        """Return the steps that its work has trained by now."""
        if not isinstance(self.work, Claimed) or not self.busy_s:
            return 0
        share = min(1.0, max(0.0, (now - self.began - self.load_s) / self.busy_s))
        return int(share * (self.work.trial.end_step - self.work.trial.start_step) + 1e-9)


@final
class Simulator:
    """Runs a study once, on a virtual clock that begins at 0.

    Everything is decided by the controller, on a store in memory. An idle worker asks again as soon as something
    changed, where a real one asks every 0.1 s. A living worker renews its lease; a crash is noticed when the lease
    has run out and another worker asks. `rng` is where durations, hazards and the noise of the fitness come from.
    """

    def __init__(
        self,
        rules: TrainRules,
        seed: int,
        conditions: Conditions,
        *,
        fitness: Fitness,
        rng: np.random.Generator,
    ) -> None:
        self.rules = rules
        self.now = 0.0
        self.store = open_store("memory://", clock=lambda: self.now)
        self.study = self.store.create_study("simulated", {}, seed, rules.strategy.population_size).id
        self.controller = Controller(self.store, self.study, rules)
        self._conditions = conditions
        self._fitness = fitness
        self._rng = rng
        # Failures of a member's next attempt do not depend on the order of other requests.
        self._failing = rng.spawn(rules.strategy.population_size)
        kinds = [conditions.kinds] * conditions.workers
        kinds += [frozenset({WorkKind.EVALUATE})] * conditions.evaluators
        self._workers = [_Worker(index, kind) for index, kind in enumerate(kinds)]
        self._parked: dict[frozenset[WorkKind], deque[_Worker]] = {kind: deque() for kind in kinds}
        self._refused: set[frozenset[WorkKind]] = set()
        # Time, number, the event and its worker, and the work or the life for which it was planned.
        self._events: list[tuple[float, int, Callable[[_Worker], None] | None, _Worker, object]] = []
        self._number = 0
        self._asks_at = math.inf
        self._ended: Ended | None = None
        self._idle: Idle | None = None
        self._collected_at = -math.inf
        self._since_collection = 0
        self._in_vain, self._cut_off = 0, False
        self._seconds = dict.fromkeys(("training", "evaluating", "moving", "waiting", "lost"), 0.0)
        self._steps = dict.fromkeys(("kept", "abandoned", "preempted", "failed"), 0)
        self._attempts = self._checkpoints = 0
        # Every worker has every label.
        self._room = Room(labels=tuple({task.label for suite in rules.suites for task in suite.tasks}))
        self._lags: dict[str, list[float]] = {suite.name: [] for suite in rules.suites}
        # By completed trial: whose weights it took, and its steps.
        self._trained: dict[int, tuple[int, int]] = {}

    def run(self) -> SimulatedRun:
        """Simulate to the end."""
        for worker in self._workers:
            self._start_process(worker)
        while self._events and self._ended is None and self._in_vain < IN_VAIN:
            self.now, _, happen, worker, meant = heapq.heappop(self._events)
            self._refused.clear()
            if happen is None:
                self._asks_at = math.inf
            elif meant is worker.work or meant == worker.life:
                happen(worker)
            else:
                # Planned for an earlier process or piece of work.
                continue
            self._ask_parked()
        return self._outcome()

    def _at(
        self,
        time: float,
        happen: Callable[[_Worker], None] | None = None,
        worker: _Worker | None = None,
        meant: object = None,
    ) -> None:
        """Schedule an event of a worker, or a plain request."""
        self._number += 1
        heapq.heappush(self._events, (time, self._number, happen, worker or self._workers[0], meant))

    # Asking for work

    def _ask(self, worker: _Worker, done: Sequence[Completion | Evaluated] = ()) -> None:
        """Submit a job, and claim the next."""
        _, claimed, rest = self.controller.complete(
            done, worker.name, 1, kinds=worker.kinds, holding=worker.holding, room=self._room
        )
        if claimed:
            self._end_waiting(worker)
            self._begin(worker, claimed[0])
        elif isinstance(rest, Ended):
            self._ended = rest
        else:
            if worker.idle_since is None:
                worker.idle_since = self.now
            self._parked[worker.kinds].append(worker)
            self._refused.add(worker.kinds)
            if isinstance(rest, Idle):
                self._idle = rest
                self._ask_later(rest.seconds)

    def _end_waiting(self, worker: _Worker) -> None:
        if worker.idle_since is not None:
            self._seconds["waiting"] += self.now - worker.idle_since
            worker.idle_since = None

    def _ask_parked(self) -> None:
        """Let idle workers ask until one of each kind gets nothing: the others would get nothing, too."""
        for kinds, parked in self._parked.items():
            while parked and self._ended is None and kinds not in self._refused:
                worker = parked.popleft()
                if worker.idle_since is not None:
                    self._ask(worker)

    def _ask_later(self, seconds: float | None) -> None:
        """Schedule a request for when waiting members, or eval tasks, are due."""
        due = math.inf if seconds is None else self.now + seconds
        if self.rules.suites:
            with self.store.reader(self.study) as reader:
                until = reader.next_not_before()
            due = due if until is None else min(due, until)
        if due < self._asks_at:
            # Without this, the clock would not advance.
            self._asks_at = max(due, math.nextafter(self.now, math.inf))
            self._at(self._asks_at)

    # Work begins

    def _start_process(self, worker: _Worker) -> None:
        if worker.gone_since is not None:
            self._seconds["lost"] += self.now - worker.gone_since
        worker.life += 1
        worker.name = f"simulated:{worker.index}:{worker.life}:0"
        worker.holding = worker.gone_since = None
        preempt, crash = self._conditions.preempt_per_hour, self._conditions.crash_per_hour
        for happen, per_hour in ((self._preempt, preempt), (self._crash, crash)):
            if per_hour:
                self._at(self.now + self._rng.exponential(HOUR / per_hour), happen, worker, worker.life)
        self._ask(worker)

    def _begin(self, worker: _Worker, work: Claimed | ClaimedEvaluation) -> None:
        conditions, rng = self._conditions, self._rng
        load_s = busy_s = save_s = 0.0
        fails_after_s = None
        if isinstance(work, Claimed):
            trial = work.trial
            self._attempts += 1
            busy_s = conditions.train_s(trial, rng)
            load_s = 0.0 if trial.parent is None else conditions.draw(conditions.load_s, rng)
            save_s = conditions.draw(conditions.save_s, rng) if trial.kind is JobKind.TRAIN else 0.0
            failing = self._failing[trial.member]
            fails_after_s = load_s + busy_s * failing.random() if failing.random() < conditions.fail else None
        elif work.job.kind is JobKind.EVALUATE:
            load_s, busy_s = conditions.evaluate_s(work.job, rng, loaded=worker.holding == work.seen.id)
            worker.holding = work.seen.id
        worker.work, worker.began = work, self.now
        worker.load_s, worker.busy_s, worker.save_s = load_s, busy_s, save_s
        seconds = load_s + busy_s + save_s if fails_after_s is None else fails_after_s
        self._at(self.now + seconds, self._complete if fails_after_s is None else self._fail, worker, work)
        if seconds >= self.rules.lease_s:
            # As if it renewed its lease until then; `_crash` knows the last renewal before a crash.
            self._lease_until(worker, self.now + seconds + self.rules.lease_s)

    def _lease_until(self, worker: _Worker, expires_at: float) -> None:
        with self.store.transaction(self.study, exclusive=False) as tx:
            tx.apply([RenewAttempts(worker.name, expires_at)])

    # Work ends

    def _complete(self, worker: _Worker) -> None:
        self._in_vain, self._cut_off = 0, False
        work = worker.work
        worker.work = None
        self._seconds["moving"] += worker.load_s + worker.save_s
        if isinstance(work, Claimed):
            self._seconds["training"] += worker.busy_s
            steps = work.trial.end_step - work.trial.start_step
            self._trained[work.trial.id] = (work.trial.parent or 0, steps)
            self._ask(worker, [self._completion(work.trial)])
            self._since_collection += 1
            self._collect()
        elif work is not None:
            self._seconds["evaluating"] += worker.busy_s
            if work.job.kind is JobKind.AGGREGATE:
                self._lags[work.group.suite].append(self.now - work.seen.written_at)
            self._ask(worker, [self._evaluate(work, worker)])

    def _completion(self, trial: TrialRecord) -> Completion:
        """Return the completion of a trained trial."""
        step, checkpoint = trial.end_step, None
        metrics = self.rules.reported_metrics
        values = {metric: (float(self._fitness(trial.params, step, self._rng)),) for metric in metrics}
        if trial.kind is JobKind.TRAIN:
            name = f"{trial.id}.{trial.token}"
            checkpoint = Checkpoint(
                name=name,
                study=trial.study,
                trial=trial.id,
                step=step,
                identity=name,
                size_bytes=0,
                created_at=self.now,
            )
        return Completion(
            trial=trial.id, token=trial.token, reached_step=step, values=values, metrics={}, checkpoint=checkpoint
        )

    def _evaluate(self, work: ClaimedEvaluation, worker: _Worker) -> Evaluated:
        """Return the result of an eval task or an aggregation."""
        job = work.job
        if job.kind is JobKind.AGGREGATE:
            return self._aggregate(work)
        result = EvalResult(
            identity=work.seen.identity,
            task_identity=job.identity,
            replicate=job.replicate,
            shard=job.shard,
            shards=job.shards,
            study=job.study,
            statistics={},
            duration_s=worker.busy_s,
            worker=worker.name,
            created_at=self.now,
        )
        return Evaluated(job=job.id, group=job.group, token=job.token, result=result)

    def _aggregate(self, work: ClaimedEvaluation) -> Evaluated:
        """Return an aggregation: the values of the objectives, and whether it is the best so far."""
        done = partial(Evaluated, job=work.job.id, group=work.job.group, token=work.job.token)
        suite, fitness = suite_named(self.rules.suites, work.group.suite), self.rules.suite_fitness
        names: set[str] = set() if suite.objective is None else {suite.objective.metric}
        if fitness is not None and fitness.suite == suite.name:
            names.update(self.rules.aggregates.values())
        if not names or work.seen.trial is None:
            return done(values={})
        with self.store.reader(self.study) as reader:
            value = float(self._fitness(reader.trial(work.seen.trial).params, work.seen.step, self._rng))
            former = reader.best_group(suite.name)
        values: JsonObject = {name: {"value": value, "stderr": None} for name in sorted(names)}
        if suite.objective is None:
            return done(values=values)
        if former is None:
            return done(values=values, best=True)
        before: Any = former.values[suite.objective.metric]
        better = suite.objective.order(value) > suite.objective.order(before["value"])
        return done(values=values, best=better, former=former.id)

    def _fail(self, worker: _Worker) -> None:
        work = worker.work
        assert isinstance(work, Claimed)
        self._steps["failed"] += worker.steps_done(self.now)
        self._drop(worker)
        self.controller.fail(Failure(job=work.trial.id, token=work.trial.token, error="simulated failure"))
        self._ask(worker)

    def _preempt(self, worker: _Worker) -> None:
        work = self._leave(worker)
        if work is not None:
            job = work.trial if isinstance(work, Claimed) else work.job
            self.controller.release(job.id, job.token)

    def _crash(self, worker: _Worker) -> None:
        if self._leave(worker) is not None:
            # Its lease has to run out.
            renews_s = self.rules.lease_s / 3
            renewed_at = worker.began + (self.now - worker.began) // renews_s * renews_s
            expires_at = renewed_at + self.rules.lease_s
            self._lease_until(worker, expires_at)
            # Requests check leases only at intervals.
            self._at(expires_at + min(1.0, self.rules.lease_s / 10))

    def _leave(self, worker: _Worker) -> Claimed | ClaimedEvaluation | None:
        """Remove a worker for a while; return its unfinished job."""
        work = worker.work
        if work is not None or all(other.work is None for other in self._workers):
            self._in_vain += 1
            self._cut_off = work is not None
        worker.life += 1
        worker.gone_since = self.now
        if worker.idle_since is not None:
            self._end_waiting(worker)
            self._parked[worker.kinds].remove(worker)
        if work is not None:
            self._steps["preempted"] += worker.steps_done(self.now)
            self._drop(worker)
        self._at(self.now + self._conditions.restart_s, self._start_process, worker, worker.life)
        return work

    def _drop(self, worker: _Worker) -> None:
        """Give up the work of a worker."""
        self._seconds["lost"] += self.now - worker.began
        worker.work = None

    def _collect(self, *, at_once: bool = False) -> None:
        """Collect checkpoints, if it is time to."""
        # A supervisor collects once a second; collecting more rarely saves time and keeps only a few more
        # checkpoints.
        every, soon = max(1, self.rules.strategy.population_size // 4), self.now - self._collected_at < 1.0
        if not at_once and (soon or self._since_collection < every):
            return
        self._collected_at, self._since_collection = self.now, 0
        retention = self.controller.retention()
        self._checkpoints = max(self._checkpoints, len(retention.kept) + len(retention.collectable))
        records = StudyRecords(self.store, self.study)
        marked = records.mark_deleting(retention.collectable)
        records.set_checkpoints(marked, CheckpointState.DELETED)

    def _outcome(self) -> SimulatedRun:
        for worker in self._workers:
            if worker.idle_since is not None:
                self._end_waiting(worker)
            elif worker.gone_since is not None:
                self._seconds["lost"] += self.now - worker.gone_since
            elif worker.work is not None:
                self._seconds["lost"] += self.now - worker.began
        self._collect(at_once=True)
        with self.store.reader(self.study) as reader:
            study = reader.study()
            counts = reader.counts()
            heads = [member.head for member in reader.members() if member.head]
            groups = [*reader.groups()]
        message = study.message
        if self._ended is None and self._cut_off:
            message = f"it makes no progress: {IN_VAIN} times in a row a worker left before its work was done"
        elif self._ended is None:
            message = "it stands still: " + (self._idle.why if self._idle else "no worker asks for work")
        orders = [(head.order, head.fitness) for head in heads if head.can_donate]
        trained = {steps for _, steps in self._trained.values()} - {0}
        self._steps["kept"] = self._count_kept_steps([head.trial for head in heads])
        self._steps["abandoned"] = sum(steps for _, steps in self._trained.values()) - self._steps["kept"]
        return SimulatedRun(
            state=study.state,
            message=message,
            wall_s=self.now,
            seconds=self._seconds,
            steps=self._steps,
            completed=counts.get("completed", 0),
            failed=counts.get("failed", 0),
            attempts=self._attempts,
            trial_steps=(min(trained, default=0), max(trained, default=0)),
            checkpoints=self._checkpoints,
            lag={name: EvaluationLag.of(lags, name, groups) for name, lags in self._lags.items()},
            best=max(orders, default=(0.0, math.nan), key=lambda pair: pair[0] or 0.0)[1] or math.nan,
        )

    def _count_kept_steps(self, heads: Sequence[int]) -> int:
        """Return how many steps are among the ancestors of these trials."""
        total, seen = 0, {0}
        for trial in heads:
            at = trial
            while at not in seen:
                seen.add(at)
                at, steps = self._trained[at]
                total += steps
        return total
