"""File system events, where the system supports them."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, final

TICK_MS = 250
"""How often a wait for events checks whether to stop."""


@final
class FileEvents:
    """Waits until something may have changed below one of several directories, some of which may not exist yet.

    An event is only a hint: scan everything, and also at intervals, since network file systems lose events.
    `works` is False once events turned out not to work here.
    """

    def __init__(self, *roots: Path) -> None:
        self._roots = {Path(os.path.abspath(root)): root for root in roots}  # noqa: PTH100 -- keeps links
        self._watched: dict[Path, tuple[int, int]] | None = None
        self._changes: Iterator[set[tuple[Any, str]]] | None = None
        self.works = True

    def wait(self, timeout_s: float, stop: threading.Event) -> frozenset[Path]:
        """Return the roots with an event; all when watching starts, none after `timeout_s`."""
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
            # A new directory in place of a deleted root may have the same inode, and is not watched.
            self._watched = None
        return frozenset(
            original
            for root, original in self._roots.items()
            if any(path == root or root in path.parents or path in root.parents for path in paths)
        ) or frozenset(self._roots.values())

    def _next(self, stop: threading.Event) -> set[tuple[Any, str]]:
        try:
            return set() if self._changes is None else next(self._changes, set())
        except (FileNotFoundError, RuntimeError):
            # A root went away before it was watched, or an event is about a name that is not valid text.
            self._watched = self._changes = None
            stop.wait(1.0)
        except OSError:
            # No events on this system, or too many directories are watched already.
            self.works, self._changes = False, None
        return set()

    def _present(self) -> dict[Path, tuple[int, int]]:
        present = {}
        for root in self._roots:
            with suppress(OSError):
                status = root.stat()
                present[root] = (status.st_dev, status.st_ino)
        return present

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
