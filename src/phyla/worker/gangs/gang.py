"""Runs a command once on each of several machines, through an engine that starts its ranks there.

A program, run by its path beneath the keeper of the worker: `gang.py NODES WAITS NAME NEEDED ENGINE... RANK...`,
where NAME is that of the engine, and NEEDED the machines that it waits for. It imports the standard library only.

The engine runs the words of the rank once on each machine, and passes its standard input on, as `srun`
does. Each rank (`rank.py`) connects to this process; once all have, they start the command. The exit status is 0
when it is 0 on every machine. Otherwise it is that of the first rank that failed, and the others are killed.

SIGTERM goes to the command on every machine. However this process ends, its connections end, and all ranks with
them. While ranks are missing, the file WAITS says what it waits for.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

WAIT_S = 5.0
"""After which the engine is said to be waiting."""
END_S = 10.0
"""Time for the engine to end after its ranks, and for the last reports to arrive after the engine."""
LINE_BYTES = 1 << 16
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6} if sys.platform == "linux" else {}
"""A machine that lost its power closes no connection: after 90 s of silence it counts as closed."""


class Rank:
    """The connection to one machine."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self._rest = connection, b""
        self.number, self.host, self.port = -1, "", 0
        self.status: int | None = None

    def __str__(self) -> str:
        return f"rank {self.number} on {self.host}"

    def read(self) -> list[bytes] | None:
        """Return the lines that have arrived; None once the connection has ended."""
        try:
            received = self.connection.recv(LINE_BYTES)
        except OSError:
            received = b""
        *lines, self._rest = (self._rest + received).split(b"\n")
        return lines if received else None

    def send(self, data: bytes) -> None:
        """Send some bytes, unless it has ended."""
        with contextlib.suppress(OSError):
            self.connection.sendall(data)

    def greet(self, line: bytes, token: str) -> bool:
        """Take its first line; return whether it belongs to this gang."""
        try:
            hello = json.loads(line)
            self.number, self.host, self.port = int(hello["rank"]), str(hello["host"]), int(hello["port"])
            return secrets.compare_digest(str(hello["token"]), token)
        except (ValueError, TypeError, KeyError):
            return False

    def end(self, line: bytes) -> None:
        """Take the line of its keeper about the end of the command: `STATUS LEFT`, or `error ERRNO`."""
        word, number = line.decode().split()
        self.status = 127 if word == "error" else int(word)
        if word == "error":
            _print_error(f"{self}: the command cannot be started: {os.strerror(int(number))}")
        elif self.status < 0:
            _print_error(f"{self} was ended by signal {-self.status}")
        elif self.status:
            # The last line on standard error stays that of the command.
            os.write(1, f"phyla: {self} ended with exit status {self.status}\n".encode())

    def lose(self) -> None:
        """Take the end of the connection without such a line."""
        self.status = -signal.SIGKILL
        _print_error(f"{self} was killed, or its machine was lost")


class Gang:
    """The ranks of one command.

    Attributes:
        ranks: those that have connected.
        started: whether all have, and have started the command.
        failed: exit statuses of ranks that failed, in the order in which they did.
    """

    def __init__(self, nodes: int, waits: Path, engine: str, needed: str) -> None:
        self.nodes, self._waits, self._token = nodes, waits, secrets.token_hex(16)
        self._name, self._needed = engine, needed
        self.ranks: list[Rank] = []
        self.failed: list[int] = []
        self.started = self._asked = False
        self._engine: subprocess.Popen[bytes] | None = None
        self._server = socket.create_server(("", 0), backlog=nodes)
        self._woken, self._wakes = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        for end in (self._woken, self._wakes):
            os.set_blocking(end.fileno(), False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, lambda number, frame: self._ask())

    def run(self, words: list[str]) -> int:
        """Run an engine with its ranks; return the exit status of the command."""
        self._engine = engine = subprocess.Popen(words, stdin=subprocess.PIPE)
        place = {"host": socket.gethostname(), "port": self._server.getsockname()[1], "token": self._token}
        place["keepalive"] = KEEPALIVE
        assert engine.stdin is not None
        with contextlib.suppress(BrokenPipeError), engine.stdin as stdin:
            stdin.write(json.dumps(place).encode() + b"\n")
        began = time.monotonic()
        if self._asked:
            engine.terminate()
        while engine.poll() is None and not self.failed and not self._complete:
            self._look(None if self.started else WAIT_S)
            if not self.started and time.monotonic() - began >= WAIT_S:
                self._waits.write_text(self._describe_wait())
        status = self._end(engine)
        self._waits.unlink(missing_ok=True)
        if self.failed:
            return self.failed[0]
        if self._complete:
            return status
        if not self._asked:
            _print_error(f"{self._name} ended with exit status {status} before the command did")
        return status or 1

    @property
    def _complete(self) -> bool:
        """Whether the command has ended well on every machine."""
        return self.started and all(rank.status == 0 for rank in self.ranks)

    def _describe_wait(self) -> str:
        there = ", ".join(map(str, self.ranks)) or "none"
        return f"{self._name} waits for {self.nodes} {self._needed}; started so far: {there}\n"

    def _look(self, timeout_s: float | None) -> None:
        """Wait for something to happen, and take it."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._server:
                connection, _ = self._server.accept()
                _keep_alive(connection)
                self._selector.register(connection, selectors.EVENT_READ, Rank(connection))
            elif key.fileobj is self._woken:
                self._woken.recv(LINE_BYTES)
            else:
                self._take(key.data)

    def _take(self, rank: Rank) -> None:
        lines = rank.read()
        for line in lines or ():
            if rank in self.ranks:
                rank.end(line)
            elif rank.greet(line, self._token):
                self.ranks.append(rank)
                self._start()
            else:
                lines = None
        if lines is None:
            self._selector.unregister(rank.connection)
            rank.connection.close()
            if rank in self.ranks and rank.status is None:
                rank.lose()
        if rank.status:
            self.failed.append(rank.status)

    def _start(self) -> None:
        """Start the command on all machines, if this rank was the last one."""
        if len(self.ranks) < self.nodes or self._asked:
            return
        self.started = True
        self._waits.unlink(missing_ok=True)
        first = min(self.ranks, key=lambda rank: rank.number)
        for rank in self.ranks:
            rank.send(f"{first.host} {first.port}\n".encode())

    def _ask(self) -> None:
        """Ask the command to stop, or the engine if it still waits."""
        self._asked = True
        for rank in self.ranks if self.started else ():
            rank.send(b"t")
        if not self.started and self._engine is not None:
            self._engine.terminate()

    def _end(self, engine: "subprocess.Popen[bytes]") -> int:
        """End what remains of the ranks, then the engine; return its exit status."""
        ends_at = time.monotonic() + END_S
        while engine.poll() == 0 and time.monotonic() < ends_at and self._expects_reports:
            self._look(ends_at - time.monotonic())
        for rank in self.ranks:
            rank.connection.close()
        try:
            return engine.wait(END_S)
        except subprocess.TimeoutExpired:
            engine.kill()
            return engine.wait()

    @property
    def _expects_reports(self) -> bool:
        return self.started and not self.failed and any(rank.status is None for rank in self.ranks)


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _print_error(text: str) -> None:
    os.write(2, f"phyla: {text}\n".encode())


def main(gang: Gang, words: list[str]) -> None:
    """Run a gang, and end as its command did."""
    status = gang.run(words)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main(Gang(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:5]), sys.argv[5:])
