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
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, cast

import msgspec

import torchsmith
from torchsmith.files import whole_file
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.cache import emptied
from torchsmith.sources.errors import SourceError
from torchsmith.sources.extract import extract
from torchsmith.sources.git_tree import GitProof, check_commit, git_proof
from torchsmith.sources.models import FetchedSource, Progress, quiet
from torchsmith.sources.tree import check_links, file_hash, tree_hash, walk

FORMAT = 1
_MANIFEST = "bundle.json"
_MANIFEST_BYTES = 16 << 20
_TREE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_HINT = "Bring the bundle again from where it was made; nothing of it was kept."


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says it holds: names with their hashes."""

    plan: str
    torchsmith: str
    trees: Mapping[str, str]
    files: Mapping[str, str]
    # What proves that a tree is that of a git commit, for those that are.
    commits: Mapping[str, GitProof] = field(default_factory=dict)

    def as_json(self) -> bytes:
        """As it stands in the bundle."""
        content = {
            "format": FORMAT,
            "plan": self.plan,
            "torchsmith": self.torchsmith,
            "trees": dict(self.trees),
            "files": dict(self.files),
            "commits": msgspec.to_builtins(dict(self.commits)),
        }
        return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


def _check_name(name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or str(path) != name or "\0" in name:
        raise SourceError(f"{name!r} cannot be the name of a file in a bundle")
    return name


def _member(name: str, size: int, mode: int = 0o644) -> tarfile.TarInfo:
    # Owner, dates and every other trace of the machine stay at tarfile's zeros.
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, mode
    return member


def _add_tree(tar: tarfile.TarFile, name: str, tree: Path, progress: Progress) -> None:
    top = f"sources/{name}"
    folder = _member(top, 0, 0o755)
    folder.type = tarfile.DIRTYPE
    tar.addfile(folder)
    done = 0
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
            done += status.st_size
            progress(f"bundling {name}", done, None)


def write_bundle(
    entries: Mapping[str, Path],
    files: Mapping[str, bytes],
    destination: Path,
    *,
    plan: str = "",
    progress: Progress = quiet,
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
        plan,
        torchsmith.__version__,
        {name: tree_hash(tree) for name, tree in sorted(entries.items())},
        {_check_name(name): hashlib.sha256(files[name]).hexdigest() for name in sorted(files)},
        {
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
                content = files[name]
                tar.addfile(_member(f"files/{name}", len(content)), io.BytesIO(content))
            for name in manifest.trees:
                _add_tree(tar, name, entries[name], progress)
    return manifest


def _table(content: object, key: str) -> dict[str, str]:
    table = cast(dict[str, object], content).get(key)
    if not isinstance(table, dict) or not all(isinstance(item, str) for item in table.values()):
        raise ValueError(f"{key!r} is not a table of hashes")
    return cast(dict[str, str], table)


def read_manifest(bundle: Path) -> Manifest:
    """What a bundle says it holds, without unpacking it."""
    try:
        with (
            gzip.open(bundle) as stream,
            tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as tar,
        ):
            member = tar.next()
            if member is None or member.name != _MANIFEST or member.size > _MANIFEST_BYTES:
                raise ValueError("it does not begin with a manifest")
            file = tar.extractfile(member)
            assert file is not None
            content = json.loads(file.read())
        if not isinstance(content, dict) or not isinstance(content.get("format"), int):
            raise ValueError("its manifest is not one")
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, this torchsmith reads {FORMAT}")
        trees, files = _table(content, "trees"), _table(content, "files")
        commits = msgspec.convert(content.get("commits", {}), dict[str, GitProof])
        plan, version = str(content.get("plan", "")), str(content.get("torchsmith", ""))
    except FileNotFoundError:
        raise SourceError(f"{bundle} is not there", "Check source.path in the recipe.") from None
    except (
        *(OSError, EOFError, tarfile.TarError, zlib.error),
        *(ValueError, RecursionError, msgspec.ValidationError),
    ) as error:
        raise SourceError(f"{bundle} is not a torchsmith bundle: {error}", _HINT) from None
    for name in trees:
        if not _TREE_NAME.fullmatch(name):
            raise SourceError(f"{bundle} names a source {name!r}", _HINT)
    for name in files:
        _check_name(name)
    return Manifest(plan, version, trees, files, commits)


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


def is_proven(source: SourceChoice, manifest: Manifest, name: str) -> bool:
    """Whether a tree of a bundle will be held against the commit the recipe pins.

    Every other source of a bundle is whatever somebody put there, under a name.
    """
    return source.kind == "git" and bool(source.commit) and name in manifest.commits


def bundled(source: SourceChoice, bundle: Path, manifest: Manifest, name: str) -> SourceChoice:
    """A source of a plan, taken out of a bundle instead: the tree the manifest names, no other.

    Where the recipe pins a commit and the bundle can prove it, it has to.
    """
    return SourceChoice(
        "bundle",
        path=str(bundle.absolute()),
        package=name,
        ref=manifest.trees[name],
        commit=source.commit if is_proven(source, manifest, name) else "",
    )


def content_key(source: SourceChoice, manifest: Manifest, name: str) -> str:
    """What belongs into the key of a step whose source comes out of a bundle.

    Empty where the commit is proven: it is the same source wherever it comes from. Else the
    hash of the tree, so that nothing made of it is taken for what the recipe names.
    """
    return "" if is_proven(source, manifest, name) else manifest.trees[name]


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
