"""Trains trials and reports errors of training: the line of the user's code, and the log with the traceback."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, final

from phyla.checkpoints import Checkpoints, full
from phyla.client import Client
from phyla.errors import (
    CheckpointMissing,
    CheckpointsAbsent,
    CheckpointStorageFailed,
    ConfigurationError,
    GivenBack,
    LeaseLost,
    NoCheckpoint,
    NoFitness,
    ProcessSpoiled,
    StoreError,
    TrialError,
    advice_on,
    ends_only_call,
    is_storage_error,
)
from phyla.machine import Completion, Failure
from phyla.records import Phase, TrialRecord
from phyla.settings import SAVE_EVERY, Clock, environment, system_clock
from phyla.worker.containment.surroundings import Surroundings
from phyla.worker.training.causes import cause_of, log_error, traceback_of
from phyla.worker.training.session import TrialSession, unusable_start
from phyla.worker.training.stopwatch import Stopwatch
from phyla.worker.training.trial import Trial

LOG = logging.getLogger("phyla")


@final
@dataclass(eq=False)
class Trainer:
    """Trains one trial after the other.

    Attributes:
        metrics: names that the study's objective needs; none when its fitness comes from a suite.
        state: what `setup` returned.
        save_every_s: seconds after which training is asked to save progress, which it has in its environment, too;
            None never asks.
        log: where full tracebacks go; None writes none.
        on_error: called with the error of training before it is submitted.
        environment: variables that training code gets; `{member}` in them stands for the trial's member.
        watch: measures the time of the training thread; the time before a trial counts as part of it.
        given_back: how many trials in a row asked to be rerun later.
    """

    client: Client
    repository: Checkpoints
    train: Callable[[Trial], object]
    _: KW_ONLY
    metrics: Sequence[str]
    work_root: Path
    clock: Clock = system_clock
    state: Any = None
    timer: Callable[[], float] = time.perf_counter
    log: Path | None = None
    save_every_s: float | None = None
    on_error: Callable[[BaseException], None] = lambda error: None
    environment: Mapping[str, str] = field(default_factory=dict)
    edited: Sequence[str] = ()
    surroundings: Surroundings = field(default_factory=Surroundings)

    def __post_init__(self) -> None:
        self.watch = Stopwatch(self.timer)
        self._cached: tuple[str | None, Any] = (None, None)
        self.given_back = 0
        self._beats = 0
        self._stopping = False
        self._sending = threading.Lock()
        self._current: TrialSession | None = None

    @property
    def beats(self) -> int:
        """Signs of progress so far."""
        current = self._current
        return self._beats + (current.beats if current else 0)

    def stop(self) -> None:
        """Ask the running trial, and those to come, to stop. Takes no lock, so a signal handler may call it."""
        self._stopping = True
        current = self._current
        if current is not None:
            current.stop()

    def flush(self) -> None:
        """Send the reports of the running trial and fetch its state; called by another thread.

        Reports that cannot be sent, because the database failed, are sent the next time.
        """
        with self._sending:
            session = self._current
            if session is None:
                return
            reports = session.take_reports()
            try:
                standing = self.client.report(session.id, session.token, reports)
            except StoreError:
                session.give_back(reports)
                raise
            if standing.stop_reason is not None or standing.cancelled:
                session.stop(standing.stop_reason)

    def run(self, record: TrialRecord, on_report: Callable[[], None] | None = None) -> Completion | Failure | None:
        """Train one trial; return None to requeue it.

        Raises:
            GivenBack: its command asks to be rerun later.
            LeaseLost: another worker has the trial now, or a rule stopped it; its results are dropped.
            CheckpointsAbsent: the directory of the study's checkpoints is not there.
            StoreError: the database failed.
        """
        self.watch.enter(Phase.LOADING)
        try:
            with self.surroundings.guard():
                unusable = unusable_start(record, self.client, self.repository)
                if unusable is not None:
                    return replace(unusable, timings=self.watch.take())
                session = TrialSession(
                    record,
                    self.client,
                    self.repository,
                    metrics=self.metrics,
                    work_root=self.work_root,
                    clock=self.clock,
                    worker=self.state,
                    cached_state=self._take_cached(record),
                    on_report=on_report,
                    watch=self.watch,
                    save_every_s=self.save_every_s,
                )
                return self._run(session)
        except CheckpointMissing:
            # It disappeared just now: the next worker with the trial checks again.
            return None
        except CheckpointStorageFailed as error:
            # Its start cannot be read, or leftovers of training cannot be removed.
            self._stop_study(record, str(error))
            return None

    def _run(self, session: TrialSession) -> Completion | Failure | None:
        self._current = session
        if self._stopping:
            session.stop()
        given_back, self.given_back = self.given_back, 0
        try:
            member = str(session.record.member)
            variables = {name: text.replace("{member}", member) for name, text in self.environment.items()}
            if self.save_every_s is not None:
                variables[SAVE_EVERY] = f"{self.save_every_s:g}"
            with environment(variables):
                ran = f"trial {session.id} of member {member} was trained"
                self.surroundings.call(ran, self.train, session.trial)
            with self.surroundings.guard():
                return self._finish(session)
        except GivenBack as error:
            self.given_back = given_back + 1
            LOG.warning("trial %d of member %d was given back: %s", session.id, session.record.member, error)
            self._give_up(session)
            raise
        except LeaseLost:
            session.discard()
            raise
        except (StoreError, ProcessSpoiled):
            raise
        except BaseException as error:
            if not ends_only_call(error):
                raise
            return self._handle_error(session, error)
        finally:
            self._beats += session.beats
            self._current = None
            # Trials neither completed nor failed, and so not yet requested, belong to no worker.
            session.timings()
            session.release()

    def _give_up(self, session: TrialSession) -> None:
        """Remove uncommitted files, and send the reports up to saved progress, where the next attempt resumes."""
        session.discard()
        with suppress(StoreError):
            self.flush()

    def _take_cached(self, record: TrialRecord) -> Any:
        name, value = self._cached
        self._cached = (None, None)
        continues = name is not None and name == record.parent_checkpoint and record.progress is None
        return value if continues and record.jump_from is None else None

    def _finish(self, session: TrialSession) -> Completion | None:
        if session.stop_reason is not None:
            # Its member has decided again, perhaps.
            raise LeaseLost(f"trial {session.id} was stopped by a rule")
        if session.stopped_early:
            self._give_up(session)
            return None
        if not session.measuring and session.reached_step <= session.record.start_step:
            raise NoCheckpoint(
                f"training returned at step {session.reached_step}, without training a single step beyond "
                f"start_step={session.record.start_step}; a step of trial.steps() counts when the loop asks for "
                "the next one, so not the step in which you `break`"
            )
        if session.unreported:
            raise NoFitness(session.missing("training returned without reporting", "before it returns"))
        checkpoint = session.commit()
        # Reports that are just being sent come first, since rules judge them in order.
        with self._sending:
            completion = session.completion(checkpoint)
        if self.edited:
            noticed = {**(completion.noticed or {}), "edited": list(self.edited)}
            completion = replace(completion, noticed=noticed)
        if checkpoint is not None:
            self._cached = (checkpoint.name, session.cached_state)
        return completion

    def _handle_error(self, session: TrialSession, error: BaseException) -> Failure | None:
        # If the whole checkpoint storage is unreachable, no single checkpoint is lost.
        self.repository.check_owner()
        if isinstance(error, CheckpointsAbsent):
            raise error
        record = session.record
        if isinstance(error, CheckpointStorageFailed):
            self._stop_study(record, str(error), session)
            return None
        storage = error if is_storage_error(error) else full(session.places)
        if isinstance(storage, OSError):
            summary = cause_of(error, self.train, None).words()
            places = " and ".join(f"{place} ({name})" for place, name in session.places.items())
            detail = "" if storage is error else f"; {storage.filename}: {storage.strerror}"
            message = f"training failed with {summary}; trial {record.id} writes to {places}{detail}"
            self._stop_study(record, f"{message}; {advice_on(storage)}", session)
            return None
        if isinstance(error, ConfigurationError):
            # Another attempt would fail in the same way.
            summary = cause_of(error, self.train, None).words()
            self._stop_study(record, f"trial {record.id} of member {record.member} failed with {summary}", session)
            return None
        heading = f"trial {record.id}, attempt {record.token} of member {record.member} failed"
        cause = log_error(error, heading, self.train, self.log)
        self.on_error(error)
        self._give_up(session)
        # Another attempt would not help.
        hopeless = isinstance(error, (NoFitness, NoCheckpoint))
        own = isinstance(error, TrialError)
        text = f"{type(error).__name__}: {error}" if own else traceback_of(error)
        failure = Failure(job=record.id, token=record.token, error=text, retryable=not hopeless, cause=cause)
        if not hopeless:
            # Training may have failed because files of the checkpoint vanished or changed unnoticed.
            with suppress(CheckpointStorageFailed):
                unusable = unusable_start(record, self.client, self.repository, again=True)
                if unusable is not None:
                    failure = replace(unusable, error=f"{text.rstrip()}\n{unusable.error}")
        return replace(failure, timings=session.timings())

    def _stop_study(self, record: TrialRecord, message: str, session: TrialSession | None = None) -> None:
        """Stop everything: the storage of results is broken, which is no trial's fault."""
        with suppress(CheckpointStorageFailed):
            # Remaining files are removed when the study is run again.
            if session is not None:
                session.discard()
        note = f"Completed trials and saved progress are kept; trial {record.id} repeats what it trained since."
        self.client.fail_study(record.study, f"{message}. Then run the study again. {note}")
