"""Jobs: those submitted, one with its tasks and output, launching one; the variants of a farm."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from torchsmith.diagnose.diagnose import Diagnosis, diagnose
from torchsmith.engine.store import Store
from torchsmith.errors import RecipeError, TorchsmithError, UsageError
from torchsmith.jobs.client import Client, Output
from torchsmith.jobs.clients import TARGETS, client_for, render, target_for
from torchsmith.jobs.farm.attempt import FarmSeen, VariantSeen, farms, survey
from torchsmith.jobs.files import load_jobs
from torchsmith.jobs.models import Job
from torchsmith.jobs.states import State
from torchsmith.jobs.submissions import (
    Submission,
    Submissions,
    all_refreshed,
    check,
    client_of,
    failures,
    refreshed,
    stopped,
    submit,
)
from torchsmith.redact import redacted_lines
from torchsmith.web.pages import address, page, part
from torchsmith.web.portal import action, number, portal_of

_PAGE = 50
_LINES = 2000
_BAD = (State.FAILED, State.TIMEOUT, State.LOST)


@contextmanager
def _kept(request: Request) -> Iterator[Submissions | None]:
    """The record of jobs; None where none was submitted: a reader makes no files."""
    root = portal_of(request).root
    if not (root / "jobs.db").exists():
        yield None
        return
    with closing(Submissions(root)) as found:
        yield found


def listed(request: Request) -> Response:
    """The jobs, newest first; and the files whose jobs can be launched."""
    start = number(request, "from")

    def look() -> tuple[list[Submission], list[str]]:
        warnings: list[str] = []
        with _kept(request) as kept:
            found = all_refreshed(kept, _PAGE + 1, warnings.append, start=start) if kept else []
        return found, warnings

    jobs, warnings = portal_of(request).moments.get(("jobs", start), look)
    return page(
        request,
        "jobs.html",
        jobs=jobs[:_PAGE],
        start=start,
        more=len(jobs) > _PAGE,
        size_of_page=_PAGE,
        warnings=warnings,
        files=_files(request),
    )


def _files(request: Request) -> list[str]:
    folder = portal_of(request).recipes
    found = (path for path in sorted(folder.glob("*.toml"))[:500] if path.is_file())
    return [path.name for path in found if "[[job" in _text(path) or "[[role" in _text(path)]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace") if path.stat().st_size < 1 << 20 else ""
    except OSError:
        return ""


def one(request: Request) -> Response:
    """A job."""
    return page(request, "job.html", **_seen(request))


def parts(request: Request) -> Response:
    """The same, for a page that is open."""
    return Response(part("job_parts.html", **_seen(request)), media_type="text/html")


def _seen(request: Request) -> dict[str, Any]:
    """A job as all see it who look at this moment."""
    wanted = request.query_params.get("id", "")
    return portal_of(request).moments.get(("job", wanted), lambda: _values(request, wanted))


def _values(request: Request, wanted: str) -> dict[str, Any]:
    with _kept(request) as kept:
        if kept is None:
            raise UsageError(f"there is no job {wanted!r}", "None was submitted yet.")
        job = kept.get(wanted)
        problem = ""
        try:
            job = refreshed(job, kept)
        except TorchsmithError as error:
            problem = f"{error.message}; it is shown as it was last known"
    lines = _output(job)
    return {"job": job, "problem": problem, "lines": lines, "known": _known(job, lines)}


def _output(job: Submission) -> list[str]:
    if not job.engine_id:
        return []
    try:
        written = client_of(job).logs(job.submitted, Output(recent=True))
        return list(deque(redacted_lines(written), _LINES))
    except TorchsmithError as error:
        return [f"its output cannot be read: {error.message}"]


def _known(job: Submission, lines: list[str]) -> Diagnosis | None:
    if job.status.state not in _BAD:
        return None
    ends = [line for failure in failures(job) for line in failure.lines]
    return diagnose(ends or lines)


def prepare(request: Request) -> Response:
    """The form that launches a job of a file: first what would be asked of its engine."""
    return page(request, "launch.html", **_checked(request, dict(request.query_params)))


def _meant(request: Request, fields: dict[str, str]) -> tuple[list[Job], Client]:
    """The jobs that a form asks for, and where they go."""
    changes = [line.strip() for line in fields.get("changes", "").splitlines() if line.strip()]
    chosen = [fields["job"]] if fields.get("job") else []
    jobs = load_jobs(_path(request, fields.get("file", "")), changes, chosen)
    return jobs, client_for(target_for(jobs, fields.get("to", ""), "local"))


def _checked(request: Request, fields: dict[str, str]) -> dict[str, Any]:
    name = fields.get("file", "")
    notes: list[str] = []
    problems: list[str] = []
    files: dict[str, str] = {}
    names: list[str] = []
    try:
        names = [job.name for job in load_jobs(_path(request, name))]
        jobs, client = _meant(request, fields)
        check(jobs, client, portal_of(request).recipes, note=notes.append)
        made = render(jobs, client.engine).files
        files = {key: text.decode(errors="replace") for key, text in made.items()}
    except RecipeError as error:
        problems = [str(item) for item in error.problems] or [error.message]
    except TorchsmithError as error:
        problems = [error.message, error.hint]
    return {
        "file": name,
        "names": names,
        "fields": {key: fields.get(key, "") for key in ("job", "to", "changes")},
        "notes": notes,
        "problems": [item for item in problems if item],
        "files": files,
        "engines": TARGETS,
    }


def _path(request: Request, name: str) -> Path:
    if name not in _files(request):
        raise UsageError(f"{name!r} is not a file with jobs here", "The list has those that are.")
    return portal_of(request).recipes / name


async def launch(request: Request) -> Response:
    """Submit jobs."""
    fields = await action(request)
    checked = await run_in_threadpool(_checked, request, fields)
    if checked["problems"]:
        return page(request, "launch.html", status=422, **checked)

    def go() -> str:
        jobs, client = _meant(request, fields)
        with closing(Submissions(portal_of(request).root)) as kept:
            made = list(submit(jobs, client, kept, portal_of(request).recipes))
        return made[-1].id

    return RedirectResponse(address("/job", id=await run_in_threadpool(go)), 303)


async def cancel(request: Request) -> Response:
    """Stop a job."""
    fields = await action(request)

    def go() -> None:
        with _kept(request) as kept:
            if kept is not None:
                stopped(kept.get(fields.get("id", "")), kept, patience=10)

    await run_in_threadpool(go)
    return RedirectResponse(address("/job", id=fields.get("id", "")), 303)


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
            known = _diagnosed(item.failure.excerpt)
            first = next((named for named in known.named if not named.after), None)
            line = next(iter(item.failure.excerpt), "")
            own = f"{item.failure.reason.partition(': ')[2] or item.failure.reason}: {line}"
            key = (first.title, first.cure) if first else (own.rstrip(": "), "")
            grouped.setdefault(key, []).append(item)
    found = [Cause(title, cure, items) for (title, cure), items in grouped.items()]
    return sorted(found, key=lambda cause: -len(cause.variants))


_diagnosed = lru_cache(maxsize=256)(diagnose)


ROUTES = [
    Route("/matrix", matrix),
    Route("/jobs", listed),
    Route("/job", one),
    Route("/job/parts", parts),
    Route("/job/launch", prepare),
    Route("/job/launch", launch, methods=["POST"]),
    Route("/job/cancel", cancel, methods=["POST"]),
]
