"""What the addresses of a published index and channel stand for.

PEP 691 lets a client choose between HTML and JSON by what it accepts. Nothing outside the two
folders is reached, no hidden file shown.
"""

from __future__ import annotations

import ipaddress
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct
from packaging.utils import canonicalize_name

from torchsmith.ship.index import HTML_TYPE, JSON_TYPE
from torchsmith.ship.publish import Places

CHANNEL = "channel"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".metadata": "text/plain; charset=utf-8",
    ".sha256": "text/plain; charset=utf-8",
    ".whl": "application/zip",
    ".zst": "application/zstd",
}
# What is answered to `*/*` is HTML, as the specification asks.
_OFFERS = (
    ("text/html", "index.html", "text/html; charset=utf-8"),
    (HTML_TYPE, "index.html", HTML_TYPE),
    (JSON_TYPE, "index.json", JSON_TYPE),
    (JSON_TYPE.replace("v1", "latest"), "index.json", JSON_TYPE),
    (HTML_TYPE.replace("v1", "latest"), "index.html", HTML_TYPE),
)


class Page(Struct, frozen=True):
    """A file and the content type it is served with."""

    path: Path
    type: str
    varies: bool = False


class Found(Struct, frozen=True):
    """What an address stands for: a page, another address, or an error."""

    status: HTTPStatus
    page: Page | None = None
    location: str = ""


def accepted(header: str) -> tuple[str, str] | None:
    """The file and content type a client prefers for an index page; None if it takes neither."""
    best: tuple[float, int] | None = None
    chosen: tuple[str, str] | None = None
    kinds = [_preference(part) for part in (header or "*/*").split(",") if part.strip()]
    for order, (name, file, type_) in enumerate(_OFFERS):
        # The most precise kind that fits counts.
        fitting = [(len(kind), weight) for kind, weight in kinds if _fits(kind, name)]
        weight = max(fitting)[1] if fitting else 0.0
        if weight > 0 and (best is None or (weight, -order) > best):
            best, chosen = (weight, -order), (file, type_)
    return chosen


def _preference(part: str) -> tuple[str, float]:
    kind, *parameters = (word.strip() for word in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return kind.lower(), float(parameter[2:])
            except ValueError:
                return kind.lower(), 0.0
    return kind.lower(), 1.0


def _fits(kind: str, name: str) -> bool:
    return kind in (name, "*/*") or (kind.endswith("/*") and name.startswith(kind[:-1]))


def look_up(places: Places, address: str, accept: str = "") -> Found:
    """What an address stands for; it never leads out of a folder, nor to a hidden file."""
    raw = unquote(urlsplit(address).path, errors="surrogateescape")
    parts = [part for part in raw.split("/") if part]
    if "\0" in raw or any(part.startswith(".") for part in parts):
        return Found(HTTPStatus.NOT_FOUND)
    root, inner = places.index, parts
    if parts[:1] == [CHANNEL]:
        root, inner = places.channel, parts[1:]
    if root is None:
        return Found(HTTPStatus.NOT_FOUND)
    if not parts:
        return _moved(["simple"])
    top = root.resolve()
    path = top.joinpath(*inner).resolve()
    if not path.is_relative_to(top):
        return Found(HTTPStatus.NOT_FOUND)
    in_index = root is places.index and inner[:1] == ["simple"]
    if in_index and len(inner) == 2 and not path.exists():
        normal = canonicalize_name(inner[1])
        return Found(HTTPStatus.NOT_FOUND) if normal == inner[1] else _moved(["simple", normal])
    if path.is_dir():
        if not raw.endswith("/"):
            return _moved(parts)
        return _listing(path, accept, negotiated=in_index)
    if not path.is_file() or raw.endswith("/"):
        return Found(HTTPStatus.NOT_FOUND)
    type_ = _TYPES.get(path.suffix, "application/octet-stream")
    if in_index and path.name == "index.json":
        type_ = JSON_TYPE
    return Found(HTTPStatus.OK, Page(path, type_))


def _moved(parts: list[str]) -> Found:
    # From the root, so that no name is taken for a host: //example.org/.
    return Found(HTTPStatus.MOVED_PERMANENTLY, location="/" + quote("/".join(parts)) + "/")


def _listing(folder: Path, accept: str, *, negotiated: bool) -> Found:
    if negotiated:
        choice = accepted(accept)
        if choice is None:
            return Found(HTTPStatus.NOT_ACCEPTABLE)
        file, type_ = choice
        page = Page(folder / file, type_, varies=True)
    else:
        page = Page(folder / "index.html", _TYPES[".html"])
    return Found(HTTPStatus.OK, page) if page.path.is_file() else Found(HTTPStatus.NOT_FOUND)


def usage(places: Places, address: str) -> list[str]:
    """The commands that use what is served."""
    lines: list[str] = []
    if places.index is not None:
        lines += [f"pip install --index-url {address}/simple/ NAME"]
        lines += [f"uv pip install --index-url {address}/simple/ NAME"]
    if places.channel is not None:
        lines += [f"conda install --channel {address}/{CHANNEL} NAME"]
    return lines


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # Not by its beginning: 127.0.0.1.example.org may lead anywhere.
        return host == "localhost"
