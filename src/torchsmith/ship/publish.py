"""Publishing files: each goes where its kind belongs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from torchsmith.errors import UsageError
from torchsmith.inputs import check_file
from torchsmith.ship.channel import publish_packages, remove_package, yank_packages
from torchsmith.ship.conda_package import ENDINGS
from torchsmith.ship.folder import Change, FolderKind, Say, check_folder
from torchsmith.ship.index import mark_project, publish_wheels, remove_wheel, yank_wheels
from torchsmith.ship.index_pages import ProjectStatus
from torchsmith.ship.libtorch import is_libtorch, publish_archives, remove_archive


class _Publisher(Protocol):
    def __call__(
        self, root: Path, files: Sequence[Path], /, *, dry_run: bool = ..., say: Say = ...
    ) -> list[Change]: ...


class Places(Struct, frozen=True):
    """Where things are published: an index, a channel, or both."""

    index: Path | None = None
    channel: Path | None = None

    def __post_init__(self) -> None:
        if self.index is None and self.channel is None:
            raise UsageError(
                "neither an index nor a channel was named",
                "Add --index DIR or --channel DIR, or put them under [publish] in the recipe.",
            )

    def check(self) -> None:
        """Refuse folders that are not published ones."""
        if self.index is not None:
            check_folder(self.index, "index", exists=True)
        if self.channel is not None:
            check_folder(self.channel, "channel", exists=True)


class Sorted(Struct, frozen=True):
    """Files by kind."""

    wheels: tuple[Path, ...] = ()
    packages: tuple[Path, ...] = ()
    archives: tuple[Path, ...] = ()


def sort_files(files: Sequence[Path]) -> Sorted:
    """Tell wheels, conda packages and libtorch archives apart by their names."""
    wheels = tuple(path for path in files if path.suffix == ".whl")
    archives = tuple(path for path in files if is_libtorch(path.name))
    packages = tuple(path for path in files if path.name.endswith(ENDINGS) and path not in archives)
    for path in files:
        if path not in (*wheels, *archives, *packages):
            raise UsageError(
                f"{path.name} cannot be published",
                "Wheels (.whl), conda packages (.conda, .tar.bz2) and libtorch-* archives can be.",
            )
    return Sorted(wheels, packages, archives)


def publish(
    files: Sequence[Path],
    places: Places,
    *,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> list[Change]:
    """Publish files, all or none; the same file again changes nothing."""
    by_kind = sort_files(files)
    kinds: list[tuple[_Publisher, FolderKind, Path | None, tuple[Path, ...]]] = [
        (publish_wheels, "index", places.index, by_kind.wheels),
        (publish_archives, "index", places.index, by_kind.archives),
        (publish_packages, "channel", places.channel, by_kind.packages),
    ]
    wanted: list[tuple[_Publisher, Path, tuple[Path, ...]]] = []
    for publisher, kind, root, paths in kinds:
        if paths and root is None:
            names = ", ".join(path.name for path in paths)
            raise UsageError(f"no {kind} was named for {names}", f"Add --{kind} DIR.")
        if paths and root is not None:
            wanted.append((publisher, root, paths))
    for path in files:
        check_file(path, "Name files that were built.")
    if not dry_run:
        # A bad one of one kind is known before anything of another is published.
        for publisher, root, paths in wanted[1:]:
            publisher(root, paths, dry_run=True)
    made: list[Change] = []
    for publisher, root, paths in wanted:
        made += publisher(root, paths, dry_run=dry_run, say=say)
    return made


def built_files(work: Path) -> list[Path]:
    """What the last build in a work folder left to publish."""
    found = [
        path
        for pattern in ("dist/*/*.whl", "dist/*/libtorch-*", "channel/*/*/*")
        for path in sorted(work.glob(pattern))
        if path.suffix == ".whl" or is_libtorch(path.name) or path.name.endswith(ENDINGS)
    ]
    if not found:
        raise UsageError(
            f"nothing to publish was built in {work}", "`torchsmith build` first, or name files."
        )
    return found


def yank(
    what: str, places: Places, *, reason: str = "", undo: bool = False, project: str = ""
) -> list[Change]:
    """Take a release back, or give it again; whoever names it exactly can still have it.

    With `project` the whole project is marked so, and stays installable.
    """
    if project:
        if places.index is None or places.channel is not None:
            raise UsageError("only projects of a pip index have a status", "Use --index alone.")
        return mark_project(places.index, what, ProjectStatus(project, reason), undo=undo)
    if places.channel is not None and reason:
        raise UsageError("a conda channel has no place for a reason", "Leave --reason out.")
    made: list[Change] = []
    if places.index is not None:
        made += yank_wheels(places.index, what, reason=reason, undo=undo)
    if places.channel is not None:
        made += yank_packages(places.channel, what, undo=undo)
    return made


def remove(name: str, places: Places) -> list[Change]:
    """Take a file away for good."""
    if Path(name).name != name:
        raise UsageError(f"{name} is a path, and a file's name is needed", "Leave the folder out.")
    if name.endswith(ENDINGS) and not is_libtorch(name):
        if places.channel is None:
            raise UsageError(f"no channel was named for {name}", "Add --channel DIR.")
        return remove_package(places.channel, name)
    if places.index is None:
        raise UsageError(f"no index was named for {name}", "Add --index DIR.")
    if is_libtorch(name):
        return remove_archive(places.index, name)
    return remove_wheel(places.index, name)
