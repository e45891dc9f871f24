"""A run whose worker is this process."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import final

from phyla import settings
from phyla.client import Client
from phyla.errors import Preempted, StoreError, StudyChanged
from phyla.machine import NoTime, Outdated
from phyla.supervision.term import PERSON, Term
from phyla.system.fork_safe_signals import EXIT_INTERRUPTED, EXIT_PREEMPTED, handle, listen
from phyla.worker import Worker

LOG = logging.getLogger("phyla")
UNNOTICED_S = 5.0
"""Seconds that user code has to raise what interrupts it."""


@final
class OwnRun:
    """Works until there is no more work, a signal, or the end of its time.

    The first signal asks the worker to end soon, and a second Ctrl-C raises KeyboardInterrupt at once. Only the
    main thread can handle signals; in another one they stay as they are.
    """

    def __init__(self, client: Client, worker: Worker, term: Term, on_interrupt: Callable[[], None]) -> None:
        self._client, self._worker, self._term = client, worker, term
        self._on_interrupt = on_interrupt
        self._stopped_by = ""
        self._deadline = Deadline(client, worker.name, term)

    def run(self, on_tick: Callable[[], None]) -> bool:
        """Work until the studies end; return False when a person interrupted it."""
        with self._signals(), self._time_limit():
            try:
                end = self._worker.run(on_tick)
            except BaseException:
                with contextlib.suppress(StoreError):  # its lease runs out then
                    self._client.lose_worker(self._worker.name, "its run was interrupted", counts=False)
                raise
        if isinstance(end, Outdated):
            raise StudyChanged(end.why)
        why = self._stopped_by or (self._term.end_message(over=False) if isinstance(end, NoTime) else PERSON)
        if why != PERSON and self._client.is_active():
            raise Preempted(why)
        return self._stopped_by != PERSON

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: handle(number, self._interrupt) for number in self._term.signals}
        end_listening = listen(self._term.signals, self._deadline.wait)
        try:
            yield
        finally:
            self._deadline.done.set()
            end_listening()
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def _time_limit(self) -> Iterator[None]:
        left_s, why = self._term.stops_at - settings.system_clock(), self._term.end_message(over=True)
        timer = threading.Timer(left_s, self._stop, [why])
        timer.daemon = True
        if self._term.limit_s is not None:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _stop(self, why: str) -> None:
        self._on_interrupt()
        self._stopped_by = self._stopped_by or why
        self._worker.stop()

    def _interrupt(self, number: int, frame: object) -> None:
        why = PERSON if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
        if self._deadline.passed:
            self._stopped_by = self._stopped_by or why
            raise KeyboardInterrupt if self._stopped_by == PERSON else Preempted(self._stopped_by)
        if not self._stopped_by:
            self._stop(why)
        elif number == signal.SIGINT:
            self._on_interrupt()
            self._client.store.hold_on(0.0)
            raise KeyboardInterrupt


@final
class Deadline:
    """Ends user code of this process, which does not notice a signal: it is interrupted, then the process ends."""

    def __init__(self, client: Client, worker: str, term: Term) -> None:
        self._client, self._worker, self._term = client, worker, term
        self.passed = False
        self.done = threading.Event()

    def wait(self, number: int) -> None:
        """Wait for the end from a signal on, in a thread beside the main one."""
        if self.done.wait(self._term.grace_s):
            return
        self.passed = True
        signal.pthread_kill(threading.main_thread().ident or 0, number)
        self._client.store.hold_on(0.0)
        LOG.warning("what runs %s", self._term.overrun_message)
        by_person = number == signal.SIGINT
        # Code outside of Python may not notice. The kernel of a notebook has more to lose than a trial.
        if self.done.wait(UNNOTICED_S) or (by_person and "IPython" in sys.modules):
            return
        with contextlib.suppress(StoreError):
            self._client.lose_worker(self._worker, "its run was ended while it did not stop", counts=False)
        os._exit(EXIT_INTERRUPTED if by_person else EXIT_PREEMPTED)
