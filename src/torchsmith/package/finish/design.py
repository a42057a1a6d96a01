"""What finishing will do with a wheel and with its metadata, before any of it is done."""

from __future__ import annotations

import posixpath
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from msgspec import Struct
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torchsmith.checks import few
from torchsmith.errors import UsageError, VerificationError
from torchsmith.package.finish.audit import Policies, Tag
from torchsmith.package.finish.outside import (
    Rules,
    Settled,
    Vendored,
    finder,
    read_installed,
    settle,
)
from torchsmith.package.patchelf import Patch
from torchsmith.recipe.outcome import Libraries
from torchsmith.verify.binary import Library
from torchsmith.verify.linkage import in_system_folder
from torchsmith.verify.wheelfile import Wheel, sound_wheel

_CURE = "Nothing was written. Build it or download it again."


def open_wheel(path: Path) -> Wheel:
    """Read a wheel; refuse one that is cut short, says two things, or would write elsewhere."""
    wheel = sound_wheel(path)
    if odd := _two_in_one_place(wheel.files):
        raise VerificationError(
            f"{path.name} is not a sound wheel: some disks see these names as one: {few(odd)}",
            _CURE,
        )
    if broken := [f"{item.path} ({item.broken})" for item in wheel.libraries if item.broken]:
        raise VerificationError(f"{path.name} has broken libraries: {few(broken, 2)}", _CURE)
    machines = sorted({item.machine for item in loadable(wheel)})
    if len(machines) > 1:
        raise UsageError(
            f"{path.name} has libraries for {' and '.join(machines)}",
            "A wheel is for one machine: find where the others came from.",
        )
    return wheel


def loadable(wheel: Wheel) -> list[Library]:
    """Libraries and programs the loader will read; object files and GPU code are left alone."""
    return [item for item in wheel.libraries if item.dynamic]


def _two_in_one_place(names: tuple[str, ...]) -> list[str]:
    """Names that differ in case or in how letters are written, or lie below a file."""
    plain = {name: unicodedata.normalize("NFC", name).casefold() for name in names}
    counts = Counter(plain.values())
    folders = {str(parent) for name in plain.values() for parent in PurePosixPath(name).parents}
    return [
        name
        for name, text in plain.items()
        if counts[text] > 1 or text in folders or text != str(PurePosixPath(text))
    ]


class Options(Struct, frozen=True):
    """How wheels are finished.

    `label` is the local version label they get, empty for the one they have; `torch` the version
    a library built against torch is held to; `pins` the versions of NVIDIA's wheels.
    """

    libraries: Libraries = "vendor"
    strip: bool = True
    label: str = ""
    torch: str = ""
    pins: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Design:
    """Every change that finishing makes to a wheel.

    `name` is the finished file's, `version` the new one, empty if it stays. `taken` are libraries
    of this machine by the paths they get in the wheel; `patches` and `stripped` go by path, too.
    `texts` are files that say something else from now on, by the names they had; what lies in
    NAME-VERSION.dist-info and .data moves from `old` to `new`.
    """

    name: str
    tag: Tag
    version: str
    settled: Settled
    taken: Mapping[str, Vendored]
    patches: Mapping[str, Patch]
    stripped: frozenset[str]
    texts: Mapping[str, bytes]
    old: str
    new: str


def design(wheel: Wheel, options: Options) -> Design:
    """Decide everything about a wheel; nothing is written."""
    libraries = loadable(wheel)
    _, old, *_, platform = wheel.path.stem.split("-")
    settled = Settled()
    tag = Tag((platform,), "it has no libraries")
    if libraries:
        policies = Policies(libraries[0].machine)
        find = finder(policies.machine)
        settled = settle(
            libraries,
            Rules(wheel.name, options.libraries, options.pins, policies, find, read_installed),
        )
        every = [*libraries, *(item.library for item in settled.vendored.values())]
        tag = policies.tag(every, settled.of("system"))
    version = labelled(wheel.version, options.label) if options.label else ""
    version = version if version != wheel.version else ""
    # As auditwheel names the folder.
    folder = f"{wheel.path.name.partition('-')[0]}.libs"
    taken = {f"{folder}/{item.name}": item for item in settled.vendored.values()}
    known = {item.path: item for item in libraries}
    known |= {path: item.library for path, item in taken.items()}
    stem = wheel.info.removesuffix(".dist-info")
    return Design(
        name=file_name(wheel.path.name, version or old, str(tag)),
        tag=tag,
        version=version,
        settled=settled,
        taken=taken,
        patches=_patches(wheel, libraries, settled, taken, system=options.libraries == "system"),
        stripped=frozenset(path for path, item in known.items() if item.strippable)
        if options.strip
        else frozenset(),
        texts=_texts(wheel, options, version, tag, settled),
        old=stem,
        new=f"{stem.rpartition('-')[0]}-{version}" if version else stem,
    )


def _patches(
    wheel: Wheel,
    libraries: list[Library],
    settled: Settled,
    taken: Mapping[str, Vendored],
    *,
    system: bool,
) -> dict[str, Patch]:
    """The changes of each library."""
    places = [place for name in (*wheel.files, *taken) if (place := installed_at(name))]
    folders = {str(parent) for place in places for parent in PurePosixPath(place).parents}
    homes: dict[str, str] = {}
    for path in (*(item.path for item in libraries), *taken):
        if place := installed_at(path):
            # The first of a name: a loader would take any.
            homes.setdefault(PurePosixPath(place).name, str(PurePosixPath(place).parent))
    found = {
        item.path: _patch(item, item.path, homes, settled, folders, system=system)
        for item in libraries
    }
    for path, item in taken.items():
        made = _patch(item.library, path, homes, settled, folders, system=False)
        soname = item.name if item.name != item.library.soname else ""
        found[path] = replace(made, soname=soname)
    return {path: wanted for path, wanted in found.items() if wanted}


def _patch(
    library: Library,
    path: str,
    homes: Mapping[str, str],
    settled: Settled,
    folders: Collection[str],
    *,
    system: bool,
) -> Patch:
    renamed = {
        name: settled.renamed[name]
        for name in library.needed
        if settled.renamed.get(name, name) != name and name not in homes
    }
    needed = [renamed.get(name, name) for name in library.needed]
    wanted = [homes[name] for name in needed if name in homes]
    wanted += [settled.brought[name].folder for name in needed if name in settled.brought]
    place = installed_at(path)
    if place is None and wanted:
        # A script: who installs it decides how far that is from site-packages.
        raise UsageError(
            f"{path} needs libraries, and where it will be installed is not known",
            "Link it statically, or finish with --libraries system.",
        )
    search = search_path(library, place, folders, wanted, system=system) if place else ()
    return Patch(
        needed=renamed,
        unneeded=tuple(name for name in library.needed if name in settled.of("python")),
        search=search if search != library.search else None,
    )


def _texts(
    wheel: Wheel, options: Options, version: str, tag: Tag, settled: Settled
) -> dict[str, bytes]:
    info, marks = f"{wheel.info}/METADATA", f"{wheel.info}/WHEEL"
    # Those that may tell the version: torch/version.py, demo/__init__.py, demo.py.
    pattern = re.compile(r"[^/]+/(version|_version|__init__)\.py|[^/]+\.py")
    modules = filter(pattern.fullmatch, wheel.files if version else ())
    with zipfile.ZipFile(wheel.path) as archive:
        fields = Fields(archive.read(info))
        tags = Fields(archive.read(marks))
        sources = {name: archive.read(name) for name in modules}
    modules_changed = with_version(sources, fields.all("Version")[0], version) if version else {}
    if version:
        fields.set("Version", [version])
    requires = new_requirements(
        wheel.requires,
        torch=options.torch if wheel.name != "torch" else "",
        uses_torch=wheel.uses_torch,
        more=dict.fromkeys(item.requirement for item in settled.brought.values()),
    )
    if tuple(requires) != wheel.requires:
        fields.set("Requires-Dist", requires)
    tags.set("Tag", retagged(tags.all("Tag"), str(tag)))
    return {**modules_changed, info: fields.content(), marks: tags.content()}


# Where pip puts libraries that belong to no package, MKL's say: PREFIX/lib, seen from
# PREFIX/lib/python3.11/site-packages.
_PREFIX_LIB = "../.."


def installed_at(path: str) -> str | None:
    """Where a file of a wheel will lie below site-packages; None where that cannot be told."""
    first, _, rest = path.partition("/")
    if not first.endswith(".data"):
        return path
    scheme, _, rest = rest.partition("/")
    return rest if scheme in ("platlib", "purelib") else None


def from_origin(file: str, folder: str) -> str:
    """A folder of site-packages, seen from a file there."""
    way = posixpath.relpath(folder, posixpath.dirname(file) or ".")
    return "$ORIGIN" if way == "." else f"$ORIGIN/{way}"


def search_path(
    library: Library,
    place: str,
    folders: Collection[str],
    wanted: Sequence[str],
    *,
    system: bool,
) -> tuple[str, ...]:
    """What a library's search path should be.

    `folders` are those of the wheel, `wanted` those of site-packages it must look in. Entries
    that lead to a folder of the wheel, or to another package beside it, stay. So does, where the
    `system` libraries are to be used, a place every such machine has: /usr/local/cuda/lib64.
    """
    kept: list[str] = []
    reached: set[str] = set()
    for entry in library.search:
        if system and in_system_folder(entry):
            kept.append(entry)
            continue
        folder = _leads_to(entry, place)
        if folder is not None and _right(folder, place, folders):
            kept.append(from_origin(place, folder))
            reached.add(folder)
    kept += [from_origin(place, folder) for folder in wanted if folder not in reached]
    return tuple(dict.fromkeys(kept))


def _leads_to(entry: str, place: str) -> str | None:
    """The folder of site-packages an entry stands for; None if it does not start at the file."""
    match = re.fullmatch(r"\$(?:ORIGIN|\{ORIGIN\})(?:/(.*))?", entry)
    if match is None or "$" in (match[1] or ""):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), match[1] or ""))


def _right(folder: str, place: str, folders: Collection[str]) -> bool:
    if folder in folders or folder == _PREFIX_LIB:
        return True
    if folder.startswith("..") or folder == ".":
        return False
    # Of its own package it could only be a folder that is not there.
    return folder.partition("/")[0] != place.partition("/")[0]


_ASSIGNED = r"(?m)^(__version__\s*(?::\s*\w+\s*)?=\s*)(['\"]){}\2"


def labelled(version: str, label: str) -> str:
    """2.6.0+cpu and cu126.sm86 -> 2.6.0+cu126.sm86; `none` leaves the label out."""
    public = Version(version).public
    if label == "none":
        return public
    try:
        return str(Version(f"{public}+{label}"))
    except InvalidVersion:
        raise UsageError(
            f"{label!r} is not a label of a version",
            "Letters and digits, parted by dots: cu126.sm86, or none.",
        ) from None


class Fields:
    """The head of a METADATA or WHEEL file, field by field; its body stays as it is."""

    def __init__(self, content: bytes) -> None:
        head, blank, body = re.split(rb"(\r?\n\r?\n|\Z)", content, maxsplit=1)[:3]
        self._body = (blank + body) or b"\n"
        lines = head.decode("utf-8", "surrogateescape").splitlines()
        # A line that starts with a blank goes on with the field before it.
        self.lines: list[str] = []
        for line in lines:
            if line[:1] in (" ", "\t") and self.lines:
                self.lines[-1] += f"\n{line}"
            else:
                self.lines.append(line)

    def all(self, name: str) -> list[str]:
        """The values of a field."""
        return [value.strip() for key, value in self._pairs() if key.lower() == name.lower()]

    def set(self, name: str, values: Iterable[str]) -> None:
        """Replace a field, where it first was; at the end if it was not there."""
        pairs = self._pairs()
        at = next((i for i, (key, _) in enumerate(pairs) if key.lower() == name.lower()), None)
        kept = [
            line
            for line, (key, _) in zip(self.lines, pairs, strict=True)
            if key.lower() != name.lower()
        ]
        at = len(kept) if at is None else at
        self.lines = [*kept[:at], *(f"{name}: {value}" for value in values), *kept[at:]]

    def content(self) -> bytes:
        """The whole file again."""
        return "\n".join(self.lines).encode("utf-8", "surrogateescape") + self._body

    def _pairs(self) -> list[tuple[str, str]]:
        parted = (line.partition(":") for line in self.lines)
        return [(key, value) for key, _, value in parted]


def new_requirements(
    requires: Iterable[str], *, torch: str, uses_torch: bool, more: Iterable[str]
) -> list[str]:
    """Requirements with torch held to one version, and what else is needed."""
    _is_version(torch)
    found: list[str] = []
    pinned = False
    added = list(more)
    replaced = {canonicalize_name(Requirement(line).name) for line in added}
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            found.append(line)
            continue
        name = canonicalize_name(requirement.name)
        if name in replaced:
            continue
        if name == "torch" and torch:
            _fits(requirement, torch)
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            marker = f"; {requirement.marker}" if requirement.marker else ""
            found.append(f"torch{extras}=={torch}{marker}")
            pinned = pinned or requirement.marker is None
        else:
            found.append(line)
    if torch and uses_torch and not pinned:
        found.append(f"torch=={torch}")
    return [*found, *added]


def _is_version(torch: str) -> None:
    try:
        Version(torch or "0")
    except InvalidVersion:
        raise UsageError(f"{torch!r} is not a version of torch", "Such as 2.6.0+cpu.") from None


def _fits(requirement: Requirement, torch: str) -> None:
    """A wheel that asks for another release was built against that one; labels may differ."""
    public = Version(torch).public
    plain = ",".join(re.sub(r"\+[\w.]+", "", str(item)) for item in requirement.specifier)
    if not SpecifierSet(plain).contains(public, prereleases=True):
        raise UsageError(
            f"it asks for {requirement} and is to be held to torch {torch}",
            "It was built against another torch: build it again, or leave --torch out.",
        )


def retagged(tags: Iterable[str], platform: str) -> list[str]:
    """Tag lines of WHEEL for another platform, which may be several with dots between."""
    starts = dict.fromkeys(tag.rpartition("-")[0] for tag in tags)
    return sorted({str(tag) for start in starts for tag in parse_tag(f"{start}-{platform}")})


def file_name(old: str, version: str, platform: str) -> str:
    """NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl, with these two changed."""
    name, _, *middle, _ = old.removesuffix(".whl").split("-")
    return "-".join([name, version.replace("-", "_"), *middle, platform]) + ".whl"


def moved(name: str, old: str, new: str) -> str:
    """A file of the wheel where NAME-VERSION.dist-info, and .data, have another version."""
    first, slash, rest = name.partition("/")
    for end in (".dist-info", ".data"):
        if first == f"{old}{end}":
            return f"{new}{end}{slash}{rest}"
    return name


def with_version(contents: Mapping[str, bytes], old: str, new: str) -> dict[str, bytes]:
    """Those of some Python files that say `__version__ = OLD`, saying NEW."""
    pattern = re.compile(_ASSIGNED.format(re.escape(old)))
    rewritten: dict[str, bytes] = {}
    for name, content in contents.items():
        text = content.decode("utf-8", "surrogateescape")
        changed = pattern.sub(lambda found: f"{found[1]}{found[2]}{new}{found[2]}", text)
        if changed != text:
            rewritten[name] = changed.encode("utf-8", "surrogateescape")
    return rewritten
