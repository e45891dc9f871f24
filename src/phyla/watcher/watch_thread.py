"""How a process watches runs: a lock for each, file events that wake it, and one thread that looks."""

import os
import platform
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, final

from phyla import file_locks
from phyla.errors import ConnectionLost, RunFollowed, StoreError
from phyla.patience import PATIENCE_S
from phyla.store.retry import again
from phyla.watcher.directory_watcher import DirectoryWatcher
from phyla.watcher.study_watcher import StudyWatcher

POLL_S = 10.0
TEND_S = 1.0
"""How often snapshots are tended; so soon a root that appeared, or was replaced by another, is noticed."""

LOCK_TRIES = 5
LOCK_AGAIN_S = 0.05
"""Between two tries: `holder` holds the lock for a moment, too."""
TICK_MS = 100
"""How often the wait for events looks whether it has to end."""


def holder(path: Path) -> str | None:
    """Return which process of this machine holds the lock file of a run; None if none does, or it is not known."""
    return _who(path) if file_locks.is_held(path) else None


def _who(path: Path) -> str:
    return path.read_text(errors="replace").strip() or "another process"


@contextmanager
def lock(path: Path, run: str) -> Iterator[None]:
    """Have the right to follow a run, until the block or the process ends, however that ends.

    The file is made where missing, never removed. `RunFollowed` says that another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            for _ in range(LOCK_TRIES - 1):
                with suppress(BlockingIOError):
                    file_locks.lock(descriptor)
                    break
                time.sleep(LOCK_AGAIN_S)
            else:
                file_locks.lock(descriptor)
        except OSError as error:
            how = f"stop that one first, or add workers to it with: phyla worker SUITES.py --study {run}"
            raise RunFollowed(
                f"run {run!r} is followed by {_who(path)} already (lock file {path}); {how}"
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node() or 'this host'}\n".encode())
        yield
    finally:
        os.close(descriptor)


@final
class FileEvents:
    """Waits until something may have changed below one of several directories, some of which may not exist yet.

    An event is only a hint: look at everything there; and now and then in any case, since network file systems
    lose events. `works` is False once they turned out not to work here.
    """

    def __init__(self, *roots: Path) -> None:
        self._roots = {Path(os.path.abspath(root)): root for root in roots}  # noqa: PTH100 -- keeps links
        self._watched: dict[Path, tuple[int, int]] | None = None
        self._changes: Iterator[set[tuple[Any, str]]] | None = None
        self.works = True

    def wait(self, timeout_s: float, stop: threading.Event) -> frozenset[Path]:
        """Return the roots with an event, as they were given; all when watching begins, none after `timeout_s`."""
        until = time.monotonic() + timeout_s
        present = self._present()
        if present != self._watched:
            self._watched, self._changes = present, self._watch(present, stop)
            # Until the first answer nothing was watched.
            self._next(stop)
            return frozenset(self._roots.values())
        changed: set[tuple[Any, str]] = set()
        while not changed and self._changes is not None and time.monotonic() < until and not stop.is_set():
            changed = self._next(stop)
        if not changed:
            stop.wait(until - time.monotonic())
            return frozenset()
        paths = [Path(path) for _, path in changed]
        if any(kind.name == "deleted" and Path(path) in present for kind, path in changed):
            # What takes the place of a root that was deleted may have the same number, and is not watched.
            self._watched = None
        return frozenset(
            given
            for root, given in self._roots.items()
            if any(path == root or root in path.parents or path in root.parents for path in paths)
        ) or frozenset(self._roots.values())

    def _next(self, stop: threading.Event) -> set[tuple[Any, str]]:
        try:
            return set() if self._changes is None else next(self._changes, set())
        except (FileNotFoundError, RuntimeError):
            # A root went away before it was watched, or an event is about a name that is not valid text.
            self._watched = self._changes = None
            stop.wait(TEND_S)
        except OSError:
            # No events on this system, or no more of them: too many directories are watched already.
            self.works, self._changes = False, None
        return set()

    def _present(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for root in self._roots:
            with suppress(OSError):
                status = root.stat()
                found[root] = (status.st_dev, status.st_ino)
        return found

    def _watch(
        self, present: dict[Path, tuple[int, int]], stop: threading.Event
    ) -> Iterator[set[tuple[Any, str]]] | None:
        if not (present and self.works):
            return None
        try:
            from watchfiles import watch
        except (ImportError, OSError):
            self.works = False
            return None
        return watch(
            *present,
            watch_filter=None,
            rust_timeout=TICK_MS,
            yield_on_timeout=True,
            stop_event=stop,
            force_polling=False,
            ignore_permission_denied=True,
            debug=False,
        )


Watcher = DirectoryWatcher | StudyWatcher


@final
class WatchThread:
    """Looks whenever something may have changed, in a thread, until every run has ended; at least every `poll_s`.

    `error` is what ended it early; None unless something did.
    """

    def __init__(self, watchers: Sequence[Watcher], *, poll_s: float = POLL_S) -> None:
        self._watchers = tuple(watchers)
        self._poll_s = poll_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phyla-watch", daemon=True)
        self._events = FileEvents(*{one.root for one in watchers if isinstance(one.root, Path)})
        self._looked: dict[Watcher, float] = {}
        self._tended_at = float("-inf")
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begin; the first look of every run is over when this returns, and raises here."""
        for watcher in self._watchers:
            self._look(watcher)
        self._thread.start()

    def stop(self) -> None:
        """End soon, whether or not the runs have ended; wait for it."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    @again(ConnectionLost)
    def tend(self) -> None:
        """Remove what is not needed any more; for after `stop`."""
        for watcher in self._watchers:
            watcher.tend()

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # noqa: BLE001  # told in the thread that waits for this one
            self.error = error

    def _watch(self) -> None:
        # What a look missed because the store failed stays in here.
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
