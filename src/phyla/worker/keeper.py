"""Keeps a command: runs it, and ends all that it started, in whatever session, when it ends or its worker does.

A program of its own, run by its path: `keeper.py MARK OUTPUT ARGUMENT...`. It imports the standard library only,
so it starts fast and is small. On Linux it is a child subreaper: whatever loses its parent becomes its child, so
nothing gets away. Elsewhere only the process group of the command is ended.

It reads orders on standard input: a byte sends SIGTERM to the command, the end of input (its worker is gone) ends
everything. On standard output it writes one line, `STATUS LEFT` or `error ERRNO`.
"""

import ctypes
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "PHYLA_WORKER"
GIVE_UP_S = 10.0
"""Seconds after which a process that cannot be ended is left alone."""
_ROUND_S = 0.02
_PR_SET_CHILD_SUBREAPER = 36
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_DEFAULT = (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)


def main(mark: str, output: int, arguments: list[str]) -> None:
    """Run the command, and report how it ended."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    try:
        child = os.posix_spawnp(
            arguments[0],
            arguments,
            {**os.environ, VARIABLE: mark},  # noqa: TID251  # it has no phyla.settings
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
    while child not in statuses:
        ready, _, _ = select.select([0, woken], [], [])
        if 0 in ready:
            if not os.read(0, 1):
                break
            _send(os.kill, child, signal.SIGTERM)
        if woken in ready:
            os.read(woken, 1000)
            _reap(statuses)
    if child not in statuses or sys.platform != "linux":
        _send(os.killpg, child, signal.SIGKILL)
    ends_at = time.monotonic() + GIVE_UP_S
    while (left := _reap(statuses)) and time.monotonic() < ends_at:
        for pid in _children():
            # Its number is its own until it is waited for. What it leaves behind is ours in the next round.
            _send(os.kill, pid, signal.SIGKILL)
        if select.select([woken], [], [], _ROUND_S)[0]:
            os.read(woken, 1000)
    code = os.waitstatus_to_exitcode(statuses.get(child, signal.SIGKILL))
    _report(f"{code} {int(left)}")


def _send(kill: "Callable[[int, int], None]", process: int, number: int) -> None:
    try:
        kill(process, number)
    except (ProcessLookupError, PermissionError):
        return


def _report(line: str) -> None:
    try:
        os.write(1, line.encode() + b"\n")
    except BrokenPipeError:
        return


def _reap(statuses: dict[int, int]) -> bool:
    """Wait for every child that has ended, and note its status; return whether others are left."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    me, found = str(os.getpid()).encode(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH112, PTH208  # pathlib is slow
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # What follows the name in parentheses: state, parent, ...
                if name.isdecimal() and file.read().rpartition(b")")[2].split()[1] == me:
                    found.append(int(name))
        except OSError:
            continue
    return found


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
