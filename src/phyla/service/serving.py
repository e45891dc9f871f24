"""Listening: `phyla serve`."""

import asyncio
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
from phyla.settings import storage_name, system_clock
from phyla.store import RemoteStore, Store, open_store
from phyla.store.remote import TOKEN_FILE
from phyla.system import file_locks
from phyla.system.drafts import replace_text

LOG = logging.getLogger("phyla.service")
GRACE_S = 10
LOOK_S = 2
"""How often a service checks that its home has an address."""


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

    `names` are further allowed host names of requests. `publish` is the home in which to write the address of the
    service and a token for it. Without `work` only the dashboard is served.

    Raises:
        ConfigurationError: it cannot listen there; or other machines can reach it, and there is no token.
    """
    with ExitStack() as stack:
        listening = stack.enter_context(_listening(host, port))
        if publish is not None:
            publish.mkdir(parents=True, exist_ok=True)
        store = open_store(storage, alone=work)
        stack.callback(store.close)
        if isinstance(store, RemoteStore):
            raise ConfigurationError(
                f"{storage_name(storage)}={store.url!r} is already a service: name its database with --storage, "
                "or open that URL in a browser"
            )
        # Another name implies a proxy, which other machines can reach.
        loopback = is_loopback(host) and not names
        if publish is not None:
            _published_token(store, publish)
        if not loopback and not store.tokens():
            option = f"--allow-host {names[0]}" if names else f"--host {host}"
            raise ConfigurationError(
                f"{option} makes the service reachable from other machines, but {store.url} has no tokens, so it "
                "would be open to all users; first create a token with the same --home or --storage: "
                "phyla token create NAME --out FILE"
            )
        hosts = [*LOOPBACK, host, *names] if loopback or names else None
        app = make_app(store, hosts=hosts, loopback=loopback, work=work, pages=pages)
        name_in_url = _name_here() if host in ("0.0.0.0", "::") else host
        url = f"http://{f'[{name_in_url}]' if ':' in name_in_url else name_in_url}:{listening.getsockname()[1]}"
        if publish is not None:
            file, service = publish / "service.json", {"url": url, "host": platform.node(), "pid": os.getpid()}
            replace_text(file, json.dumps(service))
            stack.callback(_withdraw, file, service)
            # uvicorn raises the signal again after its shutdown.
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        logs = logging.StreamHandler()
        logs.setFormatter(JsonLines())
        for name in ("phyla", "uvicorn"):
            logging.getLogger(name).addHandler(logs)
        none = "" if store.studies() else ", which has no studies yet,"
        say(f"{'serving' if work else 'showing'} {store.url}{none} at {url}")

        async def look_after_file() -> None:
            if publish is not None:
                # The home may be on a network disk that does not answer; requests must not wait for it.
                await asyncio.to_thread(_publish_again, file, service)

        config = uvicorn.Config(
            app,
            callback_notify=look_after_file,
            timeout_notify=LOOK_S,
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
    """Formats each record of the log as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        fields: dict[str, Any] = {"time": record.created, "level": record.levelname, "from": record.name}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps({**fields, "message": record.getMessage()})


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _name_here() -> str:
    """Return a name of this machine that resolves here, else the loopback address."""
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
    # Child processes must not inherit it.
    listening.set_inheritable(False)
    return listening


def _published_token(store: Store, home: Path) -> None:
    """Create the token file for all users who can read the home, unless it has a valid token."""
    file = home / TOKEN_FILE
    # If two services start at once in one home, the second uses the token of the first.
    with file_locks.hold_lock(home / f".{TOKEN_FILE}.lock"):
        known = [token for token in store.tokens() if token.name == PUBLISHED_TOKEN]
        with suppress(OSError, ValueError):
            if token_of(file.read_text().strip(), known, system_clock()) is not None:
                return
        file.unlink(missing_ok=True)
        with suppress(StateError):
            store.revoke_token(PUBLISHED_TOKEN)
        create(store, PUBLISHED_TOKEN, Role.OPERATOR, file=file)


def _publish_again(file: Path, service: object) -> None:
    """Write the address of this service if it is gone: a newer service replaced it, and removed it at its end."""
    with suppress(OSError):
        if not file.exists():
            replace_text(file, json.dumps(service))


def _withdraw(file: Path, service: object) -> None:
    """Remove the address of this service, unless another service has replaced it."""
    with suppress(OSError, ValueError):
        if json.loads(file.read_text()) == service:
            file.unlink()
