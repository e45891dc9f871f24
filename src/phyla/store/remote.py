"""A store behind a service: `phyla serve` opens the database, this process speaks HTTP with it."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast, final

from phyla import settings
from phyla.errors import ConfigurationError, ConnectionLost, StoreBusy, StoreUnavailable
from phyla.formatting import mask_password
from phyla.records import Role
from phyla.store.contract import P, Query, R, Store
from phyla.system.patience import PATIENCE_S, Patience

if TYPE_CHECKING:
    import httpx

LOG = logging.getLogger("phyla")
K = TypeVar("K")

PUBLISHED = "published:"
"""Before the path of the file in which a service says where it is."""
TOKEN_FILE = "service.token"
"""Beside that file; which file is sent as a token is not for that one to say."""
ONCE = frozenset({"change", "evaluate_again", "note", "note_start", "renew_identity"})
"""What is not asked again if it may have been done; all else gives the same answer twice."""
PROMPT = frozenset({"renew", "report"})
"""What is called from time to time anyway, so that the next call will do."""
ANSWER_S, PROMPT_ANSWER_S = 60.0, 10.0
"""How long to wait for an answer: a request that waits for a lock in the database gets one after half a minute.
What is prompt is tried again, on another connection, before leases run out."""
LOOK_S = 5.0
"""How long a process that only looks, or begins, waits for a service; see `hold_on`."""
LONG_POLL_S = 20.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[K]):
    """A class whose methods run at a service.

    Attributes:
        name: its name in the path of a request.
        kind: the class.
        methods: those that travel, by the role that they take.
    """

    name: str
    kind: type[K]
    methods: Mapping[Role, Sequence[str]]

    def path(self, study: int | str, method: str) -> str:
        """Return the path of a method."""
        return f"/v1/calls/{study}/{self.name}/{travelling(method)}"

    def at(self, connection: "Connection", study: int, method: str, patience_s: float, **how: Any) -> Any:
        """Return what calls a method at a service; `AttributeError` if it does not travel."""
        if not any(method in names for names in self.methods.values()):
            raise AttributeError(f"{self.kind.__name__}.{method} does not travel to a service")
        return partial(connection.call, getattr(self.kind, method), self.path(study, method), patience_s, **how)


def travelling(name: str) -> str:
    """Return the name of a function as it is in a path."""
    return name.replace("_", "-")


STORE: Part[Any] = Part(
    name="store",
    kind=Store,
    methods={
        Role.VIEWER: ("identity", "studies", "find_study"),
        Role.OPERATOR: ("create_study", "set_state", "delete_study", "renew_identity"),
    },
)


@final
class RemoteStore:
    """Speaks with a service about all studies; the methods are those of `Store`, but `transaction` and `reader`.

    Args:
        url: `http://host:port` or `https://...`; or `published:FILE`, where the file says where the service is.

    Raises:
        ConfigurationError: the libraries are missing, or the URL has a user in it.
    """

    def __init__(self, url: str) -> None:
        self.url = url.removeprefix(PUBLISHED)
        self.look_s = LOOK_S
        self.connection = Connection(url)
        self._changes: list[RemoteChanges] = []

    def __getattr__(self, name: str) -> Any:
        return STORE.at(self.connection, 0, name, self.look_s)

    def hold_on(self, seconds: float) -> None:
        """Wait so long for the service, whatever it is asked."""
        self.look_s = self.connection.most_s = seconds

    def look(self, study: int, query: Query[P, R], /, *args: P.args, **named: P.kwargs) -> R:
        """Ask a query about one study, which the service answers in one transaction."""
        path = f"/v1/read/{study}/{travelling(query.__name__)}"
        call: Callable[P, R] = partial(self.connection.call, query, path, self.look_s)
        return call(*args, **named)

    def part(self, part: "Part[K]", study: int, *, settings: str | None = None) -> K:
        """Return what has the methods of a part, which run at the service, for one study.

        Args:
            part: the part.
            study: id of the study.
            settings: digest of the settings of this process, which the service compares with those stored.
        """
        return cast("K", _RemotePart(self.connection, part, study, settings))

    def service(self) -> dict[str, Any]:
        """Return the version of the service and its time, in seconds since the epoch."""
        return self.connection.service()

    def changes(self) -> "RemoteChanges":
        """Return what waits for commits."""
        changes = RemoteChanges(self.connection)
        self._changes.append(changes)
        return changes

    def close(self) -> None:
        """Release every connection."""
        for each in self._changes:
            each.close()
        self.connection.close()


@final
class _RemotePart:
    def __init__(self, connection: "Connection", part: Part[Any], study: int, settings: str | None) -> None:
        self._connection, self._part, self._study, self._settings = connection, part, study, settings

    def __getattr__(self, name: str) -> Any:
        patience_s = 0.0 if name in PROMPT else PATIENCE_S
        return self._part.at(self._connection, self._study, name, patience_s, settings_digest=self._settings)


class _NotPublished(StoreUnavailable):
    """The file in which a service says where it is is not there, or not yet."""


def hold_on(store: Store) -> None:
    """Let a process that works wait for its server longer than one that only looks."""
    store.hold_on(PATIENCE_S)


@final
class RemoteChanges:
    """Waits for commits by a request that the service answers when there is one; for one thread."""

    idle_s = 15.0

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._seen = -1
        self._changed = threading.Event()
        self._asking: threading.Thread | None = None

    def wait(self, seconds: float) -> bool:
        """Return whether something was committed since the last call, after `seconds` at the latest."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask, name="phyla-changes", daemon=True)
            self._asking.start()
        changed = self._changed.wait(seconds)
        self._changed.clear()
        return changed

    def _ask(self) -> None:
        before = self._seen
        try:
            self._seen = self._connection.changes(before, LONG_POLL_S)
        except StoreUnavailable:
            time.sleep(1.0)
        if self._seen != before:
            self._changed.set()

    def close(self) -> None:
        """Do nothing: the thread ends with its request."""


@final
class Connection:
    """Sends requests to a service, again if it is away for a while."""

    def __init__(self, url: str) -> None:
        try:
            import httpx
            import pydantic  # noqa: F401  # phyla.wire needs it
        except ImportError as error:
            raise ConfigurationError(
                f'{url}: a service is reached with libraries that are not installed: pip install "phyla[server]"'
            ) from error
        if "@" in url and not url.startswith(PUBLISHED):
            raise ConfigurationError(
                f"{mask_password(url)}: the URL of a service has no user and no password; give its token in the "
                "variable PHYLA_TOKEN, or in the file that PHYLA_TOKEN_FILE names"
            )
        self._httpx = httpx
        self._url, self._shown = url, url.removeprefix(PUBLISHED)
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._process = os.getpid()
        self._away = False
        self.most_s = PATIENCE_S

    def call(
        self,
        function: Callable[..., Any],
        path: str,
        patience_s: float,
        /,
        *positional: Any,
        settings_digest: str | None = None,
        **named: Any,
    ) -> Any:
        """Call a function at the service; its first parameter stays there."""
        from phyla.wire import call_of

        call, name = call_of(function), function.__name__
        headers = {} if settings_digest is None else {"Phyla-Settings": settings_digest}
        body = call.request(*positional, **named)
        answer_s = PROMPT_ANSWER_S if name in PROMPT else ANSWER_S
        return call.result(self._sent(path, body, headers, patience_s, answer_s, once=name in ONCE))

    def changes(self, after: int, wait_s: float) -> int:
        """Return the number of the newest change the service knows of; waits for one after a given number."""
        body = json.dumps({"after": after, "wait_s": wait_s}).encode()
        return int(json.loads(self._sent("/v1/changes", body, {}, 0.0, ANSWER_S, once=False))["change"])

    def service(self) -> dict[str, Any]:
        """Return what the service says of itself."""
        told: dict[str, Any] = json.loads(self._sent("/v1/service", b"{}", {}, LOOK_S, ANSWER_S, once=False))
        return told

    def _sent(
        self, path: str, body: bytes, headers: dict[str, str], patience_s: float, answer_s: float, *, once: bool
    ) -> bytes:
        httpx, patience = self._httpx, Patience(lambda: min(patience_s, self.most_s))
        timeout = httpx.Timeout(answer_s, connect=5.0)
        while True:
            client = None
            try:
                client = self._open()
                answer = client.post(path, content=body, headers=headers, timeout=timeout)
                if self._away and answer.status_code < 500:
                    self._away = False
                    LOG.warning("the service %s answers again", self._shown)
                if answer.status_code == 200:
                    return answer.content
                told = self._told(answer)
                # A plain 500 is of a proxy, or of a service that was ended while it worked on the request.
                broken = answer.status_code == 500 and not told
                if answer.status_code not in (502, 503, 504) and not broken:
                    self._refused(answer, told)
                error = told.get("detail") or f"status {answer.status_code}"
                sent = broken or told.get("title") == ConnectionLost.__name__
                said = f"answered: {error}"
                busy = told.get("title") == StoreBusy.__name__
            except (httpx.TransportError, _NotPublished) as failed:
                error, busy = str(failed) or type(failed).__name__, False
                said = f"cannot be reached: {error}"
                unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, _NotPublished)
                sent = not isinstance(failed, unsent)
                self._forget(client)
            if (once and sent) or patience.over:
                if busy:
                    raise StoreBusy(str(error))
                via = client if self._url != self._shown else None
                where = f"{self._shown} names {via.base_url}, which" if via else self._shown
                raise StoreUnavailable(f"the service {where} {said}{_advice(said)}")
            if patience.pause_s > 1 and not busy and not self._away:
                self._away = True
                LOG.warning("the service %s %s; trying again", self._shown, said)
            patience.pause()

    def _told(self, answer: "httpx.Response") -> dict[str, Any]:
        with suppress(ValueError):
            told = answer.json()
            if isinstance(told, dict):
                return told
        return {}

    def _refused(self, answer: "httpx.Response", told: dict[str, Any]) -> NoReturn:
        from phyla.wire import error_of

        if not told:
            raise StoreUnavailable(
                f"{self._shown} answered with status {answer.status_code}, and not as a service of phyla does; is "
                "this its address?"
            )
        raise error_of(told)

    def _open(self) -> "httpx.Client":
        with self._lock:
            if self._client is None or self._process != os.getpid():
                address, token = where_is(self._url)
                headers = {"Content-Type": "application/json"}
                if token:
                    headers["Authorization"] = f"Bearer {token}"
                try:
                    # Loading the certificates is slow, and only https needs them.
                    verify = address.startswith("https:")
                    base = address.rstrip("/").removesuffix("/v1")
                    self._client = self._httpx.Client(base_url=base, headers=headers, verify=verify)
                except (self._httpx.InvalidURL, ValueError) as error:
                    raise ConfigurationError(f"storage {self._url!r}: {error}") from error
                self._process = os.getpid()
            return self._client

    def _forget(self, client: "httpx.Client | None") -> None:
        """Look again where a service is that says so in a file: it may have been started elsewhere."""
        if self._url.startswith(PUBLISHED):
            with self._lock:
                if self._client is client:
                    self._client = None

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._client is not None and self._process == os.getpid():
                self._client.close()
            self._client = None


def _advice(said: str) -> str:
    """Return what to do about a service that does not do what it is asked."""
    if said.startswith("answered"):
        return ""
    if "WRONG_VERSION_NUMBER" in said:
        return "; there is no TLS at this address: write http://, or give the address of the proxy in front of it"
    if "[Errno -" in said or "nodename" in said:  # as getaddrinfo says on Linux, and on a Mac
        return "; check the name of the host"
    return "; is it running? On the machine of the database, phyla serve starts it"


def where_is(url: str) -> tuple[str, str | None]:
    """Return the address of a service, and the token for it, if there is one."""
    if not url.startswith(PUBLISHED):
        return url, settings.token()
    file = Path(url.removeprefix(PUBLISHED))
    try:
        told = json.loads(file.read_text())
        address = str(told["url"])
        found, beside = settings.token(), file.with_name(TOKEN_FILE)
        if found is None and beside.exists():
            found = settings.token_in(beside)
    except FileNotFoundError:
        raise _NotPublished(f"there is no {file}, which phyla serve --publish writes") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _NotPublished(f"{file} does not say where it is ({error})") from error
    return address, found
