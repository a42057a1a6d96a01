"""Everything an artifact was made of, gathered once for both documents about it.

What was asked for may be a branch, or have come from elsewhere. Of a source only what its tree
shows is said: a commit where git's own folder is there, a version where Debian's changelog is, and
the hash of all of it.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from torchsmith.foreign import decode
from torchsmith.host.probe import run
from torchsmith.host.system import read_system
from torchsmith.package.contents import Contents
from torchsmith.plan.attest import Attest, Change, Origin, Subject
from torchsmith.sources.addresses import shown
from torchsmith.sources.debian import PATCHES, series
from torchsmith.sources.git import submodules
from torchsmith.sources.git_program import answer
from torchsmith.sources.tree import file_hash, source_date, tree_hash
from torchsmith.verify.linkage import baseline, brings, library_places

# deb-changelog(5): "package (version) distributions; urgency=…", the newest entry first.
_CHANGELOG = re.compile(r"^(\S+) \(([^)\s]+)\)")
_VERSIONED = re.compile(r"(.+?)-(\d+(?:\.\d+)+)")
_GITHUB = re.compile(r"https://github\.com/([^/]+)/([^/]+?)(?:\.git)?/?")


class Part(Struct, frozen=True, order=True):
    """A library that lies in a source tree, in a folder of its own."""

    path: str
    commit: str = ""
    url: str = ""
    version: str = ""

    @property
    def name(self) -> str:
        """What it is called: as its folder is, less a version there."""
        last = self.path.rpartition("/")[2]
        found = _VERSIONED.fullmatch(last)
        return found[1] if found else last

    @property
    def purl(self) -> PackageURL:
        """Its address among all packages."""
        if self.url:
            return git_purl(self.url, self.commit)
        return PackageURL("generic", name=self.name, version=self.version or None)


class Tree(Struct, frozen=True):
    """A source tree that was fetched.

    Where it came from Debian, `version` is the package's and `series` has the patches that
    Debian applied, each with its sha256.
    """

    origin: Origin
    sha256: str
    date: int
    commit: str = ""
    package: str = ""
    version: str = ""
    series: tuple[tuple[str, str], ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def lends(self) -> bool:
        """Whether it is a few files of another package, put into the project's own tree."""
        return self.origin.source is not None and bool(self.origin.source.files)

    @property
    def name(self) -> str:
        """The project, or the package that lends it files."""
        return self.package if self.lends else self.origin.project

    @property
    def kind(self) -> str:
        """What was fetched, which may be another kind than was asked for first."""
        if self.commit:
            return "git"
        if self.version:
            return "debian"
        return self.origin.source.kind if self.origin.source is not None else "folder"

    @property
    def url(self) -> str:
        """Where it came from, or could have, without anybody's password; empty for a folder."""
        source = self.origin.source
        return shown(source.url) if source is not None else ""

    @property
    def digest(self) -> dict[str, str]:
        """What names its content to others: a commit, or the hash of the archive it was in."""
        source = self.origin.source
        if self.commit:
            return {"gitCommit": self.commit}
        if source is not None and source.kind in ("archive", "sdist", "wheel") and source.sha256:
            return {"sha256": source.sha256}
        return {}

    @property
    def purl(self) -> PackageURL:
        """Its address among all packages."""
        source = self.origin.source
        if self.commit and self.url:
            return git_purl(self.url, self.commit)
        if self.version and source is not None:
            qualifiers = {"arch": "source", "distro": source.suite}
            return PackageURL("deb", "debian", self.package, self.version, qualifiers)
        if source is not None and source.kind in ("sdist", "wheel"):
            return PackageURL("pypi", name=canonicalize_name(source.package), version=source.ref)
        checksum = ":".join(item for pair in self.digest.items() for item in pair)
        details = {"checksum": checksum, "download_url": self.url}
        known = {name: value for name, value in details.items() if value}
        ref = source.ref if source is not None else ""
        return PackageURL("generic", None, self.origin.project, ref or None, known)


def git_purl(url: str, commit: str) -> PackageURL:
    """A repository at a commit."""
    if found := _GITHUB.fullmatch(url):
        return PackageURL("github", found[1], found[2], commit)
    name = url.rstrip("/").rpartition("/")[2].removesuffix(".git") or "source"
    return PackageURL("generic", None, name, commit, {"vcs_url": f"git+{url}@{commit}"})


def read_tree(origin: Origin) -> Tree:
    """Look at a tree in the work folder."""
    tree = Path(origin.tree)
    source = origin.source
    # The history beside somebody's own folder says nothing about what was changed since.
    ours = source is not None and source.kind != "folder" and (tree / ".git").exists()
    commit = answer("rev-parse", "HEAD", folder=tree) if ours else origin.commit
    # Anybody may put a changelog of Debian's into an archive: only what came from there is heeded.
    debian = source is not None and bool(source.suite) and not commit
    package, version = _debian(tree) if debian else ("", "")
    if source is not None and source.kind == "debian" and source.files:
        package, version = source.package, source.ref
    known = tuple(_submodules(tree, commit, shown(source.url))) if source and ours else ()
    return Tree(
        origin=origin,
        sha256=tree_hash(tree),
        date=source_date(tree),
        commit=commit,
        package=package,
        version=version,
        series=tuple(_series(tree)) if version else (),
        parts=tuple(sorted((*known, *_third_party(tree, known)))),
    )


def planned_tree(origin: Origin, *, read: bool) -> Tree:
    """A tree as far as every machine that builds this plan says the same of it.

    No history, which a bundle leaves out. With `read`, its files are here to be looked at.
    """
    source, tree = origin.source, Path(origin.tree)
    commit = origin.commit or (source.commit if source is not None else "")
    package = version = ""
    if read and source is not None and source.suite and not commit:
        package, version = _debian(tree)
    return Tree(
        origin=origin,
        sha256="",
        date=0,
        commit=commit,
        package=package,
        version=version,
        series=tuple(_series(tree)) if version else (),
        parts=tuple(sorted(_third_party(tree, ()))) if read else (),
    )


def _debian(tree: Path) -> tuple[str, str]:
    try:
        with (tree / "debian/changelog").open(encoding="utf-8", errors="replace") as file:
            found = _CHANGELOG.match(file.readline(1000))
    except OSError:
        return "", ""
    return (found[1], found[2]) if found else ("", "")


def _series(tree: Path) -> Iterator[tuple[str, str]]:
    """The patches of a source package of Debian's, in the order they were applied."""
    for name in series(tree):
        path = f"{PATCHES}/{name}"
        if (tree / path).is_file():
            yield path, file_hash(tree / path)


def _submodules(tree: Path, commit: str, url: str, above: str = "") -> Iterator[Part]:
    """Every submodule that is there, those of submodules too."""
    found, _ = submodules(tree, commit, (url,))
    for item in found:
        path = f"{above}{item.path}"
        address = shown(item.addresses[0])
        yield Part(path, item.commit, address)
        inside = tree / item.path
        if (inside / ".git").exists():
            yield from _submodules(inside, item.commit, address, f"{path}/")


def _third_party(tree: Path, known: Iterable[Part]) -> Iterator[Part]:
    """Folders of other people's libraries that no submodule accounts for."""
    taken = {part.path for part in known}
    folder = tree / "third_party"
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        path = place.relative_to(tree).as_posix()
        within = path in taken or any(name.startswith(f"{path}/") for name in taken)
        if within or not place.is_dir() or place.is_symlink() or not any(place.iterdir()):
            continue
        versioned = _VERSIONED.fullmatch(place.name)
        yield Part(path, version=versioned[2] if versioned else "")


def installed(environments: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The Python packages in environments of the work folder, with their versions."""
    found: set[tuple[str, str]] = set()
    for name in environments:
        places = [str(place) for place in Path(name).glob("lib/python3*/site-packages")]
        for item in importlib.metadata.distributions(path=places) if places else ():
            if item.name:
                found.add((canonicalize_name(item.name), item.version))
        # A CUDA toolkit put together of wheels keeps the list of them.
        listed = Path(name, "packages.txt")
        for line in listed.read_text("utf-8").splitlines() if listed.is_file() else ():
            package, equals, version = line.partition("==")
            if equals:
                found.add((canonicalize_name(package), version.strip()))
    return tuple(sorted(found))


class Taken(Struct, frozen=True):
    """A file that pip took for an environment."""

    name: str
    version: str
    sha256: str
    url: str = ""


class _Archive(Struct, frozen=True):
    hashes: dict[str, str] = {}
    hash: str = ""


class _Download(Struct, frozen=True):
    url: str = ""
    archive_info: _Archive = _Archive()


class _Metadata(Struct, frozen=True):
    name: str
    version: str


class _Installed(Struct, frozen=True):
    metadata: _Metadata
    download_info: _Download = _Download()


class _Report(Struct, frozen=True):
    """What is read of https://pip.pypa.io/en/stable/reference/installation-report/."""

    install: tuple[_Installed, ...] = ()


def read_report(file: Path) -> tuple[Taken, ...]:
    """What pip reports to have installed, by name; nothing where it has left no such file."""
    try:
        found = decode(file.read_bytes(), _Report).install
    except (OSError, msgspec.MsgspecError):
        return ()
    taken: list[Taken] = []
    for item in found:
        archive = item.download_info.archive_info
        digest = archive.hashes.get("sha256") or archive.hash.removeprefix("sha256=")
        name = canonicalize_name(item.metadata.name)
        url = shown(item.download_info.url)
        taken.append(Taken(name, item.metadata.version, digest, url))
    return tuple(sorted(taken, key=lambda item: item.name))


def taken_for(environments: Iterable[str]) -> tuple[Taken, ...]:
    """What pip took for environments of the work folder."""
    files = [file for name in environments for file in sorted(Path(name).glob("packages-*.json"))]
    return tuple(dict.fromkeys(item for file in files for item in read_report(file)))


# dpkg is asked here and nowhere else; on a system without it, libraries have no owner.
# It reads the lists of all packages: on a busy machine that takes a while.
_PATIENCE = 60.0


class Owner(Struct, frozen=True, order=True):
    """An installed package of the system."""

    name: str
    version: str
    architecture: str
    # Of the source it was built from, where that has another name.
    source: str = ""


def owners(libraries: Iterable[str]) -> Mapping[str, Owner | None]:
    """The package each library belongs to, by the name it is loaded by."""
    # The first place wins, as it does in the loader.
    places = dict(reversed(library_places()))
    return {name: _owner(places.get(name, "")) for name in sorted(set(libraries))}


def _owner(path: str) -> Owner | None:
    if not path:
        return None
    real = str(Path(path).resolve())
    # Since /lib became a link to /usr/lib, dpkg may know a file by either name.
    names = dict.fromkeys([real, path, real.removeprefix("/usr"), f"/usr{path}"])
    for name in names:
        output = run(["dpkg-query", "--search", name], timeout=_PATIENCE)
        package, colon, _ = (output or "").partition(": ")
        if colon and not package.startswith("diversion"):
            return _package(package.split(",")[0])
    return None


def _package(name: str) -> Owner | None:
    form = "${Package}\\t${Version}\\t${Architecture}\\t${source:Package}"
    output = run(["dpkg-query", "--show", f"--showformat={form}", name], timeout=_PATIENCE)
    fields = (output or "").split("\t")
    return Owner(*fields) if len(fields) == 4 else None


# As auditwheel names what it puts into a wheel: libgomp-a34b3233.so.1.
_GRAFTED = re.compile(r"-[0-9a-f]{8}\.so")
# What ends the name in a requirement, of a wheel or of a conda package.
_NAME = re.compile(r"[^A-Za-z0-9._-]")


class Beside(Struct, frozen=True):
    """An artifact of the same plan that another was built against."""

    name: str
    sha256: str


class Materials(Struct, frozen=True):
    """What is known of one artifact.

    `owners` has every library it needs from outside, and the system's package that has it;
    `tools` are the Python packages that were there while it was built, `taken` the files pip took
    for them; `date` is its source's.
    """

    plan: Attest
    subject: Subject
    contents: Contents
    trees: tuple[Tree, ...]
    changes: tuple[Change, ...]
    beside: tuple[Beside, ...]
    tools: tuple[tuple[str, str], ...]
    owners: tuple[tuple[str, Owner | None], ...]
    system: str
    date: int
    taken: tuple[Taken, ...] = ()

    @property
    def compiler(self) -> tuple[str, str]:
        """Kind and version."""
        compiler = self.plan.resolution.get("compiler")
        table = compiler if isinstance(compiler, dict) else {}
        return str(table.get("kind", "")), str(table.get("version", ""))


def outside(contents: Contents) -> tuple[str, ...]:
    """The libraries it needs and does not hold."""
    libraries = [packed.library for packed in contents.libraries]
    inside = {name for item in libraries for name in (item.name, item.soname)}
    return tuple(sorted({name for item in libraries for name in item.needed} - inside))


def is_vendored(path: str, project: str) -> bool:
    """Whether a library in an artifact is somebody else's, put in to come along."""
    folder, _, name = path.rpartition("/")
    bringer = baseline().bringer(name)
    grafted = folder.endswith(".libs") or _GRAFTED.search(name) is not None
    return grafted or bringer not in ("", project, "torch")


def gather(
    plan: Attest,
    subject: Subject,
    contents: Contents,
    trees: tuple[Tree, ...],
    tools: tuple[tuple[str, str], ...],
    beside: tuple[Beside, ...],
    taken: tuple[Taken, ...] = (),
) -> Materials:
    """Put together what was read; the system is asked for the owners of libraries."""
    mine = tuple(tree for tree in trees if tree.origin.tree in subject.trees)
    own = [tree.date for tree in mine if tree.name == subject.project]
    return Materials(
        plan=plan,
        subject=subject,
        contents=contents,
        trees=mine,
        changes=tuple(
            change for tree in mine for change in plan.changes if _was_made(change, tree)
        ),
        beside=beside,
        tools=tools,
        taken=taken,
        owners=tuple(owners(_from_the_system(contents)).items()),
        system=read_system(Path("/")),
        date=max(own or [tree.date for tree in mine], default=0),
    )


def _was_made(change: Change, tree: Tree) -> bool:
    """Whether a source was changed so: some patches look at the tree first."""
    folder = Path(tree.origin.tree)
    return (
        change.project == tree.name
        and not (change.unless and (folder / change.unless).exists())
        and not (change.only_with and not (folder / change.only_with).exists())
    )


def _from_the_system(contents: Contents) -> tuple[str, ...]:
    """What it needs, less what comes with what it requires: torch's own libraries, CUDA's."""
    required = {canonicalize_name(_NAME.split(line, 1)[0]) for line in contents.requires}
    base = baseline()

    def comes_along(library: str) -> bool:
        bringer = base.bringer(library)
        return bool(bringer) and any(brings(name, bringer) for name in required)

    return tuple(name for name in outside(contents) if not comes_along(name))
