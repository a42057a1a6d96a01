"""Packages: finding one by what it has to fit, and all that is known of it."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from torchsmith.checks import Check
from torchsmith.errors import TorchsmithError, UsageError
from torchsmith.facts.files import shipped
from torchsmith.facts.ranges import version_range
from torchsmith.package.inspection import Inspection, inspect
from torchsmith.ship.catalogue import Asked, Published, asked_in, catalogue, search
from torchsmith.verify.fits import Subject, Verdict, judge_releases, read_subject
from torchsmith.verify.report import content_beside, from_json
from torchsmith.web.pages import page, part
from torchsmith.web.portal import portal_of

_MOST = 200


def found(request: Request) -> Response:
    """What fits."""
    places = portal_of(request).places
    words = request.query_params.get("words", "")[:200]
    understood = asked_in(words, shipped())
    fields = {name: request.query_params.get(name, "")[:200] for name in Asked.__struct_fields__}
    wanted = Asked(
        **{name: text.strip() or getattr(understood, name) for name, text in fields.items()}
    )
    items: list[Published] = []
    problem: UsageError | None = None
    try:
        items = search(places, wanted, shipped()) if places else []
    except UsageError as error:
        problem = error
    return page(
        request,
        "packages.html",
        items=items[:_MOST],
        more=len(items) - _MOST,
        fields=fields,
        words=words,
        understood=[(name, text) for name, text in asdict(understood).items() if text],
        problem=problem,
        lines={item.address: _lines(request, item) for item in items[:_MOST]},
    )


def one(request: Request) -> Response:
    """One of them."""
    item = _item(request)
    status = item.path.stat()
    seen = _seen(item.path, status.st_size, status.st_mtime_ns)
    return page(
        request,
        "package.html",
        item=item,
        seen=seen,
        checks=_checks(item.path),
        lines=_lines(request, item),
    )


def _item(request: Request) -> Published:
    places = portal_of(request).places
    wanted = request.query_params.get("file", "")
    for item in catalogue(places) if places else ():
        if item.address == wanted:
            return item
    raise UsageError(f"{wanted!r} is not published here", "The list has what is.")


def _lines(request: Request, item: Published) -> dict[str, str]:
    server = f"http://{request.headers['host']}"
    return item.install_lines(server, token=bool(portal_of(request).access.token))


class Fit(Struct, frozen=True):
    """Neighbouring torch releases of which the same is true."""

    first: Verdict
    last: Verdict


def fit(request: Request) -> Response:
    """Which torch releases a wheel loads with: read apart, for that opens every library in it."""
    item = _item(request)
    status = item.path.stat()
    try:
        subject, fits = _fits(item.path, status.st_size, status.st_mtime_ns)
    except TorchsmithError as error:
        return HTMLResponse(part("fits.html", problem=error.message))
    return HTMLResponse(part("fits.html", problem="", subject=subject, fits=fits))


@lru_cache(maxsize=32)
def _fits(path: Path, size: int, changed: int) -> tuple[Subject, tuple[Fit, ...]]:
    subject = read_subject(path)
    verdicts = judge_releases(subject, shipped(), version_range(":")) if subject.parts else ()
    alike = [list(group) for _, group in groupby(verdicts, lambda item: replace(item, torch=""))]
    return subject, tuple(Fit(group[0], group[-1]) for group in alike)


@lru_cache(maxsize=32)
def _seen(path: Path, size: int, changed: int) -> Inspection:
    """Reading a gigabyte takes a while: once for each file, as long as it stays the same."""
    return inspect(path)


def _checks(path: Path) -> tuple[Check, ...]:
    try:
        return from_json(content_beside(path)).checks
    except (OSError, msgspec.MsgspecError):
        return ()


ROUTES = [Route("/packages", found), Route("/package", one), Route("/package/fits", fit)]
