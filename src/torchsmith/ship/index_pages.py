"""The pages of a pip index: PEP 503 and 629 as HTML, PEP 691, 700 and 792 as JSON.

A project's JSON page is also the record of its files; its HTML page is made from it. Metadata
beside a wheel is announced as PEP 658 has it, under both names of PEP 714.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from urllib.parse import quote

import msgspec
from msgspec import Struct
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from torchsmith.foreign import decode

API_VERSION = "1.4"
JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "application/vnd.pypi.simple.v1+html"


class _Meta(Struct, frozen=True, rename={"api_version": "api-version"}):
    api_version: str = API_VERSION


class Digest(Struct, frozen=True):
    """The hash that every file and every metadata file here has."""

    sha256: str


class IndexFile(Struct, frozen=True, rename="kebab", omit_defaults=True):
    """One file of a project, as PEP 691 writes it."""

    filename: str
    url: str
    hashes: Digest
    size: int
    upload_time: str
    core_metadata: Digest
    requires_python: str | None = None
    yanked: bool | str = False

    @property
    def sha256(self) -> str:
        """Its hash."""
        return self.hashes.sha256

    @property
    def version(self) -> Version:
        """The version its name says."""
        return parse_wheel_filename(self.filename)[1]

    def __post_init__(self) -> None:
        """Refuse a name that is no wheel's: msgspec makes it an error of the page."""
        parse_wheel_filename(self.filename)


class ProjectStatus(Struct, frozen=True, omit_defaults=True):
    """What installers tell of a whole project, as PEP 792 has it."""

    status: str = "active"
    reason: str = ""


class _Project(Struct, frozen=True, rename="kebab", omit_defaults=True):
    meta: _Meta
    name: str
    versions: tuple[str, ...]
    files: tuple[IndexFile, ...]
    # None: it is active.
    project_status: ProjectStatus | None = None


class _ProjectName(Struct, frozen=True):
    name: str


class _Root(Struct, frozen=True):
    meta: _Meta
    projects: tuple[_ProjectName, ...]


def link(filename: str) -> str:
    """A file's address, relative to its page: a `+` is a space to some servers, so it is quoted."""
    return quote(filename)


def read_project(content: bytes) -> tuple[IndexFile, ...]:
    """The files of a project, from its JSON page."""
    return decode(content, _Project).files


def read_status(content: bytes) -> ProjectStatus:
    """The status of a project, from its JSON page."""
    return decode(content, _Project).project_status or ProjectStatus()


class _AnyFile(Struct, frozen=True):
    filename: str
    hashes: dict[str, str]


class _AnyProject(Struct, frozen=True):
    files: tuple[_AnyFile, ...]


def read_hashes(content: bytes) -> dict[str, str]:
    """The sha256 of each file, from the JSON page of any index."""
    files = decode(content, _AnyProject).files
    return {file.filename: file.hashes.get("sha256", "") for file in files}


def project_json(
    name: str, files: Iterable[IndexFile], status: ProjectStatus | None = None
) -> bytes:
    """The JSON page of a project, its files in the order of their versions."""
    listed = sorted(files, key=lambda file: (file.version, file.filename))
    versions = tuple(dict.fromkeys(str(file.version) for file in listed))
    shown = None if status == ProjectStatus() else status
    return _written(_Project(_Meta(), name, versions, tuple(listed), shown))


def root_json(names: Iterable[str]) -> bytes:
    """The JSON page that lists the projects."""
    return _written(_Root(_Meta(), tuple(map(_ProjectName, sorted(names)))))


def _written(page: Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(page), indent=1) + b"\n"


def project_html(name: str, json: bytes) -> bytes:
    """The HTML page of a project, from its JSON page."""
    page = msgspec.json.decode(json, type=_Project)
    return page_html(f"Links for {name}", map(_anchor, page.files), page.project_status)


def root_html(names: Iterable[str]) -> bytes:
    """The HTML page that lists the projects."""
    lines = (f'<a href="{name}/">{name}</a>' for name in sorted(names))
    return page_html("Simple index", lines)


def page_html(title: str, lines: Iterable[str], status: ProjectStatus | None = None) -> bytes:
    """A page of links."""
    marks = {
        "project-status": status.status if status else "",
        "project-status-reason": status.reason if status else "",
    }
    head = (
        "<!DOCTYPE html>\n<html>\n<head>\n"
        f'<meta charset="utf-8">\n<meta name="pypi:repository-version" content="{API_VERSION}">\n'
        + "".join(
            f'<meta name="pypi:{name}" content="{escape(text)}">\n'
            for name, text in marks.items()
            if text
        )
        + f"<title>{escape(title)}</title>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
    )
    return (head + "".join(f"{line}<br>\n" for line in lines) + "</body>\n</html>\n").encode()


def _anchor(file: IndexFile) -> str:
    metadata = f"sha256={file.core_metadata.sha256}"
    attributes = {
        "href": f"{file.url}#sha256={file.sha256}",
        "data-core-metadata": metadata,
        "data-dist-info-metadata": metadata,
    }
    if file.requires_python is not None:
        attributes["data-requires-python"] = file.requires_python
    if file.yanked is not False:
        attributes["data-yanked"] = "" if file.yanked is True else file.yanked
    text = " ".join(f'{name}="{escape(value)}"' for name, value in attributes.items())
    return f"<a {text}>{escape(file.filename)}</a>"
