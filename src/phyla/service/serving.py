"""Listening: `phyla serve`."""

import ipaddress
import json
import logging
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, final

import uvicorn
from fastapi import APIRouter

from phyla.errors import ConfigurationError, StateError
from phyla.records import Role, token_of
from phyla.service.access import Doors
from phyla.service.app import LOOPBACK, make_app
from phyla.service.changes import News
from phyla.service.tokens import PUBLISHED_TOKEN, create
from phyla.settings import system_clock
from phyla.store import RemoteStore, Store, open_store
from phyla.store.remote import TOKEN_FILE
from phyla.system import file_locks

LOG = logging.getLogger("phyla.service")
GRACE_S = 10


def serve_store(
    storage: str,
    host: str,
    port: int,
    *,
    names: Sequence[str] = (),
    publish: Path | None = None,
    work: bool = True,
    pages: Callable[[Store, Doors, News], APIRouter] | None = None,
    say: Callable[[str], object],
) -> None:
    """Serve a store until a signal ends it; port 0 takes a free one.

    `names` are further names that requests may be sent to, and `publish` is the home in which to write where the
    service is, and a token for it. Without `work` only the dashboard is served.

    Raises:
        ConfigurationError: it cannot listen there; or others reach the address, and there is no token.
    """
    with ExitStack() as stack:
        listening = stack.enter_context(_listening(host, port))
        if publish is not None:
            publish.mkdir(parents=True, exist_ok=True)
        store = open_store(storage, alone=work)
        stack.callback(store.close)
        if isinstance(store, RemoteStore):
            raise ConfigurationError(
                f"--storage {storage}: this is a service already; name its database, or open {store.url} in a "
                "browser"
            )
        # Who gives it another name has a proxy, which others reach.
        loopback = is_loopback(host) and not names
        if publish is not None:
            _published_token(store, publish)
        if not loopback and not store.tokens():
            given = f"--allow-host {names[0]}" if names else f"--host {host}"
            raise ConfigurationError(
                f"{given} lets others reach it, and {store.url} has no tokens, so anybody could use it; make one "
                "first, with the same --home or --storage: phyla token create NAME --out FILE"
            )
        hosts = [*LOOPBACK, host, *names] if loopback or names else None
        app = make_app(store, hosts=hosts, loopback=loopback, work=work, pages=pages)
        shown = _name_here() if host in ("0.0.0.0", "::") else host
        url = f"http://{f'[{shown}]' if ':' in shown else shown}:{listening.getsockname()[1]}"
        if publish is not None:
            told = {"url": url, "host": platform.node(), "pid": os.getpid()}
            _publish(publish / "service.json", told)
            stack.callback(_withdraw, publish / "service.json", told)
            # uvicorn raises a signal again once it has stopped for it.
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        logs = logging.StreamHandler()
        logs.setFormatter(JsonLines())
        for name in ("phyla", "uvicorn"):
            logging.getLogger(name).addHandler(logs)
        none = "" if store.studies() else ", which has no study yet,"
        say(f"{'serving' if work else 'showing'} {store.url}{none} at {url}")
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=GRACE_S if work else 1,
            timeout_keep_alive=75,
            server_header=False,
            h11_max_incomplete_event_size=64 * 1024,
        )
        uvicorn.Server(config).run([listening])


@final
class JsonLines(logging.Formatter):
    """One JSON object per line of the log."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        told: dict[str, Any] = {"time": record.created, "level": record.levelname, "from": record.name}
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps({**told, "message": record.getMessage()})


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _name_here() -> str:
    """Return the name under which others find this machine, if it finds itself under it."""
    for name in (platform.node(), socket.getfqdn()):
        with suppress(OSError):
            socket.getaddrinfo(name, None)
            return name
    return "127.0.0.1"


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; --port 0 takes a free one"
        ) from error
    # uvicorn's workers would inherit it otherwise.
    listening.set_inheritable(False)
    return listening


def _published_token(store: Store, home: Path) -> None:
    """Make the file with the token for all who can read the home, unless it has one that opens the store."""
    file = home / TOKEN_FILE
    # Of two services that start at once in one home, the second one uses the token of the first.
    with file_locks.hold_lock(home / f".{TOKEN_FILE}.lock"):
        known = [token for token in store.tokens() if token.name == PUBLISHED_TOKEN]
        with suppress(OSError, ValueError):
            if token_of(file.read_text().strip(), known, system_clock()) is not None:
                return
        file.unlink(missing_ok=True)
        with suppress(StateError):
            store.revoke_token(PUBLISHED_TOKEN)
        create(store, PUBLISHED_TOKEN, Role.OPERATOR, file=file)


def _withdraw(file: Path, told: object) -> None:
    """Remove what says where this service is, unless another one has taken its place."""
    with suppress(OSError, ValueError):
        if json.loads(file.read_text()) == told:
            file.unlink()


def _publish(file: Path, told: object) -> None:
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(json.dumps(told))
    draft.replace(file)
