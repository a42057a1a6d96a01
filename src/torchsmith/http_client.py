"""HTTP: the one place that sends requests to servers; http and https only."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message

from torchsmith import __version__

# Statuses after which the same request may succeed.
TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_MOST_ERROR_BYTES = 1 << 20
_PIECE = 1 << 18


class StatusError(Exception):
    """A server answered with an error status, or with a redirect that is not followed."""

    def __init__(self, status: int, reason: str, headers: Message, body: bytes) -> None:
        super().__init__(f"HTTP {status} {reason}".strip())
        self.status = status
        self.reason = reason
        self.headers = headers
        self.body = body


class TransferError(Exception):
    """No answer came, or it ended too early; `cause` is the error beneath, as far as known."""

    def __init__(self, error: Exception) -> None:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        self.cause = reason if isinstance(reason, Exception) else error
        super().__init__(str(reason) or type(reason).__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer, whose content has not been read yet."""

    status: int
    headers: Message
    _response: http.client.HTTPResponse

    def pieces(self) -> Iterator[bytes]:
        """The content as it arrives."""
        due = self._response.length
        received = 0
        try:
            while piece := self._response.read1(_PIECE):
                received += len(piece)
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise TransferError(error) from None
        if due and received < due:
            # http.client reports this only to those who read everything at once.
            raise TransferError(
                ConnectionError(f"the connection closed after {received} of {due} bytes")
            )

    def read(self, most: int) -> bytes:
        """The content, cut off after `most` bytes or little more."""
        pieces: list[bytes] = []
        received = 0
        for piece in self.pieces():
            pieces.append(piece)
            received += len(piece)
            if received >= most:
                break
        return b"".join(pieces)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@contextlib.contextmanager
def request(
    url: str,
    *,
    timeout: float,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    authorization: str = "",
    content: bytes | None = None,
    redirects: bool = True,
    proxies: bool = True,
    context: ssl.SSLContext | None = None,
) -> Iterator[Answer]:
    """Send one request; raises `StatusError` or `TransferError`.

    `authorization` is for this server alone: redirects go on without it.
    """
    # Not build_opener: a redirect must not lead to ftp or to a file of this machine.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(None if proxies else {}),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler() if redirects else _NoRedirects(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    try:
        message = urllib.request.Request(url, content, dict(headers or {}), method=method)
        message.add_header("User-Agent", f"torchsmith/{__version__}")
        if authorization:
            message.add_unredirected_header("Authorization", authorization)
        response: http.client.HTTPResponse = opener.open(message, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            raise StatusError(error.code, error.reason, error.headers, _body(error)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TransferError(error) from None
    with response:
        yield Answer(response.status, response.headers, response)


def _body(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(_MOST_ERROR_BYTES)
    except (OSError, http.client.HTTPException):
        return b""
