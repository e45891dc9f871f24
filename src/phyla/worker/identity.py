"""Names of worker processes: `host:slot:pid:start`.

The slot (0 .. workers - 1) is what a worker has in common with the one that replaces it after a restart; start
makes a process id that is used again another worker.
"""

import os
import platform
from pathlib import Path


def worker_name(slot: int = 0, pid: int | None = None) -> str:
    """Return the name of a process of this machine, by default this one."""
    pid = os.getpid() if pid is None else pid
    return f"{_host()}:{slot}:{pid}:{_started(pid) or 0}"


def is_alive_here(worker: str) -> bool | None:
    """Return whether a worker is alive; None when it runs on another machine."""
    host, _, pid, start = worker.split(":")
    if host != _host():
        return None
    started = _started(int(pid))
    return started is not None and str(started) == start


def _host() -> str:
    return (platform.node() or "localhost").replace(":", "-")


def _started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; 0 if it runs and that cannot be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        return 0
    # After the command, which may hold anything: state is the first field, start time the twentieth.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
