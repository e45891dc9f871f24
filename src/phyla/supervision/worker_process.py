"""One worker process of this machine."""

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, final

from phyla.settings import child_environment, system_clock
from phyla.worker import Closing, Launch
from phyla.worker.containment import keeper
from phyla.worker.spec import BEATS, LAST_WORDS, WorkerSpec

WORKER = "import gc; gc.disable(); from phyla.worker.process import main; main()"
"""The program of a worker process. Without garbage collection during imports it starts a fifth faster."""


def inherited(launch: Launch) -> tuple[int, ...]:
    """Return the descriptors that processes of a launch inherit: its lock, if it has one."""
    return () if launch.descriptor is None else (launch.descriptor,)


WITHOUT_END_S = 0.05
"""Interval of checks whether a process has ended where no descriptor shows that."""


def wait_for_end(processes: "Iterable[WorkerProcess]", seconds: float) -> None:
    """Wait until one of these processes has ended, but no longer than some seconds."""
    ends = select.poll()
    for process in processes:
        if process.end is None:
            time.sleep(min(seconds, WITHOUT_END_S))
            return
        ends.register(process.end, select.POLLIN)
    ends.poll(1000 * seconds)


def _open_end(pid: int) -> int | None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None


@final
@dataclass
class WorkerProcess:
    """A worker process, its spec and its progress; `mark` identifies all processes that it starts."""

    spec: WorkerSpec
    popen: "subprocess.Popen[str]"
    mark: str
    progressed_at: float
    beats: int = -1
    trials: int = 0
    closing: Closing = Closing.OPEN
    deadline: float = 0.0
    ends_at: float = math.inf
    looked_at: float = -math.inf
    epoch: float = math.inf  # the time at which the supervisor's clock was 0, as of the last look
    end: int | None = None  # a descriptor that is readable once the process has ended, where the system has such

    @classmethod
    def start(
        cls, spec: WorkerSpec, launch: Launch, mark: str, environment: Mapping[str, str], now: float
    ) -> Self:
        """Start a process for a worker of the launch."""
        Path(spec.beat_file).write_bytes(bytes(LAST_WORDS.stop))
        with open(spec.log, "a") as output:
            popen = subprocess.Popen(
                # -P: a random.py in the current directory must not replace Python's.
                [sys.executable, "-P", "-c", WORKER],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=child_environment({"PYTHONUNBUFFERED": "1", **environment}),
                start_new_session=True,
                pass_fds=inherited(launch),
                text=True,
            )
        assert popen.stdin is not None
        spec = replace(spec, name=launch.worker_name(spec.index, popen.pid))
        with contextlib.suppress(BrokenPipeError):
            # It died at once; its exit status and log have the reason.
            popen.stdin.write(spec.to_json() + "\n")
            popen.stdin.flush()
        return cls(spec, popen, mark, now, end=_open_end(popen.pid))

    def close_soon(self, closing: Closing) -> None:
        """Ask it to exit after its current work."""
        if closing > self.closing:
            self.closing = closing
            with open(self.spec.beat_file, "r+b") as file:
                file.seek(BEATS.size)
                file.write(bytes([closing]))

    def look(self, now: float) -> int:
        """Read its progress; return how many trials it completed since the last look."""
        beats, trials, deadline = BEATS.unpack_from(Path(self.spec.beat_file).read_bytes())
        completed = int(trials) - self.trials
        self.trials = trials
        if beats != self.beats:
            self.beats, self.progressed_at = beats, now
        if deadline != self.deadline:
            # It may have been set before a pause that ended since the last look.
            self.deadline, self.ends_at = deadline, deadline - min(self.epoch, system_clock() - now)
        self.looked_at, self.epoch = now, system_clock() - now
        return completed

    def overdue(self, stall_timeout_s: float | None) -> str | None:
        """Return why to kill it if it took too long, as of the last look."""
        ended = f"so worker process {self.popen.pid} was killed"
        if self.deadline and self.looked_at > self.ends_at:
            late = "its eval task, or prepare= of its suite, took longer than its timeout_s"
            return f"{late}, {ended}; raise timeout_s if that is not enough"
        silent_s = self.looked_at - self.progressed_at
        if self.beats and stall_timeout_s is not None and silent_s > stall_timeout_s:
            silent = f"StallTimeout: no step, no report and no finished trial for {stall_timeout_s:g} s"
            return f"{silent}, {ended}; raise stall_timeout_s if training may be silent for longer"
        return None

    def has_worked(self) -> bool:
        """Return whether it could start: it has asked for work."""
        return bool(BEATS.unpack_from(Path(self.spec.beat_file).read_bytes())[0])

    def last_words(self) -> tuple[int, str]:
        """Return how many trials it had completed when it failed, and why it failed."""
        content = Path(self.spec.beat_file).read_bytes()
        return int(BEATS.unpack_from(content)[1]), content[LAST_WORDS].decode(errors="replace").rstrip()

    def clean_up(self) -> None:
        """Kill the processes that it started, after its own end."""
        if self.end is not None:
            os.close(self.end)
            self.end = None
        if self.popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                # It died before it read all input.
                self.popen.stdin.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        keeper.end_marked(self.mark)
