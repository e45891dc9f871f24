"""Trains trials."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from phyla.api import Client
from phyla.checkpoints import LocalCheckpoints, advice_on, is_storage_error
from phyla.errors import (
    CheckpointMissing,
    CheckpointsAbsent,
    CheckpointStorageFailed,
    LeaseLost,
    NoCheckpoint,
    NoFitness,
    StoreError,
)
from phyla.machine import Completion, Failure
from phyla.records import Cause, Phase, Report, StudyState, TrialRecord
from phyla.settings import Clock, system_clock
from phyla.worker.causes import cause_of, traceback_of, write_log
from phyla.worker.session import Session, unusable_start
from phyla.worker.stopwatch import Stopwatch
from phyla.worker.trial import Trial

ERROR_CHARACTERS = 4000


@final
class Trainer:
    """Trains one trial after the other.

    Args:
        client: speaks with the study.
        repository: where checkpoints go.
        train: the training function.
        metrics: what the study's objective needs; none when its fitness comes from a suite.
        work_root: where working directories go.
        clock: tells the time.
        state: what `setup` returned.
        timer: measures durations, in seconds.
        log: where full tracebacks go; None writes none.

    Attributes:
        watch: where the time of the thread that trains goes; what precedes a trial counts as its own.
    """

    def __init__(
        self,
        client: Client,
        repository: LocalCheckpoints,
        train: Callable[[Trial], object],
        *,
        metrics: Sequence[str],
        work_root: Path,
        clock: Clock = system_clock,
        state: Any = None,
        timer: Callable[[], float] = time.perf_counter,
        log: Path | None = None,
    ) -> None:
        self.watch = Stopwatch(timer)
        self._client = client
        self._repository = repository
        self._train = train
        self._metrics = tuple(metrics)
        self._work_root = work_root
        self._clock = clock
        self._state = state
        self._log = log
        self._cached: tuple[str | None, Any] = (None, None)
        self._beats = 0
        self._stopping = False
        self._sending = threading.Lock()
        self.current: Session | None = None

    @property
    def beats(self) -> int:
        """Signs of progress so far."""
        current = self.current
        return self._beats + (current.beats if current else 0)

    def stop(self) -> None:
        """Ask the running trial, and those to come, to stop. Takes no lock, so a signal handler may call it."""
        self._stopping = True
        current = self.current
        if current is not None:
            current.stop()

    def flush(self) -> None:
        """Send what the running trial reported, and learn how it stands; called by another thread.

        Raises:
            StoreError: the database failed; the reports are sent the next time.
        """
        with self._sending:
            trial = self.current
            if trial is None:
                return
            reports: list[Report] = [*trial.take_reports()]
            try:
                standing = self._client.report(trial.id, trial.token, reports)
            except StoreError:
                trial.give_back(reports)
                raise
            if standing.stop_reason is not None:
                trial.stop_for(standing.stop_reason)
            elif standing.cancelled:
                trial.stop()

    def run(self, record: TrialRecord, on_report: Callable[[], None] | None = None) -> Completion | None:
        """Train one trial; return its completion, or None when it was failed or returned to the queue.

        Args:
            record: the trial.
            on_report: called whenever training reports.

        Raises:
            CheckpointsAbsent: the directory of the study's checkpoints is gone; the trial is in the queue again.
            StoreError: the database failed.
        """
        self.watch.enter(Phase.LOADING)
        try:
            unusable = unusable_start(record, self._client, self._repository)
            if unusable is not None:
                self._fail(replace(unusable, timings=self.watch.take()))
                return None
            trial = Session(
                record,
                self._client,
                self._repository,
                metrics=self._metrics,
                work_root=self._work_root,
                clock=self._clock,
                worker=self._state,
                cached_state=self._take_cached(record),
                on_report=on_report,
                watch=self.watch,
            )
        except (CheckpointsAbsent, CheckpointMissing) as error:
            self._release(record)
            if isinstance(error, CheckpointsAbsent):
                raise
            # It vanished just now: whoever claims the trial looks again.
            return None
        except CheckpointStorageFailed as error:
            self._stop_study(record, str(error))
            return None
        self.current = trial
        try:
            return self._run(trial)
        except CheckpointStorageFailed as error:
            # What training left could not be removed.
            self._stop_study(record, str(error))
            return None

    def _run(self, trial: Session) -> Completion | None:
        if self._stopping:
            trial.stop()
        try:
            self._train(trial.trial)
            return self._finish(trial)
        except LeaseLost:
            trial.discard()
        except StoreError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever training raises belongs to the trial
            self._raised(trial, error)
        finally:
            self._beats += trial.beats
            self.current = None
            # What was neither completed nor failed, and so was not asked for yet, is nobody's.
            trial.timings()
        return None

    def _take_cached(self, record: TrialRecord) -> Any:
        name, value = self._cached
        self._cached = (None, None)
        continues = name is not None and name == record.parent_checkpoint and record.progress is None
        return value if continues and record.jump_from is None else None

    def _finish(self, trial: Session) -> Completion | None:
        if trial.stop_reason is not None:
            # A rule stopped it: its member has decided again, perhaps, and nothing of it is kept.
            trial.discard()
            return None
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
            raise NoFitness(trial.missing("training returned without reporting", "before it returns"))
        checkpoint = trial.commit()
        # Reports that are just being sent come first, since rules judge them in order.
        with self._sending:
            completion = trial.completion(checkpoint)
        if checkpoint is not None:
            self._cached = (checkpoint.name, trial.cached_state)
        return completion

    def _raised(self, trial: Session, error: Exception | SystemExit) -> None:
        record = trial.record
        try:
            self._repository.check_owner()
        except CheckpointsAbsent:
            # All checkpoints are out of sight, so none of them is lost.
            self._release(record)
            raise
        if isinstance(error, CheckpointStorageFailed):
            self._stop_study(record, str(error), trial)
            return
        if isinstance(error, OSError) and is_storage_error(error):
            what = cause_of(error, self._train, None).words()
            message = f"training failed with {what}; trial {trial.id} writes to {trial.places}; {advice_on(error)}"
            self._stop_study(record, message, trial)
            return
        cause = self._logged(trial, error)
        trial.discard()
        if isinstance(error, (NoFitness, NoCheckpoint)):
            # Another attempt would not cure it.
            text = f"{type(error).__name__}: {error}"
            failure = Failure(job=trial.id, token=trial.token, error=text, retryable=False, cause=cause)
        else:
            text = traceback_of(error)[-ERROR_CHARACTERS:]
            failure = Failure(job=trial.id, token=trial.token, error=text, cause=cause)
            # Training may have failed because files of the checkpoint vanished or changed behind our back.
            with contextlib.suppress(CheckpointStorageFailed):
                unusable = unusable_start(record, self._client, self._repository, again=True)
                if unusable is not None:
                    failure = replace(unusable, error=f"{text.rstrip()}\n{unusable.error}")
        self._fail(replace(failure, timings=trial.timings()))

    def _stop_study(self, record: TrialRecord, message: str, trial: Session | None = None) -> None:
        """Stop everything: the place where results go is broken, which is no trial's fault."""
        with contextlib.suppress(CheckpointStorageFailed):
            # What stays is removed when the study is run again.
            if trial is not None:
                trial.discard()
        self._release(record)
        kept = f"Completed trials and saved progress are kept; what trial {record.id} trained since is repeated."
        self._client.end_study(record.study, StudyState.FAILED, f"{message}. Then run the study again. {kept}")

    def _logged(self, trial: Session, error: BaseException) -> Cause:
        """Write an error with its full traceback into the log; return what is stored of it."""
        log = self._log
        if log is not None:
            try:
                write_log(
                    log, f"trial {trial.id}, attempt {trial.token} of member {trial.record.member} failed", error
                )
            except OSError:
                # The end of the traceback is stored in any case.
                log = None
        return cause_of(error, self._train, log)

    def _release(self, record: TrialRecord) -> None:
        with contextlib.suppress(LeaseLost):
            self._client.release(record.id, record.token)

    def _fail(self, failure: Failure) -> None:
        with contextlib.suppress(LeaseLost):
            self._client.fail(failure)
