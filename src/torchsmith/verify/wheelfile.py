"""A wheel as a file: whether it says the same thing everywhere, and is whole."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.parser import HeaderParser
from pathlib import Path
from typing import IO

from msgspec import Struct
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)

from torchsmith.checks import Check, Status, few, holds, rated
from torchsmith.errors import VerificationError
from torchsmith.inputs import check_file
from torchsmith.sources.unfolding import LONGEST_TEXT, check_zip
from torchsmith.verify.binary import MAGIC, Library, read_bytes

GROUP = "wheel"
COMPANIONS = ("torchvision", "torchaudio", "torchtext")
# PEP 427: these are the record, or sign it, and so cannot be in it.
_UNRECORDED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_LEGACY = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
# Opening the archive once more costs as much as unpacking this many bytes.
_LARGE = 1 << 24
_PIECE = 1 << 20
_CPYTHON = re.compile(r"\.cpython-(\d+)[a-z]*-")


class Wheel(Struct, frozen=True):
    """What a wheel file says of itself, and what was found out about it."""

    path: Path
    name: str = ""
    version: str = ""
    tags: frozenset[Tag] = frozenset()
    requires: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    libraries: tuple[Library, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def installable(self) -> bool:
        """Whether it can be tried: a damaged archive cannot."""
        return bool(self.files)

    @property
    def glibc(self) -> str:
        """The glibc its tag promises to do with; empty for linux_x86_64, which promises nothing."""
        found = ""
        for tag in self.tags:
            start, _, _ = tag.platform.partition("_")
            if start in _LEGACY:
                found = found or _LEGACY[start]
            elif match := re.match(r"manylinux_(\d+)_(\d+)_", tag.platform):
                found = f"{match[1]}.{match[2]}"
        return found

    @property
    def info(self) -> str:
        """Its own .dist-info folder; some packages bring those of others further down."""
        folders = (name.partition("/")[0] for name in self.files)
        return next(folder for folder in folders if folder.endswith(".dist-info"))

    @property
    def modules(self) -> tuple[str, ...]:
        """Top-level modules it installs."""
        found = {_module(name) for name in self.files}
        return tuple(sorted(name for name in found if name.isidentifier()))

    @property
    def uses_torch(self) -> bool:
        """Whether it was compiled against a torch."""
        return any(uses_torch(library) for library in self.libraries)


def uses_torch(library: Library) -> bool:
    """Whether a library is linked with torch's."""
    return any(name.startswith(("libtorch", "libc10")) for name in library.needed)


def _module(path: str) -> str:
    first, slash, rest = path.partition("/")
    if slash:
        return first if rest == "__init__.py" else ""
    return first.partition(".")[0] if first.endswith((".py", ".so")) else ""


def read_wheel(path: Path) -> Wheel:
    """Read all of a wheel once: names, metadata, hashes, libraries."""
    try:
        if not path.name.isascii():
            raise InvalidWheelFilename(f"{path.name} has letters other than plain ASCII ones")
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        cure = "a wheel is called NAME-VERSION-PYTHON-ABI-PLATFORM.whl; pip refuses others"
        return Wheel(path, checks=(Check(GROUP, "file name", "fail", str(error), cure=cure),))
    plain = Wheel(path, name, str(version), tags)
    try:
        with zipfile.ZipFile(path) as archive:
            check_zip(archive, path.stat().st_size)
            infos = [info for info in archive.infolist() if not info.is_dir()]
            counts = Counter(info.filename for info in infos)
            escaping = [info.filename for info in archive.infolist() if _escapes(info)]
            escaping += [name for name, count in counts.items() if count > 1]
            escaping += sorted(counts.keys() & _folders(archive))
            seen = {} if escaping else _contents(path, infos)
            texts = _texts(archive, seen)
    except Exception as error:
        # What zipfile ends with depends on what is damaged: RuntimeError where it takes a member
        # to be encrypted, ValueError where a name is in no known letters, lzma's and zlib's own.
        cure = "it was cut short or damaged: build or download it again"
        return _with(
            plain, [Check(GROUP, "archive", "fail", str(error), "a whole zip file", cure=cure)]
        )
    checks = [
        Check(GROUP, "archive", "pass", f"{len(infos)} files"),
        holds(
            GROUP,
            "file names",
            not escaping,
            found=few(escaping) or "all stay below the folder they are installed in",
            wanted="no absolute path, no . or .., no link, no control character, none twice",
            cure="do not install this file",
        ),
    ]
    if escaping:
        return _with(plain, checks)
    return _described(plain, seen, texts, checks)


def sound_wheel(path: Path) -> Wheel:
    """Read a wheel that is to be used; refuse one that is damaged or says two things of itself."""
    check_file(path, "Name a wheel.")
    wheel = read_wheel(path)
    if failed := [check for check in wheel.checks if check.status == "fail"]:
        problems = "; ".join(
            f"{check.name}: {check.found}" + (f", wanted: {check.wanted}" if check.wanted else "")
            for check in failed
        )
        raise VerificationError(
            f"{path.name} is not a sound wheel: {problems}",
            failed[0].cure or "Build it again; `torchsmith verify --no-run` says more.",
        )
    return wheel


def _with(wheel: Wheel, checks: list[Check]) -> Wheel:
    return Wheel(wheel.path, wheel.name, wheel.version, wheel.tags, checks=tuple(checks))


def _escapes(info: zipfile.ZipInfo) -> bool:
    parts = info.filename.removesuffix("/").split("/")
    link = stat.S_ISLNK(info.external_attr >> 16)
    odd = "\\" in info.filename or ":" in parts[0] or not info.filename.isprintable()
    # Installers write a/./b and a//b over a/b.
    return link or odd or any(part in ("", ".", "..") or len(part) > 255 for part in parts)


def _folders(archive: zipfile.ZipFile) -> set[str]:
    """Every folder that the names of members lie in, or are."""
    return {
        name[: found.start()] for name in archive.namelist() for found in re.finditer("/", name)
    }


class _Member(Struct, frozen=True):
    digest: str
    size: int
    library: Library | None = None


def _contents(path: Path, infos: list[zipfile.ZipInfo]) -> dict[str, _Member]:
    """Hash every file and read every library, the largest first, on a few threads."""

    def read(batch: list[zipfile.ZipInfo]) -> dict[str, _Member]:
        seen: dict[str, _Member] = {}
        # A handle of its own: they seek, and unpacking does not hold the interpreter's lock.
        with zipfile.ZipFile(path) as archive:
            for info in batch:
                with archive.open(info) as stream:
                    seen[info.filename] = _read_member(info.filename, stream)
        return seen

    ordered = sorted(infos, key=lambda info: -info.file_size)
    large = [[info] for info in ordered if info.file_size > _LARGE]
    small = ordered[len(large) :]
    seen: dict[str, _Member] = {}
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for part in pool.map(read, [*large, small]):
            seen |= part
    return seen


def _read_member(name: str, stream: IO[bytes]) -> _Member:
    """Hash a file a piece at a time; only a library is held in memory whole."""
    mark = hashlib.sha256()
    size = 0
    kept: list[bytes] = []
    library = False
    while piece := stream.read(_PIECE):
        library = library or (not size and piece[:4] == MAGIC)
        mark.update(piece)
        size += len(piece)
        if library:
            kept.append(piece)
    digest = base64.urlsafe_b64encode(mark.digest()).decode().rstrip("=")
    return _Member(digest, size, read_bytes(name, b"".join(kept)) if library else None)


def _texts(archive: zipfile.ZipFile, seen: Mapping[str, _Member]) -> dict[str, str]:
    """The files of the .dist-info folder that say what this is."""
    found = {}
    for name in seen:
        folder, _, last = name.partition("/")
        if folder.endswith(".dist-info") and last in ("METADATA", "WHEEL", "RECORD"):
            if seen[name].size > LONGEST_TEXT:
                raise ValueError(f"{name} is {seen[name].size} bytes long")
            found[name] = archive.read(name).decode("utf-8", "replace")
    return found


def _described(
    wheel: Wheel, seen: Mapping[str, _Member], texts: Mapping[str, str], checks: list[Check]
) -> Wheel:
    folders = sorted({name.partition("/")[0] for name in texts})
    wanted = f"{wheel.path.name.split('-')[0]}-{wheel.path.name.split('-')[1]}.dist-info"
    inside = {name.partition("/")[2]: text for name, text in texts.items()}
    complete = len(folders) == 1 and len(inside) == 3
    checks.append(
        holds(
            GROUP,
            "metadata",
            complete,
            found=few(folders) or "no .dist-info folder",
            wanted=f"{wanted} with METADATA, WHEEL and RECORD",
        )
    )
    requires: tuple[str, ...] = ()
    libraries = tuple(member.library for member in seen.values() if member.library)
    if complete:
        metadata = HeaderParser().parsestr(inside["METADATA"])
        requires = tuple(metadata.get_all("Requires-Dist") or ())
        # Which of two names counts depends on who reads them.
        name, version = (", ".join(metadata.get_all(key, [])) for key in ("Name", "Version"))
        checks += [*_same(wheel, folders[0], name, version)]
        checks += [_tags(wheel, HeaderParser().parsestr(inside["WHEEL"]).get_all("Tag") or [])]
        checks.append(_record(inside["RECORD"], seen, folders[0]))
    checks += _extensions(wheel, libraries)
    return Wheel(
        wheel.path,
        wheel.name,
        wheel.version,
        wheel.tags,
        requires,
        tuple(seen),
        libraries,
        tuple(checks),
    )


def _same(wheel: Wheel, folder: str, name: str, version: str) -> Iterator[Check]:
    parts = folder.removesuffix(".dist-info").rpartition("-")
    for value, title in ((name, "METADATA"), (parts[0], ".dist-info folder")):
        if canonicalize_name(value) != wheel.name:
            yield Check(GROUP, "name", "fail", f"{title}: {value!r}", wheel.name)
            return
    wanted = canonicalize_version(wheel.version)
    for value, title in ((version, "METADATA"), (parts[2], ".dist-info folder")):
        if canonicalize_version(value) != wanted:
            yield Check(GROUP, "version", "fail", f"{title}: {value!r}", wheel.version)
            return
    yield Check(GROUP, "name and version", "pass", f"{wheel.name} {wheel.version}")


def _tags(wheel: Wheel, listed: list[str]) -> Check:
    wanted = {str(tag) for tag in wheel.tags}
    found = ", ".join(sorted(tag.strip() for tag in listed))
    return holds(
        GROUP,
        "tag",
        {tag.strip() for tag in listed} == wanted,
        found=found or "WHEEL has none",
        wanted=", ".join(sorted(wanted)),
        cure="`wheel tags` renames a wheel so that both say the same",
    )


def _record(text: str, seen: Mapping[str, _Member], folder: str) -> Check:
    listed = {row[0]: row[1:] for row in csv.reader(io.StringIO(text)) if row}
    free = {f"{folder}/{name}" for name in _UNRECORDED}
    wrong = [f"{name}: not in RECORD" for name in seen if name not in listed and name not in free]
    wrong += [
        f"{name}: not in the wheel" for name in listed if name not in seen and name not in free
    ]
    for name, row in listed.items():
        if name in free or name not in seen:
            continue
        kind, _, digest = (row[0] if row else "").partition("=")
        # PEP 427 allows stronger ones, which nobody writes: a hash that is not compared proves
        # nothing, and weaker ones (md5, sha1) prove little.
        if kind != "sha256":
            wrong.append(f"{name}: {kind or 'no hash'} instead of sha256")
        elif digest.rstrip("=") != seen[name].digest:
            wrong.append(f"{name}: another sha256")
        if len(row) > 1 and row[1] and row[1] != str(seen[name].size):
            wrong.append(f"{name}: another size")
    return holds(
        GROUP,
        "record",
        not wrong,
        found=few(wrong) if wrong else f"{len(listed)} files, hashes right",
        wanted="every file with its size and hash",
        cure="if nobody changed it on purpose, do not install it; `wheel pack` writes a new RECORD",
    )


def _extensions(wheel: Wheel, libraries: tuple[Library, ...]) -> Iterator[Check]:
    if not libraries:
        return
    numbers = {tag.interpreter.removeprefix("cp") for tag in wheel.tags}
    named = {item.path: found[1] for item in libraries if (found := _CPYTHON.search(item.name))}
    foreign = [path for path, number in named.items() if number not in numbers]
    if wheel.name == "torch" and not any(
        item.path.startswith("torch/_C.") and item.name.endswith(".so") for item in libraries
    ):
        foreign.append("no torch/_C.*.so")
    cure = "the wheel was built with another Python than its tag says, or a file was renamed"
    yield holds(
        GROUP,
        "extension names",
        not foreign,
        found=few(foreign) or few(sorted({item.name for item in libraries if item.path in named})),
        wanted=f"modules for {few(sorted({tag.interpreter for tag in wheel.tags}))}",
        cure=cure,
    )
    wanted = {tag.platform.partition("_")[2] for tag in wheel.tags}
    other = [
        f"{item.path}: {item.machine}"
        for item in libraries
        if item.machine and not any(platform.endswith(item.machine) for platform in wanted)
    ]
    yield holds(
        GROUP,
        "platform",
        not other,
        found=few(other) or few(sorted({item.machine for item in libraries})),
        wanted=few(sorted({tag.platform for tag in wheel.tags})),
        cure="a wheel's tag names the machine its libraries are for",
    )


def requirements(lines: Iterable[str]) -> Iterator[Requirement]:
    """What has to be installed with something; extras and broken lines are left out."""
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def required(wheel: Wheel) -> dict[str, Requirement]:
    """What it requires, by name."""
    return {canonicalize_name(item.name): item for item in requirements(wheel.requires)}


def wants_another_torch(wheel: Wheel, torch: str) -> bool:
    """Whether pip would bring another torch for it than this one."""
    requirement = required(wheel).get(canonicalize_name("torch"))
    return bool(requirement and torch and not requirement.specifier.contains(torch, True))


def torch_pin(wheel: Wheel, torch: str) -> Check | None:
    """Whether a wheel asks for this torch; None if it says nothing and does not use one."""
    if wheel.name == "torch":
        return None
    another = wants_another_torch(wheel, torch)
    if not wheel.uses_torch and not another:
        return None
    name = f"{wheel.name}'s torch"
    requirement = required(wheel).get(canonicalize_name("torch"))
    found = str(requirement) if requirement else "no torch is required"
    exact = requirement is not None and any(
        spec.operator in ("==", "===") and "*" not in spec.version for spec in requirement.specifier
    )
    wanted = f"torch=={torch}" if torch else "torch at exactly one version"
    if another:
        cure = "its metadata asks for another torch: mend it, or build against that torch"
        return Check(GROUP, name, "fail", found, wanted, cure=cure)
    # Other libraries rarely pin: a person has to know which torch they were built against.
    status: Status = "pass" if exact else "fail" if wheel.name in COMPANIONS else "warn"
    cure = "build it with PYTORCH_VERSION set to the torch it is compiled against"
    return rated(GROUP, name, status, found, wanted, cure if status == "fail" else "")
