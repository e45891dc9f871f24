"""A study on a virtual clock: the real controller and store, with workers that only take their time."""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import final

import numpy as np

from phyla.controller import Controller
from phyla.errors import LeaseLost
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
    CheckpointState,
    EvalTaskKind,
    RunKind,
    StudyState,
    TrialKind,
    TrialState,
    WorkKind,
)
from phyla.simulation.account import Account
from phyla.simulation.curve import Fitness
from phyla.simulation.durations import Draws, Durations, Hazards
from phyla.simulation.invariants import Invariants, MachineDefect
from phyla.simulation.measurements import Measurements
from phyla.simulation.outcome import SimulatedRun
from phyla.simulation.workers import Crew, SimulatedWorker
from phyla.store import open_store

HOUR = 3600.0
IN_VAIN = 10_000
"""Workers that leave, one after the other, before anything is done: from then on nothing is expected."""

_DONE, _FAIL, _PREEMPT, _CRASH, _BACK, _ASK = range(6)
_OF_WORK = (_DONE, _FAIL)


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
        self.store = open_store("memory://", clock=lambda: self.now)
        self.study = self.store.create_study("simulated", {}, seed, rules.strategy.population_size).id
        if rules.suites:
            self.store.create_run("simulated", RunKind.STUDY, {}, study=self.study)
        self.controller = Controller(self.store, self.study, rules)
        self._durations = durations
        self._hazards = hazards
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
        self._in_vain, self._cut_off = 0, False
        self._account = Account([suite.name for suite in rules.suites])
        self._measurements = Measurements(rules, fitness, self._draws.rng, self.store, self.study)

    def run(self) -> SimulatedRun:
        """Simulate to the end.

        Raises:
            MachineDefect: something happened that never may.
        """
        for worker in self._workers:
            self._start_process(worker)
            self._ask(worker)
        while self._events and self._ended is None and self._in_vain < IN_VAIN:
            self.step()
        return self._outcome()

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
                self._account.seconds["waiting"] += self.now - worker.idle_since
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
            self._account.seconds["lost"] += self.now - worker.gone_since
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
        self._account.attempts += 1
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
        self._in_vain, self._cut_off = 0, False
        work = worker.work
        worker.work = None
        self._account.seconds["moving"] += worker.load_s + worker.save_s
        if isinstance(work, Claimed):
            self._account.seconds["training"] += worker.busy_s
            steps = work.trial.end_step - work.trial.start_step
            self._invariants.completed(work.trial, steps)
            self._account.completed(work.trial, steps)
            self._ask(worker, [self._measurements.completion(work.trial, self.now)])
            self._since_collection += 1
            self._collect()
        else:
            assert work is not None
            self._account.seconds["evaluating"] += worker.busy_s
            if work.task.kind is EvalTaskKind.AGGREGATE:
                self._account.lags[work.group.suite].append(self.now - work.seen.written_at)
            self._ask(worker, [self._measurements.evaluated(work, worker, self.now)])

    def _fail(self, worker: SimulatedWorker) -> None:
        work = worker.work
        assert isinstance(work, Claimed)
        self._throw_away(worker, "failed")
        self.controller.fail(Failure(trial=work.trial.id, token=work.trial.token, error="simulated failure"))
        self._ask(worker)

    def _leave(self, worker: SimulatedWorker, *, told: bool) -> None:
        """A worker goes: told to, it returns its work; else its lease has to run out."""
        work = worker.work
        if work is not None or all(other.work is None for other in self._workers):
            self._in_vain += 1
            self._cut_off = work is not None
        worker.life += 1
        worker.gone_since = self.now
        if worker.idle_since is not None:
            self._account.seconds["waiting"] += self.now - worker.idle_since
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
            self._account.wasted[why] += int(
                worker.share_done(self.now) * (work.trial.end_step - work.trial.start_step) + 1e-9
            )
        self._account.seconds["lost"] += self.now - worker.began
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
        self._account.checkpoints = max(self._account.checkpoints, len(found.kept) + len(found.collectable))
        marked = self.controller.mark_deleting(found.collectable)
        self.controller.set_checkpoints(marked, CheckpointState.DELETED)

    # The end

    def _outcome(self) -> SimulatedRun:
        for worker in self._workers:
            if worker.idle_since is not None:
                self._account.seconds["waiting"] += self.now - worker.idle_since
            elif worker.gone_since is not None:
                self._account.seconds["lost"] += self.now - worker.gone_since
            elif worker.work is not None:
                self._account.seconds["lost"] += self.now - worker.began
        self._collect(at_once=True)
        with self.store.reader(self.study) as reader:
            study = reader.study()
            if study.state is StudyState.COMPLETED:
                self._invariants.finished(reader)
            counts = reader.counts()
            orders = [(m.head.order, m.head.fitness) for m in reader.members() if m.head and m.head.can_donate]
            heads = [member.head.trial for member in reader.members() if member.head]
            evaluation = reader.evaluation()
            groups = [] if evaluation is None else [*evaluation.groups()]
        message = study.message
        if self._ended is None and self._cut_off:
            message = f"it makes no progress: {IN_VAIN} times in a row a worker left before its work was done"
        elif self._ended is None:
            message = "it stands still: " + (self._idle.why if self._idle else "nobody asks for work")
        return SimulatedRun(
            state=study.state,
            message=message,
            wall_s=self.now,
            seconds=self._account.worker_seconds(),
            steps=self._account.steps(heads),
            completed=counts.get("completed", 0),
            failed=counts.get("failed", 0),
            attempts=self._account.attempts,
            trial_steps=self._account.trial_steps(),
            checkpoints=self._account.checkpoints,
            lag=self._account.lag(groups),
            best=max(orders, default=(0.0, math.nan), key=lambda pair: pair[0] or 0.0)[1] or math.nan,
        )
