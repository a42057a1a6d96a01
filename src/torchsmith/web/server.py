"""Listening: the one server of the portal and of `serve`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from torchsmith.errors import HostError

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
                "Name another --port; --port 0 takes one that is free.",
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
