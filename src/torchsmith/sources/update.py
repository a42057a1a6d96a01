"""Updating a build tree to what its source is now, so that little is built again.

    python -m torchsmith.sources.update SOURCE TREE MARK
    python -m torchsmith.sources.update --configured TREE MARK

A plan that is run calls the first in place of copying a source, and the second when what it copied
is configured. MARK stands for everything but the source that a build in the tree depends on. Files
that changed are replaced and get the date of today, those that are as they were keep theirs: ninja
goes by it. Where that would not be sure to give what a new copy gives, the tree is copied anew.

    TREE/.torchsmith-tree/configured   the mark of the last configuration that ended well
    TREE/.torchsmith-tree/files.json   what came from the source, each file with its hash
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchsmith.errors import TorchsmithError
from torchsmith.sources.tree import copy_tree, file_hash, walk

_OWN = ".torchsmith-tree"
_CONFIGURED, _FILES, _INCOMING = "configured", "files.json", "incoming"
# Python looks after its own, and writes into it whenever something is imported.
_PASSED_OVER = frozenset({".git", "__pycache__", _OWN})
_CMAKE = ("CMakeLists.txt", ".cmake", ".cmake.in")

# What is known of each path that came from a source: a letter for its kind (f, x for a program,
# d, l), then a file's hash or a link's target. A file with no hash is one that was being replaced.
Marks = Mapping[str, str]


def _mark(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"l{path.readlink()}"
    if stat.S_ISDIR(mode):
        return "d"
    return ("x" if mode & stat.S_IXUSR else "f") + file_hash(path)


def _marks(tree: Path) -> Marks:
    return {path.relative_to(tree).as_posix(): _mark(path) for path in walk(tree, _PASSED_OVER)}


@dataclass(frozen=True, slots=True)
class _Change:
    """The paths to copy, and those to remove."""

    new: tuple[str, ...]
    other: tuple[str, ...]
    gone: tuple[str, ...]

    @classmethod
    def between(cls, before: Marks, now: Marks) -> _Change:
        return cls(
            tuple(path for path in now if path not in before),
            tuple(path for path, mark in now.items() if before.get(path, mark) != mark),
            tuple(path for path in before if path not in now),
        )

    def __iter__(self) -> Iterator[str]:
        return iter((*self.new, *self.other, *self.gone))


def bring(source: Path, tree: Path, mark: str, *, fresh: bool = False) -> str:
    """Have a tree to build in that is as its source; what was done, in words.

    A tree that was configured with this mark is brought up to date, unless it is to be `fresh`.
    """
    now = _marks(source)
    known = None if fresh else _known(tree, mark)
    change = _Change.between(known or {}, now)
    if known is None or not _may_stay(tree, known, now, change):
        _copy(source, tree, now)
        return f"{tree}: a new copy of {source}"
    # setuptools takes what it gathered for an earlier wheel for what belongs into this one.
    for pattern in ("lib.*", "bdist.*"):
        for staged in (tree / "build").glob(pattern):
            shutil.rmtree(staged)
    if any(change):
        _have_cmake_look(tree, change)
        if change.gone:
            _uninstall(tree, known)
        # Until all is done nothing is known of these: if this is cut short they are copied again.
        unsure = {path: {**known, **now}[path][0] for path in change}
        _write(tree, _FILES, json.dumps({**known, **unsure}))
        _apply(source, tree, now, change)
        _write(tree, _FILES, json.dumps(now))
    return (
        f"{tree}: built on, {len(change.other)} files of the source changed, "
        f"{len(change.new)} are new, {len(change.gone)} are gone"
    )


def configured(tree: Path, mark: str) -> None:
    """Note that a tree is configured: from now on it may be brought up to date."""
    if _read(tree / _OWN / _CONFIGURED) != mark:
        # The tree must be on the disk before anything says that it is whole.
        os.sync()
        _write(tree, _CONFIGURED, mark)


def _known(tree: Path, mark: str) -> Marks | None:
    if _read(tree / _OWN / _CONFIGURED) != mark:
        return None
    try:
        known: Marks = json.loads(_read(tree / _OWN / _FILES))
    except ValueError:
        return None
    return known


def _may_stay(tree: Path, known: Marks, now: Marks, change: _Change) -> bool:
    """Whether copying what changed gives what a new copy would."""
    for path in change:
        before, after = known.get(path, ""), now.get(path, "")
        # Nobody knows what is read through a link, and a folder in a file's place is rare enough.
        if "l" in (before[:1], after[:1]) or (before and after and "d" in (before, after)):
            return False
        here = _here(tree / path)
        if not before and here and (here, after) != ("d", "d"):
            # The build made it before the source had it.
            return False
        if after and len(before) > 1 and here != before:
            # The build wrote over it.
            return False
    return True


def _here(path: Path) -> str:
    """The mark of what is in a place; empty if nothing is."""
    try:
        return _mark(path)
    except OSError:
        return ""


def _copy(source: Path, tree: Path, now: Marks) -> None:
    part = tree.with_name(tree.name + ".part")
    for old in (tree, part):
        if old.exists():
            shutil.rmtree(old)
    part.mkdir(parents=True)
    copy_tree(source, part, leave_out=frozenset({_OWN}))
    _write(part, _FILES, json.dumps(now))
    part.rename(tree)


def _have_cmake_look(tree: Path, change: _Change) -> None:
    """Have CMake configure again where it would not see by itself that it must."""
    build = tree / "build"
    if any(path.endswith(_CMAKE) for path in change):
        # Answers to questions that may now be others, options with defaults that may be.
        (build / "CMakeCache.txt").unlink(missing_ok=True)
        (build / "build.ninja").unlink(missing_ok=True)
    elif change.new or change.gone:
        # It lists folders when it configures, and not again.
        (build / "build.ninja").unlink(missing_ok=True)


def _uninstall(tree: Path, known: Marks) -> None:
    """Take back what a build installed into the tree: a header that is gone would be among it."""
    top = f"{tree.resolve()}/"
    for line in _read(tree / "build/install_manifest.txt").splitlines():
        path = os.path.normpath(line)
        if path.startswith(top) and path.removeprefix(top) not in known:
            Path(path).unlink(missing_ok=True)


def _apply(source: Path, tree: Path, now: Marks, change: _Change) -> None:
    # What is in a folder goes before it; one that the build put something into stays.
    for path in sorted(change.gone, reverse=True):
        here = tree / path
        if not here.is_dir():
            here.unlink(missing_ok=True)
        elif not any(here.iterdir()):
            here.rmdir()
    for path in sorted((*change.new, *change.other)):
        here = tree / path
        if now[path] == "d":
            here.mkdir(parents=True, exist_ok=True)
            continue
        here.parent.mkdir(parents=True, exist_ok=True)
        incoming = tree / _OWN / _INCOMING
        shutil.copyfile(source / path, incoming)
        incoming.chmod(0o755 if now[path][0] == "x" else 0o644)
        _replace(incoming, here)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _write(tree: Path, name: str, text: str) -> None:
    folder = tree / _OWN
    folder.mkdir(exist_ok=True)
    incoming = folder / _INCOMING
    incoming.write_text(text, encoding="utf-8")
    _replace(incoming, folder / name)


def _replace(incoming: Path, path: Path) -> None:
    """Put a file in the place of another, whole or not at all."""
    with incoming.open("rb") as file:
        os.fsync(file.fileno())
    incoming.replace(path)


def main(argv: Sequence[str]) -> int:
    """Do what the words ask for, and say what came of it."""
    try:
        if argv[0] == "--configured":
            configured(Path(argv[1]), argv[2])
        else:
            fresh = bool(os.environ.get("TORCHSMITH_FRESH"))
            print(bring(Path(argv[0]), Path(argv[1]), argv[2], fresh=fresh))
    except TorchsmithError as error:
        print(f"error: {error.message}", error.hint, sep="\n  ", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {argv[1]} could not be updated: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
