"""Source trees on disk: listing, hashing, dating and copying them, and links that lead out."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path

from torchsmith.errors import SourceError
from torchsmith.sources.git_program import git

# What is being done, bytes so far, bytes in all; None where not known.
Progress = Callable[[str, int | None, int | None], None]


def quiet(what: str, done: int | None, total: int | None) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class FetchedSource:
    """A source tree that was fetched whole.

    `location` is where it really came from, `evidence` what proves which source it is
    (commit, file hashes, signing key, tree hash), `notes` what a person should know.
    """

    kind: str
    location: str
    evidence: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def file_hash(path: Path) -> str:
    """A file's sha256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def path_hash(path: Path) -> str:
    """The sha256 of a file, or the hash of a folder's tree."""
    return tree_hash(path) if path.is_dir() else file_hash(path)


def walk(tree: Path, leave_out: frozenset[str] = frozenset({".git"})) -> Iterator[Path]:
    """Everything in a tree, links not followed, in the order of the names' bytes.

    Entries with a name in `leave_out` are passed over, with all below them.
    """
    with os.scandir(tree) as entries:
        ordered = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    for entry in ordered:
        if entry.name in leave_out:
            continue
        path = Path(entry.path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from walk(path, leave_out)


def tree_hash(tree: Path) -> str:
    """One hash over names, contents, links and the executable bit; not dates or owners.

    git's own folders are left out: two clones of a commit differ there and nowhere else.
    """
    whole = hashlib.sha256()
    for path in walk(tree):
        mode = path.lstat().st_mode
        name = os.fsencode(path.relative_to(tree).as_posix())
        if stat.S_ISLNK(mode):
            kind, content = b"l", hashlib.sha256(os.fsencode(path.readlink())).digest()
        elif stat.S_ISDIR(mode):
            kind, content = b"d", b""
        elif stat.S_ISREG(mode):
            kind = b"x" if mode & stat.S_IXUSR else b"f"
            content = bytes.fromhex(file_hash(path))
        else:
            raise SourceError(f"{path} is neither a file, a folder nor a link")
        # A name's length before it: no two trees can be written as the same bytes.
        whole.update(kind + len(name).to_bytes(8, "big") + name + content)
    return whole.hexdigest()


def check_links(tree: Path, what: str) -> None:
    """Refuse a link that leads out of the tree, by itself or through other links."""
    root = os.path.realpath(tree)
    for path in walk(tree):
        if not path.is_symlink():
            continue
        target = str(path.readlink())
        end = os.path.realpath(path)
        inside = end == root or end.startswith(root + os.sep)
        if target.startswith("/") or not inside:
            raise SourceError(
                f"{what}: the link {path.relative_to(tree).as_posix()!r} leads out of the tree,"
                f" to {target!r}",
                "A source tree must stand alone: replace the link by what it points to.",
            )


def copy_tree(
    source: Path,
    destination: Path,
    *,
    leave_out: frozenset[str] = frozenset({".git"}),
    skip: frozenset[Path] = frozenset(),
    progress: Progress = quiet,
) -> None:
    """Copy a tree: names in `leave_out` anywhere, and the paths in `skip`, stay behind.

    Never by hard link: a build that writes into its copy would write into the original.
    """
    label, done = f"copying {source}", 0
    for path in walk(source, leave_out):
        if any(path == left or left in path.parents for left in skip):
            continue
        where = destination / path.relative_to(source)
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            where.symlink_to(path.readlink())
        elif stat.S_ISDIR(mode):
            where.mkdir()
        elif stat.S_ISREG(mode):
            shutil.copyfile(path, where, follow_symlinks=False)
            where.chmod(0o755 if mode & stat.S_IXUSR else 0o644)
            times = path.stat()
            os.utime(where, ns=(times.st_atime_ns, times.st_mtime_ns))
            done += times.st_size
            progress(label, done, None)
        else:
            raise SourceError(
                f"{path} is neither a file, a folder nor a link",
                "Sockets, pipes and devices are no source: remove it.",
            )


# The first day a zip file, and so a wheel, can name.
EARLIEST = 315_532_800
# deb-changelog(5): " -- maintainer <address>  date", the newest entry first.
_TRAILER = re.compile(r"^ -- .+?>  (.+)$", re.MULTILINE)


def epoch() -> int:
    """What SOURCE_DATE_EPOCH says, in seconds since 1970; 0 where it says nothing.

    https://reproducible-builds.org/specs/source-date-epoch/
    """
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    return int(text) if text.isdecimal() else 0


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
