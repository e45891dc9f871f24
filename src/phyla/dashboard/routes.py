"""The routes of the dashboard, who may use them, and what the pages need: scripts, figures, news of changes."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache, partial
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, StreamingResponse

from phyla.dashboard.actions import ACTIONS, Action
from phyla.dashboard.drawing import Drawings
from phyla.dashboard.pages import FILES, Pages, environment, static_file
from phyla.errors import AccessDenied, PhylaError, StoreBusy, StoreUnavailable, StudyNotFound
from phyla.records import Role, Token
from phyla.service.access import Doors
from phyla.service.changes import News
from phyla.store import Store
from phyla.study.places import Places

COOKIE = "phyla_token"
MOST_BYTES = 4096
"""Of a form."""
PAGES_KNOWN = 1000
LOOK_S = 10.0
"""How often a page looks without news."""
SHARE = 100
"""Showing a page again takes at most this part of the time."""
# Plotly makes an empty style element and empty style attributes, and one attribute for the pixels of a heat map.
EMPTY, PIXELS = (
    "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
    "sha256-AR/cKIZjWPcPmBUPDA6oti9XBiTbJvz0Cro2J1VzzS8=",
)
STYLES = f"'self' 'unsafe-hashes' '{EMPTY}' '{PIXELS}'"
POLICY = f"default-src 'none'; script-src 'self'; style-src {STYLES}; img-src 'self' data:; connect-src 'self'"
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    # Forms would have no origin with a stricter one.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC = {name: f"text/{'css' if name.endswith('css') else 'javascript'}" for name in FILES}


def dashboard_of(places: Places) -> Callable[[Store, Doors, News], APIRouter]:
    """Return what makes the routes of the dashboard, for `phyla.service.make_app`."""
    return partial(_routes, places)


def _routes(places: Places, store: Store, doors: Doors, news: News) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    pages, drawings = Pages(store, places), Drawings(store, places, news)
    took_s: dict[str, float] = {}

    async def reads(request: Request) -> Token | None:
        """Return the token of a request that may read; `AccessDenied` if it may not."""
        authorization = _authorization(request)
        await doors.check(authorization, Role.VIEWER)
        request.state.token = token = await doors.token(authorization)
        return token

    async def operates(request: Request) -> Token:
        """Return the token of a request that may change something."""
        token = await reads(request)
        if token is None or not token.role.allows(Role.OPERATOR):
            raise AccessDenied(
                "the dashboard changes nothing without a token of an operator: make one where the store is with "
                "`phyla token create NAME --role operator`, and sign in with it"
            )
        return token

    def show(name: str, read: Callable[[Request], Mapping[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            await reads(request)
            began = time.monotonic()
            html = await run_in_threadpool(lambda: _html(name, request, read(request)))
            if len(took_s) > PAGES_KNOWN:
                took_s.clear()
            took_s[_address(request)] = time.monotonic() - began
            return Response(html, media_type="text/html")

        return answer

    async def events(request: Request) -> Response:
        """Tell a page when something was committed, and otherwise from time to time."""
        await reads(request)
        address = request.query_params.get("page", "/")

        async def stream() -> AsyncIterator[bytes]:
            change = news.change
            try:
                yield b"retry: 1000\n\n"
                while True:
                    change = await news.after(change, LOOK_S)
                    yield b"data: %d\n\n" % change
                    await asyncio.sleep(max(1.0, SHARE * took_s.get(address, 0.0)))
            except asyncio.CancelledError:
                return  # the service is being stopped

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def figure(request: Request) -> Response:
        await reads(request)
        names = (request.path_params.get("name") or "").split() or sorted(
            set(request.query_params.getlist("study"))
        )
        tag, text = await drawings.get(tuple(names), request.path_params["figure"])
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304)
        return Response(text, media_type="application/json", headers={"ETag": tag, "Cache-Control": "no-cache"})

    async def sign_in(request: Request) -> Response:
        return Response(_html("sign_in.html", request, {"title": "Sign in", "why": None}), media_type="text/html")

    async def signed_in(request: Request) -> Response:
        secret = (await _form(request)).get("token", "").strip()
        token = await doors.token(f"Bearer {secret}")
        if token is None:
            why = "That token is not known here, or has expired."
            html = _html("sign_in.html", request, {"title": "Sign in", "why": why})
            return Response(html, 401, media_type="text/html")
        answer = RedirectResponse("/", 303)
        secure = request.headers.get("x-forwarded-proto", request.url.scheme) == "https"
        answer.set_cookie(COOKIE, secret, httponly=True, samesite="strict", secure=secure)
        return answer

    async def signed_out(request: Request) -> Response:
        await _form(request)
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(COOKIE)
        return answer

    async def confirm(request: Request) -> Response:
        """Ask whether an action is meant."""
        await operates(request)
        action, name = _action(request), request.path_params["name"]
        given = dict(request.query_params)
        context = {"title": f"{action.title} {name}", "name": name, "action": action, "given": given}
        return Response(_html("confirm.html", request, context), media_type="text/html")

    async def act(request: Request) -> Response:
        given = await _form(request)
        token = await operates(request)
        action, name = _action(request), request.path_params["name"]
        await run_in_threadpool(action.do, store, places, name, token.name, given)
        return RedirectResponse(f"/studies/{quote(name)}#record", 303)

    async def static(request: Request) -> Response:
        name = request.path_params["file"]
        if name not in STATIC:
            raise StudyNotFound("there is no such file")
        headers = {"Content-Encoding": "gzip", "Cache-Control": "max-age=31536000, immutable"}
        return Response(_static(name), media_type=STATIC[name], headers=headers)

    for path, endpoint, method in (
        ("/", show("studies.html", pages.studies), "GET"),
        ("/workers", show("workers.html", pages.workers), "GET"),
        ("/compare", show("compare.html", pages.comparison), "GET"),
        ("/compare/figures/{figure}", figure, "GET"),
        ("/studies/{name}", show("study.html", pages.study), "GET"),
        ("/studies/{name}/trials", show("trials.html", pages.trials), "GET"),
        ("/studies/{name}/trials/{trial}", show("trial.html", pages.trial), "GET"),
        ("/studies/{name}/members/{member}", show("member.html", pages.member), "GET"),
        ("/studies/{name}/evaluations", show("evaluations.html", pages.evaluations), "GET"),
        ("/studies/{name}/figures/{figure}", figure, "GET"),
        ("/studies/{name}/do/{action}", confirm, "GET"),
        ("/studies/{name}/do/{action}", act, "POST"),
        ("/events", events, "GET"),
        ("/static/{file}", static, "GET"),
        ("/sign-in", sign_in, "GET"),
        ("/sign-in", signed_in, "POST"),
        ("/sign-out", signed_out, "POST"),
    ):
        router.add_route(path, _answered(endpoint), [method])
    return router


def _answered(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint whose errors are pages, and whose answers have the headers of all pages."""

    async def answer(request: Request) -> Response:
        try:
            found = await endpoint(request)
        except AccessDenied as error:
            signed_in = COOKIE in request.cookies
            if not signed_in and request.method == "GET" and not request.url.path.startswith("/events"):
                found = RedirectResponse("/sign-in", 303)
            else:
                found = _error(request, 403 if signed_in else 401, error)
        except PhylaError as error:
            busy = isinstance(error, StoreBusy | StoreUnavailable)
            found = _error(request, 404 if isinstance(error, StudyNotFound) else 503 if busy else 409, error)
        for name, value in HEADERS.items():
            found.headers.setdefault(name, value)
        return found

    return answer


def _error(request: Request, status: int, error: PhylaError) -> Response:
    html = _html("error.html", request, {"title": "That did not work", "why": str(error)})
    return Response(html, status, media_type="text/html")


def _html(template: str, request: Request, context: Mapping[str, Any]) -> str:
    token: Token | None = getattr(request.state, "token", None)
    may = token is not None and token.role.allows(Role.OPERATOR)
    page = environment().get_template(template)
    return page.render(context, address=_address(request), who=token and token.name, may=may)


def _action(request: Request) -> Action:
    name = request.path_params["action"]
    if name not in ACTIONS:
        raise StudyNotFound(f"there is no action {name!r}")
    return ACTIONS[name]


def _address(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path


def _authorization(request: Request) -> str | None:
    secret = request.cookies.get(COOKIE)
    return request.headers.get("authorization") or (f"Bearer {secret}" if secret else None)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form that a page of this dashboard sent; `AccessDenied` for one from elsewhere."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    site = request.headers.get("sec-fetch-site", "same-origin")
    if origin is None or urlsplit(origin).netloc != host or site != "same-origin":
        raise AccessDenied(f"a form from {origin or 'nowhere'} changes nothing at {host}")
    read = b""
    async for chunk in request.stream():
        read += chunk
        if len(read) > MOST_BYTES:
            raise AccessDenied(f"a form may have {MOST_BYTES} bytes")
    return {name: values[0] for name, values in parse_qs(read.decode("utf-8", "replace")).items()}


@cache
def _static(name: str) -> bytes:
    text = static_file(name).read_bytes()
    return text if name == "plotly.js" else gzip.compress(text)
