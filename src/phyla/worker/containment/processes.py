"""Runs commands contained: all processes that they start, in any session, end with them and with this process."""

import logging
import math
import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import IO, Self, final

from phyla import settings
from phyla.worker.commands.outputs import drop_middle
from phyla.worker.containment import keeper


class CannotStart(Exception):
    """A command could not be started."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"{error.strerror or error}: {program!r}")
        self.errno = error.errno


LOG = logging.getLogger("phyla")
LOOK_S = 1.0  # between two looks at its output, whose middle is dropped once it is long
_MARK = uuid.uuid4().hex
_NUMBERS = count(1)


@final
class Process:
    """A running command, and all processes that it started.

    A keeper process (`keeper.py`) runs it, so that even a SIGKILL to this process leaves nothing behind. On Linux
    that holds for descendants in any session; elsewhere for those in the command's process group.

    Args:
        arguments: the program and its arguments.
        output: where its standard output goes.
        errors: where its standard error goes.
        environment: environment variables besides those of this process; None removes one.
        cwd: where it runs; by default here.

    Raises:
        CannotStart: there is no such directory, or the arguments are too long.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        output: IO[bytes],
        errors: IO[bytes],
        environment: Mapping[str, str | None] | None = None,
        cwd: str | None = None,
    ) -> None:
        changed = environment or {}
        own = settings.child_environment({name: value for name, value in changed.items() if value is not None})
        inherited = own.pop(keeper.VARIABLE, None) or f"{_MARK}:"
        self._mark = f"{inherited}{next(_NUMBERS)}:"
        self._program = arguments[0]
        self._ended: int | None = None
        self._outputs = (output, errors)
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, self._mark, str(output.fileno()), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Without the mark: the keeper outlives a worker whose supervisor ends all that carries its mark.
                env={name: value for name, value in own.items() if changed.get(name, "") is not None},
                cwd=cwd,
                pass_fds=[output.fileno()],
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise CannotStart(cwd or self._program, error) from error
        except ValueError as error:
            raise CannotStart(self._program, OSError(str(error))) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Kill everything that is still running."""
        self.kill()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the exit status, -N for signal N, once the command and all its processes have ended.

        Args:
            timeout_s: seconds to wait at most; then None is returned.

        Raises:
            CannotStart: there is no such program, or it is not executable.
        """
        report, orders = self._keeper.stdout, self._keeper.stdin
        assert report is not None
        assert orders is not None
        if self._ended is not None:
            return self._ended
        clock, ends_at = settings.awake_clock(), math.inf if timeout_s is None else timeout_s
        while True:
            left_s = max(0.0, ends_at - clock())
            ended = select.select([report], [], [], min(left_s, LOOK_S))[0]
            for output in self._outputs:
                if not output.closed:
                    drop_middle(output.fileno())
            if ended:
                break
            if not left_s:
                return None
        words = report.read().split()
        report.close()
        orders.close()
        self._keeper.wait()
        if not words:
            # The keeper was killed; its processes carry the mark.
            keeper.end_marked(self._mark)
            self._ended = -signal.SIGKILL
        elif words[0] == b"error":
            self._ended = 127
            raise CannotStart(self._program, OSError(int(words[1]), os.strerror(int(words[1]))))
        else:
            self._ended = int(words[0])
            if words[1] == b"1":
                LOG.warning("the command %r ended, but a process that it started cannot be killed", self._program)
        return self._ended

    def terminate(self) -> None:
        """Send SIGTERM to the command."""
        assert self._keeper.stdin is not None
        if self._ended is None:
            with suppress(BrokenPipeError):
                self._keeper.stdin.write(b"t")

    def kill(self) -> None:
        """Kill the command and everything that it started; return when they have ended."""
        if self._ended is None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            with suppress(CannotStart):
                self.wait()


def describe_status(status: int) -> str:
    """Return the exit status or signal that ended a process."""
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"{name} (out of memory?)" if -status == signal.SIGKILL else name


def describe_end(status: int) -> str:
    """Return how a process ended, as a verb."""
    return f"{'ended with' if status >= 0 else 'was ended by'} {describe_status(status)}"
