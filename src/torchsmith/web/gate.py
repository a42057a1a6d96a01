"""What every request passes before a page sees it, and every answer on its way out."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchsmith.printable import printable
from torchsmith.redact import redacted
from torchsmith.web.access import Access
from torchsmith.web.pages import problem_page

MOST_BYTES = 2 << 20
_OPEN = ("/login", "/static/")
_HEADERS = {
    # Scripts and styles are files of ours: text that slips into a page cannot run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    # `no-referrer` would have browsers send no Origin with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Gate:
    """Refuses, logs, and sees that nothing ends in a traceback."""

    def __init__(self, app: ASGIApp, access: Access, say: Callable[[str], None]) -> None:
        self._app = app
        self._access = access
        self._say = say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        status = 0

        async def answered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            refusal = self._refusal(request)
            await (refusal or self._app)(scope, receive, answered)
        except Exception as error:
            # What cannot be read just now must not take the page with it.
            why = printable(redacted(f"{type(error).__name__}: {error}"))
            self._say(f"{_path(request)} could not be shown: {why}")
            if status:
                raise
            page = problem_page(request, 503, "This cannot be shown just now", why)
            await page(scope, receive, answered)
        finally:
            client = scope["client"][0] if scope.get("client") else "-"
            line = f"{request.method} {_path(request)} HTTP/{scope['http_version']}"
            self._say(f'{client} "{line}" {status}')

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that gets no further."""
        if not self._access.knows_host(request):
            return PlainTextResponse("This server has another name.\n", 421)
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MOST_BYTES:
            return PlainTextResponse("This is too long.\n", 413)
        changes = request.method not in ("GET", "HEAD")
        if changes and self._access.is_cross_site(request):
            return PlainTextResponse("A page of another site may not do this.\n", 403)
        if self._access.admits(request) or request.url.path.startswith(_OPEN):
            return None
        reads = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if reads and not request.url.path.startswith(("/simple", "/whl", "/channel")):
            return RedirectResponse("/login", 303)
        return PlainTextResponse(
            "A token is needed.\n", 401, {"WWW-Authenticate": 'Basic realm="torchsmith"'}
        )


def _path(request: Request) -> str:
    """The path as it was written, with nothing in it that a terminal obeys; never the query."""
    return printable(request.scope.get("raw_path", b"").decode("latin-1"))
