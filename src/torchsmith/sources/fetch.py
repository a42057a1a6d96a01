"""Bringing a source, whatever kind it is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from msgspec import structs

from torchsmith.errors import SourceError, UnreachableError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.archive import archive_file, fetch_archive
from torchsmith.sources.bundle import fetch_bundle
from torchsmith.sources.cache import emptied
from torchsmith.sources.debian import fetch_debian, fetch_pool, pool_file
from torchsmith.sources.folder import fetch_folder
from torchsmith.sources.git import fetch_git
from torchsmith.sources.models import FetchedSource, Progress, quiet
from torchsmith.sources.sdist import fetch_sdist, sdist_file
from torchsmith.sources.tree import tree_hash

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)+)")


def fetch(
    choice: SourceChoice, destination: Path, *, cache: Path, progress: Progress = quiet
) -> FetchedSource:
    """Bring a source tree into an empty folder, which is empty again if it fails.

    torch's source and a companion's are the same to it. Raises `SourceError`.
    """
    try:
        destination.mkdir(parents=True, exist_ok=True)
        if any(destination.iterdir()):
            raise SourceError(f"{destination} is not empty: a source needs a folder of its own")
        cache.mkdir(parents=True, exist_ok=True)
        try:
            brought = _dispatch(choice, destination, cache, progress)
            if choice.files and choice.files != (".",):
                _keep(destination, choice.files)
                evidence = {**brought.evidence, "tree": tree_hash(destination)}
                brought = dataclasses.replace(brought, evidence=evidence)
            return brought
        except BaseException:
            emptied(destination)
            raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise SourceError(
            f"the source could not be written: {error.strerror or error}{where}",
            "Check the room left on the disk and the rights on the folder.",
        ) from error


def archive_of(choice: SourceChoice, cache: Path, project: Path) -> Path:
    """The archive of a source that has one, of the sha256 the recipe pins."""
    cache.mkdir(parents=True, exist_ok=True)
    if choice.kind == "archive":
        place = structs.replace(choice, path=str(project / choice.path) if choice.path else "")
        return archive_file(place, cache, quiet)[0]
    if choice.kind == "pool":
        return pool_file(choice, cache, quiet)[0]
    return sdist_file(choice, cache, quiet)[0]


def _keep(tree: Path, names: tuple[str, ...]) -> None:
    """Keep these files and folders of a tree and nothing else."""
    kept: dict[str, bytes] = {}
    for name in names:
        named = tree / name
        # Not through a link: what is named is what is kept.
        if named.resolve() != tree.resolve() / name:
            raise SourceError(f"the source has no file {name!r}")
        files = [file for file in named.rglob("*") if file.is_file() and not file.is_symlink()]
        if named.is_file():
            files = [named]
        if not files:
            raise SourceError(f"the source has no file {name!r}")
        kept |= {str(file.relative_to(tree)): file.read_bytes() for file in files}
    emptied(tree)
    for name, content in kept.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)


def _dispatch(
    choice: SourceChoice, destination: Path, cache: Path, progress: Progress
) -> FetchedSource:
    match choice.kind:
        case "git":
            return _git_or_debian(choice, destination, cache, progress)
        case "debian":
            return fetch_debian(choice, destination, cache=cache, progress=progress)
        case "pool":
            return fetch_pool(choice, destination, cache=cache, progress=progress)
        case "archive":
            return fetch_archive(choice, destination, cache=cache, progress=progress)
        case "sdist" | "wheel":
            return fetch_sdist(choice, destination, cache=cache, progress=progress)
        case "folder":
            return fetch_folder(choice, destination, progress=progress)
        case "bundle":
            return fetch_bundle(choice, destination, progress=progress)
    raise SourceError(f"there is no kind of source called {choice.kind!r}")


def _git_or_debian(
    choice: SourceChoice, destination: Path, cache: Path, progress: Progress
) -> FetchedSource:
    """Git; where no server can be reached, the Debian package resolving found for the release.

    Only for want of an answer: a repository that answers with the wrong commit is an error.
    """
    release = _RELEASE.fullmatch(choice.ref)
    try:
        return fetch_git(choice, destination, cache=cache, progress=progress)
    except UnreachableError as error:
        if not (choice.suite and choice.package and release):
            raise
        reason = error.message
    emptied(destination)
    second = structs.replace(choice, kind="debian", ref=release[1], commit="")
    brought = fetch_debian(second, destination, cache=cache, progress=progress)
    note = f"{reason}; Debian {choice.suite}'s source package of {release[1]} was taken instead"
    return dataclasses.replace(brought, notes=(note, *brought.notes))
