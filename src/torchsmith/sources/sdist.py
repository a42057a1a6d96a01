"""A project's source archive from a Python package index, its version and hash known beforehand.

Not through pip: `pip download` runs the project's setup.py to ask for its requirements, and a
fetch runs nothing of what it gets. What a source requires is read out of its files.
"""

from __future__ import annotations

import ast
import contextlib
import os
import urllib.parse
from collections.abc import Iterator
from email.parser import HeaderParser
from html.parser import HTMLParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torchsmith.errors import NotServedError, SourceError, UnreachableError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.addresses import shown
from torchsmith.sources.download import PATIENT, Retry, download, read_url
from torchsmith.sources.extract import extract
from torchsmith.sources.tree import FetchedSource, Progress, tree_hash

DEFAULT_INDEX = "https://pypi.org/simple"
# PyPI's longest pages have some ten megabytes.
_PAGE_BYTES = 100 << 20


def indexes() -> tuple[str, ...]:
    """The indexes pip's own variables name, or PyPI."""
    first = os.environ.get("PIP_INDEX_URL", "").strip() or DEFAULT_INDEX
    more = os.environ.get("PIP_EXTRA_INDEX_URL", "").split()
    remote = [url for url in (first, *more) if url.startswith(("https://", "http://"))]
    return tuple(dict.fromkeys(url.rstrip("/") for url in remote))


class _Links(HTMLParser):
    """The addresses on a page of an index: https://peps.python.org/pep-0503/."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where a link leads."""
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def linked(page: str, address: str, sha256: str) -> list[str]:
    """The files of this hash that a page of an index links to."""
    links = _Links()
    links.feed(page)
    parts = [urllib.parse.urldefrag(urllib.parse.urljoin(address, link)) for link in links.found]
    return [part.url for part in parts if part.fragment == f"sha256={sha256}"]


def _addresses(choice: SourceChoice, retry: Retry) -> list[str]:
    project = canonicalize_name(choice.package)
    problems: list[UnreachableError] = []
    for index in indexes():
        address = f"{index}/{project}/"
        try:
            page = read_url(address, limit=_PAGE_BYTES, retry=retry)
        except UnreachableError as error:
            problems.append(error)
            continue
        if found := linked(page.decode("utf-8", "replace"), address, choice.sha256):
            return found
        problems.append(
            NotServedError(
                f"{shown(address)} has no file with the sha256 {choice.sha256}",
                f"Take the hash of {choice.package} {choice.ref}'s .tar.gz from that page.",
            )
        )
    raise problems[0] if problems else UnreachableError("PIP_INDEX_URL names no web address")


def sdist_file(
    choice: SourceChoice, cache: Path, progress: Progress, retry: Retry = PATIENT
) -> tuple[Path, str]:
    """The archive itself, of the expected hash, and where it came from: "" for the cache."""
    kept = cache / "files" / choice.sha256
    urls = [] if kept.is_file() else _addresses(choice, retry)
    label = f"{choice.package} {choice.ref}"
    return download(urls, cache, sha256=choice.sha256, label=label, progress=progress, retry=retry)


def fetch_sdist(
    choice: SourceChoice,
    destination: Path,
    *,
    cache: Path,
    progress: Progress,
    retry: Retry = PATIENT,
) -> FetchedSource:
    """Fetch a project's source archive, check its hash, and only then unpack it."""
    label = f"{choice.package} {choice.ref}"
    file, used = sdist_file(choice, cache, progress, retry)
    name = urllib.parse.urlsplit(used).path.rsplit("/", 1)[-1] or f"{choice.package}.tar.gz"
    extract(file, destination, name=name, progress=progress)
    _check_version(destination, choice)
    evidence = {"sha256": choice.sha256, "tree": tree_hash(destination)}
    notes = () if used else ("taken from the cache: a file of this hash was there",)
    return FetchedSource(choice.kind, shown(used) or label, evidence, notes)


def _check_version(tree: Path, choice: SourceChoice) -> None:
    """Refuse an archive of another project or release: its hash is of something not meant."""
    about = tree / "PKG-INFO"
    if choice.kind == "wheel":
        about = next(tree.glob("*.dist-info/METADATA"), about)
    if not about.is_file() or about.is_symlink():
        raise SourceError(
            f"the archive of this hash is not an sdist of {choice.package}: it has no PKG-INFO",
            "Take the hash of the project's .tar.gz, not of a wheel.",
        )
    fields = HeaderParser().parsestr(about.read_text("utf-8", "replace"))
    name, version = fields.get("Name", ""), fields.get("Version", "")
    try:
        right = Version(version) == Version(choice.ref)
    except InvalidVersion:
        right = False
    if not right or canonicalize_name(name) != canonicalize_name(choice.package):
        raise SourceError(
            f"the archive of this hash is {name} {version}, not {choice.package} {choice.ref}",
            "Correct sdist or sha256 of this extension in the recipe.",
        )


def required(tree: Path) -> list[str]:
    """What is required besides torch: by an sdist's metadata, else by what setup.py spells out."""
    found: list[str] = []
    for line in _from_metadata(tree) or _from_setup(tree):
        with contextlib.suppress(InvalidRequirement):
            wanted = Requirement(line)
            if canonicalize_name(wanted.name) != "torch" and "extra" not in str(wanted.marker):
                found.append(line)
    return found


def _from_metadata(tree: Path) -> list[str]:
    try:
        text = (tree / "PKG-INFO").read_text("utf-8", "replace")
    except OSError:
        return []
    lines: list[str] = HeaderParser().parsestr(text).get_all("Requires-Dist", [])
    return lines


def _from_setup(tree: Path) -> list[str]:
    """The texts in lists called install_requires: PyTorch's own has most of its there."""
    try:
        module = ast.parse((tree / "setup.py").read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        item.value
        for value in _values_of(module, "install_requires")
        if isinstance(value, ast.List | ast.Tuple)
        for item in value.elts
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]


def _values_of(module: ast.Module, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield value
            case ast.keyword(arg=found, value=value) if found == name:
                yield value
            case _:
                pass
