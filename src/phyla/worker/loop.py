"""The worker's loop: claim a job, run it in the handler of its kind, submit it with the next claim."""

import math
import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias, final

from phyla.client import Client
from phyla.errors import CheckpointsAbsent, ConfigurationError, GivenBack, LeaseLost, ProcessSpoiled, StoreError
from phyla.machine import (
    ANY_GPUS,
    ClaimedEvaluation,
    Completion,
    Ended,
    Evaluated,
    Failure,
    Idle,
    NoTime,
    NoWork,
    Outdated,
    Room,
    Work,
)
from phyla.records import Phase, TrialRecord, WorkKind
from phyla.settings import Clock, system_clock
from phyla.worker.containment.surroundings import Surroundings
from phyla.worker.evaluating.evaluator import Evaluator
from phyla.worker.training.stopwatch import Stopwatch
from phyla.worker.training.trainer import Trainer

FLUSH_S = 1.0
"""Interval of sending the reports of a running trial."""

IDLE_S = 0.25
"""How long an idle worker waits before it checks whether to stop."""

MOST_PAUSE_S = 60.0
"""Longest wait of a worker whose trials repeatedly ask to be rerun later; the first wait is 1 s."""

SUITES_CHANGED = (
    "the suites of the run were changed while this worker evaluated. It has returned its eval task and accepts "
    "no more work; restart it with the changed suite file"
)

Beat: TypeAlias = Callable[[int, int, float], None]
"""Called with counts of progress and of submitted jobs (both only grow), and with the time in seconds since
the epoch when the running eval task takes too long, 0 for never."""


@final
class Closing(IntEnum):
    """Whether a worker is to end after submitting its current job."""

    OPEN = 0
    WHEN_IDLE = 1
    NOW = 2


@final
@dataclass(eq=False)
class Worker:
    """Runs one job after the other, in the thread that calls `run`: trials, eval tasks, or both.

    Its name is `host:slot:pid:launch`. It renews its own leases every `renew_s`, unless a supervisor does. With
    `yields`, `trial.report()` runs an eval task that waits before training goes on. It runs eval tasks that ask
    for a number of GPUs within `gpus`, and for no label or one of its `labels`. It starts no job that is not
    expected to end by `stops_at`, in seconds since the epoch, of a run of `run_s`. `closing` tells it to end.
    """

    client: Client
    _: KW_ONLY
    name: str
    clock: Clock = system_clock
    trainer: Trainer | None = None
    evaluator: Evaluator | None = None
    renew_s: float | None = None
    beat: Beat = lambda progress, done, deadline: None
    yields: bool = False
    gpus: tuple[int, int] = ANY_GPUS
    labels: tuple[str, ...] = ()
    stops_at: float | None = None
    run_s: float = math.inf
    closing: Callable[[], int] = lambda: Closing.OPEN
    surroundings: Surroundings = field(default_factory=Surroundings)

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigurationError(
                "the name of a worker is empty, but leases need it; pass Launch.worker_name()"
            )
        kinds = {WorkKind.TRAIN: self.trainer, WorkKind.EVALUATE: self.evaluator}
        self._kinds = frozenset(kind for kind, handler in kinds.items() if handler is not None)
        for handler in (self.trainer, self.evaluator):
            if handler is not None:
                handler.surroundings = self.surroundings
        if self.evaluator is not None:
            self.evaluator.limit = self._limit
        self._watch = Stopwatch() if self.trainer is None else self.trainer.watch
        self._beats = 0
        self._handed_in = 0
        self._deadline = 0.0
        self._busy = False
        self._held: set[int] = set()
        self._stopping = False

    def stop(self) -> None:
        """Finish soon: running work is asked to stop and goes back to the queue.

        Safe in a signal handler: it takes no lock, which the interrupted code might hold.
        """
        self._stopping = True
        if self.trainer is not None:
            self.trainer.stop()
        if self.evaluator is not None:
            self.evaluator.stop()

    def run(self, on_tick: Callable[[], None] = lambda: None) -> Ended | Outdated | NoTime | None:
        """Work until the study ends, `stop` is called or the time left is too short; return why it ended.

        It also returns when suites changed since this process read them, or settings that it cannot adopt: another
        process should continue.

        Args:
            on_tick: called after every piece of work, and several times a second while there is none.

        Raises:
            CheckpointsAbsent: the directory of the checkpoints is gone; the job is in the queue again.
            ProcessSpoiled: phyla failed in a process that user code has changed.
            StoreError: the database failed.
        """
        with self.surroundings.guard():
            return self._run(on_tick)

    def _run(self, on_tick: Callable[[], None]) -> Ended | Outdated | NoTime | None:
        done = threading.Event()
        flusher = threading.Thread(target=self._flush, args=(done,), name="phyla-reports", daemon=True)
        flusher.start()
        try:
            return self._work(on_tick)
        finally:
            done.set()
            flusher.join()

    def _work(self, on_tick: Callable[[], None]) -> Ended | Outdated | NoTime | None:
        done: Completion | Evaluated | None = None
        while True:
            outdated = self.evaluator is not None and self.evaluator.outdated
            closing = self.closing()
            count = 0 if self._stopping or outdated or closing == Closing.NOW else 1
            if done is None and not count:
                return Outdated(why=SUITES_CHANGED) if outdated else None
            work, rest = self._exchange(done, count, self._kinds)
            if done is not None:
                self._handed_in += 1
                on_tick()
            done = None
            self._tick()
            if self.evaluator is not None:
                self.evaluator.tidy(work)
            if work is not None:
                done = self._do(work)
                if done is None:
                    on_tick()
                    self._pause()
            elif isinstance(rest, (Ended, Outdated, NoTime)):
                return rest
            elif isinstance(rest, Idle):
                if closing == Closing.WHEN_IDLE:
                    return None
                on_tick()
                with self._watch.within(Phase.WAITING):
                    self._wait(rest, on_tick)

    def _wait(self, idle: Idle, on_tick: Callable[[], None]) -> None:
        """Wait until there may be work."""
        seconds = self.client.idle_s if idle.seconds is None else min(self.client.idle_s, idle.seconds)
        ends_at = time.monotonic() + seconds
        while not self.client.wait(max(0.0, min(IDLE_S, ends_at - time.monotonic()))):
            if self._stopping or self.closing() or time.monotonic() >= ends_at:
                return
            on_tick()

    def _exchange(
        self, done: Completion | Evaluated | None, count: int, kinds: AbstractSet[WorkKind]
    ) -> tuple[Work | None, NoWork | None]:
        """Submit one job, claim the next, or both in one transaction."""
        holding = None if self.evaluator is None else self.evaluator.holding
        completions = () if done is None else (done,)
        left_s = None if self.stops_at is None else self.stops_at - self.clock()
        room = Room(gpus=self.gpus, labels=self.labels, left_s=left_s, run_s=self.run_s)
        _, claimed, rest = self.client.exchange(
            completions, self.name, count, kinds=kinds, holding=holding, room=room, held=self._held
        )
        return (claimed[0] if claimed else None), rest

    def _tick(self) -> None:
        self._beats += 1
        self._signal()

    def _signal(self) -> None:
        handlers = (self.trainer, self.evaluator)
        beats = self._beats + sum(handler.beats for handler in handlers if handler is not None)
        self.beat(beats, self._handed_in, self._deadline)

    def _do(self, work: Work) -> Completion | Evaluated | None:
        """Run one job; return its completion, or None if it failed or was requeued."""
        job = work.job if isinstance(work, ClaimedEvaluation) else work.trial
        before, self._busy, calls = self._busy, True, self.surroundings.calls
        self._held.add(job.id)
        try:
            with suppress(LeaseLost):
                outcome = self._evaluate(work) if isinstance(work, ClaimedEvaluation) else self._train(work.trial)
                if outcome is None:
                    self.client.release(job.id, job.token)
                elif isinstance(outcome, Failure):
                    self.client.fail(outcome)
                else:
                    return outcome
        except GivenBack as error:
            with suppress(LeaseLost):
                self.client.release(job.id, job.token, str(error))
        except CheckpointsAbsent:
            with suppress(LeaseLost):
                self.client.release(job.id, job.token)
            raise
        except ProcessSpoiled:
            if self.surroundings.calls == calls:
                # It was an earlier job. The supervisor takes this one back if it cannot be released.
                with suppress(Exception):
                    self.client.release(job.id, job.token)
            raise
        finally:
            self._busy = before
            self._held.discard(job.id)
        return None

    def _train(self, trial: TrialRecord) -> Completion | Failure | None:
        assert self.trainer is not None
        return self.trainer.run(trial, self._yield if self.yields and self.evaluator is not None else None)

    def _pause(self) -> None:
        """Wait after a trial that asked to be rerun later, longer each time."""
        times = 0 if self.trainer is None else self.trainer.given_back
        if times:
            ends_at = time.monotonic() + min(MOST_PAUSE_S, 2.0 ** (times - 1))
            with self._watch.within(Phase.WAITING):
                while not self._stopping and time.monotonic() < ends_at:
                    time.sleep(IDLE_S)

    def _evaluate(self, work: ClaimedEvaluation) -> Evaluated | Failure | None:
        assert self.evaluator is not None
        self._limit(work.job.timeout_s)
        try:
            with self._watch.within(Phase.EVALUATING):
                return self.evaluator.run(work)
        finally:
            self._limit(None)

    def _limit(self, timeout_s: float | None) -> None:
        self._deadline = 0.0 if timeout_s is None else self.clock() + timeout_s
        self._tick()

    def _yield(self) -> None:
        """Run an eval task that waits, if any, while training pauses inside `trial.report()`."""
        if self._stopping:
            return
        only = frozenset({WorkKind.EVALUATE})
        with self._watch.within(Phase.CONTROL):
            work, _ = self._exchange(None, 1, only)
            done = None if work is None else self._do(work)
            if done is not None:
                self._exchange(done, 0, only)

    def _flush(self, done: threading.Event) -> None:
        """During a job, signal progress, send reports, and renew leases unless a supervisor does."""
        renewed_at = self.clock()
        while not done.wait(FLUSH_S):
            if not self._busy:
                continue
            self._signal()
            with suppress(StoreError):
                # A lease lasts for several of these; the next one may succeed.
                if self.trainer is not None:
                    self.trainer.flush()
                if self.renew_s is not None and not 0 <= self.clock() - renewed_at < self.renew_s:
                    self.client.renew(self.name)
                    renewed_at = self.clock()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What the study's `setup(worker)` gets, once per process.

    Attributes:
        name: `host:slot:pid:launch` of this process.
        index: 0 .. workers - 1.
        study: name of the study.
        working_dir: a directory of this worker, for caches and logs.
    """

    name: str
    index: int
    study: str
    working_dir: Path
