"""An index and a channel over HTTP: ranges, so that pip can read a wheel's end; conditional too."""

from __future__ import annotations

import re
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles

from torchsmith.ship.addresses import look_up
from torchsmith.web.portal import portal_of

_ONE_RANGE = re.compile(rb"bytes=(\d+-\d*|-\d+)")
# Whatever somebody published, it is no page of ours.
_ALONE = {"Content-Security-Policy": "sandbox; default-src 'none'"}
_files = StaticFiles()


def published(request: Request) -> Response:
    """A file of the index or the channel."""
    places = portal_of(request).places
    # A path that begins with two slashes would be read as a host.
    address = "/" + request.scope["raw_path"].decode("latin-1").lstrip("/")
    try:
        found = look_up(places, address, request.headers.get("accept", "")) if places else None
        status = found.page.path.stat() if found and found.page else None
    except (OSError, ValueError):
        raise HTTPException(404) from None
    if found is None or (found.page is None and not found.location):
        raise HTTPException(found.status if found else HTTPStatus.NOT_FOUND)
    if found.page is None:
        return RedirectResponse(found.location, found.status)
    path = found.page.path
    headers = {**_ALONE, "Content-Type": found.page.type}
    # Pages change; what they name does not.
    changes = path.name.startswith("index.") or path.suffix in (".json", ".zst")
    headers["Cache-Control"] = "no-cache" if changes else "private"
    if found.page.varies:
        headers["Vary"] = "Accept"
    # Several ranges at once, or other units: a server may answer with everything.
    request.scope["headers"] = [
        (name, value)
        for name, value in request.scope["headers"]
        if name != b"range" or _ONE_RANGE.fullmatch(value.strip())
    ]
    response = FileResponse(path, headers=headers, stat_result=status)
    asked = Headers(scope=request.scope)
    if _files.is_not_modified(response.headers, asked):
        return NotModifiedResponse(response.headers)
    return response
