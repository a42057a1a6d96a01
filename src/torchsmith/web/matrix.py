"""Matrix: the variants of a farm and the nodes that build them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torchsmith.engine.store import Store
from torchsmith.errors import UsageError
from torchsmith.jobs.farm.survey import farms, survey
from torchsmith.web.pages import page
from torchsmith.web.portal import portal_of


def matrix(request: Request) -> Response:
    """A farm, by default the latest."""
    folders = farms(Store(portal_of(request).root))
    wanted = request.query_params.get("farm", "")
    chosen = [path for path in folders if not wanted or path.name == wanted][:1]
    if wanted and not chosen:
        raise UsageError(f"there is no farm {wanted!r}", "The list has those that are known.")
    found = survey(chosen[0]) if chosen else None
    return page(request, "matrix.html", names=[path.name for path in folders[:50]], found=found)


ROUTES = [Route("/matrix", matrix)]
