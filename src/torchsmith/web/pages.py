"""Pages from templates; whatever strangers wrote is shown as text."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from torchsmith import __version__
from torchsmith.templates import templates

if TYPE_CHECKING:
    from torchsmith.web.portal import Portal


def when(seconds: float | None) -> Markup:
    """A moment; the script of the page shows it in the reader's own time zone."""
    try:
        moment = datetime.fromtimestamp(seconds or 0, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("?")
    shown = moment.strftime("%Y-%m-%d %H:%M")
    return Markup('<time datetime="{}">{} UTC</time>').format(moment.isoformat(), shown)


def size(count: float | None) -> str:
    """Bytes as people write them."""
    if count is None:
        return ""
    for unit, limit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= limit:
            return f"{count / limit:,.1f} {unit}"
    return f"{count:,.0f} B"


def took(seconds: float) -> str:
    """How long something took: 4.1 s, 45 s, 6 min 52 s, 20 h 38 min."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minute} min" if minute else f"{hours} h"
    return f"{minutes} min {second} s" if minutes else f"{second} s"


def address(path: str, **query: object) -> str:
    """An address of ours; names with slashes are safe in a query."""
    return f"{path}?{urlencode(query)}" if query else path


@cache
def _environment() -> Environment:
    made = templates("torchsmith.web")
    made.filters.update(when=when, size=size, took=took)
    made.globals.update(address=address, version=__version__)
    return made


def part(name: str, /, **values: object) -> str:
    """A piece of a page, for one that is open."""
    return _environment().get_template(name).render(**values)


def page(request: Request, name: str, /, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A whole page."""
    portal: Portal = request.app.state.portal
    content = (
        _environment()
        .get_template(name)
        .render(
            here=request.url.path,
            portal=portal,
            page_token=portal.access.page_token(request),
            logged_in=bool(portal.access.token),
            **values,
        )
    )
    return HTMLResponse(content, status)


def problem_page(
    request: Request, status: int, title: str, message: str, hint: str = ""
) -> HTMLResponse:
    """Why there is nothing to see."""
    return page(request, "problem.html", status=status, title=title, message=message, hint=hint)
