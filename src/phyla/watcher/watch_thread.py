"""Several runs followed in one thread of their own."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import final

from phyla.errors import StoreError
from phyla.watcher.directory import Directory
from phyla.watcher.sink import Follower

POLL_S = 10.0
TEND_S = 1.0
STORE_FAILURES_AT_MOST = 30
"""In a row, a second apart, before following gives up on its database."""


@final
class Follow:
    """Looks whenever something may have changed, in a thread, until every run has ended.

    Args:
        followers: each with the directory whose changes wake it, or None.
        poll_s: longest time between two looks.
        on_error: called with the text of each failure that is tried again.
    """

    def __init__(
        self,
        followers: Sequence[tuple[Follower, Path | None]],
        *,
        poll_s: float = POLL_S,
        on_error: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._followers = [follower for follower, _ in followers]
        self._by_root: Mapping[Path, list[Follower]] = _by_root(followers)
        self._poll_s = poll_s
        self._on_error = on_error
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._changed: set[Path] = set()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="phyla-watch", daemon=True)
        self._directory = Directory(*self._by_root, poll_s=poll_s) if self._by_root else None
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begin; the first look of every run is over when this returns.

        Raises:
            Exception: what the first look raised.
        """
        self._look(self._followers)
        if self._directory is not None:
            threading.Thread(target=self._wait_for_changes, name="phyla-changes", daemon=True).start()
        self._thread.start()

    def stop(self) -> None:
        """End soon, whether or not the runs have ended; wait for it."""
        self._stopped = True
        if self._directory is not None:
            self._directory.close()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def ended(self) -> bool:
        """Whether every run has ended, or following failed."""
        return self.error is not None or all(follower.ended for follower in self._followers)

    def tend(self) -> None:
        """Remove what is not needed any more; for after `stop`.

        Raises:
            StoreError: the database failed.
        """
        for follower in self._followers:
            follower.tend()

    def _wait_for_changes(self) -> None:
        assert self._directory is not None
        for roots in self._directory:
            with self._lock:
                self._changed |= roots
            self._woken.set()

    def _run(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # noqa: BLE001  # told in the thread that waits for this one
            self.error = error

    def _follow(self) -> None:
        failures = 0
        looked = dict.fromkeys(map(id, self._followers), time.monotonic())
        tended_at = float("-inf")
        while not self._stopped:
            with self._lock:
                roots, self._changed = self._changed, set()
                self._woken.clear()
            changed = {id(follower) for root in roots for follower in self._by_root.get(root, ())}
            now = time.monotonic()
            due = [
                follower
                for follower in self._followers
                if not follower.ended
                and (id(follower) in changed or now - looked[id(follower)] >= min(follower.wait_s, self._poll_s))
            ]
            try:
                self._look(due)
                looked.update(dict.fromkeys(map(id, due), time.monotonic()))
                if now - tended_at >= TEND_S:
                    self.tend()
                    tended_at = time.monotonic()
                failures = 0
            except StoreError as error:
                failures += 1
                self._on_error(f"{error}; it is tried again")
                if failures > STORE_FAILURES_AT_MOST:
                    raise
                time.sleep(1.0)
            waits = [
                looked[id(follower)] + min(follower.wait_s, self._poll_s) - time.monotonic()
                for follower in self._followers
                if not follower.ended
            ]
            self._woken.wait(max(0.01, min([TEND_S, *waits])))

    @staticmethod
    def _look(followers: Sequence[Follower]) -> None:
        for follower in followers:
            follower.look()


def _by_root(followers: Sequence[tuple[Follower, Path | None]]) -> dict[Path, list[Follower]]:
    found: dict[Path, list[Follower]] = {}
    for follower, root in followers:
        if root is not None:
            found.setdefault(root, []).append(follower)
    return found
