"""Builds: the list, one of them live, stopping it, having it go on."""

from __future__ import annotations

import time
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from torchsmith.bench.timeline_page import picture
from torchsmith.engine.command import kept_command, resume
from torchsmith.engine.tail import PIECE, Piece, piece_before
from torchsmith.errors import UsageError
from torchsmith.web.build_view import Builds, BuildView, StepView, charts, journal_at
from torchsmith.web.live import Feeds
from torchsmith.web.pages import address, page, part
from torchsmith.web.portal import action, number, portal_of

_PAGE = 50
_MOST_BARS = 4000


def _builds(request: Request) -> Builds:
    state = request.app.state
    if not hasattr(state, "builds"):
        state.builds = Builds(portal_of(request).root)
    found: Builds = state.builds
    return found


def _feeds(request: Request) -> Feeds:
    state = request.app.state
    if not hasattr(state, "feeds"):
        state.feeds = Feeds(_builds(request))
    found: Feeds = state.feeds
    return found


def listed(request: Request) -> Response:
    """The builds, newest first."""
    start = number(request, "from")
    with journal_at(portal_of(request).root) as journal:
        runs = journal.runs(_PAGE + 1, start) if journal is not None else []
    return page(
        request,
        "builds.html",
        runs=runs[:_PAGE],
        now=time.time(),
        start=start,
        more=len(runs) > _PAGE,
        size_of_page=_PAGE,
    )


def one(request: Request) -> Response:
    """A build."""
    builds = _builds(request)
    view = builds.view(request.query_params.get("run", ""))
    wanted = request.query_params.get("step", "")
    step = view.step(wanted)
    if wanted and step is None:
        raise UsageError(f"this build has no step {wanted!r}")
    log = _piece(builds, step, number(request, "before", -1))
    # Who reads in the middle of a log is not sent all that came since.
    middle = log.end < log.size and "before" in request.query_params
    query = {"run": view.run.id, "step": step.step if step else "", "start": log.end}
    live = address("/build/live", **query, **({"without": "log"} if middle else {}))
    ended = view.run.status in ("interrupted", "failed")
    resumable = ended and kept_command(builds.root / "logs" / view.run.id) is not None
    values = {**_values(view, step), "log": log, "live": live}
    values |= {"resumable": resumable, "later": min(log.end + PIECE, log.size) if middle else 0}
    return page(request, "build.html", **values)


def _values(view: BuildView, step: StepView | None) -> dict[str, Any]:
    return {"view": view, "step": step, "drawn": charts(view.flight)}


def _piece(builds: Builds, step: StepView | None, before: int) -> Piece:
    path = builds.log_path(step.log) if step else None
    return piece_before(path, before) if path else Piece("", 0, 0, 0)


def known(request: Request) -> Response:
    """What is known of a failure: read apart, for a log may be long."""
    builds = _builds(request)
    view = builds.view(request.query_params.get("run", ""))
    step = view.step(request.query_params.get("step", ""))
    known = builds.diagnosis(step) if step and step.status == "failed" else None
    found, skipped = known or (None, 0)
    return HTMLResponse(part("diagnosis.html", found=found, skipped=skipped))


def timeline(request: Request) -> Response:
    """Where the time of a build went."""
    builds = _builds(request)
    view = builds.view(request.query_params.get("run", ""))
    found = builds.timeline(view.run.id)
    drawn = picture(found) if found is not None and len(found.bars) <= _MOST_BARS else ""
    return page(request, "timeline.html", view=view, found=found, drawn=drawn)


async def live(request: Request) -> Response:
    """A build as it goes on: its parts when they change, its log as it grows."""
    run, name = request.query_params.get("run", ""), request.query_params.get("step", "")
    # An unknown build is refused before the answer begins.
    await run_in_threadpool(_builds(request).view, run)
    given = request.headers.get("last-event-id", "")
    start = int(given) if given.isdigit() and len(given) < 16 else number(request, "start")
    silent = "without" in request.query_params
    told = _feeds(request).follow(run, name, start, silent=silent)
    return StreamingResponse(told, media_type="text/event-stream")


async def stop(request: Request) -> Response:
    """Ask a build to stop."""
    fields = await action(request)
    run = fields.get("run", "")

    def ask() -> None:
        with journal_at(portal_of(request).root) as journal:
            if journal is None:
                raise HTTPException(404)
            journal.stop(run)

    await run_in_threadpool(ask)
    return RedirectResponse(address("/build", run=run), 303)


async def go_on(request: Request) -> Response:
    """Have a build that was stopped, or failed, go on: by its own command."""
    fields = await action(request)
    root = portal_of(request).root

    def start() -> str:
        with journal_at(root) as journal:
            if journal is None:
                raise HTTPException(404)
            return resume(root, journal, fields.get("run", ""))

    return RedirectResponse(address("/build", run=await run_in_threadpool(start)), 303)


ROUTES = [
    Route("/builds", listed),
    Route("/build", one),
    Route("/build/live", live),
    Route("/build/known", known),
    Route("/build/timeline", timeline),
    Route("/build/stop", stop, methods=["POST"]),
    Route("/build/resume", go_on, methods=["POST"]),
]
