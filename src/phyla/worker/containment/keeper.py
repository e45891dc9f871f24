"""Kills all processes that commands and workers started, wherever they went.

Every process that a worker starts inherits a mark in its environment, even if it leaves the process group or the
session: `LAUNCH:` for all workers of a launch, `LAUNCH:NUMBER:` for one, `LAUNCH:NUMBER:NUMBER:` for a command.
Only Linux shows the environment of processes; elsewhere only the process group of a command is ended.

This module is also a program, run by its path. It imports the standard library only, so it starts fast and is
small.

`keeper.py MARK` waits in the background until its standard input is closed, which happens when a supervisor ends,
however it ends; then it ends what carries the mark.

`keeper.py MARK OUTPUT ARGUMENT...` runs a command, and ends all that it started when it ends or its worker does.
On Linux it is a child subreaper: orphaned processes become its children, so none escapes, even without the mark.
It reads orders on standard input: a byte sends SIGTERM to the command, the end of input (its worker is gone) ends
everything. On standard output it writes one line, `STATUS LEFT` or `error ERRNO`.
"""

import atexit
import contextlib
import ctypes
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

VARIABLE = "PHYLA_WORKER"
GIVE_UP_S = 10.0
"""Seconds after which a process that cannot be killed is abandoned."""
ROUNDS = 100
WAIT_MS = 1000
_ROUND_S = 0.02
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Batch systems send these to every process of a job."""
_DEFAULT = (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)


def end_marked(mark: str) -> None:
    """Kill every process whose mark starts with this one, except the calling process; wait for their end."""
    wanted = f"{VARIABLE}={mark}".encode()
    for _ in range(ROUNDS):
        # A process may start another one while it is being ended.
        pids = [pid for pid in _pids() if _is_marked(pid, wanted)]
        if not pids:
            return
        for pid in pids:
            _end(pid, wanted)


def signal_marked(mark: str, number: int) -> None:
    """Send a signal to every process whose mark starts with this one, except the calling process."""
    wanted = f"{VARIABLE}={mark}".encode()
    for pid in _pids():
        if _is_marked(pid, wanted):
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def _pids() -> "Iterator[int]":
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208  # pathlib is slow to import
            if name.isdecimal() and int(name) != os.getpid():
                yield int(name)


def end_children_at_exit() -> None:
    """End all processes started from now on when this process exits; called before user code is loaded."""
    here, before = os.getpid(), {*children()}

    def end() -> None:
        for pid in {*children()} - before if os.getpid() == here else ():
            _send(os.kill, pid, signal.SIGKILL)

    atexit.register(end)


def _read(pid: int, entry: str) -> bytes:
    """Read an entry of a process in /proc; empty once it is gone, or if it belongs to another user."""
    try:
        with open(f"/proc/{pid}/{entry}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _is_marked(pid: int, wanted: bytes) -> bool:
    return any(entry.startswith(wanted) for entry in _read(pid, "environ").split(b"\0"))


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


def watch(mark: str) -> None:
    """Wait in the background for the end of input, then kill all processes with a mark."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.read(0, 1)
    end_marked(mark)
    os._exit(0)


def become_subreaper() -> None:
    """Ignore the signals of batch systems; on Linux adopt orphaned processes."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def outlive(keeper: int) -> int:
    """Wait for a keeper that this process forked, and end what it left; return the signal that killed it, or 0."""
    _, status = os.waitpid(keeper, 0)
    _end_children({})
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def keep(mark: str, output: int, arguments: list[str], more: "Mapping[str, str] | None" = None) -> None:
    """Run the command, with `more` variables in its environment, and report how it ended."""
    become_subreaper()
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    parent = os.getppid()
    if sys.platform == "linux":
        # It wakes up when its parent ends, because other processes may keep its input open.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCHLD)
    try:
        child = os.posix_spawnp(
            arguments[0],
            arguments,
            {**os.environ, **(more or {}), VARIABLE: mark},  # noqa: TID251  # it has no phyla.settings
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_CLOSE, output),
            ],
            setpgroup=0,
            setsigdef=_DEFAULT,
        )
    except OSError as error:
        _report(f"error {error.errno}")
        return
    os.close(output)
    statuses: dict[int, int] = {}
    while child not in statuses and os.getppid() == parent:
        ready, _, _ = select.select([0, woken], [], [])
        if 0 in ready:
            if not _read_order():
                break
            _send(os.kill, child, signal.SIGTERM)
        if woken in ready:
            os.read(woken, 1000)
            _reap(statuses)
    if child not in statuses or sys.platform != "linux":
        _send(os.killpg, child, signal.SIGKILL)
    remaining = _end_children(statuses, woken)
    code = os.waitstatus_to_exitcode(statuses.get(child, signal.SIGKILL))
    _report(f"{code} {int(remaining)}")


def _end_children(statuses: dict[int, int], *woken: int) -> bool:
    """Kill what this process has started or adopted, and record how it ended; return whether anything remains."""
    ends_at = time.monotonic() + GIVE_UP_S
    while (remaining := _reap(statuses)) and time.monotonic() < ends_at:
        for pid in children():
            # Its number stays reserved until it is waited for. Its children become ours in the next round.
            _send(os.kill, pid, signal.SIGKILL)
        for pipe in select.select(woken, [], [], _ROUND_S)[0]:
            os.read(pipe, 1000)
    return remaining


def _send(kill: "Callable[[int, int], None]", process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(process, number)


def _read_order() -> bytes:
    """Return one byte of standard input; none at its end, or where a connection to another machine broke."""
    with contextlib.suppress(OSError):
        return os.read(0, 1)
    return b""


def _report(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(1, line.encode() + b"\n")


def _reap(statuses: dict[int, int]) -> bool:
    """Wait for every child that has ended, and record its status; return whether others are running."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    except ChildProcessError:
        return False
    return True


def children() -> "Iterator[int]":
    """Yield the child processes of this one on Linux, adopted ones included."""
    me = str(os.getpid()).encode()
    for pid in _pids():
        # What follows the name in parentheses: state, parent, ...
        if _read(pid, "stat").rpartition(b")")[2].split()[1:2] == [me]:
            yield pid


if __name__ == "__main__":
    watch(sys.argv[1]) if len(sys.argv) == 2 else keep(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
