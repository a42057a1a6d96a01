"""What a package will hold: every file with its hash, and the prefix some of them know.

A package is built before anybody knows where it will be installed. Files that hold the prefix
they were built for are listed with it, and whoever installs them puts the real one in its place:
https://docs.conda.io/projects/conda-build/en/stable/resources/make-relocatable.html
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal

from torchsmith.errors import UsageError

# In a binary the real prefix is written over it, padded: it has to be as long as any may be.
LONGEST_PREFIX = 255
# Nobody could install a binary with less: home folders alone are longer.
SHORTEST_IN_BINARY = 80
PLACEHOLDER = ("/opt/torchsmith_" + "placehold_" * 30)[:LONGEST_PREFIX]
# Conda keeps its own records there.
_RESERVED = ("info", "conda-meta")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or link of a package; `content` where it is not what `source` holds."""

    path: str
    size: int
    sha256: str
    executable: bool = False
    source: Path | None = None
    content: bytes | None = None
    target: str = ""
    placeholder: str = ""
    mode: Literal["", "text", "binary"] = ""


def read_tree(
    root: Path, *, prefix: str = "", ignore: Sequence[str] = (), threads: int = 2
) -> tuple[Entry, ...]:
    """Every file below a folder, in order.

    `prefix` is the one its files were built for; in files whose path matches `ignore` it stays.
    """
    if prefix:
        check_prefix(prefix)
    paths = sorted(_walk(root))

    def one(path: str) -> Entry:
        file = root / path
        if file.is_symlink():
            return _link(root, path, prefix)
        known = () if any(fnmatchcase(path, pattern) for pattern in ignore) else (prefix,)
        return _file(file, path, known)

    with ThreadPoolExecutor(max(1, threads)) as pool:
        return tuple(pool.map(one, paths))


def entry_of(path: str, content: bytes, *, executable: bool = False) -> Entry:
    """A file made here; the placeholder in it is found."""
    return Entry(
        path,
        len(content),
        hashlib.sha256(content).hexdigest(),
        executable,
        content=content,
        placeholder=PLACEHOLDER if PLACEHOLDER.encode() in content else "",
        mode="text" if PLACEHOLDER.encode() in content else "",
    )


def check_prefix(prefix: str) -> None:
    """Refuse what cannot be a prefix: it would be replaced everywhere."""
    if not prefix.startswith("/") or len(prefix.rstrip("/")) < 2 or prefix.endswith("/"):
        raise UsageError(
            f"{prefix!r} is not a prefix that could be replaced",
            "Give the absolute path of the environment the files were built in.",
        )


def _walk(root: Path) -> Iterator[str]:
    def failed(error: OSError) -> None:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}", "Check its rights.")

    if not root.is_dir():
        raise UsageError(f"{root} is not a folder", "Give the folder of a prefix.")
    for base, folders, names in os.walk(root, onerror=failed):
        # A link to a folder is a link.
        links = [name for name in folders if Path(base, name).is_symlink()]
        for name in (*names, *links):
            path = Path(base, name).relative_to(root).as_posix()
            _check_name(path)
            yield path


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the name of {os.fsencode(path)!r} is not UTF-8",
            "Rename that file: conda's lists of files are text.",
        ) from None
    if "\n" in path:
        raise UsageError(f"the name {path!r} has a line break", "Rename that file.")
    if path.split("/")[0] in _RESERVED:
        raise UsageError(
            f"{path} is where conda keeps its own records",
            f"Leave {' and '.join(_RESERVED)} out of the folder.",
        )


def _link(root: Path, path: str, prefix: str) -> Entry:
    target = os.readlink(root / path)  # noqa: PTH115 - a path would lose "./"
    if target.startswith("/"):
        for base in (prefix, str(root), str(root.resolve())):
            if base and PurePosixPath(target).is_relative_to(base):
                inside = PurePosixPath(target).relative_to(base)
                target = os.path.relpath(inside, PurePosixPath(path).parent)
                break
    landing = os.path.normpath(PurePosixPath(path).parent / target)
    if target.startswith("/") or landing.split("/")[0] == "..":
        raise UsageError(
            f"{path} is a link to {target}, which is not in the package",
            "Make it a relative link to a file beside it, or a copy of the file.",
        )
    _check_name(landing)
    there = root / landing
    digest = hashlib.sha256(there.read_bytes() if there.is_file() else b"").hexdigest()
    return Entry(path, len(target.encode()), digest, target=target)


def _file(file: Path, path: str, prefixes: Sequence[str]) -> Entry:
    try:
        info = file.stat()
        if not stat.S_ISREG(info.st_mode):
            raise UsageError(f"{path} is neither a file nor a link", "Leave it out.")
        executable = bool(info.st_mode & stat.S_IXUSR)
        if not info.st_size:
            return Entry(path, 0, hashlib.sha256().hexdigest(), executable, source=file)
        with (
            file.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            found = [
                prefix
                for prefix in dict.fromkeys((PLACEHOLDER, *prefixes))
                if prefix and content.find(prefix.encode()) >= 0
            ]
            binary = bool(found) and content.find(b"\0") >= 0
            if found and not binary:
                return _text(file, path, content[:], found, executable)
            digest = hashlib.sha256(content).hexdigest()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", "Check its rights.") from error
    entry = Entry(path, info.st_size, digest, executable, source=file)
    return _with_prefix(entry, found) if found else entry


def _text(
    file: Path, path: str, content: bytes, prefixes: Sequence[str], executable: bool
) -> Entry:
    """A text with one long prefix in place of the one it was built for, which differs each time."""
    for prefix in prefixes:
        # /opt/env is not part of /opt/env2.
        whole = re.compile(re.escape(prefix.encode()) + rb"(?![\w.-])")
        content = whole.sub(PLACEHOLDER.encode(), content)
    made = entry_of(path, content, executable=executable)
    return (
        made if made.placeholder else Entry(path, made.size, made.sha256, executable, source=file)
    )


def _with_prefix(entry: Entry, prefixes: Sequence[str]) -> Entry:
    if len(prefixes) > 1:
        raise UsageError(
            f"{entry.path} holds two prefixes, and only one can be replaced",
            "Build it for one prefix.",
        )
    (prefix,) = prefixes
    length = len(prefix.encode())
    if length > LONGEST_PREFIX or length < SHORTEST_IN_BINARY:
        long = length > LONGEST_PREFIX
        raise UsageError(
            f"{entry.path} holds the prefix {_shown(prefix)}, which has {length} characters: "
            + (
                f"conda replaces up to {LONGEST_PREFIX}"
                if long
                else "none that is longer could be written over it"
            ),
            f"Build it in a prefix of {SHORTEST_IN_BINARY} to {LONGEST_PREFIX} characters.",
        )
    return Entry(
        entry.path,
        entry.size,
        entry.sha256,
        entry.executable,
        entry.source,
        placeholder=prefix,
        mode="binary",
    )


def _shown(prefix: str) -> str:
    return prefix if len(prefix) <= 60 else f"{prefix[:28]}...{prefix[-28:]}"
