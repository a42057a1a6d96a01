"""The documentation builds into a site without a warning, and the site fetches nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))


def _in_nav(entry: Any) -> set[str]:
    """The pages of a part of the navigation, which is a page, a list or a table of parts."""
    if isinstance(entry, str):
        return {entry}
    parts = entry.values() if isinstance(entry, dict) else entry
    return {page for part in parts for page in _in_nav(part)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a broken link or an unclear reference is an error."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "zensical.toml", folder)
    shutil.copytree(DOCS, folder / "docs")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / str(SETTINGS["project"]["site_dir"])


def test_every_page_is_in_the_navigation_once_built(site: Path) -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert _in_nav(SETTINGS["project"]["nav"]) == pages
    assert all((site / page).with_suffix(".html").is_file() for page in pages)


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    fetched = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
        r"""|<link\b[^>]*rel=["']?(?:stylesheet|preconnect|preload|icon)[^>]*(?:https?:)?//"""
        r"""|(?:@import|url\()\s*["']?(?:https?:)?//"""
    )
    for path in (*site.rglob("*.html"), *site.rglob("*.css")):
        assert not fetched.search(path.read_text(encoding="utf-8")), path.name


def test_every_link_and_picture_of_the_site_leads_somewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        if path.name == "404.html":
            continue
        for link in re.findall(r"""(?:href|src)=["']?([^"'\s>]+)""", path.read_text("utf-8")):
            if re.match(r"[a-z]+:|#|//", link):
                continue
            place = (path.parent / link.partition("#")[0].partition("?")[0]).resolve()
            assert place.exists(), f"{path.name}: {link}"
            assert place.is_relative_to(site), f"{path.name}: {link}"


def test_every_page_can_be_searched(site: Path) -> None:
    found = json.dumps(json.loads((site / "search.json").read_text(encoding="utf-8")))
    for page in _in_nav(SETTINGS["project"]["nav"]):
        assert Path(page).with_suffix(".html").as_posix() in found, page
