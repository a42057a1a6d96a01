"""What all pages know: the store, the published folders, who may do what."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from torchsmith.foreign import whole
from torchsmith.web.access import MOST_BYTES, Access

if TYPE_CHECKING:
    from torchsmith.ship.publish import Places

_PATIENCE_S = 20.0


T = TypeVar("T")
_KEPT = 256


class Moments:
    """Answers that all readers of one moment share: a cluster is asked once, not by each."""

    def __init__(self, seconds: float = 1.5) -> None:
        self._seconds = seconds
        self._turn = threading.Lock()
        self._turns: dict[object, threading.Lock] = {}
        self._known: dict[object, tuple[float, object]] = {}

    def get(self, key: object, make: Callable[[], T]) -> T:
        """What was made for a key a moment ago, else made now; others wait for it."""
        with self._turn:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            at, known = self._known.get(key, (0.0, None))
            if time.monotonic() - at > self._seconds or key not in self._known:
                known = make()
                with self._turn:
                    if len(self._known) > _KEPT:
                        self._known.clear()
                        self._turns = {key: turn}
                    self._known[key] = (time.monotonic(), known)
            return cast(T, known)

    def forget(self) -> None:
        """Something was changed: look anew."""
        with self._turn:
            self._known.clear()


@dataclass
class Portal:
    """One portal; without a `store` it serves the published folders and nothing else."""

    access: Access = field(default_factory=Access)
    places: Places | None = None
    store: Path | None = None
    recipes: Path = field(default_factory=Path.cwd)
    moments: Moments = field(default_factory=Moments)
    shared: dict[object, object] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The folder of the store; pages that ask for it are only there with one."""
        assert self.store is not None
        return self.store


def portal_of(request: Request) -> Portal:
    """The portal a request came to."""
    found: Portal = request.app.state.portal
    return found


def shared(request: Request, kind: type[T], make: Callable[[], T]) -> T:
    """The one object of a kind that all requests share; made for the first that needs it."""
    kept = portal_of(request).shared
    if kind not in kept:
        kept[kind] = make()
    return cast(T, kept[kind])


def number(request: Request, name: str, default: int = 0) -> int:
    """A number out of an address; whatever else stands there is the default."""
    found = whole(request.query_params.get(name, ""))
    return default if found is None else found


async def posted(request: Request) -> dict[str, str]:
    """The fields of a form of ours."""
    body = b""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise HTTPException(413, "This is too long.")
    except (ClientDisconnect, TimeoutError):
        raise HTTPException(400, "The form arrived incomplete.") from None
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=200))
    except ValueError:
        raise HTTPException(400, "This is not a form.") from None
    access = portal_of(request).access
    own = access.is_page_token(request, fields.pop("page_token", ""))
    if not own and not access.by_header(request):
        raise HTTPException(403, "This form is not from a page of this portal: load it again.")
    return fields


async def action(request: Request) -> dict[str, str]:
    """The same for a form that does something."""
    if not portal_of(request).access.actions:
        raise HTTPException(403, "This portal is read-only: start it with --allow-actions.")
    portal_of(request).moments.forget()
    return await posted(request)
