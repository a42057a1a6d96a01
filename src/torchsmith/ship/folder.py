"""A folder that is published: marked as ours, changed by one at a time, and changed whole.

.torchsmith-index   (or -channel) says what the folder is
.lock               held while it is changed
.incoming/          what is being made ready; a crash leaves it, and the next change clears it

Readers never wait: new files are put in place under names nobody knows yet, then the pages that
name them are replaced, each by one rename.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from torchsmith.engine.disk import check_room, room, sync_file, write_whole
from torchsmith.engine.locks import Lock
from torchsmith.engine.trees import copy_file, remove
from torchsmith.errors import OutputError, TorchsmithError, UsageError
from torchsmith.inputs import check_file
from torchsmith.plan.attest import attestations

CHUNK = 1 << 20


def escapes(name: str) -> bool:
    """Whether a name leads out of the folder an archive is unpacked in."""
    # On Windows a backslash divides, too.
    return name.startswith("/") or ".." in re.split(r"[/\\]", name)


FolderKind = Literal["index", "channel"]
Say = Callable[[str], None]
Action = Literal["added", "same", "replaced", "yanked", "marked", "restored", "removed"]

_FORMAT = "1\n"
_LOCK = ".lock"
_INCOMING = ".incoming"
_ARTICLES = {"index": "a pip index", "channel": "a conda channel"}


class Change(Struct, frozen=True):
    """What became of one file; `path` is where it lies in the folder."""

    action: Action
    path: str
    sha256: str = ""


def file_hash(path: Path) -> str:
    """The sha256 of a file somebody named; a sentence where it cannot be read."""
    check_file(path, "Name a file that was built.")
    try:
        return copy_file(str(path), None).sha256
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def refuse_other_bytes(name: str, root: Path) -> OutputError:
    """A published name never changes its bytes: caches and lock files rest on that."""
    return OutputError(
        f"{name} is in {root} already, with other bytes",
        "Give the new build another version or build number. To take the old one away for good: "
        "`torchsmith remove`.",
    )


class Changes:
    """Changes to a folder, made ready aside and put in place by renames alone."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = root / _INCOMING
        self._files: list[tuple[Path, str]] = []
        self._pages: list[tuple[Path, str]] = []
        self._gone: list[str] = []
        self._count = 0

    def make_room(self, needed: int) -> None:
        """Refuse before the first byte what cannot fit."""
        check_room(self._root, needed)

    def bring(self, source: Path, target: str, sha256: str) -> None:
        """Copy a file in, and the documents on it; refuse one that changed since it was hashed."""
        if self._copy(source, target) != sha256:
            raise OutputError(
                f"{source} changed while it was read", "Publish it once nobody writes to it."
            )
        for document, place in zip(attestations(str(source)), attestations(target), strict=True):
            if Path(document).is_file():
                self._copy(Path(document), place)

    def _copy(self, source: Path, target: str) -> str:
        staged = self._staged()
        copied = copy_file(str(source), str(staged))
        sync_file(staged)
        self._files.append((staged, target))
        return copied.sha256

    def write(self, target: str, content: bytes) -> None:
        """Replace a page, if what is there differs."""
        with contextlib.suppress(FileNotFoundError):
            if (self._root / target).read_bytes() == content:
                return
        staged = self._staged()
        write_whole(staged, content)
        self._pages.append((staged, target))

    def drop(self, target: str) -> None:
        """Remove a file, and the documents on it, once no page names it."""
        self._gone += [target, *attestations(target)]

    def _staged(self) -> Path:
        self._incoming.mkdir(exist_ok=True)
        self._count += 1
        return self._incoming / str(self._count)

    def commit(self) -> None:
        """Put everything in place: files, then the pages that name them, then what goes."""
        made: list[Path] = []
        done: list[Path] = []
        try:
            for _, target in (*self._files, *self._pages):
                made += _make_folders((self._root / target).parent)
            for staged, target in self._files:
                staged.replace(self._root / target)
                done.append(self._root / target)
            _sync_folders(done)
        except BaseException:
            for path in done:
                path.unlink(missing_ok=True)
            for folder in reversed(made):
                folder.rmdir()
            raise
        for staged, target in self._pages:
            staged.replace(self._root / target)
        _sync_folders([self._root / target for _, target in self._pages])
        for target in self._gone:
            (self._root / target).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                (self._root / target).parent.rmdir()


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; return those that were not there, outermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing[::-1]


def _sync_folders(paths: list[Path]) -> None:
    for folder in dict.fromkeys(path.parent for path in paths):
        sync_file(folder)


def is_published(root: Path, kind: FolderKind) -> bool:
    """Whether a folder is an index or a channel of ours."""
    return (root / f".torchsmith-{kind}").is_file()


def check_folder(root: Path, kind: FolderKind, *, exists: bool = False) -> None:
    """Refuse a folder that holds other things; with `exists`, also one that is not there yet."""
    if is_published(root, kind):
        return
    what = _ARTICLES[kind]
    if re.match(r"[a-z][a-z0-9+.-]*:/", str(root)):
        raise UsageError(
            f"{root} is an address; {what} is made in a folder",
            "Name a folder; `torchsmith publish --to` uploads.",
        )
    if root.exists() and not root.is_dir():
        raise OutputError(f"{root} is not a folder", f"Name the folder of {what}.")
    if exists:
        raise UsageError(
            f"{root} is not {what} of torchsmith", "`torchsmith publish` makes one from files."
        )
    names = {path.name for path in root.iterdir()} if root.is_dir() else set()
    # Asked again: another publisher may have made it ours between the first answer and the list.
    if names - {_LOCK, _INCOMING} and not is_published(root, kind):
        raise OutputError(
            f"{root} is neither empty nor {what} of torchsmith",
            "Name an empty or a new folder: what is there is left alone.",
        )


@contextlib.contextmanager
def changing(
    root: Path,
    kind: FolderKind,
    *,
    say: Say = lambda _: None,
) -> Iterator[Changes]:
    """Hold a folder and collect changes to it; they are made when the block ends well.

    If anything fails before the renames, the folder is as it was; one that was not there is
    not there afterwards.
    """
    try:
        with room(root):
            made = _make_folders(root)
            lock = Lock(root / _LOCK)
            lock.acquire(lambda holder: say(f"waiting for another torchsmith, {holder}"))
            marker = root / f".torchsmith-{kind}"
            try:
                check_folder(root, kind)
                remove(root / _INCOMING)
                if not is_published(root, kind):
                    write_whole(root / _INCOMING / marker.name, _FORMAT.encode())
                    (root / _INCOMING / marker.name).replace(marker)
                changes = Changes(root)
                yield changes
                changes.commit()
            finally:
                with contextlib.suppress(OSError):
                    remove(root / _INCOMING)
                    if {path.name for path in root.iterdir()} <= {marker.name, _LOCK}:
                        marker.unlink(missing_ok=True)
                lock.release()
                # Only those that stayed empty.
                for folder in reversed(made):
                    with contextlib.suppress(OSError):
                        folder.rmdir()
    except TorchsmithError:
        raise
    except OSError as error:
        raise OutputError(
            f"{root} cannot be written: {os.strerror(error.errno or 0)}",
            "It is as it was. Name a folder you may write to.",
        ) from None
