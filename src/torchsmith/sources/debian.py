"""Debian's source packages: signed, mirrored everywhere, upstream's files with a patch series.

The archive is read directly, so that any suite can be had and the system's own apt lists stay
as they are: the suite's signed InRelease vouches for its Sources index, which vouches for
every file of a package.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from torchsmith.errors import NotServedError, SourceError, UnreachableError
from torchsmith.facts.files import shipped
from torchsmith.foreign import whole
from torchsmith.host.probe import run
from torchsmith.programs import apart
from torchsmith.resolve.models import PatchChoice, SourceChoice
from torchsmith.sources.addresses import shown
from torchsmith.sources.download import PATIENT, Retry, download, read_url
from torchsmith.sources.extract import extract
from torchsmith.sources.patches import apply_patches
from torchsmith.sources.tree import FetchedSource, Progress, tree_hash
from torchsmith.temporary import temporary_folder

# Where a source package keeps its patches.
PATCHES = "debian/patches"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# OpenPGP's numbers of SHA-256, 384, 512 and 224: a signature over a weaker hash proves nothing.
_STRONG = frozenset({"8", "9", "10", "11"})
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_~-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Debian marks what it took out of or did to upstream's release; the release is the same.
_REPACKED = re.compile(r"[+~.-](?:dfsg|ds|repack|debian)[0-9A-Za-z.+~]*$")


@dataclass(frozen=True, slots=True)
class File:
    """A file an index vouches for."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Release:
    """A suite's list of indexes, its signature verified."""

    fields: Mapping[str, str]
    files: Mapping[str, File]
    key: str


@dataclass(frozen=True, slots=True)
class SourcePackage:
    """A source package as an index lists it."""

    name: str
    version: str
    format: str
    folder: str
    files: tuple[File, ...]

    @property
    def upstream(self) -> str:
        """Upstream's own version: without epoch, revision and Debian's marks."""
        version = self.version.partition(":")[2] or self.version
        version = version.rpartition("-")[0] or version
        return _REPACKED.sub("", version)


def verified(signed: bytes, keyring: Path, what: str) -> tuple[str, str]:
    """The text a clear-signed file vouches for, and the fingerprint of the key that signed it.

    Only what gpgv itself puts out is read: text around the signed part is nobody's word.
    """
    if not keyring.is_file():
        raise SourceError(
            f"the keys of Debian's archive are not at {keyring}",
            "apt-get install debian-archive-keyring",
        )
    with temporary_folder("gpgv") as folder:
        name = str(folder)
        (folder / "signed").write_bytes(signed)
        argv = ["gpgv", "--status-fd", "1", "--keyring", str(keyring.resolve())]
        argv += ["--output", str(folder / "text"), str(folder / "signed")]
        env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "GNUPGHOME": name, "HOME": name}
        answer = apart(argv, env=env, package="gpgv")
        status = [
            line.split()[1:] for line in answer.out.splitlines() if line.startswith("[GNUPG:] ")
        ]
        words = {fields[0] for fields in status if fields}
        # Several keys sign; as apt does, one known good one is enough and one bad one too many.
        keys = [
            fields[1]
            for fields in status
            if fields[0] == "VALIDSIG" and len(fields) > 8 and fields[8] in _STRONG
        ]
        if "BADSIG" in words or "GOODSIG" not in words or not keys:
            seen = ", ".join(sorted(words & _TROUBLE)) or "no signature"
            raise SourceError(
                f"{what} is not signed by a key of {keyring.name} ({seen})",
                "The mirror is out of date or not Debian's; an old keyring is renewed with"
                " apt-get install debian-archive-keyring.",
            )
        return (folder / "text").read_text("utf-8"), keys[0]


_TROUBLE = frozenset(
    {"BADSIG", "ERRSIG", "NO_PUBKEY", "EXPSIG", "EXPKEYSIG", "REVKEYSIG", "NODATA"}
)


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """The paragraphs of a Debian control file, each field with its lines.

    By hand: for these few lines python-debian would be one more package.
    """
    fields: dict[str, str] = {}
    last = ""
    for line in text.split("\n"):
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, ""
        elif line[0] in " \t":
            fields[last] = f"{fields.get(last, '')}\n{line.strip()}"
        else:
            last, _, value = line.partition(":")
            fields[last] = value.strip()
    if fields:
        yield fields


def _files(field: str, *, plain: bool) -> Iterator[File]:
    for line in field.splitlines():
        parts = line.split()
        if len(parts) != 3:
            continue
        sha256, size, name = parts
        fine = _SHA256.fullmatch(sha256) and size.isascii() and size.isdigit()
        if not fine or (plain and not _FILE_NAME.fullmatch(name)):
            raise SourceError(f"the archive's index has a line that makes no sense: {line!r}")
        yield File(name, int(size), sha256)


def read_release(signed: bytes, keyring: Path, suite: str, what: str) -> Release:
    """A suite's InRelease file, verified, and really of that suite."""
    text, key = verified(signed, keyring, what)
    fields = next(stanzas(text), {})
    if suite not in (fields.get("Suite"), fields.get("Codename")):
        raise SourceError(
            f"{what} is of {fields.get('Codename', 'no suite')}, not of {suite}",
            "The mirror gives the wrong suite: use another, with DEBIAN_MIRROR.",
        )
    files = {file.name: file for file in _files(fields.get("SHA256", ""), plain=False)}
    return Release(fields, files, key)


def unpacked(index: bytes, name: str) -> str:
    """An index's text."""
    try:
        plain = lzma.decompress(index) if name.endswith(".xz") else gzip.decompress(index)
        return plain.decode("utf-8")
    except (lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise SourceError(f"{name} cannot be unpacked: {error}") from None


def packages(index: str, name: str) -> Iterator[SourcePackage]:
    """Every version of a source package an index lists."""
    mark = f"Package: {name}\n"
    # An index has 40,000 stanzas: only the ones that name the package are read.
    for start in re.finditer(rf"(?:\A|(?<=\n\n)){re.escape(mark)}", index):
        end = index.find("\n\n", start.start())
        fields = next(stanzas(index[start.start() : end if end >= 0 else len(index)]))
        folder = fields.get("Directory", "")
        if folder.startswith("/") or ".." in folder.split("/"):
            raise SourceError(f"the archive's index puts {name} in {folder!r}")
        files = tuple(_files(fields.get("Checksums-Sha256", ""), plain=True))
        yield SourcePackage(name, fields["Version"], fields.get("Format", "1.0"), folder, files)


def _order(char: str) -> int:
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256


def version_key(version: str) -> tuple[object, ...]:
    """Debian's order of versions: text and numbers in turn, '~' before the end of the text."""
    epoch, colon, rest = version.partition(":")
    found = whole(epoch) if colon else None
    number, rest = (0, version) if found is None else (found, rest)
    upstream, _, revision = rest.rpartition("-")
    pieces: list[object] = [number]
    for part in (upstream or revision, revision if upstream else ""):
        turns = re.findall(r"(\D*)(\d*)", part)
        pieces.append(tuple(((*map(_order, text), 0), int(digits or 0)) for text, digits in turns))
    return tuple(pieces)


DEFAULT_MIRROR = "https://deb.debian.org/debian"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")
_TAR = r"\.tar\.(?:gz|bz2|xz|lzma)"
_ORIG = re.compile(rf"\.orig{_TAR}$")
_COMPONENT = re.compile(rf"\.orig-([A-Za-z0-9-]+){_TAR}$")
_DEBIAN_PART = re.compile(rf"\.debian{_TAR}$|\.diff\.gz$")
_INRELEASE_BYTES = 8 << 20


def mirrors() -> tuple[str, ...]:
    """The archives to ask: DEBIAN_MIRROR alone if set, else apt's own, then the default."""
    named = os.environ.get("DEBIAN_MIRROR", "").strip()
    if named:
        return (named.rstrip("/"),)
    # On a host of another distribution apt's archives are not Debian's: hence the origin.
    listed = run(["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)"]) or ""
    found = [
        line.removeprefix("Debian|Debian|").rstrip("/")
        for line in listed.splitlines()
        if line.startswith("Debian|Debian|http")
    ]
    return tuple(dict.fromkeys((*found, DEFAULT_MIRROR)))


@dataclass
class _Fetch:
    """One package that is being fetched."""

    suite: str
    mirrors: tuple[str, ...]
    cache: Path
    progress: Progress
    retry: Retry
    keyring: Path
    notes: list[str] = field(default_factory=list)

    def release(self) -> tuple[Release, str]:
        """The suite's verified list of indexes, and the mirror that has it."""
        problems: list[UnreachableError] = []
        kept = self.cache / "debian" / f"{self.suite}.InRelease"
        for mirror in self.mirrors:
            address = f"{mirror}/dists/{self.suite}/InRelease"
            try:
                signed = read_url(address, limit=_INRELEASE_BYTES, retry=self.retry)
            except UnreachableError as error:
                problems.append(error)
                continue
            self.notes += [f"{error.message}; {shown(mirror)} was used" for error in problems]
            release = read_release(signed, self.keyring, self.suite, shown(address))
            kept.parent.mkdir(parents=True, exist_ok=True)
            replacement = kept.with_suffix(f".{os.getpid()}")
            replacement.write_bytes(signed)
            replacement.replace(kept)
            return release, mirror
        if all(isinstance(error, NotServedError) for error in problems):
            raise NotServedError(
                f"no mirror has a suite {self.suite!r}: {problems[0].message}", _offered("")
            )
        if kept.is_file():
            # Still signed: it can be old, but not false.
            release = read_release(kept.read_bytes(), self.keyring, self.suite, str(kept))
            self.notes.append(f"{problems[0].message}; the cache's list was used")
            return release, self.mirrors[0]
        raise UnreachableError(
            f"Debian's archive cannot be read: {problems[0].message}",
            "Check the network, or name a mirror you can reach in DEBIAN_MIRROR.",
        )

    def get(self, file: File, *paths: str) -> Path:
        """A file the index vouches for, at any of these paths of any mirror."""
        urls = [
            f"{mirror}/{urllib.parse.quote(path, safe='/+~:')}"
            for mirror in self.mirrors
            for path in paths
        ]
        path, _ = download(
            urls,
            self.cache,
            sha256=file.sha256,
            size=file.size,
            label=file.name,
            progress=self.progress,
            retry=self.retry,
        )
        return path

    def find(self, release: Release, package: str, version: str) -> SourcePackage:
        """The package in the suite's indexes: of this upstream version, or else the newest."""
        components = release.fields.get("Components", "main").split()
        likely = [
            item.component
            for item in shipped().systems.debian
            if item.package == package and item.suite == self.suite
        ]
        found: list[SourcePackage] = []
        for component in dict.fromkeys((*(c for c in likely if c in components), *components)):
            found += packages(self._index(release, component), package)
            if any(item.upstream == version for item in found) or (found and not version):
                break
        fitting = [item for item in found if version in ("", item.upstream)]
        if not fitting:
            have = ", ".join(item.upstream for item in found)
            raise NotServedError(
                f"Debian {self.suite} has {package} {have}, not {version}"
                if have
                else f"Debian {self.suite} has no source package {package!r}",
                _offered(package),
            )
        return max(fitting, key=lambda item: version_key(item.version))

    def _index(self, release: Release, component: str) -> str:
        for name in (f"{component}/source/Sources.xz", f"{component}/source/Sources.gz"):
            file = release.files.get(name)
            if file is None:
                continue
            folder = f"dists/{self.suite}/{component}/source"
            # By hash first: the file of the plain name may just be changing on the mirror.
            hashed = f"{folder}/by-hash/SHA256/{file.sha256}"
            path = self.get(file, hashed, f"dists/{self.suite}/{name}")
            return unpacked(path.read_bytes(), name)
        return ""


def _staleness(release: Release, now: datetime) -> list[str]:
    """A note if the list is past the date it is good for: the mirror may hide newer versions."""
    until = release.fields.get("Valid-Until", "")
    try:
        stale = bool(until) and parsedate_to_datetime(until).replace(tzinfo=UTC) < now
    except ValueError:
        stale = True
    return [f"the mirror's list was good until {until} only: it may be behind"] if stale else []


def _offered(package: str) -> str:
    """Which suites have which version of the package, as far as we know."""
    known = [item for item in shipped().systems.debian if package in ("", item.package)]
    have = ", ".join(f"{item.suite}: {item.package} {item.version}" for item in known)
    return f"Known source packages: {have}." if have else "Check source.suite in the recipe."


def series(tree: Path) -> Iterator[str]:
    """The names of a source package's patches, in the order they are applied."""
    files = (tree / PATCHES / name for name in ("debian.series", "series"))
    file = next((file for file in files if file.is_file()), None)
    for line in file.read_text("utf-8", "replace").splitlines() if file else ():
        if words := re.sub(r"(?:^|\s+)#.*$", "", line.strip()).split():
            yield words[0]


def _patch_series(tree: Path) -> list[PatchChoice]:
    """The package's patches in order, as dpkg-source reads them: options on a line are ignored."""
    chosen = []
    for name in series(tree):
        file = tree / PATCHES / name
        if ".." in Path(name).parts or not file.is_file():
            raise SourceError(f"debian/patches/series names {name!r}, which is not in the package")
        content = file.read_bytes()
        # A patch may be only the text that says why there is none any more.
        if b"@@ -" in content or b"diff --git " in content:
            chosen.append(PatchChoice(name, "debian", 1, content))
    return chosen


def _unpack(package: SourcePackage, files: dict[str, Path], tree: Path, progress: Progress) -> int:
    """Upstream's files, Debian's on top, its patches applied; how many there were."""
    part = next((name for name in files if _DEBIAN_PART.search(name)), "")
    native = [name for name in files if re.search(_TAR + "$", name) and name != part]
    for name in sorted(native, key=lambda name: bool(_COMPONENT.search(name))):
        component = _COMPONENT.search(name)
        where = tree / component[1] if component else tree
        where.mkdir(exist_ok=True)
        extract(files[name], where, name=name, root=tree, progress=progress)
    if not part:
        return 0
    if part.endswith(".diff.gz"):
        diff = PatchChoice(files[part].name, "debian", 1, gzip.decompress(files[part].read_bytes()))
        apply_patches(tree, [diff], fuzz=0, progress=progress)
        return 1
    # Upstream's own debian folder, if any, is not the package's.
    shutil.rmtree(tree / "debian", ignore_errors=True)
    (tree / "debian").mkdir()
    extract(files[part], tree / "debian", name=part, root=tree, progress=progress)
    series = _patch_series(tree)
    # dpkg-source allows no fuzz, and removes files a patch leaves empty.
    apply_patches(tree, series, fuzz=0, remove_empty=True, progress=progress)
    return len(series)


def fetch_debian(
    choice: SourceChoice,
    destination: Path,
    *,
    cache: Path,
    progress: Progress,
    retry: Retry = PATIENT,
    keyring: Path = KEYRING,
) -> FetchedSource:
    """Fetch a source package of a suite, every file of it vouched for by the suite's signature.

    `choice.ref` is the upstream version, empty for whatever the suite has. Mirrors do not
    always have every file they list: without Debian's part, upstream's is taken alone where
    `choice.upstream_alone` says that it will do, and said so.
    """
    for what, name in (("suite", choice.suite), ("source package", choice.package)):
        if not _NAME.fullmatch(name):
            raise SourceError(f"{name!r} is not the name of a Debian {what}")
    fetch = _Fetch(choice.suite, mirrors(), cache, progress, retry, keyring)
    release, mirror = fetch.release()
    # The mirror that has the suite is asked first from now on.
    fetch.mirrors = (mirror, *(other for other in fetch.mirrors if other != mirror))
    fetch.notes += _staleness(release, datetime.now(UTC))
    package = fetch.find(release, choice.package, choice.ref)
    files: dict[str, Path] = {}
    for file in package.files:
        if file.name.endswith(".asc"):
            continue
        try:
            files[file.name] = fetch.get(file, f"{package.folder}/{file.name}")
        except NotServedError:
            if file.name.endswith(".dsc"):
                fetch.notes.append(f"{file.name} is listed but not served")
                continue
            part = _DEBIAN_PART.search(file.name)
            has_orig = any(_ORIG.search(other.name) for other in package.files)
            if not (part and has_orig and choice.upstream_alone):
                because = ", and its source cannot be built without" if part and has_orig else ""
                raise NotServedError(
                    f"Debian {choice.suite} lists {file.name}, but no mirror serves it{because}",
                    f"{_offered(choice.package)} Or source.kind = 'git'.",
                ) from None
            fetch.notes.append(
                f"{file.name} is listed but not served: upstream's part is taken alone,"
                " Debian's patch series is not applied"
            )
    try:
        patches = _unpack(package, files, destination, progress)
    except (gzip.BadGzipFile, EOFError) as error:
        raise SourceError(f"{package.name} {package.version} cannot be unpacked: {error}") from None
    evidence = {
        "suite": choice.suite,
        "package": package.name,
        "version": package.version,
        "signed-by": release.key,
        "signed-on": release.fields.get("Date", ""),
        "patches": str(patches),
        **{f"sha256 {file.name}": file.sha256 for file in package.files if file.name in files},
        "tree": tree_hash(destination),
    }
    location = f"{shown(mirror)}/{package.folder}"
    return FetchedSource("debian", location, evidence, tuple(fetch.notes))


def pool_file(
    choice: SourceChoice, cache: Path, progress: Progress
) -> tuple[Path, str, tuple[str, ...]]:
    """One file of Debian's pool by its hash: an archive or a package; where from, and notes."""
    urls = [f"{mirror}/pool/{urllib.parse.quote(choice.url, safe='/+~:')}" for mirror in mirrors()]
    file, used = download(urls, cache, sha256=choice.sha256, progress=progress)
    notes = () if used else ("taken from the cache: a file of this hash was there",)
    return file, shown(used or urls[0]), notes


def fetch_pool(
    choice: SourceChoice, destination: Path, *, cache: Path, progress: Progress
) -> FetchedSource:
    """Fetch one file of Debian's pool and unpack it."""
    file, location, notes = pool_file(choice, cache, progress)
    extract(file, destination, name=choice.url.rsplit("/", 1)[-1], progress=progress)
    evidence = {"sha256": choice.sha256, "tree": tree_hash(destination)}
    return FetchedSource("pool", location, evidence, notes)
