"""The portal's addresses, and the files of an index and a channel.

Files come in ranges, so that pip can read a wheel's end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import NotModifiedResponse, StaticFiles

from torchsmith.errors import TorchsmithError, UsageError
from torchsmith.ship.addresses import look_up
from torchsmith.web.access import Gate
from torchsmith.web.pages import page, problem_page
from torchsmith.web.portal import Portal, portal_of, posted

_ONE_RANGE = re.compile(rb"bytes=(\d+-\d*|-\d+)")
# Whatever somebody published, it is no page of ours.
_ALONE = {"Content-Security-Policy": "sandbox; default-src 'none'"}
_files = StaticFiles()


def published(request: Request) -> Response:
    """A file of the index or the channel."""
    places = portal_of(request).places
    # A path that begins with two slashes would be read as a host.
    address = "/" + request.scope["raw_path"].decode("latin-1").lstrip("/")
    try:
        found = look_up(places, address, request.headers.get("accept", "")) if places else None
        status = found.page.path.stat() if found and found.page else None
    except (OSError, ValueError):
        raise HTTPException(404) from None
    if found is None or (found.page is None and not found.location):
        raise HTTPException(found.status if found else HTTPStatus.NOT_FOUND)
    if found.page is None:
        return RedirectResponse(found.location, found.status)
    path = found.page.path
    headers = {**_ALONE, "Content-Type": found.page.type}
    # Pages change; what they name does not.
    changes = path.name.startswith("index.") or path.suffix in (".json", ".zst")
    headers["Cache-Control"] = "no-cache" if changes else "private"
    if found.page.varies:
        headers["Vary"] = "Accept"
    # Several ranges at once, or other units: a server may answer with everything.
    request.scope["headers"] = [
        (name, value)
        for name, value in request.scope["headers"]
        if name != b"range" or _ONE_RANGE.fullmatch(value.strip())
    ]
    response = FileResponse(path, headers=headers, stat_result=status)
    asked = Headers(scope=request.scope)
    if _files.is_not_modified(response.headers, asked):
        return NotModifiedResponse(response.headers)
    return response


_FILES = Route("/{path:path}", published, methods=["GET"])


def make_app(portal: Portal, say: Callable[[str], None] = lambda _: None) -> Starlette:
    """The application: all pages, or the published folders alone."""
    routes: list[BaseRoute] = [_FILES]
    if portal.store is not None:
        # Those who only serve files pay for none of it.
        from torchsmith.web import builds, doctor, jobs, matrix, packages, recipes

        rooms = (builds, matrix, packages, recipes, jobs, doctor)
        routes = [
            Route("/login", _login, methods=["GET", "POST"]),
            Route("/logout", _logout, methods=["POST"]),
            Mount("/static", StaticFiles(packages=[("torchsmith.web", "static")])),
            Route("/", _start),
            *(route for room in rooms for route in room.ROUTES),
            _FILES,
        ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Gate, access=portal.access, say=say)],
        exception_handlers={HTTPException: _refused, TorchsmithError: _explained},
    )
    # A folder's name without its slash is redirected by what is published, not by the routes.
    app.router.redirect_slashes = False
    app.state.portal = portal
    return app


async def _login(request: Request) -> Response:
    access = portal_of(request).access
    if request.method == "GET":
        return page(request, "login.html", wrong=False)
    given = await posted(request)
    if not access.accepts(given.get("token", "")):
        # Guessing is slow.
        await asyncio.sleep(1)
        return page(request, "login.html", status=403, wrong=True)
    answer = RedirectResponse("/", 303)
    name = access.cookie_name(request)
    answer.set_cookie(name, access.log_in(), httponly=True, samesite="strict", path="/")
    return answer


async def _logout(request: Request) -> Response:
    await posted(request)
    portal_of(request).access.log_out(request)
    return RedirectResponse("/login", 303)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if portal_of(request).store is None or "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)
    return problem_page(request, error.status_code, error.detail, urlsplit(str(request.url)).path)


def _explained(request: Request, error: Exception) -> Response:
    assert isinstance(error, TorchsmithError)
    status = 404 if isinstance(error, UsageError) else 503
    return problem_page(request, status, "This cannot be shown", error.message, error.hint)


def _start(request: Request) -> Response:
    """What goes on, at a glance."""
    return page(request, "start.html")
