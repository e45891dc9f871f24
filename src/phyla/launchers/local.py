"""Workers as plain local processes, each in its own session."""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import final

from phyla.errors import LauncherFailed
from phyla.launchers.contract import Launcher, Pool, refuse_options
from phyla.settings import child_environment, thread_environment
from phyla.supervision.gpus import gpu_environments
from phyla.system.drafts import replace_text

POLL_S = 0.05
WAITS = 'cd -- "$1" && shift && read -r go && exec "$@" </dev/null'
"""A shell that becomes the worker once its process is on record; it ends if we are killed before that."""


@final
class Local(Launcher):
    """Local processes, which outlive the shell that started them.

    A process is known by its number and the time at which it began, so a reused process id is never signalled.
    Both are in a file of the pool's folder: `worker-N.json`.
    """

    def check(self, pool: Pool) -> None:
        refuse_options(pool, ())
        gpu_environments(pool.workers, pool.gpus or "auto")

    def start(self, pool: Pool) -> None:
        self.check(pool)
        gpus = gpu_environments(pool.workers, pool.gpus or "auto")
        threads = thread_environment(max(1, pool.workers))
        for slot in range(pool.workers):
            if _process(pool, slot) is None:
                environment = child_environment({**threads, **gpus[slot], **pool.environment})
                _start(pool, slot, {"PYTHONUNBUFFERED": "1", **environment})

    def alive(self, pool: Pool) -> int:
        return len(_processes(pool))

    def stop(self, pool: Pool, grace_s: float) -> None:
        """Send SIGTERM, after some seconds SIGKILL, and wait."""
        ends_at = time.monotonic() + grace_s
        _signal(pool, signal.SIGTERM)
        while self.alive(pool):
            if time.monotonic() >= ends_at:
                _signal(pool, signal.SIGKILL)
            time.sleep(POLL_S)

    def logs(self, pool: Pool) -> str:
        return str(pool.folder / "worker-*.log")


def _start(pool: Pool, slot: int, environment: dict[str, str]) -> None:
    # Opened here, so that an error names it.
    log = os.open(pool.folder / f"worker-{slot}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    reader, writer = os.pipe()
    words = ["/bin/sh", "-c", WAITS, "sh", str(pool.directory), *pool.worker()]
    inputs = [(os.POSIX_SPAWN_DUP2, own, number) for own, number in ((reader, 0), (log, 1), (log, 2))]
    try:
        pid = os.posix_spawn(words[0], words, environment, file_actions=inputs, setsid=True)
        record = {"pid": pid, "began": _began(pid), "host": platform.node(), "boot": _boot()}
        replace_text(pool.folder / f"worker-{slot}.json", json.dumps(record))
        os.write(writer, b"\n")
    finally:
        for own in (log, reader, writer):
            os.close(own)


def _processes(pool: Pool) -> list[int]:
    """Return the processes that are alive, also those of a pool that was larger."""
    slots = [file.stem.partition("-")[2] for file in pool.folder.glob("worker-*.json")]
    return [pid for slot in slots if slot.isdecimal() and (pid := _process(pool, int(slot))) is not None]


def _process(pool: Pool, slot: int) -> int | None:
    file = pool.folder / f"worker-{slot}.json"
    try:
        record = json.loads(file.read_text())
        host, pid, start = record["host"], int(record["pid"]), (record["boot"], record["began"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LauncherFailed(f"{file} is damaged, so its worker is not known: {error!r}") from error
    if host != platform.node():
        raise LauncherFailed(
            f"pool {pool.name!r} was started on machine {host!r}, whose processes cannot be seen from "
            f"{platform.node()!r}: use that machine"
        )
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # one of ours that has ended would stay in the table
    began = _began(pid)
    # It may have ended before it was on record: then it has no beginning there.
    return pid if began is not None and start == (_boot(), began) else None


def _signal(pool: Pool, number: signal.Signals) -> None:
    for pid in _processes(pool):
        with contextlib.suppress(ProcessLookupError):
            if sys.platform != "linux":
                os.kill(pid, number)
                continue
            # A descriptor names the process itself: should it end now, its number may become another's.
            process = os.pidfd_open(pid)
            try:
                if pid in _processes(pool):
                    signal.pidfd_send_signal(process, number)
            finally:
                os.close(process)


def _began(pid: int) -> str | None:
    """Return the start time of a process, as the system prints it; None once it has ended."""
    if sys.platform != "linux":
        listing = subprocess.run(
            ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        state, _, began = listing.stdout.strip().partition(" ")
        return began.strip() if began and not state.startswith("Z") else None
    try:
        # What follows the name in parentheses: state, parent, ...
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _boot() -> str:
    """Return an id that differs after each boot, and in each container."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + str(
            Path("/proc/self/ns/pid").readlink()
        )
    return ""
