"""Builds: the list, one of them live (as server-sent events), stopping it, having it go on."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from torchsmith.bench.timeline import picture
from torchsmith.engine.command import kept_command, resume
from torchsmith.engine.tail import PIECE, Piece, last_line_end, piece_before, piece_between
from torchsmith.errors import UsageError
from torchsmith.foreign import whole
from torchsmith.web.build_view import Builds, BuildView, StepView, charts, journal_at
from torchsmith.web.pages import address, page, part
from torchsmith.web.portal import action, number, portal_of, shared

_PAUSE_S = 1.0
_HEARTBEAT_S = 15.0
_PARTS = ("said", "state", "graph", "steps", "load")
# More of a log than this waits for the next moment.
_MOST_AT_ONCE = 4 << 20
# A busy reader may fall behind by so many moments and still gets each of them.
_KEPT = 8


@dataclass(frozen=True)
class Moment:
    """What is new of a build since the moment before it."""

    number: int
    parts: Mapping[str, str]
    changes: bytes
    path: Path | None
    # Of the log: the bytes from `start` to `end`, as messages.
    start: int
    end: int
    log: bytes
    over: bool
    # Older messages of the log by the place they begin at, for those who come later.
    older: dict[int, tuple[bytes, int]] = field(default_factory=dict)

    @cached_property
    def whole(self) -> bytes:
        """All parts, for readers that have not seen the moment before."""
        return _message("parts", json.dumps(dict(self.parts)))

    @cached_property
    def news(self) -> bytes:
        """All that is new, for readers that have seen it."""
        return self.changes + self.log


@dataclass
class Feed:
    """The moments of one build, for all who follow the log of one step of it.

    Each moment is read, drawn and encoded once, for all readers: fifty cost little more than one,
    and a build on the same cores hardly notices.
    """

    builds: Builds
    run: str
    step: str
    readers: int = 0
    _moments: deque[Moment] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _next: asyncio.Task[None] | None = None

    async def after(self, number: int) -> list[Moment]:
        """All moments behind this one, once there are any; the latest alone where some are gone."""
        while not self._moments or self._moments[-1].number <= number:
            if self._next is None or self._next.done():
                self._next = asyncio.create_task(self._look())
            # A reader that leaves must not cancel what others wait for.
            await asyncio.shield(self._next)
        new = [item for item in self._moments if item.number > number]
        return new if 0 <= number == new[0].number - 1 else new[-1:]

    async def _look(self) -> None:
        latest = self._moments[-1] if self._moments else None
        if latest is not None:
            await asyncio.sleep(_PAUSE_S)
        self._moments.append(await run_in_threadpool(self._read, latest))

    def _read(self, before: Moment | None) -> Moment:
        # The state first: what is written to the log meanwhile is read below.
        view = self.builds.view(self.run)
        parts = _drawn(view)
        path = before.path if before else None
        step = view.step(self.step)
        path = path or (self.builds.log_path(step.log) if step and step.log else None)
        known = before.parts if before else parts
        news = {name: html for name, html in parts.items() if known[name] != html}
        moment = Moment(
            number=before.number + 1 if before else 0,
            parts=parts,
            changes=_message("parts", json.dumps(news)) if news else b"",
            path=path,
            start=before.end if before else 0,
            end=before.end if before else 0,
            log=b"",
            over=view.over,
        )
        if path is None:
            return moment
        if before is None or before.path is None:
            # All readers share the log from here on; each reads older lines by itself.
            start = last_line_end(path)
            moment = replace(moment, start=start, end=start)
        return self._with_log(moment, path)

    def _with_log(self, moment: Moment, path: Path) -> Moment:
        # Nobody adds to the last line of a build that is over.
        end = _size(path) if moment.over else last_line_end(path)
        start = moment.start if moment.start <= end else 0
        if not moment.over:
            end = min(end, start + _MOST_AT_ONCE)
        messages = list(_log_messages(path, start, end))
        reached = messages[-1][1] if messages else start
        return replace(
            moment, start=start, end=reached, log=b"".join(message for message, _ in messages)
        )


@dataclass
class Feeds:
    """One for each build and step that somebody follows."""

    builds: Builds
    _all: dict[tuple[str, str], Feed] = field(default_factory=dict)

    @contextmanager
    def joined(self, run: str, step: str) -> Iterator[Feed]:
        """The feed of a build, as long as one reads it."""
        feed = self._all.setdefault((run, step), Feed(self.builds, run, step))
        feed.readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            if not feed.readers:
                self._all.pop((run, step), None)

    async def follow(
        self, run: str, step: str, start: int, *, silent: bool
    ) -> AsyncIterator[bytes]:
        """What one reader gets; its log begins at `start`, and a `silent` reader gets no log."""
        clock = asyncio.get_running_loop().time
        with self.joined(run, step) as feed:
            seen = -1
            spoke = clock()
            while True:
                moments = await feed.after(seen)
                follows = 0 <= seen == moments[0].number - 1
                seen, content = moments[-1].number, b""
                for now in moments:
                    if follows and start == now.start and not silent:
                        # Most readers get the same bytes.
                        content, start = content + now.news, now.end
                        continue
                    content += now.changes if follows else now.whole
                    if silent or now.path is None:
                        continue
                    if start != now.start:
                        async for message, place in _caught_up(now, now.path, start):
                            yield content + message
                            start, content, spoke = place, b"", clock()
                    if start == now.start:
                        content, start = content + now.log, now.end
                if content:
                    spoke = clock()
                    yield content
                if moments[-1].over:
                    yield _message("over", "{}")
                    return
                if clock() - spoke > _HEARTBEAT_S:
                    spoke = clock()
                    yield b": alive\n\n"


async def _caught_up(now: Moment, path: Path, start: int) -> AsyncIterator[tuple[bytes, int]]:
    """The messages from a reader's own place to the one that the others had before a moment."""
    if start > now.end and start > await run_in_threadpool(_size, path):
        # A file that became shorter is a new one.
        start = 0
    # A reader that has part of the new lines gets the rest.
    end = now.start if start < now.start else now.end
    while start < end:
        if start not in now.older:
            found = await run_in_threadpool(next, _log_messages(path, start, end), None)
            if found is None:
                return
            now.older[start] = found
        yield now.older[start]
        start = now.older[start][1]


def _drawn(view: BuildView) -> dict[str, str]:
    values = {"view": view, "step": None, "drawn": charts(view.flight)}
    return {name: part(f"build_{name}.html", **values) for name in _PARTS}


def _log_messages(path: Path, start: int, end: int) -> Iterator[tuple[bytes, int]]:
    """Pieces of a log as messages, each with the place behind it."""
    while start < end:
        piece = piece_between(path, start, end)
        if piece.end <= start:
            return
        start = piece.end
        yield _message("log", json.dumps({"text": piece.text}), start), start


def _message(kind: str, data: str, place: int | None = None) -> bytes:
    where = "" if place is None else f"id: {place}\n"
    return f"event: {kind}\n{where}data: {data}\n\n".encode()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


_PAGE = 50
_MOST_BARS = 4000


def _builds(request: Request) -> Builds:
    return shared(request, Builds, lambda: Builds(portal_of(request).root))


def _feeds(request: Request) -> Feeds:
    return shared(request, Feeds, lambda: Feeds(_builds(request)))


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
    # A reader in the middle of a log is not sent all lines since.
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
    last_event = whole(request.headers.get("last-event-id", ""))
    start = number(request, "start") if last_event is None else last_event
    silent = "without" in request.query_params
    events = _feeds(request).follow(run, name, start, silent=silent)
    return StreamingResponse(events, media_type="text/event-stream")


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
