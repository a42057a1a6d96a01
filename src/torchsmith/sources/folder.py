"""A folder of this machine, copied."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from torchsmith.errors import SourceError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.models import FetchedSource, Progress, quiet
from torchsmith.sources.tree import check_links, tree_hash, walk

# How a folder that CMake configured in shows itself.
_BUILT = "CMakeCache.txt"


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


def fetch_folder(choice: SourceChoice, destination: Path, *, progress: Progress) -> FetchedSource:
    """Copy the recipe's folder; git's own folders and a CMake build folder stay behind."""
    source = Path(choice.path)
    if not source.is_dir():
        raise SourceError(f"{source} is not a folder", "Check source.path in the recipe.")
    source = source.resolve()
    if destination.resolve().is_relative_to(source):
        raise SourceError(
            f"{source} would be copied into itself",
            "Put torchsmith's work folder outside the source tree.",
        )
    check_links(source, str(source))
    skip: set[Path] = set()
    notes: list[str] = []
    if (source / "build" / _BUILT).is_file():
        skip.add(source / "build")
        notes.append("its build folder was left out: objects of another build are no source")
    if (source / ".git").exists():
        notes.append("git's own folders were left out; the tree's hash stands for its content")
    copy_tree(source, destination, skip=frozenset(skip), progress=progress)
    return FetchedSource("folder", str(source), {"tree": tree_hash(destination)}, tuple(notes))
