"""Fetching a source of any kind; as a program, one fetch of a plan, in its work folder.

Paths of the source are then relative to $PROJECT; $TORCHSMITH_DOWNLOADS keeps downloads.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import time
from pathlib import Path

from msgspec import structs
from msgspec.structs import replace

from torchsmith.errors import SourceError, UnreachableError
from torchsmith.plan.models import Fetch
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.addresses import is_local, local_path, shown
from torchsmith.sources.bundle import fetch_bundle, from_bundle
from torchsmith.sources.debian import fetch_debian, fetch_pool, pool_file
from torchsmith.sources.download import DOWNLOADS, PATIENT, Retry, download, emptied
from torchsmith.sources.extract import extract
from torchsmith.sources.git import fetch_git
from torchsmith.sources.sdist import fetch_sdist, sdist_file
from torchsmith.sources.tree import (
    FetchedSource,
    Progress,
    check_links,
    copy_tree,
    file_hash,
    quiet,
    tree_hash,
    walk,
)
from torchsmith.tasks import run_task

_SHA256 = re.compile(r"[0-9a-f]{64}")


def _here(path: Path, sha256: str, progress: Progress) -> Path:
    """A file of this machine, if it is the one expected."""
    if not path.is_file():
        raise SourceError(f"{path} is not a file", "Check source.path or source.url in the recipe.")
    progress(f"checking {path.name}", None, path.stat().st_size)
    found = file_hash(path)
    if found != sha256:
        raise SourceError(
            f"{path} is not the file expected: its sha256 is {found}, not {sha256}",
            "Find out which of the two is right before changing the hash; nothing was unpacked.",
        )
    return path


def archive_file(
    choice: SourceChoice, cache: Path, progress: Progress, retry: Retry = PATIENT
) -> tuple[Path, str, tuple[str, ...]]:
    """The archive itself, of the expected hash; where it came from, and notes."""
    if not _SHA256.fullmatch(choice.sha256):
        raise SourceError(
            "an archive needs its sha256", "Write source.sha256: the 64 digits `sha256sum` prints."
        )
    addresses = [url for url in (choice.url, *choice.mirrors) if url]
    notes: list[str] = []
    if choice.path or (addresses and is_local(addresses[0])):
        place = Path(choice.path) if choice.path else local_path(addresses[0])
        return _here(place, choice.sha256, progress), str(place), ()
    remote = [url for url in addresses if not is_local(url)]
    file, used = download(remote, cache, sha256=choice.sha256, progress=progress, retry=retry)
    location = shown(used or addresses[0])
    if not used:
        notes.append("taken from the cache: a file of this hash was there")
    elif used != addresses[0]:
        notes.append(f"{shown(addresses[0])} could not give it; the mirror {location} did")
    return file, location, tuple(notes)


def fetch_archive(
    choice: SourceChoice,
    destination: Path,
    *,
    cache: Path,
    progress: Progress,
    retry: Retry = PATIENT,
) -> FetchedSource:
    """Fetch an archive, check its hash, and only then unpack it."""
    file, location, notes = archive_file(choice, cache, progress, retry)
    name = location.split("?")[0].rsplit("/", 1)[-1]
    extract(file, destination, name=name, progress=progress)
    evidence = {"sha256": choice.sha256, "tree": tree_hash(destination)}
    return FetchedSource("archive", location, evidence, notes)


# How a folder that CMake configured in shows itself.
_BUILT = "CMakeCache.txt"


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


_RELEASE = re.compile(r"v?(\d+(?:\.\d+)+)")


def fetch(
    choice: SourceChoice, destination: Path, *, cache: Path, progress: Progress = quiet
) -> FetchedSource:
    """Fetch a source tree into an empty folder, which is empty again if it fails.

    torch's source and a companion's are the same to it. Raises `SourceError`.
    """
    try:
        destination.mkdir(parents=True, exist_ok=True)
        if any(destination.iterdir()):
            raise SourceError(f"{destination} is not empty: a source needs a folder of its own")
        cache.mkdir(parents=True, exist_ok=True)
        try:
            fetched = _dispatch(choice, destination, cache, progress)
            if fetched.kind != "git":
                _leave_git_out(destination)
            if choice.files and choice.files != (".",):
                _keep(destination, choice.files)
                evidence = {**fetched.evidence, "tree": tree_hash(destination)}
                fetched = dataclasses.replace(fetched, evidence=evidence)
            return fetched
        except BaseException:
            emptied(destination)
            raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise SourceError(
            f"the source could not be written: {error.strerror or error}{where}",
            "Check the room left on the disk and the rights on the folder.",
        ) from error


def _leave_git_out(tree: Path) -> None:
    """Remove git's own folders from a tree that git did not bring.

    No hash vouches for them, they would say which commit it is of, and their settings name programs
    that git runs.
    """
    for path in [found for found in walk(tree, frozenset()) if found.name.lower() == ".git"]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


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
    raise SourceError(f"{choice.kind!r} is not a kind of source")


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
    fetched = fetch_debian(second, destination, cache=cache, progress=progress)
    note = f"{reason}; Debian {choice.suite}'s source package of {release[1]} was taken instead"
    return dataclasses.replace(fetched, notes=(note, *fetched.notes))


# A log wants to know that it goes on, not every packet.
_EVERY_SECONDS = 5.0


class _Log:
    """Progress as a line now and then."""

    def __init__(self) -> None:
        self._printed = 0.0

    def __call__(self, what: str, done: int | None, total: int | None) -> None:
        now = time.monotonic()
        if now - self._printed < _EVERY_SECONDS:
            return
        self._printed = now
        size = "" if done is None else f" {done / 1e6:.0f} MB"
        whole = "" if total is None else f" of {total / 1e6:.0f} MB"
        print(f"{what}{size}{whole}", flush=True)


def _hold_to_lock(wanted: Fetch, tree: Path) -> None:
    found = tree_hash(tree)
    if found != wanted.tree:
        emptied(tree)
        raise SourceError(
            f"{wanted.into} is not what the lock names: expected the tree {wanted.tree}, "
            f"found {found}",
            "Find out who changed it. If the change is meant, run `torchsmith lock` again.",
        )


def bring(wanted: Fetch) -> None:
    """Fetch a source, and print what proves which one it is."""
    choice, into = wanted.source, Path(wanted.into)
    cache = Path(os.environ[DOWNLOADS])
    if choice.path:
        project = Path(os.environ.get("PROJECT", "."))
        choice = replace(choice, path=str(project / choice.path))
    shutil.rmtree(into, ignore_errors=True)
    if wanted.bundle:
        choice = from_bundle(Path(wanted.bundle), choice, cache)
    fetched = fetch(choice, into, cache=cache, progress=_Log())
    if wanted.tree:
        _hold_to_lock(wanted, into)
    print(f"{fetched.kind} from {fetched.location}")
    for name, value in fetched.evidence.items():
        print(f"  {name}: {value}")
    for note in fetched.notes:
        print(f"warning: {note}")


if __name__ == "__main__":
    run_task(Fetch, bring)
