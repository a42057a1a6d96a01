"""What finishing will do with a wheel, before any of it is done."""

from __future__ import annotations

import posixpath
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from msgspec import Struct

from torchsmith.errors import UsageError
from torchsmith.inputs import check_file
from torchsmith.package.finish import metadata
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
from torchsmith.verify.checks import few
from torchsmith.verify.linkage import in_system_folder
from torchsmith.verify.wheelfile import Wheel, read_wheel

_CURE = "Nothing was written. Build it or download it again."


def open_wheel(path: Path) -> Wheel:
    """Read a wheel; refuse one that is cut short, says two things, or would write elsewhere."""
    check_file(path, "Name a wheel.")
    wheel = read_wheel(path)
    for check in wheel.checks:
        if check.status == "fail":
            wanted = f", wanted: {check.wanted}" if check.wanted else ""
            raise UsageError(
                f"{path.name} is not a sound wheel: {check.name}: {check.found}{wanted}", _CURE
            )
    if odd := _two_in_one_place(wheel.files):
        raise UsageError(
            f"{path.name} is not a sound wheel: some disks see these names as one: {few(odd)}",
            _CURE,
        )
    if broken := [f"{item.path} ({item.broken})" for item in wheel.libraries if item.broken]:
        raise UsageError(f"{path.name} has broken libraries: {few(broken, 2)}", _CURE)
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
    version = metadata.labelled(wheel.version, options.label) if options.label else ""
    version = version if version != wheel.version else ""
    # As auditwheel names the folder.
    folder = f"{wheel.path.name.partition('-')[0]}.libs"
    taken = {f"{folder}/{item.name}": item for item in settled.vendored.values()}
    known = {item.path: item for item in libraries}
    known |= {path: item.library for path, item in taken.items()}
    info = _info(wheel)
    stem = info.removesuffix(".dist-info")
    return Design(
        name=metadata.file_name(wheel.path.name, version or old, str(tag)),
        tag=tag,
        version=version,
        settled=settled,
        taken=taken,
        patches=_patches(wheel, libraries, settled, taken, system=options.libraries == "system"),
        stripped=frozenset(path for path, item in known.items() if item.strippable)
        if options.strip
        else frozenset(),
        texts=_texts(wheel, info, options, version, tag, settled),
        old=stem,
        new=f"{stem.rpartition('-')[0]}-{version}" if version else stem,
    )


def _info(wheel: Wheel) -> str:
    """The .dist-info folder: a package may hold others further down."""
    folders = (name.partition("/")[0] for name in wheel.files)
    return next(folder for folder in folders if folder.endswith(".dist-info"))


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
    wheel: Wheel, folder: str, options: Options, version: str, tag: Tag, settled: Settled
) -> dict[str, bytes]:
    info, marks = f"{folder}/METADATA", f"{folder}/WHEEL"
    modules = metadata.version_modules(wheel.files) if version else []
    with zipfile.ZipFile(wheel.path) as archive:
        fields = metadata.Fields(archive.read(info))
        tags = metadata.Fields(archive.read(marks))
        sources = {name: archive.read(name) for name in modules}
    modules_changed = (
        metadata.with_version(sources, fields.all("Version")[0], version) if version else {}
    )
    if version:
        fields.set("Version", [version])
    requires = metadata.new_requirements(
        wheel.requires,
        torch=options.torch if wheel.name != "torch" else "",
        uses_torch=wheel.uses_torch,
        more=dict.fromkeys(item.requirement for item in settled.brought.values()),
    )
    if tuple(requires) != wheel.requires:
        fields.set("Requires-Dist", requires)
    tags.set("Tag", metadata.retagged(tags.all("Tag"), str(tag)))
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
