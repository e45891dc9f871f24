"""Calls to Ray in another process: they may block forever, and no signal interrupts them."""

import atexit
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, final

from phyla.errors import LauncherFailed, PhylaError

ANSWERS = "import sys; from phyla.launchers.ray_calls import answer_calls; answer_calls(int(sys.argv[1]))"
WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Becomes a command that the kernel kills when its parent ends."""


def with_parent(*command: str) -> list[str]:
    """Return the command line of a child of this process that ends with it."""
    return [sys.executable, "-I", "-S", "-c", WITH_PARENT, str(os.getpid()), *command]


@final
class RayCalls:
    """Calls functions in a process, which is started for the first call, and again if it did not answer."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, what: str, limit_s: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a module; errors name what was called.

        Raises:
            LauncherFailed: it did not answer within the limit, or its process ended.
            PhylaError: what the function raised.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None
        try:
            self._connection.send((function, arguments))
            if not self._connection.poll(limit_s):
                raise LauncherFailed(f"{what} did not answer within {limit_s:g} s")
            answer = self._connection.recv()
        except BaseException as error:  # an interrupt, too
            status = self.close()
            if isinstance(error, (EOFError, OSError)):
                raise LauncherFailed(f"{what}: the process that called it ended with status {status}") from error
            raise
        if isinstance(answer, PhylaError):
            raise answer
        return answer

    def close(self) -> int | None:
        """End the process, if there is one, and return its exit status."""
        if self._process is None:
            return None
        self._process.kill()
        return self._process.wait()

    def _start(self) -> None:
        self._connection, other = Pipe()
        with other:
            self._process = subprocess.Popen(
                with_parent(sys.executable, "-P", "-c", ANSWERS, str(other.fileno())),
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # Ray prints events of its nodes
                start_new_session=True,  # it does not receive our Ctrl-C
            )


@cache
def ray_calls() -> RayCalls:
    """Return the calls of this process."""
    calls = RayCalls()
    atexit.register(calls.close)
    return calls


def answer_calls(descriptor: int) -> None:
    """Call the functions that another process sends, until it ends."""
    with Connection(descriptor) as connection:
        while True:
            try:
                function, arguments = connection.recv()
            except EOFError:
                return
            try:
                connection.send(function(*arguments))
            except PhylaError as error:
                connection.send(error)
