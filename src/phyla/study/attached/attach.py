"""Processes that the user started and that train a study's trials in their own code."""

import atexit
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, final

from phyla import study_modules
from phyla.client import Client, open_checkpoints
from phyla.configuration import from_config
from phyla.errors import (
    ConfigurationError,
    NotImportable,
    StateError,
    StudyChanged,
    StudyFailed,
)
from phyla.machine import Ended, NoTime, Outdated, TrainRules
from phyla.records import StudyState
from phyla.study.attached.member import AttachedMember
from phyla.study.maintaining.recover import resume_study, take_back
from phyla.study.places import Places, find_study
from phyla.study.results.results import Results
from phyla.study.running.open import claim
from phyla.study.study import LEASE_S, Study
from phyla.study.validation import check_kinds
from phyla.system.fork_safe_signals import handle
from phyla.worker import Launch, Trial, Worker, session_of
from phyla.worker.make import population_worker
from phyla.worker.spec import WorkerSpec

LOG = logging.getLogger("phyla")
LEAVING = {"KeyboardInterrupt", "SystemExit", "GeneratorExit", "CancelledError", "Cancelled"}
"""Names of what ends a program on purpose: after Ctrl-C, asyncio and Trio cancel what runs."""


class _GivenBack(BaseException):
    """Ends the worker of an attached process, whose trial goes back to the queue."""


def attach(
    study: str | Study,
    *,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
    kinds: Sequence[str] = ("train", "evaluate"),
    lease_s: float = LEASE_S,
) -> "Attached":
    """Let this process, which you started, train trials of a study in its own code.

    Start as many such processes as you like, on any machines that see the store and the checkpoints. Given a
    `Study`, the first of them creates it and the others find it; a stopped or failed study resumes. Each leases a
    member, so there is no index to set. A thread renews the lease, and evaluates while there is nothing to train.
    Attach once for each thread and each forked process that trains. Use it in a `with` statement: an exception
    then fails the trial, as one in a training function does.

    Args:
        study: the study, whose `train` is not used; or the name of one that exists.
        home: where the study of that name lives, as for `Study`.
        storage: URL of its database, as for `Study`.
        checkpoints: where its checkpoints are, as for `Study`.
        kinds: what this process does: `train`, or also `evaluate` between two trials.
        lease_s: seconds after which the trial of a process that went silent is given to another one.

    Raises:
        StudyNotFound: there is no study of that name.
        StudyChanged: the study has other settings than the one given; see `Study.change`.
        NotImportable: the study of that name uses functions of yours; pass the `Study`.
        CheckpointsAbsent: the directory of its checkpoints is missing, or is not its own.
        ConfigurationError: an argument is invalid.
        StoreError: the database failed.
    """
    study_modules.only_when_run(study_modules.OwnLoop)
    if "train" not in check_kinds(kinds):
        raise ConfigurationError(
            f"attach(kinds={kinds!r}): it has to train; start workers that only evaluate with: phyla worker"
        )
    if isinstance(study, Study):
        if (home, storage, checkpoints) != (None, None, None):
            raise ConfigurationError(
                "attach(Study(...), home=...): the study says where it lives; give home=, storage= and "
                "checkpoints= to Study"
            )
        study._set_lease(lease_s)
        return Attached(study._open(), study.rules, study.places, kinds)
    places = Places.of(home, storage, checkpoints)
    store, record = find_study(study, places)
    try:
        rules = replace(from_config(record.config), lease_s=lease_s)
    except NotImportable as error:
        store.close()
        raise NotImportable(
            f"study {study!r} uses functions of yours, which are not taken from a database: {error}. Pass the "
            "study itself: phyla.attach(Study(...))"
        ) from error
    repository = open_checkpoints(store, record, places.checkpoints(study, record.config))
    client = Client(store, record, rules, repository)
    return Attached(client, rules, places, kinds)


@final
class Attached:
    """A process that is attached to a study; see `attach`.

    A worker in its own thread claims trials and submits them. It passes each to the thread that asks for one here,
    and waits until that thread has trained it.
    """

    def __init__(self, client: Client, rules: TrainRules, places: Places, kinds: Sequence[str]) -> None:
        self._client, self._rules, self._places, self._kinds = client, rules, places, kinds
        self._name = client.record.name
        self._trial: Trial | None = None
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self._user: threading.Thread | None = None
        self._lock = threading.Lock()
        self._in_with = self._closed = False
        self._handlers: dict[int, Any] = {}
        self._pid = os.getpid()
        self._launch = Launch(places.locks, client.store.url, [self._name])
        claim(client)
        resume_study(client.store, client.record)
        take_back(client, self._launch)
        client.recover()
        atexit.register(self.close)

    def trials(self) -> Iterator[Trial]:
        """Iterate over trials to train, each as a training function gets it, until the study ends.

        Continuing with the next trial completes the current one; the contents of its `checkpoint_dir` are its
        checkpoint. Between two trials this waits until a member may train. Leaving the loop returns the trial to
        the queue. An exception that leaves the `with` statement fails it.

        The first Ctrl-C or SIGTERM asks the trial to stop: `steps()` ends, `should_stop` is true, and the
        unfinished trial goes back to the queue. The next one interrupts it at once. This works in the main thread
        only.

        Raises:
            NoFitness: the objective was not reported; the trial has failed.
            NoCheckpoint: nothing was saved in `checkpoint_dir`; the trial has failed.
            StudyChanged: the study was given other settings meanwhile; attach again.
            StudyFailed: the study stopped itself; the message says what to do.
            KeyboardInterrupt: a person or the system stopped this process; the study goes on.
            StateError: another thread or process uses this object, or it was closed.
            StoreError: the database failed.
        """
        self._refuse_others()
        self._leave(None)
        try:
            while (trial := self.next_trial()) is not None:
                yield trial
            if self._interrupted:
                raise KeyboardInterrupt
        finally:
            # In a `with` statement it becomes known whether an exception ended the loop.
            if not self._in_with and self._user is threading.current_thread():
                if self._trial is not None:
                    LOG.warning(
                        "the loop was left during trial %d, which goes back to the queue; for an error to count "
                        "as a failed attempt, write: with phyla.attach(...) as job",
                        self._trial.id,
                    )
                self._leave(None)

    def member(self) -> AttachedMember:
        """Return the member for a continuous training loop, which calls its `poll`."""
        return AttachedMember(self.next_trial, self._refuse_others, partial(self._leave, None))

    def results(self) -> Results:
        """Return what the study has found so far."""
        return Results(self._client.store, self._client.study(), self._places)

    def next_trial(self) -> Trial | None:
        """Submit the trial of this process, and wait for the next; None when there are no more."""
        self._refuse_others()
        trial, self._trial = self._trial, None
        if self._thread is None:
            self._start()
        elif trial is not None:
            self._outcome.put(None)
        self._trial = self._handed.get()
        if self._trial is None:
            self._join()
        return self._trial

    def close(self) -> None:
        """Release the trial of this process, if any, and detach."""
        if os.getpid() != self._pid:
            return  # a fork of the process
        atexit.unregister(self.close)
        self._leave(None)
        if not self._closed:
            self._closed = True
            self._launch.close()

    def __enter__(self) -> Self:
        self._in_with = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_with = False
        # Some errors are no Exception, such as the CheckpointException of torch.distributed.checkpoint.
        left = any(base.__name__ in LEAVING for base in type(error).__mro__)
        self._leave(None if left and not isinstance(error, Exception) else error)
        self.close()

    def _refuse_others(self) -> None:
        """Let one thread at a time use this: a call by another thread would submit an unfinished trial."""
        me = threading.current_thread()
        if os.getpid() == self._pid:
            with self._lock:
                if self._user is None or not self._user.is_alive():
                    self._user = me
                user = self._user
            if user is me:
                return
        raise StateError(
            f"another thread or process trains with this phyla.attach() to study {self._name!r}: call "
            f"phyla.attach() again in {me.name} of process {os.getpid()}, one for each thread and process"
        )

    # The worker and its thread

    def _start(self) -> None:
        if self._closed:
            raise StateError(f"this process was detached from study {self._name!r}; call phyla.attach() again")
        places, name = self._places, self._name
        spec = WorkerSpec(
            configs={name: self._client.record.config},
            storage=places.storage,
            checkpoints=str(places.checkpoints(name, self._client.record.config)),
            work_root=str(places.folder("work", name)),
            outputs=str(places.folder("outputs", name)),
            kinds=tuple(sorted(set(self._kinds))),
            # Those of one machine differ, so that each keeps to its member.
            name=self._launch.worker_name(slot=threading.get_native_id()),
            log=str(places.folder("logs", name) / f"worker-{os.getpid()}.log"),
        )
        # Wrapped, so that errors do not name this function as the place where training begins.
        train = partial(self._hand_over)
        worker = population_worker(self._client, self._rules, train, None, spec, renew_s=self._rules.lease_s / 3)
        assert worker.trainer is not None
        worker.trainer.on_error = self._failed
        self._flush = worker.trainer.flush
        self._handed: SimpleQueue[Trial | None] = SimpleQueue()
        self._outcome: SimpleQueue[BaseException | None] = SimpleQueue()
        self._ended: Ended | Outdated | NoTime | None = None
        self._error: BaseException | None = None
        self._interrupted = False
        self._worker = worker
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._handlers[number] = handle(number, self._interrupt)
        self._thread = threading.Thread(target=self._work, args=(worker,), name="phyla-worker", daemon=True)
        self._thread.start()

    def _work(self, worker: Worker) -> None:
        client = self._client
        try:
            self._ended = worker.run()
            if isinstance(self._ended, Ended):
                client.collect()
        except _GivenBack:
            with contextlib.suppress(Exception):  # its lease runs out then
                client.lose_worker(worker.name, "its process let it go", counts=False)
        except BaseException as error:  # noqa: BLE001  # belongs to the thread that asked for the trial
            self._error = error
        finally:
            self._handed.put(None)

    def _hand_over(self, trial: Trial) -> None:
        """Give a trial to the user's thread, and wait until it is done; called by the worker."""
        self._handed.put(trial)
        outcome = self._outcome.get()
        if isinstance(outcome, _GivenBack):
            with contextlib.suppress(Exception):  # it is given back in any case
                self._flush()
        if outcome is not None:
            raise outcome

    def _failed(self, error: BaseException) -> None:
        self._error = error
        assert self._worker is not None
        self._worker.stop()

    def _interrupt(self, number: int, frame: Any) -> None:
        again, self._interrupted = self._interrupted, True
        if self._worker is not None:
            self._worker.stop()
        before = self._handlers.get(number)
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)
        elif again:
            raise KeyboardInterrupt

    def _leave(self, error: BaseException | None) -> None:
        """Fail the trial of this process, or return it to the queue."""
        trial, self._trial = self._trial, None
        if self._thread is None or self._worker is None or os.getpid() != self._pid:
            return
        self._worker.stop()
        if trial is not None and error is None:
            session_of(trial).discard()
        # Without a trial, this meets the one that is being claimed, if any.
        self._outcome.put(_GivenBack() if trial is None or error is None else error)
        with contextlib.suppress(Exception, KeyboardInterrupt):  # what it says was said, or is of no concern now
            self._join()

    def _join(self) -> None:
        """End the worker's thread, and raise why it ended."""
        assert self._thread is not None
        self._thread.join()
        self._thread = self._worker = self._user = None
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._handlers.clear()
        if self._error is not None:
            raise self._error
        if isinstance(self._ended, Outdated):
            raise StudyChanged(self._ended.why)
        if isinstance(self._ended, Ended) and self._ended.state is StudyState.FAILED:
            raise StudyFailed(self._ended.message or f"study {self._name!r} has failed")
