"""Asking a REST server: with a token nobody sees, patiently, its refusals explained."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from html import unescape
from itertools import chain

from pydantic import JsonValue

from torchsmith.errors import ClusterError
from torchsmith.foreign import MalformedError, read_json, table, whole
from torchsmith.http_client import TRY_AGAIN, StatusError, TransferError, request
from torchsmith.http_client import Answer as HttpAnswer
from torchsmith.jobs.client import NoAnswerError, patiently
from torchsmith.redact import Redactor

_MOST_BYTES = 64 << 20
_LONGEST_MESSAGE = 600


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
            return read_json(self.body)
        except MalformedError:
            raise ClusterError(
                f"{self.where} answers with something that is not JSON",
                "Check the address: another service may be there.",
            ) from None


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

    def read(self, path: str) -> Answer:
        """What the server has at a path; asked again while it does not answer."""
        return patiently(lambda: self.ask("GET", path))

    def ask(self, method: str, path: str, content: bytes | None = None, kind: str = "") -> Answer:
        """One question, asked once."""
        headers = {**self.headers, "Accept": "application/json, text/*;q=0.5"}
        if kind:
            headers["Content-Type"] = kind
        url = self.address + path
        where = url.partition("?")[0]
        with self._request(url, method, headers, content) as answer:
            body = answer.read(_MOST_BYTES)
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
        try:
            with self._request(url, headers={"Range": f"bytes={start}-"}) as answer:
                first = next(pieces := answer.pieces(), b"")
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

    @contextlib.contextmanager
    def _request(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Iterator[HttpAnswer]:
        where = url.partition("?")[0]
        try:
            # A redirect is an answer: the token must not follow it, and a POST would become a GET.
            with request(
                url,
                timeout=self.timeout_s,
                method=method,
                headers=headers,
                content=content,
                redirects=False,
            ) as answer:
                yield answer
        except StatusError as error:
            raise self._refusal(error, where) from None
        except TransferError as error:
            raise self._no_answer(error, where) from None

    def _no_answer(self, error: TransferError, where: str) -> NoAnswerError:
        text = str(error)
        if isinstance(error.cause, TimeoutError):
            text = f"there was no answer within {self.timeout_s:g} s"
        return NoAnswerError(
            self.redactor.text(f"{self.name} cannot be reached at {where}: {text}"),
            "Check the address, the network, the proxy and SSL_CERT_FILE.",
            unheard=isinstance(error.cause, ConnectionRefusedError | socket.gaierror),
            lasting=isinstance(error.cause, ssl.SSLCertVerificationError),
        )

    def _refusal(self, error: StatusError, where: str) -> ClusterError:
        kind = error.headers.get("Content-Type", "")
        code, message = "", ""
        if _is_page(kind, error.body):
            message = f"a web page{_title(error.body)}"
        else:
            code, message = _explained(error.body)
        message = self.redactor.text(message)[:_LONGEST_MESSAGE]
        if error.status in TRY_AGAIN:
            return NoAnswerError(
                f"{self.name} has no answer at {where}: {error}"
                + (f": {message}" if message else ""),
                "It may be overloaded or starting: try again later.",
                wait_s=_wait_of(error.headers.get("Retry-After", "")),
                # Turned away at the door.
                unheard=error.status == 429,
            )
        if error.status in (301, 302, 303, 307, 308):
            target = error.headers.get("Location", "elsewhere").partition("?")[0]
            return RefusedError(
                error.status,
                code,
                self.redactor.text(f"{where} sends on to {target}"),
                f"Name that address as the one of {self.name}, if it is its own.",
            )
        refusal = RefusedError(error.status, code, message or str(error))
        refusal.size = whole(error.headers.get("Content-Range", "").removeprefix("bytes */"))
        return refusal


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
        said = table(read_json(text))
    except MalformedError:
        return "", text
    return str(said.get("code") or said.get("error") or ""), str(said.get("message") or text)


def _wait_of(text: str) -> float:
    """What a Retry-After asks for: seconds, or a date."""
    if (seconds := whole(text)) is not None:
        return float(seconds)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
