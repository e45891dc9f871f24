"""A directory that is watched, with a clock that tests move and a store in memory."""

import time
from pathlib import Path
from typing import Any

import phyla
from phyla.controller import Sightings
from phyla.records import StudyKind
from phyla.store import open_store
from phyla.watcher import DirectorySources, DirectoryWatcher, Following, get_format

QUIET_S = 30.0


@phyla.eval_task
def nothing(evaluation: Any) -> None:
    """Never called."""


class WatchedDirectory:
    """A directory `root` whose checkpoints are registered."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.now = time.time()  # what is written is new
        self.root = folder / "checkpoints"
        self.root.mkdir()
        store = open_store("memory://", clock=lambda: self.now)
        self._run = store.create_study("job", {}, kind=StudyKind.DIRECTORY, location=str(self.root))
        self._sightings = Sightings(store, self._run, [phyla.Suite("s", (nothing,))])
        self._store = store
        self._folder = folder
        self._options = options
        self.watch()

    def watch(self) -> None:
        """Begin another watch of the same run."""
        self.watcher = DirectoryWatcher(
            self._sightings,
            self.root,
            get_format("auto", quiet_s=QUIET_S, **self._options),
            run=self._run,
            snapshots=self._folder / "snapshots",
            best=self._folder / "best",
            following=Following(),
            clock=lambda: self.now,
        )

    def look(self, after_s: float = 1.0) -> list[tuple[str, int]]:
        """Scan; return the names and steps of all checkpoints that were registered, in order."""
        self.now += after_s
        self.watcher.look()
        return [(seen.name, seen.step) for seen in self._sightings.seen()]

    def checkpoint(self) -> Path:
        """Return where workers find the newest checkpoint."""
        return DirectorySources(self.root).path(self._sightings.seen()[-1])

    def events(self) -> list[str]:
        """Return the messages so far."""
        with self._store.reader(self._run.id) as reader:
            return [event.message for event in reader.events()]
