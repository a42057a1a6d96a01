"""Who may see the portal, and who may act: names, origins, the token, sessions.

A page of another site can send requests here from the reader's own browser. A request is therefore
refused unless its Host is a name of this server (DNS rebinding), and one that changes something
unless it comes from a page of ours (Origin) with that page's own token (CSRF).
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchsmith.errors import OutputError, UsageError
from torchsmith.foreign import whole
from torchsmith.owners import make_folder, read_plain, who_else_writes
from torchsmith.printable import printable
from torchsmith.redact import redacted
from torchsmith.ship.addresses import is_loopback
from torchsmith.web.pages import problem_page

SHORTEST_TOKEN = 16
_SESSION_S = 7 * 86_400.0
_MOST_SESSIONS = 1000


@dataclass
class Access:
    """What this server asks of a request.

    `names` are its hosts besides the loopback and the address that was reached; None: any. Without
    a `token` whoever reaches it may read.
    """

    names: frozenset[str] | None = frozenset()
    token: str = ""
    actions: bool = False
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _sessions: dict[str, float] = field(default_factory=dict)

    def knows_host(self, request: HTTPConnection) -> bool:
        """Whether a request names this server."""
        hosts = request.headers.getlist("host")
        name = _host_name(hosts[0]) if len(hosts) == 1 else ""
        if not name:
            return False
        bound = str((request.scope.get("server") or ("",))[0])
        if self.names is None and not is_loopback(bound):
            return True
        # Only what reaches the loopback came from this machine: its names are then ours.
        own = is_loopback(name) if is_loopback(bound) else name == bound.lower()
        return own or name in (self.names or ())

    def is_cross_site(self, request: HTTPConnection) -> bool:
        """Whether a browser says that another site's page sends this."""
        origin = request.headers.get("origin")
        if origin is not None:
            return origin.lower() != f"http://{request.headers['host']}".lower()
        return request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")

    def accepts(self, token: str) -> bool:
        """Whether this is the token."""
        return bool(self.token) and hmac.compare_digest(token.encode(), self.token.encode())

    def log_in(self) -> str:
        """A new session: what its cookie holds."""
        now = time.monotonic()
        live = {name: end for name, end in self._sessions.items() if end > now}
        # The oldest go first: dictionaries keep their order.
        self._sessions = dict(list(live.items())[-_MOST_SESSIONS + 1 :])
        session = secrets.token_urlsafe(32)
        self._sessions[session] = now + _SESSION_S
        return session

    def log_out(self, request: HTTPConnection) -> None:
        """End the session of a request."""
        self._sessions.pop(self._session(request), None)

    def admits(self, request: HTTPConnection) -> bool:
        """Whether a request may read."""
        if not self.token or self.by_header(request):
            return True
        return self._sessions.get(self._session(request), 0.0) > time.monotonic()

    def by_header(self, request: HTTPConnection) -> bool:
        """Whether a request carries the token, as no other site's page can; pip sends Basic."""
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.accepts(value.strip())
        if kind.lower() == "basic":
            try:
                login = base64.b64decode(value.strip(), validate=True).decode()
            except ValueError:
                return False
            return self.accepts(login.partition(":")[2])
        return False

    def cookie_name(self, request: HTTPConnection) -> str:
        """Cookies of one host are common to all its ports."""
        return f"torchsmith-{request.url.port or 80}"

    def _session(self, request: HTTPConnection) -> str:
        return request.cookies.get(self.cookie_name(request), "")

    def page_token(self, request: HTTPConnection) -> str:
        """What the forms of a page send along."""
        return hmac.new(self._secret, self._session(request).encode(), "sha256").hexdigest()

    def is_page_token(self, request: HTTPConnection, hosts: str) -> bool:
        """Whether a form was on a page of ours."""
        return hmac.compare_digest(hosts.encode(), self.page_token(request).encode())


def _host_name(host: str) -> str:
    try:
        parts = urlsplit(f"//{host}")
        # Reading the port checks it.
        return "" if parts.username or parts.path or parts.port == 0 else parts.hostname or ""
    except ValueError:
        return ""


_LONGEST = 4096


def token_in(file: Path) -> str:
    """The token a file holds; a new one where there is no such file."""
    try:
        if not file.exists():
            make_folder(file.parent)
            file.touch(mode=0o600, exist_ok=False)
            file.write_text(secrets.token_urlsafe(32) + "\n")
        if other := who_else_writes(file):
            raise UsageError(other, "Make it yours alone: chmod 600.")
        if file.stat().st_mode & 0o077:
            raise UsageError(f"others can read {file}", "Make it yours alone: chmod 600.")
        return check_token(read_plain(file, _LONGEST).decode().strip())
    except UnicodeDecodeError:
        raise UsageError(f"{file} holds no token", "A token is plain text.") from None
    except OSError as error:
        raise OutputError(f"{file} cannot be used: {error.strerror}") from None


def check_token(token: str) -> str:
    """Refuse one that can be guessed."""
    if len(token) < SHORTEST_TOKEN or not token.isprintable():
        raise UsageError(
            f"the token has fewer than {SHORTEST_TOKEN} characters, or odd ones",
            "Name no file: a good token is made.",
        )
    return token


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
            # A file that cannot be read just now must not end in a traceback.
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
        if {"content-length", "transfer-encoding"} <= set(request.headers):
            # A proxy may end it elsewhere than we do: https://www.rfc-editor.org/rfc/rfc9112#6.1
            refused = {"Connection": "close"}
            return PlainTextResponse("This has two lengths.\n", 400, headers=refused)
        length = whole(request.headers.get("content-length", "0"))
        if length is None or length > MOST_BYTES:
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
