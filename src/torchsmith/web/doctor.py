"""Doctor: what this machine has, and what is odd about it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torchsmith.facts.files import shipped
from torchsmith.resolve.verdicts import Needs, examine, worst
from torchsmith.web.pages import page
from torchsmith.web.recipes import machine


def doctor(request: Request) -> Response:
    """The table; `again` looks anew."""
    host = machine(request).host(fresh="again" in request.query_params)
    lines = examine(host, shipped(), None, Needs())
    return page(request, "doctor.html", lines=lines, rating=worst(lines))


ROUTES = [Route("/doctor", doctor)]
