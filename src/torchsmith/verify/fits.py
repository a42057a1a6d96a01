"""Does a wheel load with a torch? Its libraries' symbols against those torch's export."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from packaging.tags import Tag
from packaging.utils import canonicalize_name

from torchsmith.errors import UsageError, VerificationError
from torchsmith.facts.exports import Build, Exports, exports, exports_of, is_stable, is_torchs
from torchsmith.facts.files import Facts
from torchsmith.facts.ranges import VersionRange
from torchsmith.facts.torch import find_release, wheel_cudas
from torchsmith.host.models import InstalledTorch
from torchsmith.inputs import check_file
from torchsmith.verify.binary import (
    Library,
    Symbols,
    demangled,
    read_library,
    read_symbols,
    version_key,
)
from torchsmith.verify.linkage import baseline, newest
from torchsmith.verify.target import fits as takes_python
from torchsmith.verify.wheelfile import Wheel, read_wheel, required

Kind = Literal["pure", "independent", "stable", "bound"]

_TORCH_LIBRARY = re.compile(
    r"lib(?:torch|torch_(?:cpu|cuda|cuda_cpp|cuda_cu|cuda_linalg|hip|xpu|python)"
    r"|c10|c10_(?:cuda|hip|xpu))\.so"
)
_CUDA_LIBRARY = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc)\.so\.([0-9]+)")
# metatensor/torch/torch-2.6/lib/…, libaddon_torch26-cpu.so.
_ALTERNATIVE = re.compile(r"torch[-_.]?[0-9]+(?:[._][0-9]+)*(?=[-/_.])")
# libaddon-cpu.so beside libaddon-cuda.so.
_DEVICE = re.compile(r"[-_](?:cpu|cuda)(?=[-_.])")


class Part(Struct, frozen=True):
    """A library of the wheel: what it takes from torch, by symbol and by library."""

    path: str
    symbols: frozenset[str]
    libraries: frozenset[str]


class Subject(Struct, frozen=True):
    """What a wheel needs.

    `kind`: `pure` has no libraries, `independent` takes nothing from torch, `stable` only the C
    functions later releases keep, `bound` anything else. `outside` are libraries that neither
    it, nor torch, nor every Linux has. `cuda` is a major version, empty for none or unknown.
    """

    wheel: Wheel
    kind: Kind
    platform: str
    parts: tuple[Part, ...] = ()
    outside: tuple[str, ...] = ()
    glibc: str = ""
    libstdcxx: str = ""
    cuda: str = ""

    @property
    def symbols(self) -> frozenset[str]:
        """All it takes from torch."""
        return frozenset[str]().union(*(part.symbols for part in self.parts))

    @property
    def needs_cuda(self) -> bool:
        """Whether it cannot do without torch's CUDA libraries."""
        return any(
            all(any("_cuda" in name for name in part.libraries) for part in group)
            for group in alternatives(self.parts)
        )

    @property
    def torch(self) -> str:
        """Which torch its metadata asks for."""
        requirement = required(self.wheel).get(canonicalize_name("torch"))
        return str(requirement.specifier) or "any" if requirement else ""


class Verdict(Struct, frozen=True):
    """Whether it loads with one torch; if not, why, and the first symbol of `missing` ones."""

    torch: str
    fits: bool
    reason: str = ""
    library: str = ""
    symbol: str = ""
    demangled: str = ""
    missing: int = 0


def read_subject(path: Path) -> Subject:
    """Read a wheel and every library in it."""
    check_file(path, "Name a wheel.")
    if path.suffix != ".whl":
        raise UsageError(f"{path} is not a wheel", "Name a file that ends in .whl.")
    wheel = read_wheel(path)
    if not wheel.installable:
        failed = next(check for check in wheel.checks if check.status == "fail")
        raise VerificationError(f"{path} is not a whole wheel: {failed.found}", f"{failed.cure}.")
    if wheel.name == "torch":
        raise UsageError(f"{path} is torch itself", "Name a wheel that was built against torch.")
    platforms = {tag.platform for tag in wheel.tags}
    if not any(name == "any" or "linux" in name for name in platforms):
        raise UsageError(f"{path} is for {', '.join(sorted(platforms))}", "Name a Linux wheel.")
    return describe(wheel, _read_all(wheel))


def _read_all(wheel: Wheel) -> dict[str, Symbols]:
    found: dict[str, Symbols] = {}
    with zipfile.ZipFile(wheel.path) as archive:
        for library in wheel.libraries:
            if library.broken:
                raise VerificationError(
                    f"{library.path} in {wheel.path.name} is damaged: {library.broken}",
                    "Build or download the wheel again.",
                )
            if library.dynamic and not library.program:
                found[library.path] = _read_one(library.path, archive.read(library.path))
    return found


def _read_one(path: str, content: bytes) -> Symbols:
    try:
        return read_symbols(io.BytesIO(content))
    except Exception as error:
        # pyelftools and struct end as they happen to where a table is damaged.
        raise VerificationError(
            f"the symbols of {path} cannot be read: {error}", "Build or download it again."
        ) from error


def describe(wheel: Wheel, symbols: dict[str, Symbols]) -> Subject:
    """Say what a wheel with these libraries needs."""
    libraries = [item for item in wheel.libraries if item.path in symbols]
    if not libraries:
        return Subject(wheel, "pure", "")
    machines = sorted({item.machine for item in libraries})
    inside = {name for item in libraries for name in (item.name, item.soname)}
    defined = frozenset[str]().union(*(item.defined for item in symbols.values()))
    parts = []
    for item in libraries:
        names = frozenset(filter(is_torchs, symbols[item.path].needed - defined))
        linked = frozenset(filter(is_torch_library, set(item.needed) - inside))
        if names or linked:
            parts.append(Part(item.path, names, linked))
    taken = frozenset[str]().union(*(part.symbols for part in parts))
    kind: Kind = "stable" if taken and all(map(is_stable, taken)) else "bound"
    needed = {name for item in libraries for name in item.needed}
    majors = {found[1] for name in needed if (found := _CUDA_LIBRARY.match(name))}
    return Subject(
        wheel,
        kind if parts else "independent",
        machines[0] if len(machines) == 1 else "",
        tuple(sorted(parts, key=lambda part: part.path)),
        tuple(sorted(_outside(libraries, inside))),
        newest(libraries, "GLIBC")[0],
        newest(libraries, "GLIBCXX")[0],
        max(majors, key=int, default=""),
    )


def _outside(libraries: Iterable[Library], inside: set[str]) -> set[str]:
    needed = {name for item in libraries for name in item.needed} - inside
    known = baseline().system | baseline().driver
    return {name for name in needed - known if not is_torch_library(name)}


def is_torch_library(name: str) -> bool:
    """Whether a library of this name is one of torch's own."""
    return _TORCH_LIBRARY.fullmatch(name) is not None


def pythons(wheel: Wheel) -> str:
    """Which Pythons it can be installed into, in words."""
    found = {_python(tag): None for tag in sorted(wheel.tags, key=lambda tag: _order(tag))}
    return ", ".join(found)


def _order(tag: Tag) -> tuple[int, ...]:
    return version_key(f"{tag.interpreter[2:3]}.{tag.interpreter[3:] or 0}")


def _python(tag: Tag) -> str:
    number = f"{tag.interpreter[2:3]}.{tag.interpreter[3:]}".rstrip(".")
    if tag.abi == "abi3":
        return f"{number} or newer (abi3)"
    if tag.interpreter.startswith("py"):
        return f"{number} or newer" if "." in number else f"any {number}"
    return f"{number}t" if tag.abi.endswith("t") else number


def _installs(wheel: Wheel, python: str) -> bool:
    """Whether a Python such as 3.13, or the free-threaded 3.13t, takes one of the wheel's tags."""
    threaded = python.endswith("t")
    return any(
        takes_python(tag, python.removesuffix("t"))
        and (tag.abi == "none" or tag.abi.endswith("t") == threaded)
        for tag in wheel.tags
    )


def judge_releases(subject: Subject, facts: Facts, asked: VersionRange) -> tuple[Verdict, ...]:
    """Hold a wheel against every published release of a range, oldest first."""
    table = exports()
    wanted = [build for build in table.builds if build.torch in asked]
    if not wanted:
        known = table.builds
        raise UsageError(
            f"no release in the table is torch {asked}",
            f"It has {known[0].torch} to {known[-1].torch}; --env reads an installed torch.",
        )
    if subject.kind in ("pure", "independent"):
        return tuple(Verdict(name, True) for name in dict.fromkeys(item.torch for item in wanted))
    builds = {build.torch: build for build in wanted if build.platform == subject.platform}
    if not builds:
        raise UsageError(
            f"the table has no torch {asked} for {subject.platform or 'several machines at once'}",
            "It has releases for x86_64 and aarch64; --env reads an installed torch.",
        )
    unread = f"not in the table for {subject.platform}"
    return tuple(
        _refused_by_facts(subject, facts, builds[name]) or judge(subject, table, builds[name])
        if name in builds
        else Verdict(name, False, unread)
        for name in dict.fromkeys(build.torch for build in wanted)
    )


def _refused_by_facts(subject: Subject, facts: Facts, build: Build) -> Verdict | None:
    """What the published wheels of a release rule out, before symbols are compared."""
    release = find_release(facts, build.torch)
    if release is None:
        return None
    known = (*release.pythons, *release.experimental)
    if known and not any(_installs(subject.wheel, python) for python in known):
        reason = f"published for Python {', '.join(release.pythons)}"
        return Verdict(build.torch, False, reason)
    if subject.needs_cuda and subject.cuda:
        cudas = {*wheel_cudas(facts, build.torch, f"linux-{build.platform}")}
        if release.pypi_cuda and f"linux-{build.platform}" in release.pypi_cuda_on:
            cudas.add(release.pypi_cuda)
        majors = {cuda.partition(".")[0] for cuda in cudas}
        if majors and subject.cuda not in majors:
            names = ", ".join(sorted(majors, key=int))
            return Verdict(build.torch, False, f"published for CUDA {names}")
    return None


def judge_installed(
    subject: Subject, torch: InstalledTorch, platform: str, glibc: str
) -> tuple[Verdict, ...]:
    """Hold a wheel against the torch of an environment on this machine."""
    if subject.kind in ("pure", "independent"):
        return (Verdict(torch.version, True),)

    def no(reason: str) -> tuple[Verdict, ...]:
        return (Verdict(torch.version, False, reason),)

    if subject.platform != platform:
        return no(f"this machine is {platform}")
    if not _installs(subject.wheel, _short_python(torch)):
        return no(f"its Python is {_short_python(torch)}")
    if glibc and version_key(subject.glibc) > version_key(glibc):
        return no(f"this machine has glibc {glibc}")
    major = torch.cuda.partition(".")[0]
    if subject.needs_cuda and not major:
        return no("it was built without CUDA")
    if subject.needs_cuda and subject.cuda and subject.cuda != major:
        return no(f"it was built for CUDA {torch.cuda}")
    exported: set[str] = set()
    names: list[str] = []
    for file in sorted(Path(torch.module, "lib").glob("lib*.so")):
        with file.open("rb") as stream:
            if read_library(file.name, stream, file.stat().st_size) is None:
                continue
            stream.seek(0)
            exported |= read_symbols(stream).defined
        names.append(file.name)
    build = Build(torch.version, platform, tuple(names))
    return (judge(subject, exports_of({build: exported}), build),)


def _short_python(torch: InstalledTorch) -> str:
    return ".".join(torch.python.split(".")[:2]) + ("t" if torch.free_threaded else "")


def alternatives(parts: Iterable[Part]) -> list[list[Part]]:
    """Libraries that stand for each other: a package loads the one made for the torch it finds."""
    groups: dict[str, list[Part]] = {}
    for part in parts:
        name = _DEVICE.sub("", _ALTERNATIVE.sub("torch", part.path))
        groups.setdefault(name, []).append(part)
    return [group for _, group in sorted(groups.items())]


def judge(subject: Subject, table: Exports, build: Build) -> Verdict:
    """Hold a wheel against one build."""
    for group in alternatives(subject.parts):
        found = [_judge_part(part, table, build) for part in group]
        if not any(item.fits for item in found):
            return min(found, key=lambda item: item.missing or 1 << 30)
    return Verdict(build.torch, True)


def _judge_part(part: Part, table: Exports, build: Build) -> Verdict:
    if absent := sorted(part.libraries - set(build.libraries)):
        return Verdict(build.torch, False, f"has no {absent[0]}", part.path)
    missing = table.missing(part.symbols, build)
    if not missing:
        return Verdict(build.torch, True)
    name = missing[0]
    return Verdict(
        build.torch, False, "lacks a symbol", part.path, name, demangled(name), len(missing)
    )


def fitting(verdicts: Sequence[Verdict]) -> list[str]:
    """The torches it loads with."""
    return [verdict.torch for verdict in verdicts if verdict.fits]
