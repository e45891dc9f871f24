"""A service on this machine, in a thread or in a process of its own."""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import uvicorn

import forked
from phyla.service import make_app
from phyla.store import Store


@contextmanager
def served(store: Store, **how: Any) -> Iterator[str]:
    """Serve a store from a thread; yield the address."""
    # Its own configuration of logging closes what other libraries in this process write to.
    config = uvicorn.Config(make_app(store, **how), port=0, log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.005)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


class Service:
    """`phyla serve` as a process."""

    def __init__(self, *places: str, port: int = 0, extra: tuple[str, ...] = (), **environment: str) -> None:
        self.places, self.port, self.extra, self.environment = places, port, extra, environment
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start it, where it was before; return once it listens."""
        words = ("-m", "phyla.cli", *self.places, "serve", "--port", str(self.port), *self.extra)
        self.process = forked.Forked(words, merged=True, env={**os.environ, **self.environment})
        found = re.search(r"at (http://\S+:(\d+))", self.process.read_until("\n"))
        assert found, self.process.printed()
        self.url, self.port = found[1], int(found[2])

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it, and wait until it is gone."""
        self.process.send_signal(number)
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)


def phyla(*words: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line."""
    return forked.run(["-m", "phyla.cli", *words], env={**os.environ, **environment})
