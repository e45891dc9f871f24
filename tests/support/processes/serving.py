"""A service on this machine, in a thread or in a process of its own."""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self
from unittest import mock

import uvicorn
from fastapi import FastAPI
from pydantic import TypeAdapter

import forked
from phyla.service import make_app
from phyla.store import Store, open_store

_adapters: dict[tuple[Any, str], TypeAdapter[Any]] = {}


def _adapter(kind: Any, config: Any = None) -> TypeAdapter[Any]:
    """Return what checks values of an annotated type: that of an earlier application, if there was one."""
    key = kind.__origin__, repr((kind.__metadata__, config))
    if key not in _adapters:
        _adapters[key] = TypeAdapter(kind, config=config)
    return _adapters[key]


def app_of(store: Store, **how: Any) -> FastAPI:
    """Make the application of a service; most of the time of the first goes into the types of its routes."""
    with mock.patch("fastapi._compat.v2.TypeAdapter", _adapter):
        return make_app(store, **how)


@cache
def interface() -> dict[str, Any]:
    """Return what a service says of its routes."""
    return app_of(open_store("memory://")).openapi()


@contextmanager
def served(store: Store, port: int = 0, **how: Any) -> Iterator[str]:
    """Serve a store from a thread, on a free port unless one is given; yield the address."""
    # Its own configuration of logging closes what other libraries in this process write to.
    config = uvicorn.Config(app_of(store, **how), port=port, log_config=None)
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
