"""Matrix: the variants of a farm, the nodes that build them, and why some could not be built."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torchsmith.diagnose.diagnose import Diagnosis, explained
from torchsmith.diagnose.knowledge import shipped
from torchsmith.diagnose.scan import scan_lines
from torchsmith.engine.store import Store
from torchsmith.errors import UsageError
from torchsmith.jobs.farm.attempt import FarmSeen, VariantSeen, farms, survey
from torchsmith.web.pages import page
from torchsmith.web.portal import portal_of


@dataclass(frozen=True)
class Cause:
    """Variants that failed for one cause; `cure` is empty where the cause is not a known one."""

    title: str
    cure: str
    variants: list[VariantSeen]


def matrix(request: Request) -> Response:
    """A farm, by default the latest."""
    folders = farms(Store(portal_of(request).root))
    wanted = request.query_params.get("farm", "")
    chosen = [path for path in folders if not wanted or path.name == wanted][:1]
    if wanted and not chosen:
        raise UsageError(f"there is no farm {wanted!r}", "The list has those that are known.")
    found = survey(chosen[0]) if chosen else None
    return page(
        request,
        "matrix.html",
        names=[path.name for path in folders[:50]],
        found=found,
        causes=causes(found) if found else [],
    )


def causes(farm: FarmSeen) -> list[Cause]:
    """Why variants failed, the commonest first: by the known failure, else by their own words."""
    grouped: dict[tuple[str, str], list[VariantSeen]] = {}
    for item in farm.variants:
        # One that was stopped from outside has no cause of its own.
        if item.failure is not None and item.state == "failed":
            known = _known(item.failure.excerpt)
            first = next((named for named in known.named if not named.after), None)
            line = next(iter(item.failure.excerpt), "")
            own = f"{item.failure.reason.partition(': ')[2] or item.failure.reason}: {line}"
            key = (first.title, first.cure) if first else (own.rstrip(": "), "")
            grouped.setdefault(key, []).append(item)
    found = [Cause(title, cure, items) for (title, cure), items in grouped.items()]
    return sorted(found, key=lambda cause: -len(cause.variants))


@lru_cache(maxsize=256)
def _known(excerpt: tuple[str, ...]) -> Diagnosis:
    return explained(scan_lines(excerpt, shipped()))


ROUTES = [Route("/matrix", matrix)]
