"""Asking a REST server: with a token nobody sees, patiently, its refusals explained."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from html import unescape
from itertools import chain

from pydantic import JsonValue

import torchsmith
from torchsmith.errors import ClusterError
from torchsmith.jobs.client import NoAnswerError, patiently
from torchsmith.redact import Redactor

_MOST_BYTES = 64 << 20
_PIECE = 1 << 16
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_TOLD = 600


class RefusedError(ClusterError):
    """The server said no; `code` is its own word for why."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code
        # Of a file of which a part was asked for that it does not have.
        self.size: int | None = None


class ShrunkError(ClusterError):
    """A file is smaller than it was: it has begun anew."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A yes of the server."""

    status: int
    body: bytes
    where: str

    def json(self) -> JsonValue:
        """What it holds."""
        try:
            value: JsonValue = json.loads(self.body)
        except ValueError:
            raise ClusterError(
                f"{self.where} answers with something that is not JSON",
                "Check the address: another service may be there.",
            ) from None
        return value


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: the token must not follow it, and a POST would become a GET."""

    def redirect_request(self, *_: object) -> None:
        return None


@dataclass
class Server:
    """One server, and who we are there."""

    name: str
    address: str
    headers: Mapping[str, str]
    redactor: Redactor
    timeout_s: float

    def __post_init__(self) -> None:
        self.address = self.address.rstrip("/")
        self._opener = urllib.request.build_opener(_Stay())

    def read(self, path: str) -> Answer:
        """What the server has at a path; asked again while it does not answer."""
        return patiently(lambda: self.ask("GET", path))

    def ask(self, method: str, path: str, content: bytes | None = None, kind: str = "") -> Answer:
        """One question, asked once."""
        headers = {**self.headers, "Accept": "application/json, text/*;q=0.5"}
        if kind:
            headers["Content-Type"] = kind
        request = urllib.request.Request(
            self.address + path, data=content, headers=headers, method=method
        )
        where = self.address + path.partition("?")[0]
        with self._answer(request, where) as answer:
            body = b"".join(_pieces(answer, self._broken(where), _MOST_BYTES))
            if _is_page(answer.headers.get("Content-Type", ""), body):
                raise ClusterError(
                    self.redactor.text(f"{where} answers with a web page{_title(body)}"),
                    f"Check the address of {self.name}: a portal or a proxy answered instead.",
                )
            return Answer(answer.status, body, where)

    def stream(self, url: str, start: int) -> Iterator[bytes]:
        """The bytes of a file from `start` on, without our token; or `ShrunkError`."""
        # Its query may hold a token of its own: only what stands before it is ever shown.
        where = url.partition("?")[0]
        if not where.startswith(("http://", "https://")):
            # A server does not decide which file of this machine is read.
            raise ClusterError(f"{self.name} names a log that is not on a server: {where}")
        request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"})
        try:
            with self._answer(request, where) as answer:
                first = next(pieces := _pieces(answer, self._broken(where), None), b"")
                if _is_page(answer.headers.get("Content-Type", ""), first):
                    raise ClusterError(
                        f"{where} is a page for browsers", "Open it in one: it needs a login."
                    )
                skip = 0 if answer.status == 206 else start
                for piece in chain((first,), pieces):
                    if len(piece) > skip:
                        yield piece[skip:]
                    skip = max(0, skip - len(piece))
        except RefusedError as error:
            if error.status != 416:
                raise
            if error.size is not None and error.size < start:
                raise ShrunkError(f"{where} begins anew") from None

    def _answer(self, request: urllib.request.Request, where: str) -> http.client.HTTPResponse:
        request.add_header("User-Agent", f"torchsmith/{torchsmith.__version__}")
        try:
            answer: http.client.HTTPResponse = self._opener.open(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error, where) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(where)(error) from None
        return answer

    def _broken(self, where: str) -> Callable[[Exception], NoAnswerError]:
        def error_of(error: Exception) -> NoAnswerError:
            reason = getattr(error, "reason", None) or error
            unheard = isinstance(reason, ConnectionRefusedError | socket.gaierror)
            lasting = isinstance(reason, ssl.SSLCertVerificationError)
            if isinstance(reason, TimeoutError):
                text = f"there was no answer within {self.timeout_s:g} s"
            else:
                text = str(reason) or type(reason).__name__
            return NoAnswerError(
                self.redactor.text(f"{self.name} cannot be reached at {where}: {text}"),
                "Check the address, the network, the proxy and SSL_CERT_FILE.",
                unheard=unheard,
                lasting=lasting,
            )

        return error_of

    def _refusal(self, error: urllib.error.HTTPError, where: str) -> ClusterError:
        try:
            body = error.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException):
            body = b""
        kind = error.headers.get("Content-Type", "")
        code, message = "", ""
        if _is_page(kind, body):
            message = f"a web page{_title(body)}"
        else:
            code, message = _explained(body)
        message = self.redactor.text(message)[:_TOLD]
        status = f"HTTP {error.code} {error.reason}".strip()
        if error.code in _TRY_AGAIN:
            return NoAnswerError(
                f"{self.name} has no answer at {where}: {status}"
                + (f": {message}" if message else ""),
                "It may be overloaded or starting: try again later.",
                wait_s=_wait_of(error.headers.get("Retry-After", "")),
                # Turned away at the door.
                unheard=error.code == 429,
            )
        if error.code in (301, 302, 303, 307, 308):
            target = error.headers.get("Location", "elsewhere").partition("?")[0]
            return RefusedError(
                error.code,
                code,
                self.redactor.text(f"{where} sends on to {target}"),
                f"Name that address as the one of {self.name}, if it is its own.",
            )
        refusal = RefusedError(error.code, code, message or status)
        if size := re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", "")):
            refusal.size = int(size[1])
        return refusal


def _pieces(
    answer: http.client.HTTPResponse, broken: Callable[[Exception], NoAnswerError], most: int | None
) -> Iterator[bytes]:
    came = 0
    try:
        while (most is None or came < most) and (piece := answer.read1(_PIECE)):
            came += len(piece)
            yield piece
        if answer.length and (most is None or came < most):
            # http.client reports a connection closed early only when asked for everything at once.
            raise ConnectionError("the connection closed in the middle of the answer")
    except (OSError, http.client.HTTPException) as error:
        raise broken(error) from None


def _is_page(kind: str, body: bytes) -> bool:
    start = body[:200].lstrip().lower()
    return "html" in kind or start.startswith((b"<!doctype html", b"<html"))


def _title(body: bytes) -> str:
    found = re.search(r"<title[^>]*>([^<]{1,80})", body[:4096].decode(errors="replace"), re.I)
    return f' ("{unescape(found[1]).strip()}")' if found else ""


def _explained(body: bytes) -> tuple[str, str]:
    """A refusal's own code and words."""
    text = body.decode(errors="replace").strip()
    try:
        table = json.loads(text)
    except ValueError:
        return "", text
    if not isinstance(table, dict):
        return "", text
    return str(table.get("code") or table.get("error") or ""), str(table.get("message") or text)


def _wait_of(text: str) -> float:
    """What a Retry-After asks for: seconds, or a date."""
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return 0.0
