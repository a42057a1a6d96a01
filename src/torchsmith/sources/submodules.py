"""A repository's submodules: read from its commit, each judged before anything is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from torchsmith.errors import SourceError
from torchsmith.sources.addresses import check_git_address, is_local, joined
from torchsmith.sources.git_program import answer, git


@dataclass(frozen=True, slots=True)
class Submodule:
    """Another repository at a commit, in a folder of this one."""

    path: PurePosixPath
    commit: str
    addresses: tuple[str, ...]


def check_path(path: str) -> PurePosixPath:
    """Refuse a submodule folder that is not plainly inside the tree."""
    parts = path.split("/")
    hostile = (
        not path
        or path.startswith(("/", "-"))
        or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
        or any(ord(char) < 32 or ord(char) == 127 for char in path)
        or "\\" in path
    )
    if hostile:
        raise SourceError(
            f"submodule path {path!r} is not a plain folder inside the repository",
            "The repository is broken or hostile; nothing of it was kept.",
        )
    return PurePosixPath(path)


def check_place(tree: Path, path: PurePosixPath) -> Path:
    """The folder a submodule goes to, made; refused if a link stands in the way."""
    where = tree
    for part in path.parts:
        where = where / part
        if where.is_symlink() or (where.exists() and not where.is_dir()):
            raise SourceError(
                f"submodule path {str(path)!r} leads through {part!r}, which is not a folder",
                "The repository is broken or hostile; nothing of it was kept.",
            )
    where.mkdir(parents=True, exist_ok=True)
    if any(where.iterdir()):
        raise SourceError(f"submodule path {str(path)!r} is not empty")
    return where


def _addresses(url: str, parents: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Where a submodule can be had: a relative address is beside each of its parent's."""
    what = f"submodule {path!r}"
    if not url.startswith(("./", "../")):
        check_git_address(url, local=all(map(is_local, parents)), what=what)
        return (url,)
    beside = tuple(joined(parent, url) for parent in parents)
    for parent, address in zip(parents, beside, strict=True):
        check_git_address(address, local=is_local(parent), what=what)
    return beside


def submodules(
    repository: Path, commit: str, parents: tuple[str, ...]
) -> tuple[tuple[Submodule, ...], tuple[str, ...]]:
    """The submodules of a commit, and notes on those it holds but does not explain."""
    links: dict[str, str] = {}
    listing = answer("ls-tree", "-r", "-z", "--full-tree", commit, folder=repository)
    has_file = False
    for line in listing.split("\0"):
        kind, _, path = line.partition("\t")
        has_file |= path == ".gitmodules" and kind.startswith("100")
        if kind.startswith("160000"):
            links[path] = kind.split()[2]
    if not has_file:
        notes = tuple(
            f"submodule {path!r} has no entry in .gitmodules: left empty" for path in links
        )
        return (), notes
    reply = git("config", "--blob", f"{commit}:.gitmodules", "-z", "--list", folder=repository)
    if reply.code:
        raise SourceError(".gitmodules of the repository cannot be read")
    entries: dict[str, dict[str, str]] = {}
    for item in reply.out.split("\0"):
        key, _, value = item.partition("\n")
        if key.startswith("submodule.") and key.count(".") >= 2:
            name, _, field = key[len("submodule.") :].rpartition(".")
            entries.setdefault(name, {})[field] = value
    found: dict[str, Submodule] = {}
    for name, entry in entries.items():
        path, url = entry.get("path", name), entry.get("url", "")
        # Judged even where the commit does not use it: a hostile line is reason enough to stop.
        place = check_path(path)
        addresses = _addresses(url, parents, path)
        if path in links:
            found[path] = Submodule(place, links[path], addresses)
    notes = tuple(
        f"submodule {path!r} has no entry in .gitmodules: left empty"
        for path in links
        if path not in found
    )
    return tuple(found.values()), notes
