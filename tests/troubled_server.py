"""A web server of the tests that can be told to go wrong: slow, broken, or silent."""

from __future__ import annotations

import re
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

PAGE = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


@dataclass
class Trouble:
    """What goes wrong with the next `times` requests of a kind.

    `after` is for trouble on the way back: the server has done what it was asked by then.
    """

    method: str
    path: str
    times: int = 1
    status: int = 0
    body: bytes = b""
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    sleep_s: float = 0.0
    drop: bool = False
    after: bool = False


@dataclass(frozen=True)
class Answer:
    """What a server says."""

    status: int
    body: bytes
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Record:
    """What goes wrong next, and every request there was: method and path, without queries."""

    troubles: list[Trouble] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def count(self, asked: str) -> int:
        """How often something was asked, such as POST /jobs."""
        return sum(1 for one in self.asked if re.fullmatch(asked, one))

    def noted(self, method: str, path: str) -> Trouble | None:
        with self.lock:
            self.asked.append(f"{method} {path}")
            for one in self.troubles:
                if one.times and one.method == method and re.fullmatch(one.path, path):
                    one.times -= 1
                    return one
        return None


class TroubledHandler(ABC, BaseHTTPRequestHandler):
    """Reads a request, answers it or goes wrong."""

    protocol_version = "HTTP/1.1"
    record: ClassVar[Record]

    @abstractmethod
    def answered(self, path: str, query: str, body: bytes) -> Answer | None:
        """What is said to a request; `None` if it was said already."""

    def _go(self) -> None:
        body = self._body()
        path, _, query = self.path.partition("?")
        trouble = self.record.noted(self.command, path)
        if trouble and not trouble.after:
            self._go_wrong(trouble)
            return
        answer = self.answered(path, query, body)
        if trouble:
            self._go_wrong(trouble)
        elif answer:
            self.send(answer)

    do_GET = do_POST = do_PUT = do_DELETE = _go  # noqa: N815 - http.server's names

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _go_wrong(self, trouble: Trouble) -> None:
        time.sleep(trouble.sleep_s)
        if trouble.drop:
            self.close_connection = True
            return
        who = self.headers.get("Authorization", "")
        said = trouble.body.replace(b"{authorization}", who.encode())
        self.send(Answer(trouble.status, said, trouble.kind, trouble.headers))

    def send(self, answer: Answer) -> None:
        try:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)
        except OSError:
            # Whoever asked has not waited.
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[TroubledHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server on a port of its own, as long as the block lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
