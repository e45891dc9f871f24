"""When to look at directories again: at every event, and every few seconds in any case."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import final

TICK_S = 1.0
"""How soon a root that appeared, or was replaced by another, is noticed."""


@final
class FileEvents:
    """Wakes up when something may have changed below one of several directories.

    Iterating yields the roots that may have changed: those with an event as soon as there is one, and all of them
    in the beginning and whenever `poll_s` passed without a wake-up, since network file systems lose events. An
    event is only a hint: look at everything there. A root that does not exist yet is waited for.

    Args:
        roots: directories to watch, with everything below them.
        poll_s: longest time between two wake-ups.

    Attributes:
        events: whether events are used; False once they turned out not to work here.
    """

    def __init__(self, *roots: Path, poll_s: float = 10.0) -> None:
        self._roots = {Path(os.path.abspath(root)): root for root in roots}  # noqa: PTH100 -- keeps links
        self._poll_s = poll_s
        self.events = True
        self._closed = threading.Event()

    def close(self) -> None:
        """End the iterator, from whatever thread; it returns within a moment."""
        self._closed.set()

    def __iter__(self) -> Iterator[frozenset[Path]]:
        """Yield roots that may have changed, as they were given."""
        every = frozenset(self._roots.values())
        while not self._closed.is_set():
            # Looked at before the wake-up, so that what appears during it counts as new.
            present = self._present()
            yield every
            if self.events and present:
                yield from self._by_events(present)
            else:
                self._wait_for_roots(present)

    def _present(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for root in self._roots:
            with suppress(OSError):
                status = root.stat()
                found[root] = (status.st_dev, status.st_ino)
        return found

    def _wait_for_roots(self, present: dict[Path, tuple[int, int]]) -> None:
        until = time.monotonic() + self._poll_s
        while (left := until - time.monotonic()) > 0:
            if self._closed.wait(min(TICK_S, left)) or self._present() != present:
                return

    def _by_events(self, present: dict[Path, tuple[int, int]]) -> Iterator[frozenset[Path]]:
        """Yield until the set of existing roots is another one, or events do not work."""
        try:
            from watchfiles import Change, watch

            tick_s = min(TICK_S, self._poll_s)
            changes = watch(
                *present,
                watch_filter=None,
                rust_timeout=max(1, int(tick_s * 1000)),
                yield_on_timeout=True,
                stop_event=self._closed,
                force_polling=False,
                ignore_permission_denied=True,
                debug=False,
            )
            # Until the first answer nothing was watched, so that one counts whatever it says.
            woken_at = float("-inf")
            for changed in changes:
                if time.monotonic() - woken_at >= self._poll_s:
                    yield frozenset(self._roots.values())
                elif changed:
                    yield self._of(path for _, path in changed)
                    if any(kind is Change.deleted and Path(path) in present for kind, path in changed):
                        # What took its place may well have the same number, and is not watched.
                        return
                elif self._present() != present:
                    return
                else:
                    continue
                woken_at = time.monotonic()
                if self._present() != present:
                    return
        except (FileNotFoundError, RuntimeError):
            # A root went away before it was watched, or an event is about a name that is not valid text: that ends
            # the events, and counts as one.
            self._closed.wait(min(TICK_S, self._poll_s))
        except (OSError, ImportError):
            # No events on this system, or no more of them: too many directories are watched already.
            self.events = False

    def _of(self, changed: Iterator[str]) -> frozenset[Path]:
        paths = [Path(path) for path in changed]
        return frozenset(
            given
            for root, given in self._roots.items()
            if any(path == root or root in path.parents or path in root.parents for path in paths)
        ) or frozenset(self._roots.values())
