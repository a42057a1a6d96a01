"""Packages: finding one by what it has to fit, and all that is known of it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torchsmith.errors import UsageError
from torchsmith.facts.files import shipped
from torchsmith.package.inspection import Inspection, inspect
from torchsmith.ship.catalogue import Asked, Published, catalogue, search
from torchsmith.verify.checks import Check
from torchsmith.verify.report import beside, from_json
from torchsmith.web.pages import page
from torchsmith.web.portal import portal_of

_MOST = 200


def found(request: Request) -> Response:
    """What fits."""
    places = portal_of(request).places
    given = {name: request.query_params.get(name, "")[:200] for name in Asked.__struct_fields__}
    asked = Asked(**given)
    items: list[Published] = []
    problem: UsageError | None = None
    try:
        items = search(places, asked, shipped()) if places else []
    except UsageError as error:
        problem = error
    return page(
        request,
        "packages.html",
        items=items[:_MOST],
        more=len(items) - _MOST,
        asked=asked,
        problem=problem,
        given=any(given.values()),
        lines={item.address: item.install_lines(_server(request)) for item in items[:_MOST]},
    )


def one(request: Request) -> Response:
    """One of them."""
    places = portal_of(request).places
    wanted = request.query_params.get("file", "")
    item = (
        next((item for item in catalogue(places) if item.address == wanted), None)
        if places
        else None
    )
    if item is None:
        raise UsageError(f"{wanted!r} is not published here", "The list has what is.")
    status = item.path.stat()
    seen = _seen(item.path, status.st_size, status.st_mtime_ns)
    return page(
        request,
        "package.html",
        item=item,
        seen=seen,
        checks=_checks(item.path),
        lines=item.install_lines(_server(request)),
    )


def _server(request: Request) -> str:
    return f"http://{request.headers['host']}"


@lru_cache(maxsize=32)
def _seen(path: Path, size: int, changed: int) -> Inspection:
    """Reading a gigabyte takes a while: once for each file, as long as it stays the same."""
    return inspect(path)


def _checks(path: Path) -> tuple[Check, ...]:
    try:
        return from_json(beside(path).read_bytes()).checks
    except (OSError, msgspec.MsgspecError):
        return ()


ROUTES = [Route("/packages", found), Route("/package", one)]
