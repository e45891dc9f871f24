"""Several runs watched in one thread of their own."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

from phyla.errors import StoreError
from phyla.watcher.directory_watcher import DirectoryWatcher
from phyla.watcher.file_events import FileEvents
from phyla.watcher.study_watcher import StudyWatcher

POLL_S = 10.0
TEND_S = 1.0
STORE_FAILURES_AT_MOST = 30
"""In a row, a second apart, before watching gives up on its database."""


Watcher = DirectoryWatcher | StudyWatcher


@final
class WatchThread:
    """Looks whenever something may have changed, in a thread, until every run has ended.

    Args:
        watchers: one per run.
        poll_s: longest time between two looks.

    Attributes:
        error: what ended it early; None unless something did.
    """

    def __init__(self, watchers: Sequence[Watcher], *, poll_s: float = POLL_S) -> None:
        self._watchers = tuple(watchers)
        self._poll_s = poll_s
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._changed: set[Path] = set()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="phyla-watch", daemon=True)
        self._events = FileEvents(*{one.root for one in watchers if one.root is not None}, poll_s=poll_s)
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begin; the first look of every run is over when this returns, and raises here."""
        for watcher in self._watchers:
            watcher.look()
        threading.Thread(target=self._wait_for_changes, name="phyla-changes", daemon=True).start()
        self._thread.start()

    def stop(self) -> None:
        """End soon, whether or not the runs have ended; wait for it."""
        self._stopped = True
        self._events.close()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join()

    def tend(self) -> None:
        """Remove what is not needed any more; for after `stop`."""
        for watcher in self._watchers:
            watcher.tend()

    def _wait_for_changes(self) -> None:
        for roots in self._events:
            with self._lock:
                self._changed |= roots
            self._woken.set()

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # noqa: BLE001  # told in the thread that waits for this one
            self.error = error

    def _watch(self) -> None:
        failures = 0
        changed: set[Path] = set()
        looked = dict.fromkeys(self._watchers, time.monotonic())
        tended_at = float("-inf")

        def due_in(watcher: Watcher) -> float:
            return looked[watcher] + min(watcher.wait_s, self._poll_s) - time.monotonic()

        while not self._stopped:
            with self._lock:
                # What a look missed because the store failed is still in there.
                changed |= self._changed
                self._changed = set()
                self._woken.clear()
            try:
                for watcher in self._watchers:
                    if not watcher.ended and (watcher.root in changed or due_in(watcher) <= 0):
                        watcher.look()
                        looked[watcher] = time.monotonic()
                if time.monotonic() - tended_at >= TEND_S:
                    self.tend()
                    tended_at = time.monotonic()
                failures = 0
                changed.clear()
            except StoreError:
                failures += 1
                if failures > STORE_FAILURES_AT_MOST:
                    raise
                time.sleep(1.0)
            waits = [due_in(watcher) for watcher in self._watchers if not watcher.ended]
            self._woken.wait(max(0.01, min([TEND_S, *waits])))
