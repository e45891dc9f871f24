"""The worker's loop."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeAlias, final

from phyla.api import Client
from phyla.errors import CheckpointsAbsent, ConfigurationError, LeaseLost, StoreError
from phyla.machine import ClaimedEvaluation, Completion, Ended, Evaluated, Failure, Idle, Outdated, Work
from phyla.records import Phase, WorkKind
from phyla.settings import Clock, system_clock
from phyla.worker.evaluator import Evaluator
from phyla.worker.stopwatch import Stopwatch
from phyla.worker.trainer import Trainer

FLUSH_S = 1.0
"""How often reports of a running trial are sent."""

IDLE_S = 0.25
"""How long a worker without work waits before it asks again, if nothing was committed meanwhile."""

SUITES_CHANGED = (
    "the suites of the run were changed while this worker evaluated. It has returned its eval task and takes no "
    "more; start it again with the changed suite file"
)

Beat: TypeAlias = Callable[[int, int, float], None]
"""Called with signs of progress, with work handed in so far (both only grow), and with the time in seconds since
the epoch when the running eval task takes too long, 0 for never."""


@final
class Worker:
    """Does one piece of work after the other, in the thread that calls `run`: trials, eval tasks, or both.

    Args:
        client: where work comes from.
        name: `host:slot:pid:launch`.
        clock: tells the time.
        trainer: trains trials; None to train none.
        evaluator: runs eval tasks; None to run none.
        renew_s: how often this worker renews its own leases; None when a supervisor does.
        beat: called with signs of progress.
        yields: whether `trial.report()` runs an eval task that waits before training goes on.

    Raises:
        ConfigurationError: the name is empty, so nobody could tell whose leases it holds.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        clock: Clock = system_clock,
        trainer: Trainer | None = None,
        evaluator: Evaluator | None = None,
        renew_s: float | None = None,
        beat: Beat = lambda progress, done, deadline: None,
        yields: bool = False,
    ) -> None:
        if not name:
            raise ConfigurationError("a worker's name is empty: its leases go by it; pass Launch.worker_name()")
        self._client = client
        self._name = name
        self._clock = clock
        self._trainer = trainer
        self._evaluator = evaluator
        self._watch = Stopwatch(time.perf_counter) if trainer is None else trainer.watch
        self._renew_s = renew_s
        self._beat = beat
        self._yields = yields and evaluator is not None
        kinds = {WorkKind.TRAIN: trainer is not None, WorkKind.EVALUATE: evaluator is not None}
        self._kinds = frozenset(kind for kind, wanted in kinds.items() if wanted)
        self._beats = 0
        self._handed_in = 0
        self._deadline = 0.0
        self._busy = False
        self._stopping = False

    def stop(self) -> None:
        """Finish soon: running work is asked to stop and goes back to the queue.

        Safe in a signal handler: it takes no lock, which the interrupted code might hold.
        """
        self._stopping = True
        if self._trainer is not None:
            self._trainer.stop()
        evaluation = self._evaluator.current if self._evaluator is not None else None
        if evaluation is not None:
            evaluation.stop()

    def run(
        self, on_trial: Callable[[], None] = lambda: None, on_idle: Callable[[], None] = lambda: None
    ) -> Ended | Outdated | None:
        """Work until the study ends or `stop` is called; return why it ended.

        It also returns when suites changed since this process read them, or settings that it cannot take over:
        another process should go on.

        Args:
            on_trial: called after every piece of work.
            on_idle: called whenever there is nothing to do, several times a second.

        Raises:
            CheckpointsAbsent: the directory of the checkpoints is gone; the work is in the queue again.
            StoreError: the database failed.
        """
        done = threading.Event()
        flusher = threading.Thread(target=self._flush, args=(done,), name="phyla-reports", daemon=True)
        flusher.start()
        try:
            return self._work(on_trial, on_idle)
        finally:
            done.set()
            flusher.join()

    def _work(self, on_trial: Callable[[], None], on_idle: Callable[[], None]) -> Ended | Outdated | None:
        completions: list[Completion | Evaluated] = []
        while True:
            outdated = self._evaluator is not None and self._evaluator.outdated
            count = 0 if self._stopping or outdated else 1
            if not completions and not count:
                return Outdated(why=SUITES_CHANGED) if outdated else None
            _, claimed, rest = self._client.exchange(
                completions, self._name, count, kinds=self._kinds, holding=self._holding()
            )
            if completions:
                self._handed_in += 1
                on_trial()
            completions = []
            self._tick()
            if claimed:
                done = self._do(claimed[0])
                completions = [done] if done else []
                if not completions:
                    on_trial()
            elif isinstance(rest, (Ended, Outdated)):
                return rest
            elif isinstance(rest, Idle):
                on_idle()
                with self._watch.within(Phase.WAITING):
                    self._client.wait(IDLE_S if rest.seconds is None else min(IDLE_S, rest.seconds))

    def _holding(self) -> int | None:
        return None if self._evaluator is None else self._evaluator.holding

    def _tick(self) -> None:
        self._beats += 1
        self._tell()

    def _tell(self) -> None:
        evaluation = self._evaluator.current if self._evaluator else None
        at_work = [one.beats for one in (self._trainer, evaluation) if one is not None]
        self._beat(self._beats + sum(at_work), self._handed_in, self._deadline)

    def _do(self, work: Work) -> Completion | Evaluated | None:
        """Do one piece of work; return its completion, or None when it failed or went back to the queue."""
        self._busy = True
        try:
            if isinstance(work, ClaimedEvaluation):
                with self._watch.within(Phase.EVALUATING):
                    return self._evaluate(work)
            assert self._trainer is not None
            return self._trainer.run(work.trial, self._yield if self._yields else None)
        finally:
            self._busy = False

    def _evaluate(self, work: ClaimedEvaluation) -> Evaluated | None:
        assert self._evaluator is not None
        timeout_s = work.job.timeout_s
        self._deadline = 0.0 if timeout_s is None else self._clock() + timeout_s
        self._tick()
        try:
            outcome = self._evaluator.run(work)
        except CheckpointsAbsent:
            with contextlib.suppress(LeaseLost):
                self._client.release(work.job.id, work.job.token)
            raise
        finally:
            self._deadline = 0.0
            self._tick()
        with contextlib.suppress(LeaseLost):
            if outcome is None:
                self._client.release(work.job.id, work.job.token)
            elif isinstance(outcome, Failure):
                self._client.fail(outcome)
            else:
                return outcome
        return None

    def _yield(self) -> None:
        """Run an eval task that waits, if any, while training pauses inside `trial.report()`."""
        if self._stopping:
            return
        only = frozenset({WorkKind.EVALUATE})
        with self._watch.within(Phase.CONTROL):
            _, claimed, _ = self._client.exchange((), self._name, 1, kinds=only, holding=self._holding())
            for work in claimed:
                done = self._do(work)
                self._busy = True
                if done is not None:
                    self._client.exchange([done], self._name, 0)

    def _flush(self, done: threading.Event) -> None:
        """While there is work, tell of its progress, send reports, and renew leases if nobody else does."""
        renewed_at = self._clock()
        while not done.wait(FLUSH_S):
            if not self._busy:
                continue
            self._tell()
            with contextlib.suppress(StoreError):
                # A lease lasts for several of these; the next one may succeed.
                if self._trainer is not None:
                    self._trainer.flush()
                if self._renew_s is not None and not 0 <= self._clock() - renewed_at < self._renew_s:
                    self._client.renew(self._name)
                    renewed_at = self._clock()
