"""End what workers started, wherever it went: every process that carries their mark in its environment.

Everything that a worker starts inherits the mark, also what leaves its process group or its session, and what is
handed on when its parent ends. Only Linux shows the environment of processes; elsewhere this finds nothing.

As a program, run by its path, with a mark as its argument: waits in the background until its standard input is
closed, which happens when a supervisor ends, however it ends; then ends what carries the mark. It imports the
standard library only, so it starts fast and is small.
"""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "PHYLA_WORKER"
ROUNDS = 100
WAIT_MS = 1000


def end_marked(mark: str) -> None:
    """Kill every process whose mark begins with this one, except the calling process; wait until they are gone.

    The mark is `LAUNCH:` for all workers of a launch, and `LAUNCH:NUMBER:` for one.
    """
    wanted = f"{VARIABLE}={mark}".encode()
    for _ in range(ROUNDS):
        # One that is being ended may have started another one meanwhile.
        found = [pid for pid in _pids() if _is_marked(pid, wanted)]
        if not found:
            return
        for pid in found:
            _end(pid, wanted)


def _pids() -> Iterator[int]:
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208  # no need for paths
            if name.isdecimal() and int(name) != os.getpid():
                yield int(name)


def _is_marked(pid: int, wanted: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        # It is gone, or somebody else's.
        return False
    return any(entry.startswith(wanted) for entry in environment.split(b"\0"))


def _end(pid: int, wanted: bytes) -> None:
    with contextlib.suppress(OSError):
        # A descriptor names the process itself: should it end now, its number may become another's.
        process = os.pidfd_open(pid)
        try:
            if _is_marked(pid, wanted):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                gone = select.poll()
                gone.register(process, select.POLLIN)
                gone.poll(WAIT_MS)
        finally:
            os.close(process)


def _wait_and_end(mark: str) -> None:
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        # Batch systems send these to every process of a job.
        signal.signal(number, signal.SIG_IGN)
    os.read(0, 1)
    end_marked(mark)
    os._exit(0)


if __name__ == "__main__":
    _wait_and_end(sys.argv[1])
