"""The start page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torchsmith.web.pages import page


def start(request: Request) -> Response:
    """What goes on, at a glance."""
    return page(request, "start.html")


ROUTES = [Route("/", start)]
