"""Worker processes that were forked before they are needed, from a process that has imported phyla.

A supervisor starts an interpreter for each worker, which needs a second until phyla is imported. Here processes
that have imported it wait, as children of the supervisor, to become its workers: each with a session, an
environment (also for those who look at it from outside), input, output and open files of its own. Interpreters
start in integration/test_worker_start.py, and wherever a test runs a study in its own process.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import io
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any, NoReturn

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""What groups of processes are sent, and what a process that only waits survives."""
ABOVE, MOST = 200, 256
"""The numbers of descriptors that are used while those of a worker get theirs."""


def prepare(number: int, path: Sequence[str]) -> None:
    """Fork processes, which the supervisor in this process will use as its first workers.

    Args:
        number: how many; all further workers are started as usual.
        path: where they find modules.
    """
    from phyla.supervision import worker_process

    spares: list[tuple[int, socket.socket]] = []
    for _ in range(number):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for channel in (ours, *(channel for _, channel in spares)):
                channel.close()
            _wait(theirs, path)
        theirs.close()
        spares.append((pid, ours))

    def start(words: Sequence[str], **options: Any) -> Any:
        while spares and words[-1] == worker_process.WORKER:
            pid, channel = spares.pop(0)
            with channel, contextlib.suppress(OSError):  # it may have been killed
                return _Started(pid, channel, words, **options)
        return subprocess.Popen(words, **options)

    replaced = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT)
    vars(worker_process)["subprocess"] = replaced


class _Started:
    """A process that became a worker; does what `subprocess.Popen` would."""

    def __init__(
        self,
        pid: int,
        channel: socket.socket,
        words: Sequence[str],
        *,
        stdout: IO[str],
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        start_new_session: bool = False,
        **_: object,
    ) -> None:
        self.args, self.pid, self.returncode = words, pid, None
        self._waits = threading.Lock()
        reads, writes = os.pipe()
        try:
            socket.send_fds(channel, [b"\n"], [reads, stdout.fileno(), stdout.fileno(), *pass_fds])
            order = {
                "words": words,
                "env": dict(env),
                "cwd": str(Path.cwd()),
                "session": start_new_session,
                "kept": [0, 1, 2, *pass_fds],
            }
            channel.sendall(json.dumps(order).encode() + b"\n")
            if not channel.recv(1):
                raise BrokenPipeError(f"process {pid} has ended")
        except OSError:
            os.close(writes)
            raise
        finally:
            os.close(reads)
        self.stdin = os.fdopen(writes, "w")

    returncode: int | None

    def poll(self) -> int | None:
        return self._end(os.WNOHANG)

    def wait(self) -> int | None:
        return self._end(0)

    def _end(self, how: int) -> int | None:
        with self._waits:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, how)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _wait(channel: socket.socket, path: Sequence[str]) -> NoReturn:
    """Become a worker once it is ordered to; end with the supervisor."""
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
        _hold_nothing()
        try:
            _, files, _, _ = socket.recv_fds(channel, 1, 16)
            order = json.loads(channel.makefile().readline())
        except (OSError, ValueError):
            os._exit(0)  # the supervisor is gone
        if order["session"]:
            os.setsid()
        os.environ.clear()
        _be_seen_with(order["env"])
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        channel.sendall(b"\n")
        _take(files, order["kept"])
        for number, handler in before.items():
            signal.signal(number, handler)
        _work([] if "-P" in order["words"] else [order["cwd"]], path)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(1)


def _hold_nothing() -> None:
    """Keep neither a terminal nor a pipe open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)


def _take(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give descriptors the numbers that they have in the supervisor; close all others."""
    above = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, ABOVE) for file in files]
    os.closerange(3, ABOVE)
    for file, number in zip(above, numbers, strict=True):
        os.dup2(file, number)
    os.closerange(ABOVE, MOST)


def _be_seen_with(environment: Mapping[str, str]) -> None:
    """Let other processes see this environment, as far as there is space for it, the mark of the worker first.

    They see what is in memory where the process got its environment from.
    """
    if sys.platform != "linux":
        return
    first, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    wanted = sorted(environment.items(), key=lambda entry: entry[0] != "PHYLA_WORKER")
    content = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in wanted)
    ctypes.memset(first, 0, end - first)
    ctypes.memmove(first, content, min(len(content), end - first - 1))


def _work(own: Sequence[str], path: Sequence[str]) -> NoReturn:
    """Do what an interpreter does that was started with the program of a worker."""
    from phyla.supervision.worker_process import WORKER
    from phyla.system import failpoints

    gc.freeze()
    _forget_parent()
    sys.stdin = os.fdopen(0, closefd=False)
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    for name, number, wrong in (("stdout", 1, errors or None), ("stderr", 2, "backslashreplace")):
        file: Any = io.FileIO(number, "w", closefd=False)
        binary = file if at_once else io.BufferedWriter(file)
        how: dict[str, Any] = {"write_through": at_once, "line_buffering": name == "stderr"}
        setattr(sys, name, io.TextIOWrapper(binary, encoding or None, wrong, **how))
    sys.argv = ["-c"]
    sys.path[:] = [*own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    if os.environ.get("PHYLA_FAILPOINT"):
        failpoints.arm(os.environ["PHYLA_FAILPOINT"])
    sys.modules["__main__"] = main = ModuleType("__main__")
    status: object = 0
    try:
        exec(WORKER, main.__dict__)
    except SystemExit as ended:
        status = ended.code
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    with contextlib.suppress(AttributeError):  # training may have taken it away
        sys.stdout.flush()
    assert status is None or isinstance(status, int)
    os._exit(status or 0)


def _forget_parent() -> None:
    """Have the library `multiprocessing` take this for a process that it did not start."""
    atexit._clear()
    this = multiprocessing.current_process()
    config = {"authkey": this.authkey, "semprefix": "/mp"}
    vars(this).update(_identity=(), _name="MainProcess", _parent_pid=None, _popen=None, _config=config)
    vars(multiprocessing.process).update(_parent_process=None, _children=set())
    vars(vars(forkserver)["_forkserver"]).update(vars(forkserver.ForkServer()))
    vars(vars(resource_tracker)["_resource_tracker"]).update(_fd=None, _pid=None)
