"""Follows a study through its store, and logs what is new to trackers."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from phyla.errors import ConfigurationError
from phyla.integrations.trackers import (
    TrackedStudy,
    Tracker,
    check_writable,
    make_tracker,
    split_run,
    variables_of,
)
from phyla.records import StudyRecord
from phyla.study.places import Places
from phyla.study.results.tracker_rows import Feed, WatchedFeed, feed_of, make_tracked_study
from phyla.study.running.background import Beside, Remembered
from phyla.system import file_locks

if TYPE_CHECKING:
    from phyla.store import Store


@final
class TrackerFeed:
    """Logs what is new in a study to one tracker; a file holds the position in the history.

    After a failure, logging continues from the last position in the file. If several processes of this machine run
    the study, one of them logs; when it ends, another one takes over.
    """

    def __init__(
        self, tracker: Tracker, store: "Store", study: StudyRecord, places: Places, existing: str | None = None
    ) -> None:
        self._tracker = tracker
        self._store = store
        self._study = study
        self._places = places
        self._existing = existing
        # A study that is restarted from scratch has another file.
        key = f"{study.created_at!r} {tracker.place}" + ("" if existing is None else f" {existing}")
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        self._file = places.folder("tracking", study.name) / f"{tracker.name}-{digest}.json"
        self._position = Remembered(self._file)
        self._feed: Feed | WatchedFeed | None = None
        self._lock: int | None = None

    def look(self) -> None:
        """Log what is new."""
        if not self._is_the_one():
            return
        feed = self._feed
        if feed is None:
            self._tracker.open(make_tracked_study(self._study, self._places, self._existing))
            feed = feed_of(self._store, self._study, self._places, self._position.read())
        # Until everything is logged, the next look starts from the file's position.
        self._feed = None
        for rows in feed.batches():
            if rows:
                self._tracker.log(rows)
                self._position.write(feed.position())
        self._feed = feed

    def close(self) -> None:
        """Close the tracker; the next look opens it again."""
        self._feed = None
        lock, self._lock = self._lock, None
        if lock is not None:
            try:
                self._tracker.close()
            finally:
                os.close(lock)

    def _is_the_one(self) -> bool:
        if self._lock is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                file_locks.lock(descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except OSError:
                # The file system has no locks, so other processes are unknown.
                pass
            self._lock = descriptor
        return True


def check_trackers(trackers: Sequence[str | Tracker], name: str, places: Places) -> tuple[Tracker, ...]:
    """Return trackers for a study by their names; raise if one is unknown, or could not be used now."""
    _check_list(trackers)
    known = tuple(map(make_tracker, trackers))
    for tracker in known:
        variables_of(tracker, TrackedStudy(name=name, created_at=0.0, config={}, home=places.home))
        check_writable(places.folder("tracking", name), "choose another home with --home")
    return known


@final
@dataclass(frozen=True, slots=True)
class Destination:
    """A tracker, and the id of its run to write to if one exists: that of the training which is watched."""

    tracker: Tracker
    existing: str | None = None


def destinations_of(
    trackers: Sequence[str | Tracker], names: Sequence[str], places: Places
) -> dict[str, list[Destination]]:
    """Return the trackers of each watched run; raise as `check_trackers`, and where runs would share one."""
    _check_list(trackers)
    split = [split_run(tracker) if isinstance(tracker, str) else (tracker, None) for tracker in trackers]
    for tracker, (kind, existing) in zip(trackers, split, strict=True):
        if len(names) > 1 and (existing is not None or not isinstance(kind, str)):
            raise ConfigurationError(
                f"the tracker {tracker!r} is for one run, but {len(names)} are watched; watch each with a command "
                "of its own, or give the tracker by its name, as in wandb=PROJECT"
            )
    kinds, runs = [kind for kind, _ in split], [existing for _, existing in split]
    return {name: [*map(Destination, check_trackers(kinds, name, places), runs)] for name in names}


def _check_list(trackers: Sequence[str | Tracker]) -> None:
    if isinstance(trackers, str):
        raise ConfigurationError(f"trackers={trackers!r}: must be a list, as in trackers=[{trackers!r}]")


def environment(trackers: Sequence[Tracker], study: StudyRecord, places: Places) -> dict[str, str]:
    """Return the environment variables that trackers set for training code."""
    return {
        name: text
        for tracker in trackers
        for name, text in variables_of(tracker, make_tracked_study(study, places)).items()
    }


def follow(destinations: Sequence[Destination], store: "Store", study: StudyRecord, places: Places) -> ExitStack:
    """Log a study to trackers until the stack is closed, each in its own thread."""
    with ExitStack() as stack:
        for destination in destinations:
            tracker = destination.tracker
            following = TrackerFeed(tracker, store, study, places, destination.existing)
            output = ("--format", tracker.name, "--output", tracker.place or "PLACE")
            instead = f"write all of it with: {places.command('export', study.name, *output)}"
            task = f"the tracker {tracker.name}"
            stack.enter_context(Beside(task, following.look, instead, close=following.close))
        return stack.pop_all()
