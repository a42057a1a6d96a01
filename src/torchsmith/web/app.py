"""The portal's addresses, the files of an index and a channel, and the server of both.

Files come in ranges, so that pip can read a wheel's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from torchsmith.errors import HostError, TorchsmithError, UsageError
from torchsmith.ship.addresses import look_up
from torchsmith.web.access import Gate
from torchsmith.web.pages import page, problem_page
from torchsmith.web.portal import Portal, portal_of, posted

_ONE_RANGE = re.compile(rb"bytes=(\d+-\d*|-\d+)")
# A published file is never treated as a page of ours.
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
    conditions = Headers(scope=request.scope)
    if _files.is_not_modified(response.headers, conditions):
        return NotModifiedResponse(response.headers)
    return response


_FILES = Route("/{path:path}", published, methods=["GET"])


def make_app(portal: Portal, say: Callable[[str], None] = lambda _: None) -> Starlette:
    """The application: all pages, or the published folders alone."""
    routes: list[BaseRoute] = [_FILES]
    if portal.store is not None:
        # A server of files alone imports no pages.
        from torchsmith.web import builds, doctor, jobs, packages, recipes

        rooms = (builds, packages, recipes, jobs, doctor)
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
    fields = await posted(request)
    if not access.accepts(fields.get("token", "")):
        # Slow down guessing.
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


# More at once than any pip, conda or team of readers opens.
_MOST_CONNECTIONS = 512
_IDLE_S = 60


class _Impatient(H11Protocol):
    """Cuts off a client that sends its request byte by byte, or nothing at all."""

    request_seconds = 20.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Expect a request."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Expect the rest of a request that has begun."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is before and (before is None or before.response_complete):
            self._expect()
        else:
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing."""
        self._forget()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.request_seconds, self.transport.abort)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server:
    """A server that listens from the moment it exists; `with` runs it in a thread."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(128)
        except OSError as error:
            self._socket.close()
            raise HostError(
                f"{host}:{port} cannot be listened on: {error.strerror}",
                "Name another --host or --port; --port 0 takes one that is free.",
            ) from None
        config = uvicorn.Config(
            app,
            http=_Impatient,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_IDLE_S,
            # Readers of live pages never end by themselves.
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """What to write into a client."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Serve until Ctrl-C, or another signal that ends programs."""
        with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
            self._server.run(sockets=[self._socket])

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        assert self._thread is not None
        self._thread.join(10)
        self._socket.close()
