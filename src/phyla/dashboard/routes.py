"""The routes of the dashboard: pages, figures, events, actions, scripts and signing in."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache, partial
from typing import Any, TypeAlias, final
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, StreamingResponse

from phyla.dashboard.actions import ACTIONS, Action
from phyla.dashboard.drawing import Drawings, address
from phyla.dashboard.pages import FILES, Pages, environment, static_file
from phyla.errors import AccessDenied, PhylaError, StoreBusy, StoreUnavailable, StudyNotFound
from phyla.pages import Drawing
from phyla.records import Role, Token
from phyla.service.access import Doors
from phyla.service.changes import News
from phyla.store import Store
from phyla.study.places import Places

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

COOKIE = "phyla_token"
MOST_BYTES = 4096
"""Size limit of a form."""
PAGES_KNOWN = 1000
LOOK_S = 10.0
"""Interval at which a page refreshes without events."""
SHARE = 100
"""Refreshing a page takes at most 1 / SHARE of the time."""
# Plotly makes an empty style element and empty style attributes, one for the pixels of a heat map, and one for the
# exponents of powers of ten.
EMPTY, PIXELS, EXPONENTS = (
    "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
    "sha256-AR/cKIZjWPcPmBUPDA6oti9XBiTbJvz0Cro2J1VzzS8=",
    "sha256-S+l+cz1wXqs2B0FcjqqT7NvjwGmhD1UjJswXjlSkj0s=",
)
STYLES = f"'self' 'unsafe-hashes' '{EMPTY}' '{PIXELS}' '{EXPONENTS}'"
POLICY = f"default-src 'none'; script-src 'self'; style-src {STYLES}; img-src 'self' data:; connect-src 'self'"
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    # With a stricter policy forms have no Origin header.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC = {name: f"text/{'css' if name.endswith('css') else 'javascript'}" for name in FILES}


def dashboard_of(places: Places) -> Callable[[Store, Doors, News], APIRouter]:
    """Return a function that makes the routes of the dashboard, for `phyla.service.make_app`."""
    return partial(_routes, places)


def _routes(places: Places, store: Store, doors: Doors, news: News) -> APIRouter:
    environment().get_template("study.html")  # the first page need not wait for it
    router, pages, entrance = APIRouter(include_in_schema=False), Pages(store, places), _Entrance(doors)
    views, actions = _Views(entrance, Drawings(store, places, news), news), _Actions(entrance, store, places)
    for path, endpoint, method in (
        ("/", views.page("study.html", pages.studies), "GET"),
        ("/workers", views.page("study.html", pages.workers), "GET"),
        ("/compare", views.page("compare.html", pages.comparison), "GET"),
        ("/compare/figures/{figure}", views.figure, "GET"),
        ("/studies/{name}", views.page("study.html", pages.study), "GET"),
        ("/studies/{name}/trials", views.page("study.html", pages.trials), "GET"),
        ("/studies/{name}/trials/{trial}", views.page("study.html", pages.trial), "GET"),
        ("/studies/{name}/members/{member}", views.page("study.html", pages.member), "GET"),
        ("/studies/{name}/evaluations", views.page("study.html", pages.evaluations), "GET"),
        ("/studies/{name}/figures/{figure}", views.figure, "GET"),
        ("/studies/{name}/do/{action}", actions.confirm, "GET"),
        ("/studies/{name}/do/{action}", actions.act, "POST"),
        ("/events", views.events, "GET"),
        ("/static/{file}", _static, "GET"),
        ("/sign-in", entrance.show, "GET"),
        ("/sign-in", entrance.sign_in, "POST"),
        ("/sign-out", entrance.sign_out, "POST"),
    ):
        router.add_route(path, _with_errors(endpoint), [method])
    return router


@final
class _Entrance:
    """Authenticates users: by the token of a request, or by signing in with one."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    async def reader(self, request: Request) -> Token | None:
        """Return the token of a request that may read; raise `AccessDenied` if it may not."""
        authorization = _authorization(request)
        await self._doors.check(authorization, Role.VIEWER)
        request.state.token = token = await self._doors.token(authorization)
        return token

    async def operator(self, request: Request) -> Token:
        """Return the token of a request that may change something."""
        token = await self.reader(request)
        if token is None or not token.role.allows(Role.OPERATOR):
            raise AccessDenied(
                "actions in the dashboard need an operator's token: create one on the machine of the store with "
                "`phyla token create NAME --role operator`, and sign in with it"
            )
        return token

    async def show(self, request: Request) -> Response:
        """Ask for a token."""
        return _answer(request, "sign_in.html", {"title": "Sign in", "why": None})

    async def sign_in(self, request: Request) -> Response:
        """Sign a user in with a token."""
        secret = (await _form(request)).get("token", "").strip()
        if await self._doors.token(f"Bearer {secret}") is None:
            why = "Unknown or expired token."
            return _answer(request, "sign_in.html", {"title": "Sign in", "why": why}, 401)
        answer = RedirectResponse("/", 303)
        secure = request.headers.get("x-forwarded-proto", request.url.scheme) == "https"
        answer.set_cookie(COOKIE, secret, httponly=True, samesite="strict", secure=secure)
        return answer

    async def sign_out(self, request: Request) -> Response:
        """Delete the token from the browser."""
        await _form(request)
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(COOKIE)
        return answer


@final
class _Views:
    """Serves pages and their figures, and notifies open pages of changes."""

    def __init__(self, entrance: _Entrance, drawings: Drawings, news: News) -> None:
        self._entrance, self._drawings, self._news = entrance, drawings, news
        self._took_s: dict[str, float] = {}

    def page(self, name: str, read: Callable[[Request], Mapping[str, Any]]) -> Endpoint:
        """Return the endpoint of a page: a template and the function that reads its context."""

        async def answer(request: Request) -> Response:
            await self._entrance.reader(request)
            began = time.monotonic()
            page = await run_in_threadpool(lambda: _answer(request, name, read(request)))
            if len(self._took_s) > PAGES_KNOWN:
                self._took_s.clear()
            self._took_s[_address(request)] = time.monotonic() - began
            return page

        return answer

    async def figure(self, request: Request) -> Response:
        """Return a figure of one study, or of several, as a section."""
        await self._entrance.reader(request)
        names = (request.path_params.get("name") or "").split() or sorted(
            set(request.query_params.getlist("study"))
        )
        tag, text = await self._drawings.get(tuple(names), request.path_params["figure"])
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304)
        return Response(text, media_type="text/html", headers={"ETag": tag, "Cache-Control": "no-cache"})

    async def events(self, request: Request) -> Response:
        """Send an event when something was committed, and periodically."""
        await self._entrance.reader(request)
        return StreamingResponse(
            self._changes(request.query_params.get("page", "/")), media_type="text/event-stream"
        )

    async def _changes(self, address: str) -> AsyncIterator[bytes]:
        change = self._news.change
        try:
            yield b"retry: 1000\n\n"
            while True:
                change = await self._news.after(change, LOOK_S)
                yield b"data: %d\n\n" % change
                await asyncio.sleep(max(1.0, SHARE * self._took_s.get(address, 0.0)))
        except asyncio.CancelledError:
            return  # the service is stopping


@final
class _Actions:
    """Changes studies, for operators."""

    def __init__(self, entrance: _Entrance, store: Store, places: Places) -> None:
        self._entrance, self._store, self._places = entrance, store, places

    async def confirm(self, request: Request) -> Response:
        """Ask for confirmation of an action."""
        await self._entrance.operator(request)
        action, name = _action(request), request.path_params["name"]
        arguments = dict(request.query_params)
        context = {"title": f"{action.title} {name}", "name": name, "action": action, "arguments": arguments}
        return _answer(request, "confirm.html", context)

    async def act(self, request: Request) -> Response:
        """Execute the action of a form."""
        arguments = await _form(request)
        token = await self._entrance.operator(request)
        action, name = _action(request), request.path_params["name"]
        await run_in_threadpool(action.do, self._store, self._places, name, token.name, arguments)
        return RedirectResponse(f"/studies/{quote(name)}#record", 303)


def _with_errors(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that shows errors as pages, and sets the common headers."""

    async def answer(request: Request) -> Response:
        try:
            page = await endpoint(request)
        except AccessDenied as error:
            signed_in = COOKIE in request.cookies
            if not signed_in and request.method == "GET" and not request.url.path.startswith("/events"):
                page = RedirectResponse("/sign-in", 303)
            else:
                page = _error(request, 403 if signed_in else 401, error)
        except PhylaError as error:
            busy = isinstance(error, StoreBusy | StoreUnavailable)
            page = _error(request, 404 if isinstance(error, StudyNotFound) else 503 if busy else 409, error)
        for name, value in HEADERS.items():
            page.headers.setdefault(name, value)
        return page

    return answer


def _error(request: Request, status: int, error: PhylaError) -> Response:
    return _answer(request, "error.html", {"title": "Error", "why": str(error)}, status)


def _answer(request: Request, template: str, context: Mapping[str, Any], status: int = 200) -> Response:
    token: Token | None = getattr(request.state, "token", None)
    may = token is not None and token.role.allows(Role.OPERATOR)
    study, query = request.path_params.get("name", ""), request.url.query
    home = f"/studies/{quote(study, safe='')}" if study else "/compare"
    page = environment().get_template(template)
    html = page.render(
        context,
        address=_address(request),
        who=token and token.name,
        may=may,
        href=partial(address, study, may=may),
        # Figures of the whole history load after the page.
        later=lambda name: Drawing(name=name, title=name.capitalize(), lead="Being drawn"),
        source=lambda name: f"{home}/figures/{name}" + ("" if study else f"?{query}"),
    )
    return Response(html, status, media_type="text/html")


def _action(request: Request) -> Action:
    name = request.path_params["action"]
    if name not in ACTIONS:
        raise StudyNotFound(f"unknown action {name!r}")
    return ACTIONS[name]


def _address(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path


def _authorization(request: Request) -> str | None:
    secret = request.cookies.get(COOKIE)
    return request.headers.get("authorization") or (f"Bearer {secret}" if secret else None)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form of this dashboard; raise `AccessDenied` for a form of another site."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    site = request.headers.get("sec-fetch-site", "same-origin")
    if origin is None or urlsplit(origin).netloc != host or site != "same-origin":
        raise AccessDenied(f"rejected a form from {origin or 'an unknown origin'}: it must come from {host}")
    read = b""
    async for chunk in request.stream():
        read += chunk
        if len(read) > MOST_BYTES:
            raise AccessDenied(f"the form exceeds {MOST_BYTES} bytes")
    return {name: values[0] for name, values in parse_qs(read.decode("utf-8", "replace")).items()}


async def _static(request: Request) -> Response:
    name = request.path_params["file"]
    if name not in STATIC:
        raise StudyNotFound(f"unknown file {name!r}")
    headers = {"Content-Encoding": "gzip", "Cache-Control": "max-age=31536000, immutable"}
    return Response(_compressed(name), media_type=STATIC[name], headers=headers)


@cache
def _compressed(name: str) -> bytes:
    content = static_file(name).read_bytes()
    return content if name == "plotly.js" else gzip.compress(content)
