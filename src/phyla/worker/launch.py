"""Launches: a launch is one start of phyla, a supervisor with its workers or a single working process."""

import json
import os
import platform
import re
import secrets
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, final

from phyla.system import file_locks
from phyla.system.file_systems import is_local

_ID = re.compile(r"[0-9a-f]{16}")


@final
class Launch:
    """The id of a launch, and a kernel lock that is free only once all its processes are gone.

    The lock is on a file `ID.lock` in a folder, which names the store and the studies of the launch. Worker
    processes inherit its descriptor. There is no file without a folder, or in a folder that other machines may
    share; then only leases show whether the launch is alive. A launch that is not closed ends with its process.

    Attributes:
        id: part of the names of its workers.
        descriptor: of the lock file; None without one.
        given: jobs that its process got from `Study.ask`, until their results are submitted.
        asking: held by a thread that asks, until its job is recorded.
    """

    def __init__(self, folder: Path | None, storage: str, names: Sequence[str]) -> None:
        self.id = secrets.token_hex(8)
        self.descriptor: int | None = None
        self.given: set[int] = set()
        self.asking = threading.Lock()
        self._folder = folder
        self._storage = storage
        self._names = tuple(names)
        if folder is not None:
            with suppress(OSError):  # leases decide then
                folder.mkdir(parents=True, exist_ok=True)
                if is_local(folder):
                    self.descriptor = self._lock_folder(folder)

    def _lock_folder(self, folder: Path) -> int:
        # The file appears under its name only when it is locked and complete.
        draft = folder / f".{self.id}"
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            file_locks.lock(descriptor)
            os.write(descriptor, json.dumps({"storage": self._storage, "names": self._names}).encode())
            draft.rename(folder / f"{self.id}.lock")
        except BaseException:
            os.close(descriptor)
            draft.unlink(missing_ok=True)
            raise
        return descriptor

    def worker_name(self, slot: int = 0, pid: int | None = None) -> str:
        """Return the name `host:slot:pid:launch` of a worker, by default of this process."""
        host = (platform.node() or "localhost").replace(":", "-")
        return f"{host}:{slot}:{os.getpid() if pid is None else pid}:{self.id}"

    def dead(self, ids: Collection[str]) -> frozenset[str]:
        """Return the launches that certainly have no running process: their lock file is here, and free."""
        return dead_launches(self._folder, ids)

    def predecessors(self) -> frozenset[str]:
        """Return the dead launches that share a study with this one."""
        return self.dead(self._find_same())

    def has_company(self) -> bool:
        """Return whether another launch that shares a study with this one is alive here."""
        same = self._find_same()
        return len(self.dead(same)) < len(same)

    def _find_same(self) -> list[str]:
        ids: list[str] = []
        if self.descriptor is not None and self._folder is not None:
            for path in self._folder.glob("*.lock"):
                with suppress(OSError, ValueError):
                    lock = json.loads(path.read_text())
                    same = lock.get("storage") == self._storage and {*self._names} & {*lock.get("names", ())}
                    if same and path.stem != self.id:
                        ids.append(path.stem)
        return ids

    def forget(self, launch: str) -> None:
        """Remove the lock file of a dead launch once it holds no jobs."""
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / f"{launch}.lock").unlink()

    def close(self) -> None:
        """End the launch; none of its workers is alive, and it holds no jobs."""
        self.forget(self.id)
        self._unlock()

    def _unlock(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error it may still hold jobs, so the next launch must find its file, unlocked.
        if kind is None:
            self.close()
        else:
            self._unlock()


def launch_of(worker: str) -> str:
    """Return the id of the launch that a worker belongs to."""
    return worker.rsplit(":", 1)[-1]


def dead_launches(folder: Path | None, ids: Collection[str]) -> frozenset[str]:
    """Return the launches that certainly have no running process: their lock file is in a folder, and free."""
    if folder is None or not ids or not folder.is_dir() or not is_local(folder):
        return frozenset()
    return frozenset(
        name for name in ids if _ID.fullmatch(name) and file_locks.is_held(folder / f"{name}.lock") is False
    )
