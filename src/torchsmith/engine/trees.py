"""Files and trees of files: listing, copying with a hash, recognising, removing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torchsmith.owners import open_plain

_CHUNK = 1 << 20
# linux/fs.h: share the blocks of another file until either is written to.
_FICLONE = 0x40049409
_NO_CLONE = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM}
)


@dataclass(frozen=True, slots=True)
class Item:
    """One file, folder or link; `path` is relative, `mtime` in nanoseconds."""

    path: str
    kind: str  # file, folder or link
    mode: int = 0
    size: int = 0
    mtime: int = 0
    target: str = ""
    sha256: str = ""


def _item(top: str, path: str, status: os.stat_result) -> Item | None:
    full = os.path.join(top, path)  # noqa: PTH118 - a Path for each of 100,000 files is slow
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return Item(path, "link", target=os.readlink(full))  # noqa: PTH115
    if stat.S_ISDIR(status.st_mode):
        return Item(path, "folder", mode)
    if stat.S_ISREG(status.st_mode):
        return Item(path, "file", mode, status.st_size, status.st_mtime_ns)
    # Sockets and pipes belong to a process, not to a result.
    return None


def walk(top: Path, root: str, skip: Callable[[str], bool] = lambda _: False) -> Iterator[Item]:
    """Everything at and below `root` of `top`, a folder before what is in it, in a fixed order."""
    base = str(top)
    first = _item(base, root, (top / root).lstat())
    if first is None:
        return
    yield first
    if first.kind != "folder":
        return
    pending = [root]
    while pending:
        folder = pending.pop()
        with os.scandir(f"{base}/{folder}") as scan:
            found = sorted(scan, key=lambda entry: entry.name)
        for entry in found:
            if skip(entry.name):
                continue
            path = f"{folder}/{entry.name}"
            item = _item(base, path, entry.stat(follow_symlinks=False))
            if item is not None:
                yield item
                if item.kind == "folder":
                    pending.append(path)


def signature(top: Path, roots: Sequence[str]) -> str:
    """A hash of sizes and times: it changes when anything but Python's caches changes."""
    mark = hashlib.sha256()
    for root in roots:
        for item in walk(top, root, skip=lambda name: name == "__pycache__"):
            line = (
                f"{item.path}\0{item.kind}{item.mode}\0{item.size}\0{item.mtime}\0{item.target}\n"
            )
            mark.update(line.encode(errors="surrogateescape"))
    return mark.hexdigest()


@dataclass(frozen=True, slots=True)
class Copied:
    """The hash and size of a copied file, and whether it held the needle."""

    sha256: str
    size: int
    found: bool


def copy_file(
    source: str, target: str | None, needle: bytes = b"", *, plain: bool = False
) -> Copied:
    """Copy a file or only read it; hash it, and search it for `needle`.

    With `plain`, open only a regular file, and not through a link. If the filesystem can share
    blocks, no data is copied.
    """
    mark = hashlib.sha256()
    size = 0
    found = False
    tail = b""
    with contextlib.ExitStack() as stack:
        opened = open_plain(source) if plain else source
        reader = stack.enter_context(open(opened, "rb", buffering=0))  # noqa: PTH123
        writer = None
        if target is not None:
            # Exclusive: an existing file is a mistake, and a link may be a trap.
            writer = stack.enter_context(open(target, "xb", buffering=0))  # noqa: PTH123
            if _clone(reader.fileno(), writer.fileno()):
                writer = None
        # Python allocates as much as it is asked to read, even for a file of ten bytes.
        at_once = min(os.fstat(reader.fileno()).st_size + 1, _CHUNK)
        while chunk := reader.read(at_once):
            mark.update(chunk)
            size += len(chunk)
            if needle and not found:
                found = needle in tail + chunk
                tail = chunk[-len(needle) :]
            rest = memoryview(chunk)
            while writer is not None and rest:
                rest = rest[writer.write(rest) :]
    return Copied(mark.hexdigest(), size, found)


def _clone(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in _NO_CLONE:
            return False
        raise
    return True


def transfer(items: Sequence[Item], target: Path, move: Callable[[Item], Item]) -> list[Item]:
    """Make `items` again below `target`; `move` brings the files, several at once."""
    folders = [item for item in items if item.kind == "folder"]
    made = {item.path for item in folders}
    for item in items:
        if item.path.rpartition("/")[0] not in made:
            (target / item.path).parent.mkdir(parents=True, exist_ok=True)
        if item.kind == "folder":
            # Its own mode comes last: a read-only folder could not be filled.
            (target / item.path).mkdir(exist_ok=True)
        elif item.kind == "link":
            (target / item.path).symlink_to(item.target)
    files = [item for item in items if item.kind == "file"]
    batches = _batches(files)

    def move_all(batch: list[Item]) -> list[Item]:
        return [move(item) for item in batch]

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        by_path = {item.path: item for batch in pool.map(move_all, batches) for item in batch}
    for item in reversed(folders):
        (target / item.path).chmod(item.mode)
    return [by_path.get(item.path, item) for item in items]


def _batches(files: Sequence[Item]) -> list[list[Item]]:
    """Batches for threads: passing small files one by one costs more than copying them."""
    batches: list[list[Item]] = [[]]
    size = 0
    for item in files:
        if size > 8 * _CHUNK or len(batches[-1]) >= 256:
            batches.append([])
            size = 0
        batches[-1].append(item)
        size += item.size
    return batches


def remove(path: Path) -> None:
    """Remove a file or a tree, even read-only folders; it need not exist."""

    def unlock(function: Callable[[str], object], name: str, _: object) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(os.path.dirname(name), 0o700)  # noqa: PTH101, PTH120
            if os.path.isdir(name) and not os.path.islink(name):  # noqa: PTH112, PTH114
                os.chmod(name, 0o700)  # noqa: PTH101
                shutil.rmtree(name, ignore_errors=True)
            else:
                function(name)

    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, onerror=unlock)
        else:
            path.unlink()
