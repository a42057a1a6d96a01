"""When a source was made, as far as it says: builds stamp their results with it."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from pathlib import Path

from torchsmith.sources.git_program import git
from torchsmith.sources.tree import walk

# The first day a zip file, and so a wheel, can name.
EARLIEST = 315_532_800
# deb-changelog(5): " -- maintainer <address>  date", the newest entry first.
_TRAILER = re.compile(r"^ -- .+?>  (.+)$", re.MULTILINE)


def source_date(tree: Path) -> int:
    """Seconds since 1970: of its commit, of its Debian package, or of its newest file."""
    found = _of_commit(tree) or _of_package(tree) or _of_files(tree)
    return max(found, EARLIEST)


def _of_commit(tree: Path) -> int:
    if not (tree / ".git").exists():
        return 0
    answer = git("log", "-1", "--format=%ct", folder=tree)
    return int(answer.out) if answer.code == 0 and answer.out.strip().isdigit() else 0


def _of_package(tree: Path) -> int:
    try:
        text = (tree / "debian/changelog").read_text(encoding="utf-8", errors="replace")
        trailer = _TRAILER.search(text)
        return int(parsedate_to_datetime(trailer[1]).timestamp()) if trailer else 0
    except (OSError, ValueError):
        return 0


def _of_files(tree: Path) -> int:
    times = (path.lstat().st_mtime for path in walk(tree) if path.is_file())
    return int(max(times, default=0))
