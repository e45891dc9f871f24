"""Prepared checkpoints: each is made once, by the first worker that needs it, for all that share the directory.

`FOLDER/NAME` is a prepared checkpoint, `FOLDER/NAME.SUFFIX` one that was never finished or is being deleted.
`FOLDER/NAME.json` says whose it is and which attempts failed. Who makes or deletes the checkpoint has this file
locked. Where a file system has no locks, two workers may make the same one, and nothing is deleted.
"""

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import final

from phyla.checkpoints.disk import Disk
from phyla.system import file_locks
from phyla.system.failpoints import failpoint

KILLED_AT_MOST = 10
"""Attempts at one checkpoint that ended with their worker, as when that is preempted or out of memory."""


class PreparationFailed(Exception):
    """An attempt at preparing a checkpoint failed; `final` if there is no other."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Whose a prepared checkpoint is, and which attempts at it failed.

    Attributes:
        store: id of the store; its `study` has the `checkpoint`, whose content is known by its `identity`.
        preparation: identity of the preparation.
        begun: attempts that were begun, of which `failed` failed, the last with `error`.
        claimed_at: when the eval task was claimed that made the last attempt, by the database's clock.
    """

    store: str
    study: int
    checkpoint: int
    identity: str
    preparation: str
    begun: int = 0
    failed: int = 0
    error: str = ""
    claimed_at: float = 0.0

    @property
    def name(self) -> str:
        """The name of its directory: a digest of whose it is."""
        parts = [self.store, self.study, self.checkpoint, self.identity, self.preparation]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def for_job(self, created_at: float) -> "Record":
        """Return it without the attempts that precede an eval task: a user tries again what failed."""
        return replace(self, begun=0, failed=0, error="") if 0.0 < self.claimed_at < created_at else self

    def check(self, max_attempts: int) -> None:
        """Raise `PreparationFailed` if there were enough attempts."""
        if self.failed >= max_attempts:
            raise PreparationFailed(self.error, final=True)
        killed = self.begun - self.failed
        if killed >= KILLED_AT_MOST:
            why = f"the worker was killed in {killed} attempts at preparing this checkpoint (out of memory?)"
            raise PreparationFailed(why, final=True)


@final
@dataclass(frozen=True, slots=True)
class PreparedCheckpoints:
    """The prepared checkpoints of one study, in a directory that is shared by its workers."""

    folder: Path

    def find_or_make(
        self,
        wanted: Record,
        make: Callable[[Path], None],
        *,
        created_at: float,
        max_attempts: int,
        wait: Callable[[], bool],
    ) -> Path | None:
        """Return a prepared checkpoint; None if the worker is to stop.

        Args:
            wanted: whose it is.
            make: writes it into an empty directory, or raises `PreparationFailed`.
            created_at: when the eval task was queued that needs it.
            max_attempts: attempts that may fail.
            wait: waits a moment while another worker makes it; returns False to stop.
        """
        path = self.folder / wanted.name
        with self._lock(path, wait) as lock:
            if lock is None:
                return None
            if path.is_dir():
                return path
            known = (_read(lock.descriptor) or wanted).for_job(created_at)
            known.check(max_attempts)
            if lock.held:
                self._remove_unfinished(path)
            staged = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
            staged.mkdir()
            begun = replace(known, begun=known.begun + 1, claimed_at=wanted.claimed_at)
            _write(lock.descriptor, begun)
            try:
                make(staged)
                _flush(staged)
            except PreparationFailed as error:
                failed = replace(begun, failed=begun.failed + 1, error=str(error))
                _give_up(staged, lock.descriptor, failed)
                raise PreparationFailed(str(error), final=failed.failed >= max_attempts) from error
            except BaseException:
                # The disk failed, the checkpoint is gone, or the worker is interrupted.
                _give_up(staged, lock.descriptor, known)
                raise
            failpoint("prepare.before_rename")
            self._rename(staged, path)
            failpoint("prepare.after_rename")
        return path

    def collect(self, store: str, study: int, needed: Callable[[list[int]], Collection[int]]) -> bool:
        """Delete those of a study whose checkpoints are not evaluated any more; return whether some remain.

        `needed` returns which ids of checkpoints have unfinished evaluations. It is asked while each is locked, so
        an eval task that is queued later makes it again.
        """
        for record in self.belongings(store, study):
            path = self.folder / record.name
            with contextlib.suppress(OSError), self._lock(path, lambda: False) as lock:
                if lock is not None and lock.held and not needed([record.checkpoint]):
                    if path.is_dir():
                        path.rename(path.with_name(f"{path.name}.{uuid.uuid4().hex}"))
                    self._remove_unfinished(path)
                    _file(path).unlink()
        return bool(self.belongings(store, study))

    def belongings(self, store: str, study: int) -> list[Record]:
        """Return the records that are provably of a study: each is named by a digest of what it says."""
        records = []
        for file in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError):
                record = _parse(file.read_bytes())
                if record and (record.name, record.store, record.study) == (file.stem, store, study):
                    records.append(record)
        return records

    def paths(self, record: Record) -> list[Path]:
        """Return all files and directories of a record."""
        path = self.folder / record.name
        return [path, *self.folder.glob(f"{path.name}.*")]

    def _remove_unfinished(self, path: Path) -> None:
        for unfinished in self.folder.glob(f"{path.name}.*"):
            if unfinished != _file(path):
                Disk().remove_tree(unfinished)

    def _rename(self, staged: Path, path: Path) -> None:
        try:
            staged.rename(path)
        except OSError:
            if not path.is_dir():
                raise
            # Another worker made it: this file system has no locks.
            Disk().remove_tree(staged)
        Disk().fsync_dir(self.folder)

    @contextlib.contextmanager
    def _lock(self, path: Path, wait: Callable[[], bool]) -> Iterator["_Lock | None"]:
        """Lock the file of a prepared checkpoint; give None if `wait` returns False before that."""
        lock: _Lock | None = None
        while lock is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(_file(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                lock = _acquire(descriptor, _file(path))
            finally:
                if lock is None:
                    os.close(descriptor)
            if lock is None and not wait():
                break
        try:
            yield lock
        finally:
            if lock is not None:
                os.close(lock.descriptor)


@dataclass(frozen=True, slots=True)
class _Lock:
    descriptor: int
    held: bool


def _acquire(descriptor: int, file: Path) -> _Lock | None:
    """Return the lock of an open file; None if another process has it, or deleted the file."""
    try:
        file_locks.lock(descriptor)
    except BlockingIOError:
        return None
    except OSError:
        return _Lock(descriptor, held=False)
    with contextlib.suppress(FileNotFoundError):
        if file.stat().st_ino == os.fstat(descriptor).st_ino:
            return _Lock(descriptor, held=True)
    return None


def _file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _read(descriptor: int) -> Record | None:
    return _parse(os.pread(descriptor, os.fstat(descriptor).st_size, 0))


def _parse(data: bytes) -> Record | None:
    """Return a record; None if its worker was killed while it wrote it."""
    try:
        return Record(**json.loads(data))
    except (ValueError, TypeError):
        return None


def _write(descriptor: int, record: Record) -> None:
    data = json.dumps(asdict(record)).encode()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)


def _give_up(staged: Path, descriptor: int, record: Record) -> None:
    with contextlib.suppress(OSError):
        Disk().remove_tree(staged)
        _write(descriptor, record)


def _flush(folder: Path) -> None:
    """Make a prepared checkpoint durable before it gets its name."""
    for root, _, files in os.walk(folder):
        for file in files:
            if not Path(root, file).is_symlink():
                Disk().fsync_file(Path(root, file))
        Disk().fsync_dir(Path(root))
