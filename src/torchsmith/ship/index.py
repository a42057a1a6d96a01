"""A pip index as a folder: simple/NAME/ holds a project's wheels, their metadata and its pages.

whl/LABEL/ lists the wheels of one label (cpu, cu130), as PyTorch's own index does.

Pages are HTML (PEP 503, 629) and JSON (PEP 691, 700, 792). A project's JSON page is also the record
of its files; its HTML page is made from it. Metadata beside a wheel is announced as PEP 658 has it,
under both names of PEP 714.
"""

from __future__ import annotations

import hashlib
import re
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.parser import HeaderParser
from html import escape
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchsmith.errors import OutputError, UsageError
from torchsmith.foreign import decode
from torchsmith.ship.folder import (
    Action,
    Change,
    Changes,
    Say,
    changing,
    check_folder,
    file_hash,
    refuse_other_bytes,
)
from torchsmith.sources.tree import epoch
from torchsmith.verify.wheelfile import sound_wheel

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


class _AnyFile(Struct, frozen=True):
    filename: str
    hashes: dict[str, str]


class _AnyProject(Struct, frozen=True):
    files: tuple[_AnyFile, ...]


def read_hashes(content: bytes) -> dict[str, str]:
    """The sha256 of each file, from the JSON page of any index."""
    files = decode(content, _AnyProject).files
    return {file.filename: file.hashes.get("sha256", "") for file in files}


def _project(name: str, files: Iterable[IndexFile], status: ProjectStatus | None) -> _Project:
    """A project with its files in the order of their versions."""
    listed = sorted(files, key=lambda file: (file.version, file.filename))
    versions = tuple(dict.fromkeys(str(file.version) for file in listed))
    shown = None if status == ProjectStatus() else status
    return _Project(_Meta(), name, versions, tuple(listed), shown)


def _json(page: Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(page), indent=1) + b"\n"


def _html(page: _Project) -> bytes:
    return page_html(f"Links for {page.name}", map(_anchor, page.files), page.project_status)


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


SIMPLE = "simple"
# As https://download.pytorch.org/whl/cu130
LABELS = "whl"
_LABEL = re.compile(r"cpu|xpu|cu\d+|rocm\d+(?:\.\d+)*")
_PAGE = "index.json"
# NAME-VERSION-PYTHON-ABI-PLATFORM-LABEL.whl: https://peps.python.org/pep-0825/
_VARIANT = re.compile(r"[\w.]+(-[\w.+!]+){4}-[0-9a-z_.]{1,16}\.whl", re.ASCII)

Projects = dict[str, tuple[IndexFile, ...]]


class _Wheel(Struct, frozen=True):
    """A wheel to be published."""

    source: Path
    project: str
    sha256: str

    @property
    def target(self) -> str:
        return f"{SIMPLE}/{self.project}/{self.source.name}"


def published_files(root: Path) -> Projects:
    """What an index holds, by project."""
    return {name: page.files for name, page in _pages(root).items()}


def _statuses(root: Path) -> dict[str, ProjectStatus]:
    pages = _pages(root).items()
    return {name: page.project_status or ProjectStatus() for name, page in pages}


def _pages(root: Path) -> dict[str, _Project]:
    found: dict[str, _Project] = {}
    for page in sorted(root.glob(f"{SIMPLE}/*/{_PAGE}")):
        try:
            found[page.parent.name] = decode(page.read_bytes(), _Project)
        except (msgspec.DecodeError, KeyError) as error:
            raise OutputError(
                f"{page} is not a page torchsmith wrote: {error}",
                "Put back the one that was there, or begin a new index.",
            ) from None
    return found


def publish_wheels(
    root: Path,
    wheels: Sequence[Path],
    *,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> list[Change]:
    """Add wheels to an index, all or none; those that are there already stay as they are."""
    offered = [_Wheel(path, _owner(path.name), file_hash(path)) for path in wheels]
    check_folder(root, "index")
    if dry_run:
        return [change for change, _ in _sorted_out(root, offered, published_files(root))]
    with changing(root, "index", say=say) as changes:
        projects = published_files(root)
        decided = _sorted_out(root, offered, projects)
        coming = [wheel for change, wheel in decided if change.action == "added"]
        changes.make_room(sum(wheel.source.stat().st_size for wheel in coming))
        for wheel in coming:
            metadata = _metadata(wheel.source)
            if not (root / wheel.target).exists():
                changes.bring(wheel.source, wheel.target, wheel.sha256)
            changes.write(f"{wheel.target}.metadata", metadata)
            listed = projects.get(wheel.project, ())
            others = tuple(file for file in listed if file.filename != wheel.source.name)
            projects[wheel.project] = (*others, _entry(wheel, metadata))
        _write_pages(root, changes, projects)
    return [change for change, _ in decided]


def _owner(name: str) -> str:
    """The project a wheel belongs to."""
    try:
        # Letters of other scripts look like those of a known project.
        if not name.isascii():
            raise InvalidWheelFilename(name)
        return parse_wheel_filename(name)[0]
    except InvalidWheelFilename:
        if _VARIANT.fullmatch(name):
            raise UsageError(
                f"{name} is a wheel variant, which installers of today do not take",
                "Publish the wheel beside it, whose name has no label at its end.",
            ) from None
        raise UsageError(
            f"{name} is not the name of a wheel",
            "A wheel is called NAME-VERSION-PYTHON-ABI-PLATFORM.whl, in plain ASCII letters.",
        ) from None


def _sorted_out(
    root: Path, wheels: Iterable[_Wheel], projects: Projects
) -> list[tuple[Change, _Wheel]]:
    """Which wheels are new; one that is new must be a good one."""
    statuses = _statuses(root)
    decided: list[tuple[Change, _Wheel]] = []
    taken: dict[str, str] = {}
    for wheel in wheels:
        name = wheel.source.name
        known = {file.filename: file.sha256 for file in projects.get(wheel.project, ())}
        there = root / wheel.target
        had = taken.get(wheel.target) or known.get(name)
        if had is None and there.exists():
            # Left by a publication that was killed before any page named it.
            had = file_hash(there)
        if had not in (None, wheel.sha256):
            raise refuse_other_bytes(name, root)
        same = wheel.target in taken or (name in known and there.exists())
        taken[wheel.target] = wheel.sha256
        if not same:
            status = statuses.get(wheel.project, ProjectStatus())
            if status.status == "archived":
                raise UsageError(
                    f"{wheel.project} is archived in {root}"
                    + (f": {status.reason}" if status.reason else ""),
                    f"`torchsmith yank {wheel.project} --project archived --undo` opens it again.",
                )
            sound_wheel(wheel.source)
        action: Action = "same" if same else "added"
        decided.append((Change(action, wheel.target, wheel.sha256), wheel))
    return decided


def _metadata(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        (name,) = (
            name
            for name in archive.namelist()
            if name.count("/") == 1 and name.endswith(".dist-info/METADATA")
        )
        return archive.read(name)


def _entry(wheel: _Wheel, metadata: bytes) -> IndexFile:
    fields = HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
    return IndexFile(
        filename=wheel.source.name,
        url=link(wheel.source.name),
        hashes=Digest(wheel.sha256),
        size=wheel.source.stat().st_size,
        upload_time=_now(),
        core_metadata=Digest(hashlib.sha256(metadata).hexdigest()),
        requires_python=fields.get("Requires-Python"),
    )


def _now() -> str:
    """The time of publication; SOURCE_DATE_EPOCH makes an index that can be made again."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch() or time.time()))


def _write_pages(
    root: Path,
    changes: Changes,
    projects: Projects,
    marked: Mapping[str, ProjectStatus] | None = None,
) -> None:
    """Every page of the index, so that one a killed publication left behind is mended too."""
    statuses = {**_statuses(root), **(marked or {})}
    kept = {name: files for name, files in projects.items() if files}
    for name, files in projects.items():
        folder = f"{SIMPLE}/{name}"
        page = _project(name, files, statuses.get(name))
        if files:
            changes.write(f"{folder}/{_PAGE}", _json(page))
            changes.write(f"{folder}/index.html", _html(page))
        else:
            changes.drop(f"{folder}/{_PAGE}")
            changes.drop(f"{folder}/index.html")
    top = _Root(_Meta(), tuple(map(_ProjectName, sorted(kept))))
    changes.write(f"{SIMPLE}/{_PAGE}", _json(top))
    changes.write(f"{SIMPLE}/index.html", root_html(kept))
    pages = dict(_label_pages(kept, statuses))
    for name, content in pages.items():
        changes.write(name, content)
    # A project's page before its label's, whose folder is empty only then.
    old = {path.relative_to(root).as_posix() for path in root.glob(f"{LABELS}/**/index.html")}
    for name in sorted(old - pages.keys(), key=lambda name: -name.count("/")):
        changes.drop(name)


def _label_pages(
    projects: Projects, statuses: Mapping[str, ProjectStatus]
) -> Iterator[tuple[str, bytes]]:
    """The pages of every label: what has it, and what has none and runs anywhere."""
    labels = {label for files in projects.values() for file in files if (label := _label(file))}
    for label in labels:
        shown: list[str] = []
        for name, files in projects.items():
            mine = [
                replace(file, url=f"../../../{SIMPLE}/{name}/{file.url}")
                for file in files
                if _label(file) == label
                or (not file.version.local and file.filename.endswith("-any.whl"))
            ]
            if mine:
                shown.append(name)
                page = _project(name, mine, statuses.get(name))
                yield f"{LABELS}/{label}/{name}/index.html", _html(page)
        yield f"{LABELS}/{label}/index.html", root_html(shown)


def _label(file: IndexFile) -> str:
    found = _LABEL.match(file.version.local or "")
    return found[0] if found else ""


def _named(projects: Projects, what: str, root: Path) -> list[tuple[str, IndexFile]]:
    """The files that NAME==VERSION or a file's name stand for."""
    name, _, version = what.partition("==")
    try:
        wanted = Version(version) if version else None
    except InvalidVersion:
        raise UsageError(
            f"{version} is not a version", "Write NAME==VERSION or a file's name."
        ) from None
    project = canonicalize_name(name.strip())
    found = [
        (owner, file)
        for owner, files in projects.items()
        for file in files
        if file.filename == what or (owner == project and file.version == wanted)
    ]
    if not found:
        versions = list(dict.fromkeys(str(file.version) for file in projects.get(project, ())))
        raise UsageError(
            f"{what} is not in {root}",
            f"Of {name} it has {', '.join(versions)}."
            if versions
            else f"It has {', '.join(sorted(projects)) or 'nothing'}.",
        )
    return found


def yank_wheels(root: Path, what: str, *, reason: str = "", undo: bool = False) -> list[Change]:
    """Have installers leave files alone unless they are asked for by exact version (PEP 592)."""
    check_folder(root, "index", exists=True)
    mark: bool | str = False if undo else reason or True
    with changing(root, "index") as changes:
        projects = published_files(root)
        found = _named(projects, what, root)
        for owner, file in found:
            projects[owner] = tuple(
                replace(item, yanked=mark) if item == file else item for item in projects[owner]
            )
        _write_pages(root, changes, projects)
    return [
        Change(
            "same" if file.yanked == mark else "restored" if undo else "yanked",
            f"{SIMPLE}/{owner}/{file.filename}",
            file.sha256,
        )
        for owner, file in found
    ]


def mark_project(
    root: Path, name: str, status: ProjectStatus, *, undo: bool = False
) -> list[Change]:
    """Have installers tell that a project is archived or deprecated (PEP 792)."""
    if status.status not in ("archived", "deprecated"):
        raise UsageError(
            f"{status.status} is not a status of a project",
            "Use --project archived, or deprecated.",
        )
    check_folder(root, "index", exists=True)
    project = canonicalize_name(name)
    with changing(root, "index") as changes:
        projects = published_files(root)
        if project not in projects:
            raise UsageError(
                f"{name} is not a project of {root}",
                f"It has {', '.join(sorted(projects)) or 'nothing'}.",
            )
        wanted = ProjectStatus() if undo else status
        same = _statuses(root).get(project) == wanted
        _write_pages(root, changes, projects, {project: wanted})
    action: Action = "same" if same else "restored" if undo else "marked"
    return [Change(action, f"{SIMPLE}/{project}", "")]


def remove_wheels(root: Path, what: str) -> list[Change]:
    """Take NAME==VERSION or a file away for good; locks that name it will not install any more."""
    check_folder(root, "index", exists=True)
    made: list[Change] = []
    with changing(root, "index") as changes:
        projects = published_files(root)
        names = [what]
        if "==" in what:
            names = [file.filename for _, file in _named(projects, what, root)]
        for name in names:
            owner = _owner(name)
            target = f"{SIMPLE}/{owner}/{name}"
            # One that no page names was left by a publication or a removal that was killed.
            if not (root / target).exists():
                _named(projects, name, root)
            listed = projects.get(owner, ())
            projects[owner] = tuple(file for file in listed if file.filename != name)
            changes.drop(f"{target}.metadata")
            changes.drop(target)
            made.append(Change("removed", target))
        _write_pages(root, changes, projects)
    return made
