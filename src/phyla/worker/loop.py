"""The worker's loop."""

import contextlib
import errno
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from phyla.api import Client
from phyla.checkpoints import CheckpointRepository
from phyla.errors import (
    CheckpointError,
    CheckpointMissing,
    CheckpointStorageFailed,
    LeaseLost,
    NoCheckpoint,
    NoFitness,
    PhylaError,
    StoreError,
)
from phyla.machine import Completion, Ended, Failure, Idle
from phyla.records import StudyState, TrialRecord
from phyla.settings import Clock
from phyla.worker.trial import Trial

FLUSH_S = 1.0
"""How often reports of a running trial are sent."""

ERROR_CHARACTERS = 4000
_STORAGE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What the study's `setup(worker)` gets, once per process.

    Attributes:
        name: `host:slot:pid:start` of this process.
        index: 0 .. workers - 1.
        study: name of the study.
        working_dir: a directory of this worker, for caches and logs.
    """

    name: str
    index: int
    study: str
    working_dir: Path


@final
class Worker:
    """Trains one trial after the other, in the thread that calls `run`.

    Args:
        client: speaks with the study.
        repository: where checkpoints go.
        train: the training function.
        metric: name of the study's objective.
        work_root: where working directories go.
        name: `host:slot:pid:start`.
        clock: tells the time.
        state: what `setup` returned.
        renew_s: how often this worker renews its own leases; None when a supervisor does.
        beat: called with signs of progress and with trials handed in so far; both only grow.
    """

    def __init__(
        self,
        client: Client,
        repository: CheckpointRepository,
        train: Callable[[Trial], object],
        *,
        metric: str,
        work_root: Path,
        name: str,
        clock: Clock,
        state: Any = None,
        renew_s: float | None = None,
        beat: Callable[[int, int], None] = lambda progress, trials: None,
    ) -> None:
        self._client = client
        self._repository = repository
        self._train = train
        self._metric = metric
        self._work_root = work_root
        self._name = name
        self._clock = clock
        self._state = state
        self._renew_s = renew_s
        self._beat = beat
        self._beats = 0
        self._handed_in = 0
        self._current: Trial | None = None
        self._cached: tuple[str | None, Any] = (None, None)
        self._stopping = False

    def stop(self) -> None:
        """Finish soon: the running trial is asked to stop and goes back to the queue.

        Safe in a signal handler: it takes no lock, which the interrupted code might hold.
        """
        self._stopping = True
        current = self._current
        if current is not None:
            current.stop()

    def run(self, on_trial: Callable[[], None] = lambda: None) -> Ended | None:
        """Work until the study ends or `stop` is called; return why it ended.

        Args:
            on_trial: called after every trial.

        Raises:
            StoreError: the database failed.
        """
        done = threading.Event()
        flusher = threading.Thread(target=self._flush, args=(done,), name="phyla-reports", daemon=True)
        flusher.start()
        try:
            return self._work(on_trial)
        finally:
            done.set()
            flusher.join()

    def _work(self, on_trial: Callable[[], None]) -> Ended | None:
        completions: list[Completion] = []
        pause_s = 0.005
        while True:
            count = 0 if self._stopping else 1
            if not completions and not count:
                return None
            _, claimed, rest = self._client.exchange(completions, self._name, count)
            if completions:
                self._handed_in += 1
                on_trial()
            completions = []
            self._tick()
            if claimed:
                pause_s = 0.005
                done = self._one(claimed[0].trial)
                completions = [done] if done else []
                if not completions:
                    on_trial()
            elif isinstance(rest, Ended):
                return rest
            elif isinstance(rest, Idle):
                time.sleep(min(pause_s, rest.seconds) if rest.seconds is not None else pause_s)
                pause_s = min(pause_s * 1.5, 0.25)

    def _tick(self) -> None:
        self._beats += 1
        current = self._current
        self._beat(self._beats + (current.beats if current else 0), self._handed_in)

    def _one(self, record: TrialRecord) -> Completion | None:
        """Train one trial; return its completion, or None when it was failed or returned to the queue."""
        try:
            trial = Trial(
                record,
                self._client,
                self._repository,
                metric=self._metric,
                work_root=self._work_root,
                clock=self._clock,
                worker=self._state,
                cached_state=self._take_cached(record),
            )
        except CheckpointMissing as error:
            self._fail(record, str(error), parent_gone=self._missing(record))
            return None
        self._current = trial
        if self._stopping:
            trial.stop()
        try:
            self._train(trial)
            return self._finish(trial)
        except LeaseLost:
            trial.discard()
        except (CheckpointStorageFailed, NoFitness, NoCheckpoint) as error:
            self._refused(trial, error)
        except (Exception, SystemExit) as error:  # whatever training raises belongs to the trial
            if isinstance(error, StoreError):
                raise
            self._raised(trial, error)
        finally:
            self._beats += trial.beats
            self._current = None
        return None

    def _missing(self, record: TrialRecord) -> str | None:
        """Return which of the checkpoints that a trial starts from is gone."""
        for name in (record.parent_checkpoint, record.progress):
            try:
                if name is not None:
                    self._repository.path(name)
            except CheckpointMissing:
                return name
        return None

    def _take_cached(self, record: TrialRecord) -> Any:
        name, value = self._cached
        self._cached = (None, None)
        continues = name is not None and name == record.parent_checkpoint and record.progress is None
        return value if continues and record.jump_from is None else None

    def _finish(self, trial: Trial) -> Completion | None:
        if trial.stopped_early:
            trial.discard()
            self._client.release(trial.id, trial.token)
            return None
        if not trial.measuring and trial.reached_step <= trial.start_step:
            raise NoCheckpoint(
                f"training returned at step {trial.reached_step}, without training a single step beyond "
                f"start_step={trial.start_step}"
            )
        if not trial.has_fitness:
            raise NoFitness(
                f"training returned without reporting the objective {trial.metric!r}; call "
                f"trial.report({{{trial.metric!r}: value}}) before it returns"
            )
        checkpoint = trial.commit()
        if checkpoint is not None:
            self._cached = (checkpoint.name, trial.cached_state)
        return trial.completion(checkpoint)

    def _refused(self, trial: Trial, error: PhylaError) -> None:
        """Handle errors that another attempt would not cure."""
        if isinstance(error, CheckpointStorageFailed):
            self._stop_study(trial, str(error))
        else:
            trial.discard()
            self._fail(trial.record, f"{type(error).__name__}: {error}", retryable=False)

    def _stop_study(self, trial: Trial, message: str) -> None:
        """Stop everything: the place where results go is broken, which is no trial's fault."""
        try:
            trial.discard()
        finally:
            with contextlib.suppress(LeaseLost):
                self._client.release(trial.id, trial.token)
            self._client.end_study(StudyState.FAILED, f"{message} Nothing is lost: then run the study again.")

    def _raised(self, trial: Trial, error: Exception | SystemExit) -> None:
        if isinstance(error, OSError) and error.errno in _STORAGE_ERRNOS:
            self._stop_study(trial, f"training could not write: {error}. Free space or choose another home.")
            return
        text = "".join(traceback.format_exception(error))[-ERROR_CHARACTERS:]
        trial.discard()
        self._fail(trial.record, text, parent_gone=self._damaged(trial))

    def _damaged(self, trial: Trial) -> str | None:
        """Return the name of the checkpoint it started from, if that lost files behind our back."""
        source = trial.source
        if source is None:
            return None
        try:
            self._repository.check(source.name)
        except CheckpointError:
            return source.name
        return None

    def _fail(
        self, record: TrialRecord, error: str, *, retryable: bool = True, parent_gone: str | None = None
    ) -> None:
        failure = Failure(
            trial=record.id, token=record.token, error=error, retryable=retryable, parent_gone=parent_gone
        )
        try:
            self._client.fail(failure)
        except LeaseLost:
            return

    def _flush(self, done: threading.Event) -> None:
        """Send reports of long trials, learn whether their lease stands, and renew it if nobody else does."""
        renewed_at = self._clock()
        while not done.wait(FLUSH_S):
            trial = self._current
            if trial is None:
                continue
            self._beat(self._beats + trial.beats, self._handed_in)
            reports = trial.take_reports()
            try:
                if not self._client.report(trial.id, trial.token, reports):
                    trial.stop()
                if self._renew_s is not None and self._clock() - renewed_at >= self._renew_s:
                    self._client.renew(self._name)
                    renewed_at = self._clock()
            except StoreError:
                trial.give_back(reports)
