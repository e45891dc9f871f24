"""A study on a virtual clock: the real controller and store, with workers that only take their time."""

import gc
import heapq
import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from phyla.controller import Controller
from phyla.errors import ConfigurationError, LeaseLost
from phyla.evaluation import suite_named
from phyla.machine import (
    Claimed,
    ClaimedEvaluation,
    Completion,
    Ended,
    Evaluated,
    Failure,
    Idle,
    RenewAttempts,
    RenewEvalAttempts,
    Rules,
)
from phyla.records import (
    Checkpoint,
    CheckpointState,
    EvalResult,
    EvalTaskKind,
    GroupState,
    JsonObject,
    RunKind,
    StudyState,
    TrialKind,
    TrialRecord,
    TrialState,
    WorkKind,
)
from phyla.simulation.curve import Fitness
from phyla.simulation.durations import Draws, Durations, Hazards
from phyla.simulation.invariants import Invariants, MachineDefect
from phyla.simulation.outcome import EvaluationLag, SimulatedRun, Steps, WorkerSeconds
from phyla.simulation.workers import SimulatedWorker
from phyla.store import MemoryStore

BOTH = frozenset({WorkKind.TRAIN, WorkKind.EVALUATE})
HOUR = 3600.0
PORTION = 200
"""Events after which what came since is hidden from the cyclic garbage collector until the end."""
LOOK_AT_EVERY = 10
"""Of so many portions the collector looks at one; at each while it finds garbage."""

_DONE, _FAIL, _PREEMPT, _CRASH, _BACK, _ASK = range(6)
_OF_WORK = (_DONE, _FAIL)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who works.

    Args:
        workers: workers that do `kinds`.
        evaluators: further workers that only evaluate.
        kinds: what the workers do.

    Raises:
        ConfigurationError: nobody trains.
    """

    workers: int
    evaluators: int = 0
    kinds: frozenset[WorkKind] = BOTH

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("evaluators", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigurationError(f"{name}={value!r}: must be an integer of at least {least}")
        if WorkKind.TRAIN not in self.kinds:
            raise ConfigurationError("kinds: somebody has to train")


@final
class Simulator:
    """Runs a study once, on a virtual clock that begins at 0.

    Everything is decided by the controller, on a store in memory. An idle worker asks again as soon as something
    changed, where a real one asks every 0.1 s. A worker that is alive renews its lease; who crashed is found out
    when its lease has run out and somebody asks.

    Args:
        rules: what the study's decisions go by.
        seed: the study's.
        crew: who works.
        durations: how long things take.
        hazards: how often they go wrong.
        fitness: what is measured.
        rng: where durations, hazards and the noise of the fitness come from.
        collect_every: completed trials between two collections of checkpoints; None collects at most once a
            second, as a supervisor of workers does.
    """

    def __init__(
        self,
        rules: Rules,
        seed: int,
        *,
        crew: Crew,
        durations: Durations,
        hazards: Hazards,
        fitness: Fitness,
        rng: np.random.Generator,
        collect_every: int | None = None,
    ) -> None:
        self.rules = rules
        self.now = 0.0
        self.store = MemoryStore(lambda: self.now)
        self.study = self.store.create_study("simulated", {}, seed, rules.strategy.population_size).id
        if rules.suites:
            self.store.create_run("simulated", RunKind.STUDY, {}, study=self.study)
        self.controller = Controller(self.store, self.study, rules)
        self._durations = durations
        self._hazards = hazards
        self._fitness = fitness
        self._draws = Draws(rng)
        self._collect_every = collect_every
        self._invariants = Invariants(rules, self._state_of)
        evaluate = frozenset({WorkKind.EVALUATE})
        kinds = [crew.kinds] * crew.workers + [evaluate] * crew.evaluators
        self._workers = [SimulatedWorker(index, kind) for index, kind in enumerate(kinds)]
        self._parked: dict[frozenset[WorkKind], deque[SimulatedWorker]] = {kind: deque() for kind in kinds}
        self._refused: set[frozenset[WorkKind]] = set()
        self._events: list[tuple[float, int, int, int, int]] = []
        self._number = 0
        self._asks_at = math.inf
        self._ended: Ended | None = None
        self._idle: Idle | None = None
        self._collected_at = -math.inf
        self._since_collection = 0
        self._alive = 0
        self._seconds = dict.fromkeys(("training", "evaluating", "moving", "waiting", "lost"), 0.0)
        self._wasted = {"preempted": 0, "failed": 0}
        self._attempts = 0
        # By trial: whose weights it took, and the steps it completed. Ids count up from 1.
        self._parents = array("q", [0])
        self._steps = array("q", [0])
        self._lags: dict[str, list[float]] = {suite.name: [] for suite in rules.suites}

    def run(self) -> SimulatedRun:
        """Simulate to the end.

        Raises:
            MachineDefect: something happened that never may.
        """
        for worker in self._workers:
            self._start_process(worker)
            self._ask(worker)
        # Records live to the end, in millions: the cyclic collector need not look at them again and again.
        collects = gc.isenabled()
        portions, garbage = 0, True
        gc.disable()
        try:
            while self._events and self._ended is None:
                self.step()
                if self._number >= (portions + 1) * PORTION:
                    portions += 1
                    if garbage or portions % LOOK_AT_EVERY == 0:
                        garbage = gc.collect(0) > 0
                    gc.freeze()
            return self._outcome()
        finally:
            gc.unfreeze()
            if collects:
                gc.enable()

    def step(self) -> None:
        """Let the next thing happen."""
        self.now, _, kind, index, mark = heapq.heappop(self._events)
        self._refused.clear()
        if kind == _ASK:
            self._asks_at = math.inf
        else:
            worker = self._workers[index]
            if mark != (worker.mark if kind in _OF_WORK else worker.life):
                return
            if kind == _DONE:
                self._complete(worker)
            elif kind == _FAIL:
                self._fail(worker)
            elif kind == _BACK:
                self._start_process(worker)
                self._ask(worker)
            else:
                self._leave(worker, told=kind == _PREEMPT)
        self._ask_parked()

    def _at(self, time: float, kind: int, worker: int, mark: int) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, kind, worker, mark))

    # Asking for work

    def _ask(self, worker: SimulatedWorker, done: Sequence[Completion | Evaluated] = ()) -> bool:
        """Hand in and claim; return whether there was work."""
        answers, claimed, rest = self.controller.complete(
            done, worker.name, 1, kinds=worker.kinds, holding=worker.holding
        )
        for answer in answers:
            if isinstance(answer, LeaseLost) and isinstance(done[0], Completion):
                raise MachineDefect(f"a worker that renewed its lease lost it: {answer}")
        if claimed:
            if worker.idle_since is not None:
                self._seconds["waiting"] += self.now - worker.idle_since
                worker.idle_since = None
            if isinstance(claimed[0], Claimed):
                self._start_trial(worker, claimed[0])
            else:
                self._start_evaluation(worker, claimed[0])
            return True
        if isinstance(rest, Ended):
            self._ended = rest
            return False
        if worker.idle_since is None:
            worker.idle_since = self.now
        kinds = worker.kinds
        self._parked[kinds].append(worker)
        self._refused.add(kinds)
        if isinstance(rest, Idle):
            self._idle = rest
            self._ask_later(rest.seconds)
        return False

    def _ask_parked(self) -> None:
        """Let idle workers ask, until one of each kind is refused: the others would be, too."""
        for kinds, parked in self._parked.items():
            while parked and self._ended is None and kinds not in self._refused:
                worker = parked.popleft()
                if worker.idle_since is not None:
                    self._ask(worker)

    def _ask_later(self, seconds: float | None) -> None:
        """Make sure that somebody asks when waiting members, or eval tasks, are due."""
        due = math.inf if seconds is None else self.now + seconds
        if self.rules.suites:
            with self.store.transaction(self.study, exclusive=False) as tx:
                evaluation = tx.evaluation()
                until = None if evaluation is None else evaluation.next_not_before()
            due = due if until is None else min(due, until)
        if due < self._asks_at:
            # A clock that is not moved on would stand still.
            self._asks_at = max(due, math.nextafter(self.now, math.inf))
            self._at(self._asks_at, _ASK, -1, 0)

    # Work begins

    def _start_process(self, worker: SimulatedWorker) -> None:
        if worker.gone_since is not None:
            self._seconds["lost"] += self.now - worker.gone_since
        worker.start_process()
        for kind, per_hour in (
            (_PREEMPT, self._hazards.preempt_per_hour),
            (_CRASH, self._hazards.crash_per_hour),
        ):
            if per_hour:
                self._at(self.now + HOUR * self._draws.hours_until(per_hour), kind, worker.index, worker.life)

    def _start_trial(self, worker: SimulatedWorker, work: Claimed) -> None:
        trial = work.trial
        self._invariants.claimed(trial)
        self._attempts += 1
        load_s, train_s, save_s = 0.0, self._durations.train_s(trial, self._draws), 0.0
        if trial.parent is not None and self._durations.load_s:
            load_s = self._durations.load_s * self._durations.factor(self._draws)
        if trial.kind is TrialKind.TRAIN and self._durations.save_s:
            save_s = self._durations.save_s * self._durations.factor(self._draws)
        self._start(worker, work, load_s, train_s, save_s)
        fails = self._hazards.fail > 0 and next(self._draws.uniforms) < self._hazards.fail
        if fails:
            self._plan(worker, _FAIL, load_s + train_s * next(self._draws.uniforms))
        else:
            self._plan(worker, _DONE, load_s + train_s + save_s)

    def _start_evaluation(self, worker: SimulatedWorker, work: ClaimedEvaluation) -> None:
        load_s, eval_s = 0.0, 0.0
        if work.task.kind is EvalTaskKind.EVALUATE:
            loaded = worker.holding == work.seen.id
            load_s, eval_s = self._durations.evaluate_s(work.task, self._draws, loaded=loaded)
            worker.holding = work.seen.id
        self._start(worker, work, load_s, eval_s, 0.0)
        self._plan(worker, _DONE, load_s + eval_s)

    def _start(
        self,
        worker: SimulatedWorker,
        work: Claimed | ClaimedEvaluation,
        load_s: float,
        busy_s: float,
        save_s: float,
    ) -> None:
        worker.mark += 1
        worker.work = work
        worker.began = self.now
        worker.load_s, worker.busy_s, worker.save_s = load_s, busy_s, save_s

    def _plan(self, worker: SimulatedWorker, kind: int, seconds: float) -> None:
        self._at(self.now + seconds, kind, worker.index, worker.mark)
        if seconds >= self.rules.lease_s:
            # As if it renewed its lease until then; should it crash before, `_leave` says when it did last.
            self._lease_until(worker, self.now + seconds + self.rules.lease_s)

    def _lease_until(self, worker: SimulatedWorker, expires_at: float) -> None:
        with self.store.transaction(self.study, exclusive=False) as tx:
            tx.apply([RenewAttempts(worker.name, expires_at)])
            if self.rules.suites:
                tx.apply([RenewEvalAttempts(worker.name, expires_at)])

    # Work ends

    def _complete(self, worker: SimulatedWorker) -> None:
        work = worker.work
        worker.work = None
        self._seconds["moving"] += worker.load_s + worker.save_s
        if isinstance(work, Claimed):
            self._seconds["training"] += worker.busy_s
            self._completed(work.trial)
            self._ask(worker, [self._completion(work.trial)])
            self._since_collection += 1
            self._collect()
        else:
            assert work is not None
            self._seconds["evaluating"] += worker.busy_s
            self._ask(worker, [self._evaluated(worker, work)])

    def _completed(self, trial: TrialRecord) -> None:
        steps = trial.end_step - trial.start_step
        self._invariants.completed(trial, steps)
        missing = trial.id + 1 - len(self._steps)
        if missing > 0:
            self._parents.extend([0] * missing)
            self._steps.extend([0] * missing)
        self._parents[trial.id] = trial.parent or 0
        self._steps[trial.id] = steps

    def _completion(self, trial: TrialRecord) -> Completion:
        drawn = self.rules.reported_metrics
        values = {
            metric: (float(self._fitness(trial.params, trial.end_step, self._draws.rng)),) for metric in drawn
        }
        checkpoint = None
        if trial.kind is TrialKind.TRAIN:
            name = f"{trial.id}.{trial.token}"
            checkpoint = Checkpoint(
                name=name,
                study=trial.study,
                trial=trial.id,
                step=trial.end_step,
                digest=name,
                size_bytes=0,
                created_at=self.now,
            )
        return Completion(
            trial=trial.id,
            token=trial.token,
            reached_step=trial.end_step,
            values=values,
            metrics={},
            checkpoint=checkpoint,
        )

    def _evaluated(self, worker: SimulatedWorker, work: ClaimedEvaluation) -> Evaluated:
        task, seen = work.task, work.seen
        if task.kind is EvalTaskKind.AGGREGATE:
            self._lags[work.group.suite].append(self.now - seen.written_at)
            values, best = self._aggregates(work)
            return Evaluated(task=task.id, group=task.group, token=task.token, values=values, best=best)
        result = EvalResult(
            identity=seen.identity,
            task_identity=task.identity,
            replicate=task.replicate,
            shard=task.shard,
            shards=task.shards,
            run=task.run,
            statistics={},
            duration_s=worker.busy_s,
            load_s=worker.load_s,
            worker=worker.name,
            created_at=self.now,
        )
        return Evaluated(task=task.id, group=task.group, token=task.token, result=result)

    def _aggregates(self, work: ClaimedEvaluation) -> tuple[JsonObject, bool]:
        """Return what the fitness and the suite's own objective are made of, and whether it is the best."""
        suite = suite_named(self.rules.suites, work.group.suite)
        names: set[str] = set() if suite.objective is None else {suite.objective.metric}
        fitness = self.rules.suite_fitness
        if fitness is not None and fitness.suite == suite.name:
            names.update(self.rules.aggregates.values())
        if not names or work.seen.trial is None:
            return {}, False
        with self.store.transaction(self.study, exclusive=False) as tx:
            value = float(self._fitness(tx.trial(work.seen.trial).params, work.seen.step, self._draws.rng))
            evaluation = tx.evaluation()
            former = None if evaluation is None else evaluation.best_group(suite.name)
        values: JsonObject = {name: {"value": value, "stderr": None} for name in sorted(names)}
        if suite.objective is None:
            return values, False
        before: Any = None if former is None else former.values[suite.objective.metric]
        order = suite.objective.order(value)
        return values, before is None or order > suite.objective.order(before["value"])

    def _fail(self, worker: SimulatedWorker) -> None:
        work = worker.work
        assert isinstance(work, Claimed)
        self._throw_away(worker, "failed")
        self.controller.fail(Failure(trial=work.trial.id, token=work.trial.token, error="simulated failure"))
        self._ask(worker)

    def _leave(self, worker: SimulatedWorker, *, told: bool) -> None:
        """A worker goes: told to, it returns its work; else its lease has to run out."""
        work = worker.work
        worker.life += 1
        worker.gone_since = self.now
        if worker.idle_since is not None:
            self._seconds["waiting"] += self.now - worker.idle_since
            worker.idle_since = None
            self._parked[worker.kinds].remove(worker)
        if work is not None:
            began = worker.began
            self._throw_away(worker, "preempted")
            if not told:
                renews_s = self.rules.lease_s / 3
                expires_at = began + (self.now - began) // renews_s * renews_s + self.rules.lease_s
                self._lease_until(worker, expires_at)
                # Whoever asks looks at leases only so often.
                self._at(expires_at + min(1.0, self.rules.lease_s / 10), _ASK, -1, 0)
            elif isinstance(work, Claimed):
                self.controller.release(work.trial.id, work.trial.token)
            else:
                self.controller.release_evaluation(work.task.id, work.task.token)
        self._at(self.now + self._hazards.restart_s, _BACK, worker.index, worker.life)

    def _throw_away(self, worker: SimulatedWorker, why: str) -> None:
        work = worker.work
        if isinstance(work, Claimed):
            self._wasted[why] += int(
                worker.share_done(self.now) * (work.trial.end_step - work.trial.start_step) + 1e-9
            )
        self._seconds["lost"] += self.now - worker.began
        worker.work = None
        worker.mark += 1

    def _state_of(self, trial: int) -> TrialState:
        with self.store.reader(self.study) as reader:
            return reader.trial(trial).state

    # Checkpoints

    def _collect(self, *, at_once: bool = False) -> None:
        if not at_once:
            if self._collect_every is None:
                if self.now - self._collected_at < 1.0:
                    return
            elif self._since_collection < self._collect_every:
                return
        self._collected_at, self._since_collection = self.now, 0
        found = self.controller.retention()
        self._invariants.collected(found)
        self._alive = max(self._alive, len(found.kept) + len(found.collectable))
        marked = self.controller.mark_deleting(found.collectable)
        self.controller.set_checkpoints(marked, CheckpointState.DELETED)

    # The end

    def _outcome(self) -> SimulatedRun:
        for worker in self._workers:
            if worker.idle_since is not None:
                self._seconds["waiting"] += self.now - worker.idle_since
            elif worker.gone_since is not None:
                self._seconds["lost"] += self.now - worker.gone_since
            elif worker.work is not None:
                self._seconds["lost"] += self.now - worker.began
        self._collect(at_once=True)
        with self.store.reader(self.study) as reader:
            study = reader.study()
            if study.state is StudyState.COMPLETED:
                self._invariants.finished(reader)
            counts = reader.counts()
            orders = [(m.head.order, m.head.fitness) for m in reader.members() if m.head and m.head.can_donate]
            heads = [member.head.trial for member in reader.members() if member.head]
        message = study.message
        if self._ended is None:
            message = "it stands still: " + (self._idle.why if self._idle else "nobody asks for work")
        kept = self._kept(heads)
        trained = sorted(set(self._steps) - {0}) or [0]
        return SimulatedRun(
            state=study.state,
            message=message,
            wall_s=self.now,
            seconds=WorkerSeconds(**self._seconds),
            steps=Steps(kept=kept, abandoned=sum(self._steps) - kept, **self._wasted),
            completed=counts.get("completed", 0),
            failed=counts.get("failed", 0),
            attempts=self._attempts,
            trial_steps=(trained[0], trained[-1]),
            checkpoints=self._alive,
            lag=self._lag(),
            best=max(orders, default=(0.0, math.nan), key=lambda pair: pair[0] or 0.0)[1] or math.nan,
        )

    def _kept(self, heads: Sequence[int]) -> int:
        """Return how many steps are among the ancestors of these trials."""
        kept, seen = 0, bytearray(len(self._steps))
        for trial in heads:
            at = trial
            while at and not seen[at]:
                seen[at] = 1
                kept += self._steps[at]
                at = self._parents[at]
        return kept

    def _lag(self) -> dict[str, EvaluationLag]:
        if not self.rules.suites:
            return {}
        with self.store.transaction(self.study, exclusive=False) as tx:
            evaluation = tx.evaluation()
            groups = [] if evaluation is None else [*evaluation.groups()]
        found = {}
        for name, lags in self._lags.items():
            others = sum(group.suite == name and group.state is not GroupState.COMPLETE for group in groups)
            found[name] = EvaluationLag(
                complete=len(lags),
                others=others,
                median_s=float(np.median(lags)) if lags else math.nan,
                longest_s=max(lags, default=math.nan),
            )
        return found
