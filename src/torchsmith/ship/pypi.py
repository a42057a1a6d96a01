"""Uploading wheels to PyPI or a server like it, with twine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urljoin

import msgspec
from packaging.utils import canonicalize_name

from torchsmith.errors import OutputError
from torchsmith.ship.client import read_page, run_client, secret
from torchsmith.ship.folder import Change, Say, file_hash
from torchsmith.ship.index import check_wheel
from torchsmith.ship.index_pages import JSON_TYPE, read_hashes

# Where what was uploaded there is read; elsewhere both are one server.
_READ_AT = {"https://upload.pypi.org/": "https://pypi.org/"}
_HREF = re.compile(r"""href=["']([^"'#]+)#sha256=([0-9a-f]{64})["']""")


def upload_wheels(
    files: Sequence[Path], repository: str, say: Say, *, dry_run: bool = False
) -> list[Change]:
    """Upload wheels; one that is there with the same bytes is fine, with other bytes refused."""
    made: list[Change] = []
    new: list[Path] = []
    for path in files:
        check_wheel(path)
        digest = file_hash(path)
        known = _published(repository, path.name)
        if known not in (None, digest):
            raise OutputError(
                f"{path.name} is at {repository} already, with other bytes",
                "Give the new build another version or build number.",
            )
        made.append(Change("added" if known is None else "same", path.name, digest))
        if known is None:
            new.append(path)
    if new and not dry_run:
        user = os.environ.get("TWINE_USERNAME", "__token__")
        password = secret("TWINE_PASSWORD", repository, user)
        say(f"uploading {', '.join(path.name for path in new)} to {repository}")
        run_client(
            [
                *("twine", "upload", "--non-interactive", "--disable-progress-bar"),
                *("--username", user, "--repository-url", repository, *map(str, new)),
            ],
            "pip install twine",
            {"TWINE_PASSWORD": password},
        )
    return made


def _published(repository: str, name: str) -> str | None:
    """The hash a repository's own index gives for a file, None where it does not say."""
    for start, read_at in _READ_AT.items():
        repository = repository.replace(start, read_at)
    base = re.sub(r"(?:legacy/?)?$", "", repository.rstrip("/") + "/")
    project = canonicalize_name(name.partition("-")[0])
    page = read_page(urljoin(base, f"simple/{project}/"), f"{JSON_TYPE}, text/html;q=0.5")
    if page is None:
        return None
    try:
        return read_hashes(page).get(name) or None
    except msgspec.DecodeError:
        links = _HREF.findall(unescape(page.decode(errors="replace")))
        return {unquote(href).rpartition("/")[2]: digest for href, digest in links}.get(name)
