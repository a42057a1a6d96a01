"""One file with every source a plan needs, for machines without a network.

A tar.gz: first `bundle.json`, which names every tree and file with its hash, then the trees
under `sources/` and the files (patches, lists) under `files/`. The same content gives the
same bytes, so that a bundle's own hash can be compared and passed on.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, cast

import msgspec
from msgspec import Struct, structs

import torchsmith
from torchsmith.errors import SourceError
from torchsmith.files import whole_file
from torchsmith.foreign import MalformedError, decode
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.download import emptied, locked
from torchsmith.sources.extract import extract
from torchsmith.sources.git_tree import GitProof, check_commit, git_proof
from torchsmith.sources.tree import (
    FetchedSource,
    Progress,
    check_links,
    file_hash,
    quiet,
    tree_hash,
    walk,
)
from torchsmith.sources.unfolding import Member

FORMAT = 1
_MANIFEST = "bundle.json"
_MANIFEST_BYTES = 16 << 20
_TREE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HINT = "Copy the bundle again from where it was made; nothing of it was kept."


class _Format(Struct, frozen=True):
    format: int


class Manifest(Struct, frozen=True, kw_only=True):
    """What a bundle says it holds: names with their hashes."""

    format: int = FORMAT
    plan: str = ""
    torchsmith: str = ""
    trees: dict[str, str]
    files: dict[str, str]
    # What proves that a tree is that of a git commit, for those that are.
    commits: dict[str, GitProof] = {}

    def as_json(self) -> bytes:
        """As it stands in the bundle."""
        content = msgspec.to_builtins(self)
        return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


def _check_name(name: str) -> str:
    path = PurePosixPath(name)
    odd = not path.parts or path.is_absolute() or ".." in path.parts or str(path) != name
    if odd or "\0" in name or any(len(part.encode()) > 255 for part in path.parts):
        raise SourceError(f"{name[:80]!r} cannot be the name of a file in a bundle")
    return name


def _member(name: str, size: int, mode: int = 0o644) -> tarfile.TarInfo:
    # Owner, dates and every other trace of the machine stay at tarfile's zeros.
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, mode
    return member


def _add_file(tar: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        member = _member(f"files/{name}", file.seek(0, io.SEEK_END))
        file.seek(0)
        tar.addfile(member, file)


def _hash(content: bytes | Path) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else file_hash(content)


def _add_tree(tar: tarfile.TarFile, name: str, tree: Path) -> None:
    top = f"sources/{name}"
    folder = _member(top, 0, 0o755)
    folder.type = tarfile.DIRTYPE
    tar.addfile(folder)
    for path in walk(tree):
        status = path.lstat()
        member = _member(f"{top}/{path.relative_to(tree).as_posix()}", 0, 0o755)
        if stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
            tar.addfile(member)
        elif stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
            tar.addfile(member)
        else:
            member.size = status.st_size
            member.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
            with path.open("rb") as content:
                tar.addfile(member, content)


def write_bundle(
    entries: Mapping[str, Path],
    files: Mapping[str, bytes | Path],
    destination: Path,
    *,
    plan: str = "",
) -> Manifest:
    """Write source trees and files into one file, which appears only when it is whole.

    git's own folders are left out, as they are of a tree's hash; what proves their commits is not.
    """
    for name, tree in entries.items():
        if not _TREE_NAME.fullmatch(name):
            raise SourceError(f"{name!r} cannot be the name of a source in a bundle")
        if not tree.is_dir():
            raise SourceError(f"{tree} is not a folder")
        check_links(tree, name)
    manifest = Manifest(
        plan=plan,
        torchsmith=torchsmith.__version__,
        trees={name: tree_hash(tree) for name, tree in sorted(entries.items())},
        files={_check_name(name): _hash(files[name]) for name in sorted(files)},
        commits={
            name: proof
            for name, tree in sorted(entries.items())
            if (proof := git_proof(tree)) is not None
        },
    )
    with whole_file(destination, mode=0o644) as file:
        # No name and date in gzip's header. Level 6: source text gains little above it.
        packer = gzip.GzipFile("", "wb", 6, file, mtime=0)
        with packer, tarfile.open(fileobj=packer, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            text = manifest.as_json()
            tar.addfile(_member(_MANIFEST, len(text)), io.BytesIO(text))
            for name in manifest.files:
                _add_file(tar, name, files[name])
            for name in manifest.trees:
                _add_tree(tar, name, entries[name])
    return manifest


def read_manifest(bundle: Path) -> Manifest:
    """What a bundle says it holds, without unpacking it."""
    try:
        with (
            gzip.open(bundle) as stream,
            tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|", tarinfo=Member) as tar,
        ):
            member = tar.next()
            file = tar.extractfile(member) if member is not None and member.isreg() else None
            if member is None or member.name != _MANIFEST or file is None:
                raise ValueError("it does not begin with a manifest")
            if member.size > _MANIFEST_BYTES:
                raise ValueError("its manifest is too large")
            content = file.read()
        if (found := decode(content, _Format).format) != FORMAT:
            raise ValueError(f"its format is {found}, this torchsmith reads {FORMAT}")
        manifest = decode(content, Manifest)
    except FileNotFoundError:
        raise SourceError(f"{bundle} is not there", "Check source.path in the recipe.") from None
    except (
        *(OSError, EOFError, tarfile.TarError, zlib.error),
        *(ValueError, MalformedError),
    ) as error:
        raise SourceError(f"{bundle} is not a torchsmith bundle: {error}", _HINT) from None
    for name in manifest.trees:
        if not _TREE_NAME.fullmatch(name):
            raise SourceError(f"{bundle} names a source {name!r}", _HINT)
    for name in manifest.files:
        _check_name(name)
    return manifest


def open_bundle(
    bundle: Path, destination: Path, *, only: str = "", progress: Progress = quiet
) -> Manifest:
    """Unpack a bundle into an empty folder and hold everything in it against its manifest.

    With `only`, that source's tree alone is unpacked, as the destination itself.
    """
    manifest = read_manifest(bundle)
    if only and only not in manifest.trees:
        raise SourceError(
            f"{bundle} has no source {only!r}, but {', '.join(sorted(manifest.trees)) or 'none'}",
            "Make a bundle of the plan that needs it: torchsmith bundle.",
        )
    prefix = f"sources/{only}" if only else ""
    extract(bundle, destination, strip=False, only=prefix, progress=progress)
    try:
        progress(f"checking {bundle.name}", None, None)
        if only:
            _check_tree(bundle, only, destination, manifest)
        else:
            _check_all(bundle, destination, manifest)
    except BaseException:
        emptied(destination)
        raise
    return manifest


def _check_tree(bundle: Path, name: str, tree: Path, manifest: Manifest) -> None:
    # A tree's hash leaves git's own folders out: nothing would vouch for what is in one.
    for path in walk(tree, frozenset()) if tree.is_dir() else ():
        if path.name.lower() == ".git":
            inside = path.relative_to(tree).as_posix()
            raise SourceError(f"{bundle} holds {inside!r} of git in the source {name!r}", _HINT)
    if not tree.is_dir() or tree_hash(tree) != manifest.trees[name]:
        raise SourceError(f"{bundle}: the source {name!r} is not what the manifest says", _HINT)


def _check_all(bundle: Path, destination: Path, manifest: Manifest) -> None:
    for name in manifest.trees:
        _check_tree(bundle, name, destination / "sources" / name, manifest)
    for name, expected in manifest.files.items():
        file = destination / "files" / name
        if file.is_symlink() or not file.is_file() or file_hash(file) != expected:
            raise SourceError(f"{bundle}: the file {name!r} is not what the manifest says", _HINT)
    known = {destination / _MANIFEST}
    for name in manifest.files:
        file = destination / "files" / name
        known |= {file, *file.parents}
    known |= {destination / "sources", *(destination / "sources" / name for name in manifest.trees)}
    for path in walk(destination, frozenset()):
        if path not in known and not any(
            destination / "sources" / name in path.parents for name in manifest.trees
        ):
            raise SourceError(
                f"{bundle} holds {path.relative_to(destination).as_posix()!r}, which its manifest"
                " does not name",
                _HINT,
            )


def _torch(manifest: Manifest, bundle: Path) -> str:
    """The tree meant when none is named: torch's, or the only one there is."""
    names = list(manifest.trees)
    torch = [name for name in names if re.fullmatch(r"torch(?:-\d.*)?", name)]
    if len(torch) == 1:
        return torch[0]
    if len(names) == 1:
        return names[0]
    raise SourceError(
        f"{bundle} has no single source of torch, but {', '.join(sorted(names)) or 'nothing'}",
        "Make a bundle of the plan that needs it: torchsmith bundle.",
    )


def archive_name(source: SourceChoice) -> str:
    """The file of a bundle that has the archive of a source; empty for what is no archive."""
    pinned = source.kind in ("archive", "sdist", "wheel", "pool") and source.sha256
    return f"archives/{source.sha256}/archive" if pinned else ""


def from_bundle(bundle: Path, source: SourceChoice, cache: Path) -> SourceChoice:
    """Put the archive of a source from a bundle where downloads are kept, and name it there.

    Whoever unpacks it holds it against the sha256 that the recipe pins.
    """
    kept = cache / "files" / source.sha256
    with locked(kept), tempfile.TemporaryDirectory(dir=kept.parent, prefix=".bundle-") as place:
        name = archive_name(source)
        extract(bundle, Path(place), strip=False, only=f"files/{name.rpartition('/')[0]}")
        found = file_hash(Path(place, "archive")) if Path(place, "archive").is_file() else "none"
        if found != source.sha256:
            raise SourceError(
                f"{bundle} has another archive than the recipe pins: expected the sha256 "
                f"{source.sha256}, found {found}",
                _HINT,
            )
        Path(place, "archive").replace(kept)
    return structs.replace(source, path=str(kept)) if source.kind == "archive" else source


def pinned_commit(source: SourceChoice) -> str:
    """The commit that a source has to be of; empty where a branch, tag or package will do."""
    if source.kind != "git" or source.suite:
        return ""
    return source.commit or (source.ref if _COMMIT.fullmatch(source.ref) else "")


def bundled(
    source: SourceChoice, bundle: Path, manifest: Manifest, name: str, *, locked: bool = False
) -> SourceChoice:
    """A source of a plan, taken out of a bundle instead: the tree the manifest names, no other.

    Where a commit is known and the bundle can prove it, it has to. One that the recipe pins must
    be proven, unless a lock knows the tree.
    """
    proven = source.kind == "git" and name in manifest.commits
    if not (proven or locked) and (commit := pinned_commit(source)):
        raise SourceError(
            f"{bundle} does not prove that {name} is of commit {commit}, which the recipe pins",
            "Make the bundle again from a repository that was not changed; or lock the recipe.",
        )
    return SourceChoice(
        "bundle",
        path=str(bundle.absolute()),
        package=name,
        ref=manifest.trees[name],
        commit=(pinned_commit(source) or source.commit) if proven else "",
    )


def fetch_bundle(choice: SourceChoice, destination: Path, *, progress: Progress) -> FetchedSource:
    """Take one source tree out of a bundle: the one `choice.package` names, or torch's.

    `choice.ref` is the hash it must have, and `choice.commit` the git commit it must be of.
    """
    bundle = Path(choice.path)
    manifest = read_manifest(bundle)
    found = file_hash(bundle)
    if choice.sha256 and found != choice.sha256:
        raise SourceError(f"{bundle} has the sha256 {found}, not {choice.sha256}", _HINT)
    name = choice.package or _torch(manifest, bundle)
    opened = open_bundle(bundle, destination, only=name, progress=progress)
    tree = opened.trees[name]
    if choice.ref and choice.ref != tree:
        raise SourceError(
            f"{bundle}: the source {name!r} is not the one that was planned for", _HINT
        )
    evidence = {"sha256": found, "entry": name, "tree": tree}
    if choice.commit:
        if name not in opened.commits:
            raise SourceError(
                f"{bundle} does not prove which commit the source {name!r} is of",
                "Make the bundle again with this torchsmith: torchsmith bundle.",
            )
        check_commit(destination, opened.commits[name], choice.commit)
        evidence["commit"] = choice.commit
    return FetchedSource("bundle", str(bundle), evidence)
