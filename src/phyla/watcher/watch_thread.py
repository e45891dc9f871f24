"""How a process watches runs: a lock for each, file events that wake it, and one thread that scans."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import final

from phyla.errors import ConnectionLost, StoreError
from phyla.store.retry import retry_on
from phyla.system.patience import PATIENCE_S, no_waiting
from phyla.watcher.directory_watcher import DirectoryWatcher
from phyla.watcher.file_events import FileEvents
from phyla.watcher.study_watcher import StudyWatcher

POLL_S = 10.0
TEND_S = 1.0
"""Seconds between updates of snapshots, after which a new or replaced root is also noticed."""
Watcher = DirectoryWatcher | StudyWatcher


@final
class WatchThread:
    """Scans in a thread after each possible change, and at least every `poll_s`, until every run has ended."""

    def __init__(self, watchers: Sequence[Watcher], *, poll_s: float = POLL_S) -> None:
        self._watchers = tuple(watchers)
        self._poll_s = poll_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phyla-watch", daemon=True)
        self._events = FileEvents(*{watcher.root for watcher in watchers if isinstance(watcher.root, Path)})
        self._looked: dict[Watcher, float] = {}
        self._tended_at = float("-inf")
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start; returns after the first scan of every run, and raises its errors."""
        for watcher in self._watchers:
            self._look(watcher)
        self._thread.start()

    def stop(self) -> None:
        """Stop soon, whether or not the runs have ended, and wait for the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    @retry_on(ConnectionLost)
    def tend(self) -> None:
        """Remove snapshots that are no longer needed; call it after `stop`."""
        for watcher in self._watchers:
            watcher.tend()

    def _run(self) -> None:
        try:
            with no_waiting():  # snapshots are made meanwhile
                self._watch()
        except BaseException as error:  # noqa: BLE001  # told in the thread that waits for this one
            self.error = error

    def _watch(self) -> None:
        # Roots whose look failed with the store stay in here.
        changed: set[Path] = set()
        failing_since: float | None = None
        while not self._stop.is_set():
            waits = [self._due_in(watcher) for watcher in self._watchers if not watcher.ended]
            changed |= self._events.wait(max(0.01, min([TEND_S, *waits])), self._stop)
            failed: StoreError | None = None
            for step in [*self._due(changed)]:
                try:
                    step()
                except StoreError as error:  # the other runs are looked at, which makes snapshots
                    failed = error
            if failed is None:
                failing_since = None
                changed.clear()
                continue
            failing_since = failing_since or time.monotonic()
            if time.monotonic() > failing_since + PATIENCE_S:
                raise failed
            self._stop.wait(1.0)

    def _due(self, changed: Collection[Path]) -> Iterator[Callable[[], None]]:
        for watcher in self._watchers:
            if not watcher.ended and (watcher.root in changed or self._due_in(watcher) <= 0):
                yield partial(self._look, watcher)
        if time.monotonic() - self._tended_at >= TEND_S:
            yield self._tend

    def _due_in(self, watcher: Watcher) -> float:
        return self._looked[watcher] + min(watcher.wait_s, self._poll_s) - time.monotonic()

    def _look(self, watcher: Watcher) -> None:
        watcher.look()
        self._looked[watcher] = time.monotonic()

    def _tend(self) -> None:
        self.tend()
        self._tended_at = time.monotonic()
