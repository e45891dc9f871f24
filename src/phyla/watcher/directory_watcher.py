"""Watches a directory, or a prefix of an object store, into which a training job writes checkpoints."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import final

from phyla.controller import Sightings
from phyla.errors import (
    CheckpointChanged,
    CheckpointError,
    CheckpointGone,
    CheckpointsAbsent,
    CheckpointStorageFailed,
    ConfigurationError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from phyla.records import GROWS, Checkpoint, CheckpointKind, CheckpointState, StudyRecord, escape_name
from phyla.settings import Clock, system_clock
from phyla.validation import check
from phyla.watcher.aliases import resolve
from phyla.watcher.content import find_added
from phyla.watcher.format import CheckpointFormat, Found, describe_below
from phyla.watcher.remote import Remote, is_url
from phyla.watcher.snapshots import (
    BestLinks,
    Mode,
    clean,
    find_moved,
    identity,
    original,
    snapshot_name,
    snapshot_path,
    take,
    whole,
)

AT_ONCE = 50
"""Checkpoints reported in one transaction."""
WAIT_S = 1.0
"""Seconds until unfinished checkpoints are checked again."""
TRY_AGAIN_S = 60.0
"""Seconds until unreadable checkpoints are checked again."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How to watch a directory.

    Attributes:
        snapshots: how checkpoints are kept readable: link, copy, or none.
        done: name of the file in the directory that marks the end of training.
        idle_s: seconds without anything new after which training counts as ended, from when the directory exists;
            None for never.
        once: evaluate the existing checkpoints, then stop.
    """

    snapshots: Mode = "link"
    done: str = "DONE"
    idle_s: float | None = None
    once: bool = False

    def __post_init__(self) -> None:
        check(self, snapshots=("link", "copy", "none"), idle_s="(0, inf)")
        if not isinstance(self.done, str) or not self.done or "/" in self.done:
            raise ConfigurationError(f"done={self.done!r}: must be a file name, such as DONE")


@final
@dataclass(eq=False)
class DirectoryWatcher:
    """Scans a directory and reports checkpoints to its `sink`, a run.

    An error about one checkpoint never stops it: it quarantines the checkpoint with the reason, and retries when
    that changes. It stops only if checkpoints cannot be hard-linked as configured; the error names the
    alternatives.
    """

    sink: Sightings
    root: Path | Remote
    kind: CheckpointFormat
    _: KW_ONLY
    run: StudyRecord
    snapshots: Path
    best: Path
    following: Following = field(default_factory=Following)
    clock: Clock = system_clock

    def __post_init__(self) -> None:
        self._best = BestLinks(self.best, self.sink.note)
        self._previous: dict[str, Found] = {}
        self._rows: dict[int, Checkpoint] = {}
        self._pending: list[Checkpoint] = []
        self._looks, self._was_there = 0, False
        self._changed_at = self.clock()
        self._missed: set[str] = set()
        self._tried_at: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        self._waiting: set[str] = set()
        self._noted: set[str] = set()
        self._aliases: set[str] = set()
        self._first: frozenset[str] = frozenset()
        self._copied: set[str] = set()
        self._held: frozenset[int] = frozenset()
        self._held_all_at = self._changed_at
        self._ending_since: float | None = None
        self.ended = False

    @property
    def wait_s(self) -> float:
        """Maximum seconds between two scans; each scan of an object store costs requests."""
        soon = bool(self._waiting) or self.following.once or self.following.idle_s is not None
        return min(WAIT_S, self.kind.quiet_s / 4) if soon and isinstance(self.root, Path) else float("inf")

    def look(self) -> None:
        """Scan once and report new checkpoints; after a `StoreError`, scan again."""
        if self.ended:
            return
        now = self.clock()
        if isinstance(self.root, Path) and not (self._rows or self.root.is_dir()):
            self._changed_at = now  # training has not started
        # Before the scan, which then sees all files written before the marker.
        done = self.root.is_dir() and (self.root / self.following.done).exists()
        try:
            scanned = self.kind.scan(self.root, now=now, previous=self._previous)
            scanned = resolve(self.root, self.kind, scanned, now=now)
            # A missing directory does not count as empty.
            was_there = self._was_there or any(seen.usable for seen in self._newest().values())
            is_there = self.root.is_dir()
            if was_there and not is_there:
                why = "does not exist any more: was it deleted, or is its disk not mounted?"
                raise CheckpointStorageFailed(f"{self.root} {why}")
        except (CheckpointsAbsent, CheckpointStorageFailed) as error:
            if self.following.once:
                raise
            self._note_once("unreadable", f"{error}; retrying")
            self._perhaps_end({}, now, done=False)
            return
        self._noted.discard("unreadable")
        self._was_there = is_there
        items = {item.name: item for item in scanned if item.name != self.following.done}
        if not self._looks:
            self._refresh()
            self._find_moved()
            self._take_up(now)
        self._previous = items
        self._waiting = {name for name, item in items.items() if not (item.ready or item.bad)}
        self._report_added(items)
        self._take(items, now)
        self._report_pending()
        self._report_aliases(items)
        self._report_vanished(items)
        self._looks += 1
        self._perhaps_end(items, now, done=done)

    def describe_missing(self) -> str | None:
        """Describe what a scan missed; None if it saw a checkpoint or none is expected."""
        if self._rows or self.following.once or self.ended:
            return None
        if isinstance(self.root, Path) and not self.root.is_dir():
            where = escape_name(str(self.root))
            return f"there is no directory {where} yet; waiting for training to make it (Ctrl-C stops)"
        unfinished = next(iter(self._previous.values()), None)
        which = "" if unfinished is None else f": {escape_name(unfinished.name)}: {unfinished.why}"
        if below := describe_below(self.root, self.kind):
            which = f", but {below}"
        idle_s = self.following.idle_s
        end = f", or nothing new comes for {idle_s:g} s" if idle_s is not None else ""
        other = "" if self.kind.name == "quiet" else "; --format quiet accepts any file or directory"
        return (
            f"no checkpoint in {escape_name(str(self.root))} is finished yet{which}; waiting for "
            f"{self.kind.awaits} (format {self.kind.name}{other}); watching ends when a file "
            f"{self.following.done} is there{end}"
        )

    def _refresh(self) -> None:
        # By id, and never less: the last one is the newest.
        rows = self.sink.seen(after=next(reversed(self._rows), 0))
        self._rows.update((seen.id, seen) for seen in rows)
        # Reports may have been committed although the answer was lost.
        known = {(seen.name, seen.fingerprint) for seen in rows}
        self._pending = [seen for seen in self._pending if (seen.name, seen.fingerprint) not in known]

    def _find_moved(self) -> None:
        """Update the paths of snapshots that moved with their home."""
        snapshots = [seen for seen in self._rows.values() if seen.usable and seen.snapshot]
        paths = [find_moved(self.snapshots, seen) for seen in snapshots]
        moved = [replace(seen, path=str(path)) for seen, path in zip(snapshots, paths, strict=True) if path]
        self._observe(moved)
        self._rows.update((seen.id, seen) for seen in moved)

    def _take_up(self, now: float) -> None:
        """Report snapshots of an earlier watch that was killed while its store was unreachable.

        Their originals may be deleted. A directory is a snapshot of its content only if its name matches.
        """
        if isinstance(self.root, Remote):
            return
        names = {snapshot_name(seen) for seen in self._rows.values()}
        identities = {seen.identity for seen in self._rows.values()}  # files may have been added since
        for base in sorted(whole(self.snapshots)):
            for there in () if base.name in names else self.kind.scan(base, now=now, previous={}):
                item = replace(there, fingerprint=original(base, there))
                if item.bad or snapshot_name(item) != base.name:
                    continue
                key = f"{self.run.id}:{identity(base, there)}"
                if key not in identities:
                    path = str(snapshot_path(self.snapshots, item))
                    self._pending.append(replace(self._make_row(item), identity=key, path=path, snapshot=True))
                    self._copied.add(item.fingerprint)  # when it was written is not known
        self._pending.sort(key=lambda seen: (seen.step, seen.written_at, seen.name))

    def _newest(self) -> dict[str, Checkpoint]:
        return {seen.name: seen for seen in self._rows.values()}

    def _take(self, items: Mapping[str, Found], now: float) -> None:
        """Make snapshots of new checkpoints first: training deletes even while the store is unreachable."""
        newest = self._newest() | {seen.name: seen for seen in self._pending}
        if not self._looks:
            self._first = frozenset(items)
        news = [item for item in items.values() if self._is_news(item, newest.get(item.name), now)]
        # Steps decide, since copying and uploading change times.
        news.sort(key=lambda item: (_step(item), item.modified_at, item.name))
        names = [item.name for item in items.values() if news and item.alias is None]
        if restart := self.kind.step.describe_restart(names):
            self._note_once("restart", restart)
        reached = max(((seen.branch, seen.step) for seen in newest.values()), default=(0, -1))[1]
        count = 0
        for item in news:
            if _step(news[-1]) >= reached or not self._is_written_anew(item, newest.get(item.name)):
                self._copied.add(item.fingerprint)
            observed = self._take_item(item)
            if observed is None:
                self._waiting.add(item.name)
                continue
            self._changed_at = now
            self._tried_at.pop(item.name, None)
            if observed.error is not None:
                self._tried_at[item.name] = now
            self._missed.discard(item.name)
            self._pending.append(observed)
            count += 1
            if count % AT_ONCE == 0:
                self._report_pending()

    def _report_pending(self) -> None:
        """Report new checkpoints, even if they were deleted since."""
        self._refresh()
        while self._pending:
            rest = self._pending[AT_ONCE:]
            self._observe(self._pending[:AT_ONCE])
            self._pending = rest

    def _observe(self, batch: list[Checkpoint]) -> None:
        if not batch:
            return
        try:
            for copied in (True, False):
                part = [checkpoint for checkpoint in batch if (checkpoint.fingerprint in self._copied) is copied]
                if part:
                    self.sink.observe(part, first_look=self._looks == 0, rewinds=not copied)
        except (StoreBusy, StoreUnavailable):
            raise
        except Exception as error:  # noqa: BLE001  # it is about one of them, and the others go on
            if len(batch) == 1:
                self._put_aside(batch[0], error)
            else:
                for checkpoint in batch:
                    self._observe([checkpoint])
        self._refresh()

    def _put_aside(self, checkpoint: Checkpoint, error: Exception) -> None:
        """Quarantine a checkpoint that the store rejected, without a row if it rejects that, too."""
        why = f"it could not be recorded: {type(error).__name__}: {error}"
        self._tried_at[checkpoint.name] = self.clock()
        try:
            self.sink.observe([replace(checkpoint, step=-1, error=why)])
        except (StoreBusy, StoreUnavailable):
            raise
        except Exception:  # noqa: BLE001  # this note is all that can be said of it
            self.sink.note("quarantined", f"{escape_name(checkpoint.name)} cannot be evaluated: {why}")
            self._refused[checkpoint.name] = checkpoint.fingerprint

    def _is_news(self, item: Found, before: Checkpoint | None, now: float) -> bool:
        if not (item.ready or item.bad) or self._refused.get(item.name) == item.fingerprint:
            return False
        if item.alias is not None:
            return False
        if before is None or before.fingerprint != item.fingerprint:
            return True
        if before.state is CheckpointState.READY:
            return False
        if before.state is CheckpointState.QUARANTINED:
            # It may have become readable without having changed.
            return item.ready and now - self._tried_at.get(item.name, float("-inf")) >= TRY_AGAIN_S
        # A worker reported that it was gone. After a look without it, or in a new watcher, this may be another
        # checkpoint with the same files.
        return item.ready and (item.name in self._missed or self._looks == 0)

    def _is_written_anew(self, item: Found, before: Checkpoint | None) -> bool:
        """Return whether it was written after the first scan, or rewritten: a copied run would not be."""
        if before is None:
            return item.name not in self._first
        return before.state is not CheckpointState.QUARANTINED and before.fingerprint != item.fingerprint

    def _take_item(self, item: Found) -> Checkpoint | None:
        """Return the row to report for a checkpoint; None to check it again."""
        if item.bad or isinstance(self.root, Remote):
            return self._make_row(item, error=item.why if item.bad else None)
        try:
            key = identity(self.root, item)
            path, snapshot = self._take_snapshot(self.root, item)
        except CheckpointChanged:
            return None
        except CheckpointGone:
            # It counts as seen; the next look or its evaluation finds that it is gone.
            return self._make_row(item)
        except (StoreError, ConfigurationError):
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, the other checkpoints go on
            text = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
            return self._make_row(item, error=text)
        return replace(
            self._make_row(item),
            # Two runs may hold other files of the same names, sizes and times.
            identity=f"{self.run.id}:{key}",
            path=str(path),
            snapshot=snapshot,
        )

    def _take_snapshot(self, root: Path, item: Found) -> tuple[Path, bool]:
        """Return where to load a checkpoint from, and whether that is a snapshot."""
        mode = self.following.snapshots
        try:
            path = take(root, item, self.snapshots, mode)
        except CheckpointStorageFailed as error:
            self._note_once(
                "no-snapshots",
                "cannot make snapshots; until that works again, checkpoints are evaluated in place, and lost if "
                f"their writer deletes them first: {error}",
            )
            return take(root, item, self.snapshots, "none"), False
        self._noted.discard("no-snapshots")
        return path, mode != "none"

    def _make_row(self, item: Found, error: str | None = None) -> Checkpoint:
        return Checkpoint(
            study=self.run.id,
            kind=CheckpointKind.SEEN,
            name=item.name,
            step=-1 if item.step is None else item.step,
            identity=f"{self.run.id}:listing:{item.fingerprint}",
            weak=True,
            fingerprint=item.fingerprint,
            path=str(self.root / item.paths[0]),
            paths=item.paths,
            size_bytes=item.size_bytes,
            written_at=item.modified_at,
            error=error,
        )

    def _report_added(self, items: Mapping[str, Found]) -> None:
        """Record files that were added to registered checkpoints and have no weights, such as a tokenizer."""
        for name, seen in self._newest().items():
            item = items.get(name)
            if item is None or not (item.ready and seen.usable) or item.fingerprint == seen.fingerprint:
                continue
            added = find_added(self.root, item.paths, seen)
            row = self._take_item(item) if added else None
            if row is None or row.error is not None:
                continue
            changed = {name: getattr(row, name) for name in GROWS}
            self._rows[seen.id] = replace(seen, **changed)
            self._observe([self._rows[seen.id]])
            names, of = escape_name(", ".join(added)), escape_name(seen.name)
            self.sink.note("added", f"{names} came later; {of} has the same weights, so it is not evaluated again")

    def _report_aliases(self, items: Mapping[str, Found]) -> None:
        """Report once for each name that it is a copy; such names follow the newest checkpoint, or the best."""
        for item in items.values():
            if item.alias is not None and item.name not in self._aliases:
                name, original = escape_name(item.name), escape_name(item.alias)
                message = f"{name} holds the same weights as {original}, so it is not evaluated again"
                self.sink.note("alias", message)
                self._aliases.add(item.name)

    def _report_vanished(self, items: Mapping[str, Found]) -> None:
        missing = [seen for name, seen in self._newest().items() if name not in items]
        self._missed.update(seen.name for seen in missing)
        lost = {
            seen.id: f"{escape_name(seen.name)} was deleted before its evaluation"
            for seen in missing
            if seen.usable and not (seen.snapshot and Path(seen.path).exists())
        }
        self._forget(self.sink.gone(lost))

    def _forget(self, gone: Iterable[int]) -> None:
        """Mark checkpoints as gone, without reading their rows again."""
        for number in gone:
            self._rows[number] = replace(self._rows[number], state=CheckpointState.GONE)

    def _perhaps_end(self, items: Mapping[str, Found], now: float, *, done: bool) -> None:
        why = None
        if done:
            why = f"training wrote {self.following.done}"
        elif self.following.once:
            why = "all checkpoints were seen"
        elif self.following.idle_s is not None and now - self._changed_at >= self.following.idle_s:
            # A file that is still being written prevents the end.
            moving = any(now - item.unchanged_since < self.following.idle_s for item in items.values())
            why = None if moving else f"nothing new came for {self.following.idle_s:g} s"
        if why is None:
            self._ending_since = None
            return
        if self._ending_since is None:
            self._ending_since = now
        if self._waiting and now - self._ending_since <= self.kind.quiet_s + 2 * WAIT_S:
            return
        self._report_pending()
        unfinished = [items[name] for name in sorted(self._waiting) if name in items]
        self._observe([self._make_row(item, error=f"it was not finished: {item.why}") for item in unfinished])
        self.sink.drain(why)
        self.ended = True

    def tend(self) -> None:
        """Remove snapshots that are no longer needed, and update the `best` links."""
        # First: later snapshots are still unreported, and therefore kept.
        self._refresh()
        held, best = self.sink.held()
        now = self.clock()
        if now - self._held_all_at >= TRY_AGAIN_S:
            # There may be room now for snapshots that failed before.
            self._held, self._held_all_at = frozenset(), now
        self._take_again(held - self._held)
        self._held = held
        self._best.lead_to({name: Path(seen.path) for name, seen in best.items() if not is_url(seen.path)})
        fingerprints = {item.name: item.fingerprint for item in self._previous.values()}
        loose = {
            seen.id: f"{escape_name(seen.name)} was deleted, and its snapshot is no longer needed"
            for seen in self._rows.values()
            if seen.usable
            and seen.snapshot
            and seen.id not in held
            and fingerprints.get(seen.name) != seen.fingerprint
        }
        gone = self.sink.gone(loose, unless_held=True)
        self._forget(gone)
        rows = [self._rows[number] for number in held | (loose.keys() - gone) if number in self._rows]
        if not self._looks:
            return  # unreported snapshots of an earlier watch are unknown before the first look
        try:
            clean(self.snapshots, {snapshot_name(seen) for seen in (*rows, *self._pending) if seen.snapshot})
        except CheckpointStorageFailed as error:
            self._note_once("snapshots", str(error))

    def _take_again(self, held: Iterable[int]) -> None:
        """Recreate removed snapshots of checkpoints that became the best, or are evaluated again."""
        for seen in (self._rows[number] for number in held if number in self._rows):
            item = self._previous.get(seen.name)
            if item is None or item.fingerprint != seen.fingerprint or not (seen.usable and seen.snapshot):
                continue
            with suppress(CheckpointError, OSError):
                if isinstance(self.root, Remote) or (self.snapshots / snapshot_name(seen)).is_dir():
                    continue
                path, snapshot = self._take_snapshot(self.root, item)
                if snapshot and str(path) != seen.path:
                    self._rows[seen.id] = replace(seen, path=str(path))
                    self._observe([self._rows[seen.id]])

    def _note_once(self, kind: str, message: str) -> None:
        if kind not in self._noted:
            self.sink.note(kind, message)
            self._noted.add(kind)


def _step(item: Found) -> int:
    return -1 if item.step is None else item.step
