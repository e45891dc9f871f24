"""Pools: start, stop and list them by name, and maintain one while a study runs."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from phyla.client import Client
from phyla.errors import (
    AccessDenied,
    ConfigurationError,
    LauncherFailed,
    Preempted,
    SchemaMismatch,
    StateError,
    StoreError,
    StudyFailed,
)
from phyla.formatting import format_count
from phyla.launchers.contract import Pool, check_identity, launcher_named
from phyla.supervision.term import PERSON, Term
from phyla.system import file_locks
from phyla.worker.commands.outputs import tail

GRACE_S = 60.0
"""Seconds for workers to save and return their jobs."""
TICK_S = 0.05
STATE_S = 0.5
COLLECT_S = 5.0
LOOK_S = (1.0, 15.0)
"""Seconds between two counts of the workers: while some are lost, and otherwise."""
LOST = 10
"""Workers that may end without progress before a run gives up; or three times the pool size, if that is more."""
LOG_TAIL = 2000
CLOSED = "the terminal was closed; the pool continues"

LOG = logging.getLogger("phyla")


def pools_in(root: Path) -> dict[str, Pool | ConfigurationError]:
    """Return the pools that are stored in a folder, by name; if one is damaged, the error that says how."""
    try:
        folders = sorted(root.iterdir())
    except FileNotFoundError:
        return {}
    pools = {folder.name: _load_or_error(folder) for folder in folders}
    return {name: pool for name, pool in pools.items() if pool is not None}


def _load_or_error(folder: Path) -> Pool | ConfigurationError | None:
    try:
        return Pool.load(folder)
    except ConfigurationError as error:
        return error


def newest_logs(folder: Path) -> list[Path]:
    """Return the readable logs in the folder of a pool, the newest first."""
    logs = [log for log in folder.glob("*.log") if log.is_file() and os.access(log, os.R_OK)]
    return sorted(logs, key=lambda log: log.stat().st_mtime, reverse=True)


def last_lines(folder: Path) -> dict[str, str]:
    """Return the last lines of the newest logs of a pool, by the names of the logs."""
    return {log.name: tail(log).rpartition("\n")[2] for log in newest_logs(folder)[:3]}


def list_reasons(reasons: Mapping[str, int]) -> str:
    """Return why workers are queued, in parentheses."""
    return f" ({', '.join(f'{count} {reason}' for reason, count in reasons.items())})" if reasons else ""


def check_pool(pool: Pool) -> None:
    """Reject a pool that could not be started; starts and stores nothing.

    Raises:
        StateError: workers of a pool of that name run something else, or there are more of them.
        LauncherFailed: the engine cannot be reached.
        ConfigurationError: the launcher does not have what the pool asks for.
    """
    with _lock_pool(pool.folder):
        _check(pool, Pool.load(pool.folder))


def _check(pool: Pool, before: Pool | None) -> None:
    alive = 0
    if before is not None and before != pool:
        with _explaining(before):
            alive = launcher_named(before.launcher).alive(before)
    differs = before is not None and replace(before, workers=pool.workers) != pool
    if alive > (0 if differs else pool.workers):
        workers = format_count(alive, "worker")
        excess = "started with other options" if differs else f"alive, more than the {pool.workers} asked for"
        raise StateError(
            f"pool {pool.name!r} has {workers} {excess}; stop the pool first with: phyla down {pool.name}"
        )
    if before != pool:
        launcher_named(pool.launcher).check(pool)


def start_pool(pool: Pool) -> None:
    """Store a pool and start its missing workers.

    Raises:
        StateError: workers of a pool of that name run something else, or there are more of them.
        LauncherFailed: they cannot be started.
        ConfigurationError: the launcher does not have what the pool asks for.
    """
    launcher = launcher_named(pool.launcher)
    with _lock_pool(pool.folder):
        before = Pool.load(pool.folder)
        _check(pool, before)
        pool.save()
        try:
            launcher.start(pool)
        except (ConfigurationError, LauncherFailed, OSError) as error:
            with contextlib.suppress(LauncherFailed, OSError):  # some may have been started
                if before is None and (isinstance(error, ConfigurationError) or not launcher.alive(pool)):
                    forget_pool(pool.folder)
            raise


@contextlib.contextmanager
def _explaining(pool: Pool) -> Iterator[None]:
    """Say what to do about a stored pool, if its launcher fails."""
    try:
        yield
    except (ConfigurationError, LauncherFailed) as error:
        raise type(error)(
            f"{error}. Workers of pool {pool.name!r}, started with launcher {pool.launcher!r}, may still run. "
            f"Stop them with: phyla down {pool.name}. If they are gone for good: phyla down {pool.name} --forget"
        ) from error


def stop_pool(pool: Pool, grace_s: float) -> None:
    """Stop the workers of a pool, and remove it; its logs stay."""
    with _lock_pool(pool.folder):
        # Stored first, so that `phyla run` starts no more workers even if this process is killed halfway.
        with contextlib.suppress(OSError):  # they are stopped on a full disk, too
            replace(pool, workers=0).save()
        with _explaining(pool):
            launcher_named(pool.launcher).stop(pool, grace_s)
        forget_pool(pool.folder)


def forget_pool(folder: Path) -> None:
    """Remove the records of a pool and stop nothing; its logs stay, and its identity unless that is damaged."""
    try:
        check_identity(folder)
    except (OSError, ValueError):
        _remove(folder / "id")
    for record in (*folder.glob("worker-*.json"), folder / "pool.json"):
        _remove(record)


def _remove(record: Path) -> None:
    """Remove a file, or an empty directory in its place."""
    if record.is_dir():
        record.rmdir()
    else:
        record.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock_pool(folder: Path) -> Iterator[None]:
    """Prevent other processes from starting or stopping the same pool meanwhile, if its disk has locks."""
    folder.mkdir(parents=True, exist_ok=True)
    with file_locks.hold_lock(folder / "lock"):
        yield


@final
@dataclass(kw_only=True)
class PoolRun:
    """Runs a study with the workers of a pool: starts them, replaces lost ones, stops them at the end.

    A terminal that is closed, or a connection that breaks, ends the run and not its workers.

    Args:
        on_loss: takes back the jobs of lost workers, as far as they are known before their leases end.
        on_interrupt: called for each interrupt inside the signal handler, so it must be brief.
    """

    client: Client
    pool: Pool
    term: Term
    progress: Callable[[], int]
    on_loss: Callable[[], None]
    on_tick: Callable[[], None]
    on_interrupt: Callable[[], None]

    def __post_init__(self) -> None:
        self._stopped_by = ""
        self._attending = False
        self._lost = 0
        self._done = 0
        self._reasons: set[str] = set()
        self._next_look = time.monotonic()
        self._pause_s = LOOK_S[0]

    def run(self) -> bool:
        """Work until the study ends; return False if the user interrupted it.

        Raises:
            Preempted: a signal stopped it, or `phyla down` stopped its pool.
            StudyFailed: workers keep ending without progress.
            LauncherFailed: no worker could be started.
            AccessDenied: the service rejects the token.
            SchemaMismatch: another version of phyla has changed the store.
        """
        main = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self._interrupt) for number in self.term.signals} if main else {}
        try:
            try:
                if self.client.is_active():
                    start_pool(self.pool)
            except KeyboardInterrupt:
                pass
            except LauncherFailed:
                if not self._stopped_by:  # else it failed because of the signal
                    raise
            try:
                self._attend()
            finally:
                self._attending = False
                if self._stopped_by != CLOSED and (self.pool.folder / "pool.json").exists():
                    try:
                        stop_pool(self.pool, GRACE_S)
                    except KeyboardInterrupt:
                        stop_pool(self.pool, 0)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._stopped_by not in ("", PERSON) and self.client.is_active():
            raise Preempted(self._stopped_by)
        return self._stopped_by != PERSON

    def _interrupt(self, number: int, frame: object) -> None:
        if number != signal.SIGHUP:
            self.on_interrupt()
        named: dict[int, str] = {signal.SIGINT: PERSON, signal.SIGHUP: CLOSED}
        self._stopped_by = self._stopped_by or named.get(number, f"stopped by {signal.Signals(number).name}")
        # Its workers wait for their store; this process need not.
        self.client.store.hold_on(0.0)
        if number == signal.SIGINT and not self._attending:
            # It waits for a launcher, when it starts or when it stops the pool.
            raise KeyboardInterrupt

    def _attend(self) -> None:
        collected_at, self._attending = time.monotonic(), True
        problem: str | None = None
        while not self._stopped_by:
            try:
                if not self.client.is_active():
                    return
                self._look()
                if time.monotonic() - collected_at >= COLLECT_S:
                    collected_at = time.monotonic()
                    self.client.collect()
                problem = None
            except (AccessDenied, SchemaMismatch):
                raise  # It ends workers, too: a later try does not succeed.
            except (ConfigurationError, LauncherFailed, OSError, StoreError) as error:
                # The workers that are alive continue as soon as they can, for example if only the home is full.
                if str(error) != problem:
                    LOG.warning("%s; trying again", error)
                problem = str(error)
                self._next_look = time.monotonic() + LOOK_S[1]
            ends_at = time.monotonic() + STATE_S
            while time.monotonic() < ends_at and not self._stopped_by:
                self.on_tick()
                time.sleep(TICK_S)

    def _look(self) -> None:
        """Replace lost workers, unless workers keep ending without progress."""
        if time.monotonic() < self._next_look:
            return
        stored = Pool.load(self.pool.folder)
        if stored is None or not stored.workers:
            self._stopped_by = f"pool {self.pool.name!r} was stopped with phyla down"
            return
        missing = self.pool.workers - launcher_named(self.pool.launcher).alive(self.pool)
        first_s, most_s = LOOK_S
        self._pause_s = first_s if missing > 0 else min(most_s, 2 * self._pause_s)
        self._next_look = time.monotonic() + self._pause_s
        if missing > 0 and self.client.is_active():
            start_pool(self.pool)
            done = self.progress()
            self._lost = missing if done > self._done else self._lost + missing
            self._done = done
        if self._lost:
            self.on_loss()
        if self._pause_s == most_s:  # the pool is as it was for a while
            self._warn_of_queued()
        if self._lost >= max(LOST, 3 * self.pool.workers):
            problem = f"{self._lost} workers of pool {self.pool.name!r} ended without progress"
            self.client.give_up(f"{problem}{self._last_words()}")
            raise StudyFailed(f"{problem}{self._last_words()}")

    def _warn_of_queued(self) -> None:
        """Warn of workers that are queued, once for each reason."""
        launcher = launcher_named(self.pool.launcher)
        if queued := launcher.outcomes(self.pool).get("queued"):
            reasons = launcher.reasons(self.pool)
            if not (found := set(reasons) or {""}) <= self._reasons:
                self._reasons |= found
                workers = format_count(self.pool.workers, "worker")
                LOG.warning("%s of %s queued%s", queued, workers, list_reasons(reasons))

    def _last_words(self) -> str:
        for log in newest_logs(self.pool.folder):
            return f"; the end of {log}:\n{tail(log, LOG_TAIL)}"
        return f"; look at {launcher_named(self.pool.launcher).logs(self.pool)}"
