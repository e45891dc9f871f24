"""The application: routes for every remote method, tokens, limits, and error responses."""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib import metadata
from typing import Annotated, Any, final

from fastapi import APIRouter, Body, Depends, FastAPI, Header, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phyla.controller import PARTS
from phyla.errors import (
    AccessDenied,
    CheckpointError,
    LeaseLost,
    PhylaError,
    RunChanged,
    StateError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    StudyChanged,
    StudyNotFound,
    UsageError,
)
from phyla.records import Role
from phyla.service.access import Doors, discreet, may
from phyla.service.blackbox import black_box
from phyla.service.changes import MOST_WAIT_S, News
from phyla.service.metrics import Figures
from phyla.service.reading import QUERIES
from phyla.service.studies import Studies
from phyla.settings import system_clock
from phyla.store import STORE, Store
from phyla.store.remote import path_name
from phyla.wire import Call, call_of, problem

VERSION = metadata.version("phyla")
LOG = logging.getLogger("phyla.service")
MOST_BYTES = 16 * 2**20
"""Size limit of a request: a completion with all its reports, or a page of registered checkpoints."""
BIG = 2**63
GUARDED = ("/v1/", "/metrics")
"""Paths that need a token in a header; the dashboard checks its own pages."""
LOOPBACK = ["localhost", "127.0.0.1", "::1"]

Id = Annotated[int, Path(ge=0, lt=BIG)]

STATUS: Sequence[tuple[type[PhylaError], int]] = (
    (AccessDenied, 403),
    (StudyNotFound, 404),
    (StudyChanged, 409),
    (RunChanged, 409),
    (LeaseLost, 409),
    (StateError, 409),
    (UsageError, 422),
    (StoreBusy, 503),
    (StoreUnavailable, 503),
    (CheckpointError, 409),
    (StoreError, 409),
)


class Problem(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)
    type: str
    """`urn:phyla:error:` and the name of the error."""
    title: str
    """The name of the error."""
    status: int
    """The HTTP status."""
    detail: str
    """What happened, and what to do."""


class Described(BaseModel):
    """The version of a service, and its time in seconds since the epoch."""

    version: str
    time: float


class NewestChange(BaseModel):
    """The number of the newest change that this replica of the service has seen; it differs after a restart."""

    change: int


class ChangesWanted(BaseModel):
    """The last known change, and how long to wait for the next."""

    model_config = ConfigDict(extra="forbid")
    after: Annotated[int, Field(ge=-1, lt=BIG)] = -1
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S)] = 0.0


@final
class Limits:
    """Measures requests, answers those that a shutdown interrupts, and rejects those that it must not serve.

    Rejected are requests to a name outside `hosts` (if given), without a token, or too large.
    """

    def __init__(
        self,
        app: ASGIApp,
        doors: Doors,
        figures: Figures,
        hosts: Sequence[str] | None = None,
        most: int = MOST_BYTES,
    ) -> None:
        self.app, self.doors, self.figures, self.most = app, doors, figures, most
        self.hosts = None if hosts is None else {host.strip("[]").lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, up to its limit."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._limited(scope, receive, noted)
        except asyncio.CancelledError:
            # A handler in a thread may still finish during the shutdown; the client retries.
            await _problem("StoreUnavailable", 503, "the service is stopping")(scope, receive, noted)
        finally:
            # Label by route: the number of paths is unbounded.
            route = getattr(scope.get("route"), "path", "none")
            self.figures.seconds.labels(route, status).observe(time.perf_counter() - began)

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        host = re.sub(r":\d*$", "", request.headers.get("host", "")).strip("[]").lower()
        # Against DNS rebinding: a malicious page must not reach a local service under another name.
        if self.hosts is not None and host not in self.hosts:
            why = f"host {host!r} is not allowed; allow it with `phyla serve --allow-host {host}`"
            await _problem("WrongHost", 400, why)(scope, receive, send)
            return
        if scope["path"].startswith(GUARDED):
            try:
                await self.doors.check(request.headers.get("authorization"), Role.VIEWER)
            except PhylaError as error:
                await _refusal(request, error)(scope, receive, send)
                return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.most:
            await _problem("TooLarge", 413, f"the request exceeds {self.most} bytes")(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.most:
                raise HTTPException(413, f"the request exceeds {self.most} bytes")
            return message

        await self.app(scope, counted, send)


def make_app(
    store: Store,
    *,
    hosts: Sequence[str] | None = None,
    loopback: bool = True,
    work: bool = True,
    pages: Callable[[Store, Doors, News], APIRouter] | None = None,
) -> FastAPI:
    """Return the application that serves the studies of a store; the caller closes the store.

    `hosts` are the allowed host names of requests. If only this machine can reach it (`loopback`), requests need
    no token until the first one is created. Without `work`, only the pages are served.
    """
    studies, news = Studies(store), News(store)
    doors = Doors(store, open_without=loopback)
    figures = Figures(store)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        news.start()
        yield
        news.stop()

    app = FastAPI(
        title="phyla",
        version=VERSION,
        description="Population based training and evaluation of checkpoints, over HTTP.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        responses={"4XX": {"model": Problem}, "5XX": {"model": Problem}},
    )
    allowed = hosts if hosts is not None else LOOPBACK if loopback else None
    app.add_middleware(Limits, doors=doors, figures=figures, hosts=allowed)
    _answer_errors(app)

    @app.get("/health", tags=["operation"])
    async def health() -> dict[str, str]:
        """Check that the process is alive."""
        return {"status": "alive"}

    @app.get("/ready", tags=["operation"])
    def ready() -> dict[str, str]:
        """Check that the service can reach its store."""
        with discreet():
            store.identity()
        return {"status": "ready"}

    if pages is not None:
        app.include_router(pages(store, doors, news))
    if not work:
        return app

    @app.get("/v1/openapi.json", include_in_schema=False, dependencies=[may(doors, Role.VIEWER)])
    def interface() -> dict[str, Any]:
        return app.openapi()

    @app.get("/metrics", tags=["operation"], dependencies=[may(doors, Role.VIEWER)])
    def metrics() -> Response:
        """Return metrics of the studies and of this replica, for Prometheus."""
        return Response(figures.text(), media_type="text/plain; version=0.0.4")

    @app.post("/v1/service", tags=["operation"], dependencies=[may(doors, Role.VIEWER)])
    def service() -> Described:
        """Return the version and the time of the service."""
        return Described(version=VERSION, time=system_clock())

    @app.post("/v1/changes", tags=["work"], dependencies=[may(doors, Role.VIEWER)])
    async def changes(wait: ChangesWanted) -> NewestChange:
        """Wait for a commit that may mean work, at most `wait_s` seconds."""
        return NewestChange(change=await news.after(wait.after, wait.wait_s))

    app.include_router(black_box(studies, doors, news), dependencies=[Depends(_sound)])
    _add_calls(app, studies, doors)
    return app


def _add_calls(app: FastAPI, studies: Studies, doors: Doors) -> None:
    """Add the routes of queries and of the methods of parts."""
    for name, query in QUERIES.items():
        reads = partial(studies.look, query)
        path = f"/v1/read/{{study}}/{path_name(name)}"
        _add(app, path, "read", f"read_{name}", call_of(query), reads, [may(doors, Role.VIEWER)])
    for part in (STORE, *PARTS):
        for role, methods in part.methods.items():
            for name in methods:
                call, runs = call_of(getattr(part.kind, name)), partial(studies.call, part, name)
                path, known = part.path("{study}", name), f"{part.name}_{name}"
                _add(app, path, part.name, known, call, runs, [may(doors, role)])


def _add(
    app: FastAPI, path: str, tag: str, name: str, call: Call, answer: Callable[..., Any], allowed: Sequence[Any]
) -> None:
    def endpoint(
        study: Id, body: Any, settings: Annotated[str | None, Header(alias="Phyla-Settings")] = None
    ) -> Response:
        arguments = {field: getattr(body, field) for field in type(body).model_fields}
        return Response(call.answer(answer(study, arguments, settings)), media_type="application/json")

    endpoint.__annotations__["body"] = Annotated[call.parameters, Body()]
    app.post(
        path,
        tags=[tag],
        response_model=None if call.returns is type(None) else call.returns,
        summary=name,
        description=call.help,
        operation_id=name,
        dependencies=[*allowed, Depends(_sound)],
    )(endpoint)


_SUSPECT = re.compile(rb"\\u0000|\\u[dD][89a-fA-F]|\d{19}")


async def _sound(request: Request) -> None:
    """Reject numbers and text that databases cannot store."""
    body = await request.body()
    if _SUSPECT.search(body):
        _check(json.loads(body))


def _check(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _check(key)
            _check(item)
    elif isinstance(value, list):
        for item in value:
            _check(item)
    elif isinstance(value, int) and not -BIG <= value < BIG:
        raise UsageError(f"{value}: numbers must be below 2**63")
    elif isinstance(value, str) and (
        "\0" in value or any("\ud800" <= character <= "\udfff" for character in value)
    ):
        raise UsageError(f"{value!r}: text must not have NUL characters or lone surrogates")


# Errors


def _problem(kind: str, status: int, detail: str, **more: Any) -> Response:
    fields = {"type": f"urn:phyla:error:{kind}", "title": kind, "status": status, "detail": detail, **more}
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {"Retry-After": "1"} if status == 503 else None
    return Response(json.dumps(fields), status, headers, media_type="application/problem+json")


def _refusal(request: Request, error: PhylaError) -> Response:
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
    if isinstance(error, AccessDenied) and "authorization" not in request.headers:
        status = 401
    if status >= 500 or isinstance(error, AccessDenied):
        client = request.client.host if request.client else "?"
        LOG.warning("%s %s from %s: %s: %s", request.method, request.url.path, client, status, error)
    fields = problem(error, status)
    return _problem(fields["title"], status, fields["detail"])


def _answer_errors(app: FastAPI) -> None:
    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, PhylaError)
        return _refusal(request, error)

    async def deep(request: Request, error: Exception) -> Response:
        return _problem("UsageError", 422, "body: nested too deeply")

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        wrong = [
            {"where": ".".join(map(str, failure["loc"])), "what": failure["msg"]}
            for failure in error.errors()[:20]
        ]
        first = wrong[0] if wrong else {"where": "body", "what": "cannot be parsed"}
        if first["where"] == "body" and "json" not in request.headers.get("content-type", ""):
            first["what"] += "; send JSON with the header Content-Type: application/json"
        return _problem("UsageError", 422, f"{first['where']}: {first['what']}", errors=wrong)

    async def other(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _problem("HTTP", error.status_code, str(error.detail))

    async def bug(request: Request, error: Exception) -> Response:
        LOG.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        return _problem("InternalError", 500, "this is a bug in the service; see its log")

    handlers: Sequence[tuple[type[Exception], Callable[[Request, Exception], Awaitable[Response]]]] = (
        (PhylaError, ours),
        (RequestValidationError, invalid),
        (RecursionError, deep),
        (HTTPException, other),
        (Exception, bug),
    )
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)
