"""Notification of waiting requests about commits."""

import asyncio
import logging
import threading
from contextlib import suppress
from typing import final

from phyla.errors import StoreError
from phyla.settings import system_clock
from phyla.store import Store

LOG = logging.getLogger("phyla.service")
MOST_WAIT_S = 30.0
LOOK_S = 0.25
"""How often the listening thread checks whether to end."""


@final
class News:
    """Notifies waiting requests of commits; its own thread listens to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Replicas and restarts must not reuse the number of another change.
        self.change = int(system_clock() * 1000)
        self._changed: asyncio.Event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Start to listen, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._listen, name="phyla-news", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and release all waiting requests."""
        self._ended.set()
        self._tell()
        self._thread.join()

    def _listen(self) -> None:
        changes = self._store.changes()
        while not self._ended.is_set():
            try:
                changed = changes.wait(LOOK_S)
            except StoreError as error:
                LOG.warning("cannot listen to the store: %s", error)
                changed = not self._ended.wait(1.0)
            if changed and self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._tell)
        changes.close()

    def _tell(self) -> None:
        self.change += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, change: int, seconds: float) -> int:
        """Return the newest change once it differs from `change`, or after `seconds`."""
        if change == self.change and not self._ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)
        return self.change
