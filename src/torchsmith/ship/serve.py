"""Serving an index and a channel over HTTP, for this machine or a small network.

What a large installation leaves to its web server is here in little: ranges, so that pip can read
a wheel's metadata out of its end; conditional requests; and PEP 691's choice between HTML and
JSON by what the client accepts. Nothing outside the two folders is reached, no hidden file shown.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import sys
import threading
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader
from pathlib import Path
from socketserver import TCPServer
from typing import Any, BinaryIO, ClassVar, cast
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct
from packaging.utils import canonicalize_name

from torchsmith.errors import HostError
from torchsmith.ship.folder import Say, check_folder
from torchsmith.ship.index_pages import HTML_TYPE, JSON_TYPE
from torchsmith.ship.publish import Places

CHANNEL = "channel"
_CHUNK = 1 << 20
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".metadata": "text/plain; charset=utf-8",
    ".sha256": "text/plain; charset=utf-8",
    ".whl": "application/zip",
    ".zst": "application/zstd",
}
# What is answered to `*/*` is HTML, as the specification asks.
_OFFERS = (
    ("text/html", "index.html", "text/html; charset=utf-8"),
    (HTML_TYPE, "index.html", HTML_TYPE),
    (JSON_TYPE, "index.json", JSON_TYPE),
    (JSON_TYPE.replace("v1", "latest"), "index.json", JSON_TYPE),
    (HTML_TYPE.replace("v1", "latest"), "index.html", HTML_TYPE),
)


class Page(Struct, frozen=True):
    """A file, and as what it is given out."""

    path: Path
    type: str
    varies: bool = False


class Found(Struct, frozen=True):
    """What an address stands for: a page, another address, or an error."""

    status: HTTPStatus
    page: Page | None = None
    location: str = ""


def accepted(header: str) -> tuple[str, str] | None:
    """The file and content type of an index page that a client likes best, None if it has none."""
    best: tuple[float, int] | None = None
    chosen: tuple[str, str] | None = None
    wishes = [_wish(part) for part in (header or "*/*").split(",") if part.strip()]
    for order, (name, file, type_) in enumerate(_OFFERS):
        # The most precise wish that fits counts.
        fitting = [(len(kind), weight) for kind, weight in wishes if _fits(kind, name)]
        weight = max(fitting)[1] if fitting else 0.0
        if weight > 0 and (best is None or (weight, -order) > best):
            best, chosen = (weight, -order), (file, type_)
    return chosen


def _wish(part: str) -> tuple[str, float]:
    kind, *parameters = (word.strip() for word in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return kind.lower(), float(parameter[2:])
            except ValueError:
                return kind.lower(), 0.0
    return kind.lower(), 1.0


def _fits(wish: str, name: str) -> bool:
    return wish in (name, "*/*") or (wish.endswith("/*") and name.startswith(wish[:-1]))


def look_up(places: Places, address: str, accept: str = "") -> Found:
    """What an address stands for; it never leads out of a folder, nor to a hidden file."""
    raw = unquote(urlsplit(address).path, errors="surrogateescape")
    parts = [part for part in raw.split("/") if part]
    if "\0" in raw or any(part.startswith(".") for part in parts):
        return Found(HTTPStatus.NOT_FOUND)
    root, inner = places.index, parts
    if parts[:1] == [CHANNEL]:
        root, inner = places.channel, parts[1:]
    if root is None:
        return Found(HTTPStatus.NOT_FOUND)
    if not parts:
        return _moved(["simple"])
    top = root.resolve()
    path = top.joinpath(*inner).resolve()
    if not path.is_relative_to(top):
        return Found(HTTPStatus.NOT_FOUND)
    in_index = root is places.index and inner[:1] == ["simple"]
    if in_index and len(inner) == 2 and not path.exists():
        normal = canonicalize_name(inner[1])
        return Found(HTTPStatus.NOT_FOUND) if normal == inner[1] else _moved(["simple", normal])
    if path.is_dir():
        if not raw.endswith("/"):
            return _moved(parts)
        return _listing(path, accept, negotiated=in_index)
    if not path.is_file() or raw.endswith("/"):
        return Found(HTTPStatus.NOT_FOUND)
    type_ = _TYPES.get(path.suffix, "application/octet-stream")
    if in_index and path.name == "index.json":
        type_ = JSON_TYPE
    return Found(HTTPStatus.OK, Page(path, type_))


def _moved(parts: list[str]) -> Found:
    # From the root, so that no name is taken for a host: //example.org/.
    return Found(HTTPStatus.MOVED_PERMANENTLY, location="/" + quote("/".join(parts)) + "/")


def _listing(folder: Path, accept: str, *, negotiated: bool) -> Found:
    if negotiated:
        choice = accepted(accept)
        if choice is None:
            return Found(HTTPStatus.NOT_ACCEPTABLE)
        file, type_ = choice
        page = Page(folder / file, type_, varies=True)
    else:
        page = Page(folder / "index.html", _TYPES[".html"])
    return Found(HTTPStatus.OK, page) if page.path.is_file() else Found(HTTPStatus.NOT_FOUND)


_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")


def ranged(header: str, size: int) -> tuple[int, int] | None:
    """First byte and length that a Range asks for, None for all of it; ValueError if none fits."""
    match = _RANGE.fullmatch(header.strip())
    if match is None:
        # Several ranges at once, or other units: a server may answer with everything.
        return None
    first, last, final = match.groups()
    if final is not None:
        start, end = max(size - int(final), 0), size - 1
    else:
        start, end = int(first), min(int(last) if last else size - 1, size - 1)
    if start > end or start >= size:
        raise ValueError(header)
    return start, end - start + 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "torchsmith"
    sys_version = ""
    # A client that stops reading must not hold its thread for ever.
    timeout = 60
    # A request is some lines; a client that sends them byte by byte is cut off.
    request_seconds = 20.0
    places: ClassVar[Places]
    say: ClassVar[Say]

    def handle_one_request(self) -> None:
        """One request, whose lines must come in time."""
        timer = threading.Timer(self.request_seconds, self._cut)
        timer.daemon = True
        self._timer = timer
        try:
            # Between requests a connection may be idle for as long as `timeout` says.
            if cast(BufferedReader, self.rfile).peek(1):
                timer.start()
            super().handle_one_request()
        except (BrokenPipeError, ConnectionError, TimeoutError):
            self.close_connection = True
        finally:
            timer.cancel()

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def parse_request(self) -> bool:
        """Read a request. A body is not read, and ends the connection."""
        well = super().parse_request()
        self._timer.cancel()
        if not well:
            return False
        if self.headers.get("Content-Length", "0") != "0" or self.headers.get("Transfer-Encoding"):
            self.close_connection = True
        if not self._is_ours(self.headers.get("Host", "")):
            self.close_connection = True
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return False
        return True

    def _is_ours(self, host: str) -> bool:
        """Whether a request names this machine.

        A page in a browser here can have any name lead to 127.0.0.1 (DNS rebinding), and would
        read what is served to this machine alone. A server for others is known by any name.
        """
        bound = str(self.connection.getsockname()[0])
        if not is_loopback(bound):
            return True
        try:
            name = urlsplit(f"//{host}").hostname if host else "localhost"
        except ValueError:
            return False
        return name is not None and is_loopback(name)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        text = (format % args).translate(_VISIBLE)
        type(self).say(f"{self.address_string()} {text}")

    def _answer(self, *, body: bool) -> None:
        try:
            found = look_up(self.places, self.path, self.headers.get("Accept", ""))
            if found.page is None:
                self._short(found)
                return
            with found.page.path.open("rb") as file:
                self._send(found.page, file, body=body)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True
        except (OSError, ValueError):
            self.send_error(HTTPStatus.NOT_FOUND)

    def _short(self, found: Found) -> None:
        if not found.location:
            self.send_error(found.status)
            return
        self.send_response(found.status)
        self.send_header("Location", found.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, page: Page, file: BinaryIO, *, body: bool) -> None:
        status = os.fstat(file.fileno())
        mark = f'"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"'
        changed = formatdate(status.st_mtime, usegmt=True)
        headers = {"ETag": mark, "Last-Modified": changed, "Accept-Ranges": "bytes"}
        if page.varies:
            headers["Vary"] = "Accept"
        if page.path.name.startswith("index.") or page.path.suffix in (".json", ".zst"):
            # Pages change; what they name does not.
            headers["Cache-Control"] = "no-cache"
        if self._has_it(mark, status.st_mtime):
            self._head(HTTPStatus.NOT_MODIFIED, headers)
            return
        start, length = 0, status.st_size
        answer = HTTPStatus.OK
        wanted = self.headers.get("Range", "")
        if wanted and self.headers.get("If-Range", mark) in (mark, changed):
            try:
                part = ranged(wanted, status.st_size)
            except ValueError:
                headers |= {"Content-Range": f"bytes */{status.st_size}", "Content-Length": "0"}
                self._head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers)
                return
            if part is not None:
                start, length = part
                answer = HTTPStatus.PARTIAL_CONTENT
                end = start + length - 1
                headers["Content-Range"] = f"bytes {start}-{end}/{status.st_size}"
        headers |= {"Content-Type": page.type, "Content-Length": str(length)}
        self._head(answer, headers)
        if body:
            file.seek(start)
            while length and (chunk := file.read(min(length, _CHUNK))):
                self.wfile.write(chunk)
                length -= len(chunk)

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _has_it(self, mark: str, changed: float) -> bool:
        known = self.headers.get("If-None-Match")
        if known is not None:
            marks = {item.strip().removeprefix("W/") for item in known.split(",")}
            return bool(marks & {mark, "*"})
        since = self.headers.get("If-Modified-Since")
        try:
            return since is not None and int(changed) <= parsedate_to_datetime(since).timestamp()
        except (ValueError, TypeError):
            return False


# What a client writes into an address must not move the cursor of whoever watches.
_VISIBLE = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160))}


class Server(ThreadingHTTPServer):
    """The server, listening from the moment it exists."""

    daemon_threads = True
    places: Places
    # More at once than any pip or conda opens; who comes later waits for a place.
    most_connections = 128

    def __init__(self, places: Places, host: str, port: int, say: Say = lambda _: None) -> None:
        if places.index is not None:
            check_folder(places.index, "index", exists=True)
        if places.channel is not None:
            check_folder(places.channel, "channel", exists=True)
        self.places = places
        self._say = say
        self._places_left = threading.BoundedSemaphore(self.most_connections)
        if ":" in host:
            self.address_family = socket.AF_INET6
        handler = type("Handler", (_Handler,), {"places": places, "say": staticmethod(say)})
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            raise HostError(
                f"{host}:{port} cannot be listened on: {error.strerror}",
                "Name another --port; --port 0 takes one that is free.",
            ) from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, when there is room for one more."""
        self._places_left.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places_left.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The same, in that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places_left.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error; anything else is said in a line."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            self._say(f"{client_address[0]} could not be answered: {error!r}")

    def server_bind(self) -> None:
        """Without asking what this address is called: that can take half a minute."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)

    @property
    def address(self) -> str:
        """What to write into a client."""
        host, port = self.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def usage(places: Places, address: str) -> list[str]:
    """The commands that use what is served."""
    lines: list[str] = []
    if places.index is not None:
        lines += [f"pip install --index-url {address}/simple/ NAME"]
        lines += [f"uv pip install --index-url {address}/simple/ NAME"]
    if places.channel is not None:
        lines += [f"conda install --channel {address}/{CHANNEL} NAME"]
    return lines


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # Not by its beginning: 127.0.0.1.example.org may lead anywhere.
        return host == "localhost"
