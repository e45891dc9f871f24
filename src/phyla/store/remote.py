"""A store behind a service: `phyla serve` opens the database, and this process sends HTTP requests."""

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
from urllib.parse import urlsplit

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
"""Prefix of the path of a file with the address of a service."""
TOKEN_FILE = "service.token"
"""Token file beside it; the address file must not choose which file is sent as a token."""
ONCE = frozenset({"change", "evaluate_again", "note", "note_start", "renew_identity"})
"""Methods that are not retried if they may have been executed; all others are idempotent."""
PROMPT = frozenset({"renew", "report"})
"""Methods that are called periodically, so that the next call replaces a retry."""
ANSWER_S, READ_ANSWER_S, PROMPT_ANSWER_S = 60.0, 20.0, 10.0
"""How long to wait for an answer: a request that waits for a lock in the database is answered within 30 s.
Queries wait for no lock. Prompt methods are called again, on another connection, before leases expire."""
CONNECT_S = 5.0
READ = "/v1/read"
"""Where the service answers queries."""
LOOK_S = 5.0
"""How long a process that only reads, or starts, waits for a service; see `hold_on`."""
AGAIN_S = 0.5
"""How long a process that ends waits for a service that has not answered its last request either."""
LONG_POLL_S = 20.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[K]):
    """A class whose methods run at a service.

    Attributes:
        name: its name in the path of a request.
        kind: the class.
        methods: the remote methods by the role that they need.
    """

    name: str
    kind: type[K]
    methods: Mapping[Role, Sequence[str]]

    def path(self, study: int | str, method: str) -> str:
        """Return the path of a method."""
        return f"/v1/calls/{study}/{self.name}/{path_name(method)}"

    def at(self, connection: "Connection", study: int, method: str, patience_s: float, **how: Any) -> Any:
        """Return a function that calls a method at a service; `AttributeError` if it is not remote."""
        if not any(method in names for names in self.methods.values()):
            raise AttributeError(f"{self.kind.__name__}.{method} is not available through a service")
        return partial(connection.call, getattr(self.kind, method), self.path(study, method), patience_s, **how)


def path_name(name: str) -> str:
    """Return the name of a function in paths."""
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
    """The store of a service; it has the methods of `Store`, except `transaction` and `reader`.

    Args:
        url: `http://host:port` or `https://...`; or `published:FILE`, a file with the address of the service.

    Raises:
        ConfigurationError: libraries are missing, or the URL has a user.
    """

    def __init__(self, url: str) -> None:
        self.url = url.removeprefix(PUBLISHED)
        self.look_s = LOOK_S
        self.connection = Connection(url)
        self._changes: list[RemoteChanges] = []

    def __getattr__(self, name: str) -> Any:
        return STORE.at(self.connection, 0, name, self.look_s)

    def hold_on(self, seconds: float) -> None:
        """Set how long to wait for the service, for all requests."""
        self.look_s = self.connection.most_s = seconds

    def look(self, study: int, query: Query[P, R], /, *args: P.args, **named: P.kwargs) -> R:
        """Answer a query about one study in one transaction at the service."""
        path = f"{READ}/{study}/{path_name(query.__name__)}"
        call: Callable[P, R] = partial(self.connection.call, query, path, self.look_s)
        return call(*args, **named)

    def part(self, part: "Part[K]", study: int, *, settings: str | None = None) -> K:
        """Return a part of one study, whose methods run at the service.

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
        """Return an object that waits for commits."""
        changes = RemoteChanges(self.connection)
        self._changes.append(changes)
        return changes

    def close(self) -> None:
        """Close all connections."""
        for changes in self._changes:
            changes.close()
        self.connection.close()


@final
class _RemotePart:
    def __init__(self, connection: "Connection", part: Part[Any], study: int, settings: str | None) -> None:
        self._connection, self._part, self._study, self._settings = connection, part, study, settings

    def __getattr__(self, name: str) -> Any:
        patience_s = 0.0 if name in PROMPT else PATIENCE_S
        return self._part.at(self._connection, self._study, name, patience_s, settings_digest=self._settings)


class _NotPublished(StoreUnavailable):
    """The file with the address of a service does not exist, or not yet."""


def hold_on(store: Store) -> None:
    """Make a working process wait for its server longer than one that only reads."""
    store.hold_on(PATIENCE_S)


@final
class RemoteChanges:
    """Waits for commits with a long-polling request; for one thread."""

    idle_s = 15.0

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._seen = -1
        self._changed = threading.Event()
        self._asking: threading.Thread | None = None

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether there was a commit since the last call."""
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
    """Sends requests to a service, with retries while it is unreachable."""

    def __init__(self, url: str) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ConfigurationError(
                f'{url}: libraries for services are not installed: pip install "phyla[server]"'
            ) from error
        if "@" in url and not url.startswith(PUBLISHED):
            raise ConfigurationError(
                f"{mask_password(url)}: the URL of a service must have no user or password; pass its token in the "
                "variable PHYLA_TOKEN, or in the file that PHYLA_TOKEN_FILE names"
            )
        self._httpx = httpx
        self._url, self._shown = url, url.removeprefix(PUBLISHED)
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._process = os.getpid()
        self._away = False
        self._silent = False
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
        """Call a function at the service, without its first parameter."""
        from phyla.wire import call_of

        call, name = call_of(function), function.__name__
        headers = {} if settings_digest is None else {"Phyla-Settings": settings_digest}
        body = call.request(*positional, **named)
        answer_s = READ_ANSWER_S if path.startswith(READ) else PROMPT_ANSWER_S if name in PROMPT else ANSWER_S
        return call.result(self._send(path, body, headers, patience_s, answer_s, once=name in ONCE))

    def changes(self, after: int, wait_s: float) -> int:
        """Wait for a change after the number `after`; return the number of the newest."""
        body = json.dumps({"after": after, "wait_s": wait_s}).encode()
        return int(json.loads(self._send("/v1/changes", body, {}, 0.0, ANSWER_S, once=False))["change"])

    def service(self) -> dict[str, Any]:
        """Return the description of the service."""
        description: dict[str, Any] = json.loads(
            self._send("/v1/service", b"{}", {}, LOOK_S, ANSWER_S, once=False)
        )
        return description

    def _send(
        self, path: str, body: bytes, headers: dict[str, str], patience_s: float, answer_s: float, *, once: bool
    ) -> bytes:
        httpx, patience = self._httpx, Patience(lambda: min(patience_s, self.most_s))
        while True:
            client = None
            try:
                client = self._open()
                answer = client.post(path, content=body, headers=headers, timeout=self._timeout(answer_s))
                self._silent = False
                if answer.status_code in (401, 403) and self._takes_new_token(client, answer):
                    continue
                answered = answer.status_code == 200 and _is_json(answer)
                problem = {} if answered else self._problem_of(answer)
                foreign = not answered and not _is_phylas(problem)
                if self._away and not foreign and answer.status_code < 500:
                    self._away = False
                    LOG.warning("the service %s answers again", self._shown)
                if answered:
                    return answer.content
                # A foreign answer comes from a proxy, or from a service that was killed during the request. It may
                # be a page of maintenance, for which working processes wait, or the address may be wrong.
                broken = foreign and (answer.status_code == 500 or min(patience_s, self.most_s) > LOOK_S)
                gone = answer.status_code in (502, 503, 504)
                if not gone and not broken:
                    self._raise_problem(answer, problem, via=_proxy(str(client.base_url)))
                other = "" if gone else ", but not as a service of phyla"
                error = problem.get("detail") or f"status {answer.status_code}{other}"
                sent = (not gone and answer.status_code >= 500) or problem.get("title") == ConnectionLost.__name__
                failure = f"answered: {error}"
                busy = problem.get("title") == StoreBusy.__name__
            except (httpx.TransportError, _NotPublished) as failed:
                error, busy = str(failed) or type(failed).__name__, False
                failure = f"cannot be reached: {error}"
                unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, _NotPublished)
                sent = not isinstance(failed, unsent)
                self._silent = isinstance(failed, httpx.TimeoutException)
                self._forget(client)
            if (once and sent) or patience.over:
                if busy:
                    raise StoreBusy(str(error))
                via = client if self._url != self._shown else None
                where = f"{self._shown} names {via.base_url}, which" if via else self._shown
                proxied = _proxy(str(client.base_url)) if client else ""
                raise StoreUnavailable(f"the service {where} {failure}{_advice(failure)}{proxied}")
            if patience.pause_s > 1 and not busy and not self._away:
                self._away = True
                LOG.warning("the service %s %s; trying again", self._shown, failure)
            patience.pause()

    def _timeout(self, answer_s: float) -> "httpx.Timeout":
        if self.most_s <= 0:  # a process that ends waits for no service that is silent
            answer_s = min(answer_s, AGAIN_S if self._silent else LOOK_S)
        return self._httpx.Timeout(answer_s, connect=min(answer_s, CONNECT_S))

    def _problem_of(self, answer: "httpx.Response") -> dict[str, Any]:
        with suppress(ValueError):
            problem = answer.json()
            if isinstance(problem, dict):
                return problem
        return {}

    def _raise_problem(self, answer: "httpx.Response", problem: dict[str, Any], via: str) -> NoReturn:
        from phyla.wire import PROBLEM, error_of

        # A service of phyla has all routes that its own version asks for.
        unknown = problem.get("type") == f"{PROBLEM}HTTP" and answer.status_code in (404, 405)
        if unknown or not _is_phylas(problem):
            raise StoreUnavailable(
                f"{self._shown} answered {answer.request.url.path} with status {answer.status_code}, but not as a "
                f"service of this version of phyla; check the address, and the version that runs there{via}"
            )
        raise error_of(problem)

    def _open(self) -> "httpx.Client":
        with self._lock:
            if self._client is None or self._process != os.getpid():
                address, token = read_address(self._url)
                headers = {"Content-Type": "application/json"}
                if token:
                    headers["Authorization"] = f"Bearer {token}"
                try:
                    # Loading CA certificates is slow; only https needs them.
                    verify = address.startswith("https:")
                    base = address.rstrip("/").removesuffix("/v1")
                    self._client = self._httpx.Client(base_url=base, headers=headers, verify=verify)
                except (self._httpx.InvalidURL, ValueError) as error:
                    raise ConfigurationError(f"storage {self._url!r}: {error}") from error
                self._process = os.getpid()
            return self._client

    def _forget(self, client: "httpx.Client | None") -> None:
        """Drop the connection to a published service, so that its address is read again: it may have moved."""
        if self._url.startswith(PUBLISHED):
            with self._lock:
                if self._client is client:
                    self._client = None

    def _takes_new_token(self, client: "httpx.Client", rejected: "httpx.Response") -> bool:
        """Return whether the file of the token has another one than was rejected; the next request sends it."""
        if settings.has_token_in_variable():
            return False
        try:
            _, token = read_address(self._url)
        except ConfigurationError:
            return False  # the file is being rewritten, or gone
        authorization = f"Bearer {token}"
        if not token or rejected.request.headers.get("Authorization") == authorization:
            return False
        client.headers["Authorization"] = authorization
        return True

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._client is not None and self._process == os.getpid():
                self._client.close()
            self._client = None


def _is_json(answer: "httpx.Response") -> bool:
    return str(answer.headers.get("Content-Type", "")).startswith("application/json")


def _is_phylas(problem: Mapping[str, Any]) -> bool:
    """Return whether a service of phyla reported a problem."""
    from phyla.wire import PROBLEM

    return str(problem.get("type", "")).startswith(PROBLEM)


def _advice(failure: str) -> str:
    """Return what to do about a failed request."""
    if failure.startswith("answered"):
        return ""
    if "WRONG_VERSION_NUMBER" in failure:
        return "; the address has no TLS: use http://, or the address of the proxy in front of it"
    if "[Errno -" in failure or "nodename" in failure:  # as getaddrinfo says on Linux, and on a Mac
        return "; check the name of the host"
    return "; is it running? Start it on the machine of the database with `phyla serve`"


def _proxy(url: str) -> str:
    """Return what to do if a proxy, which the environment names, is in the way."""
    from urllib.request import getproxies, proxy_bypass  # expensive to import

    address, proxies = urlsplit(url), getproxies()
    host, proxy = address.hostname or "", proxies.get(address.scheme) or proxies.get("all")
    if proxy is None or proxy_bypass(host):
        return ""
    return f". Requests go through the proxy {mask_password(proxy)}; to avoid it, add {host} to NO_PROXY"


def read_address(url: str) -> tuple[str, str | None]:
    """Return the address of a service, and its token, if any."""
    if not url.startswith(PUBLISHED):
        return url, settings.token()
    file = Path(url.removeprefix(PUBLISHED))
    try:
        published = json.loads(file.read_text())
        address = str(published["url"])
        token, beside = settings.token(), file.with_name(TOKEN_FILE)
        if token is None and beside.exists():
            token = settings.token_in(beside)
    except FileNotFoundError:
        raise _NotPublished(f"{file} does not exist; `phyla serve --publish` writes it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _NotPublished(f"{file} has no address of a service ({error})") from error
    return address, token
