"""The portal's addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from torchsmith.errors import TorchsmithError, UsageError
from torchsmith.web.gate import Gate
from torchsmith.web.pages import page, problem_page
from torchsmith.web.portal import Portal, portal_of, posted
from torchsmith.web.published import published

_FILES = Route("/{path:path}", published, methods=["GET"])


def make_app(portal: Portal, say: Callable[[str], None] = lambda _: None) -> Starlette:
    """The application: all pages, or the published folders alone."""
    routes: list[BaseRoute] = [_FILES]
    if portal.store is not None:
        # Those who only serve files pay for none of it.
        from torchsmith.web import builds, doctor, jobs, matrix, packages, recipes, start

        rooms = (start, builds, matrix, packages, recipes, jobs, doctor)
        routes = [
            Route("/login", _login, methods=["GET", "POST"]),
            Route("/logout", _logout, methods=["POST"]),
            Mount("/static", StaticFiles(packages=[("torchsmith.web", "static")])),
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
