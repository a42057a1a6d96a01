"""Judging libraries: would they load on a machine other than the one they were built on?"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from msgspec import Struct, convert

from torchsmith.checks import Check, Status, few, holds, rated
from torchsmith.host.probe import run
from torchsmith.verify.binary import Library, looks_shared, version_key


def library_places() -> list[tuple[str, str]]:
    """Each library of the loader and where it lies, in order; only this asks ldconfig."""
    for program in ("ldconfig", "/sbin/ldconfig"):
        if listing := run([program, "-p"]):
            pairs = (line.strip().partition(" => ") for line in listing.splitlines())
            return [(name.split()[0], path.strip()) for name, arrow, path in pairs if arrow]
    return []


def system_libraries() -> frozenset[str]:
    """Names the machine's loader finds; not in a person's own folder, which no other has."""
    home = f"{Path.home()}/"
    return frozenset(name for name, path in library_places() if not path.startswith(home))


GROUP = "libraries"
MIB = 1 << 20
_MUCH_DEBUG = 100 * MIB
_OPENMP = ("libgomp", "libiomp5", "libomp")
# Where a system keeps its libraries anyway: useless in a search path, not wrong.
_SYSTEM_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda")


class Baseline(Struct, frozen=True):
    """What a machine may be expected to have; see baseline.toml."""

    system: frozenset[str]
    driver: frozenset[str]
    libstdcxx: Mapping[str, str]
    brought_by: Mapping[str, str]

    def bringer(self, library: str) -> str:
        """Which distribution brings a library; empty if none is known to."""
        # The longest start wins: libcusparseLt is not libcusparse.
        starts = [start for start in self.brought_by if library.startswith(start)]
        return self.brought_by[max(starts, key=len)] if starts else ""


@cache
def baseline() -> Baseline:
    """The shipped baseline."""
    text = resources.files("torchsmith.verify").joinpath("baseline.toml").read_text("utf-8")
    return convert(tomllib.loads(text), Baseline)


class Surroundings(Struct, frozen=True):
    """What the libraries can count on: where they will be, and what comes with them.

    `requires` are the names of the distributions they ask for, `installed` those that are
    there, `present` the names of libraries in the same environment, `system` those the
    machine's loader finds, `toolkit` those of a CUDA toolkit it was built against. `declared`
    says that using the system's libraries was asked for.
    `glibc` is the one a manylinux tag promises to do with, empty where nothing is promised.
    """

    requires: frozenset[str] = frozenset()
    installed: frozenset[str] = frozenset()
    present: frozenset[str] = frozenset()
    system: frozenset[str] = frozenset()
    toolkit: frozenset[str] = frozenset()
    declared: bool = False
    glibc: str = ""
    prefix: str = ""


def judge(libraries: Sequence[Library], around: Surroundings) -> list[Check]:
    """Every check that needs no running of anything."""
    if not libraries:
        return [Check(GROUP, "shared libraries", "absent", "none")]
    broken = [f"{library.path}: {library.broken}" for library in libraries if library.broken]
    whole = [library for library in libraries if not library.broken]
    machines = sorted({library.machine for library in whole})
    return [
        holds(
            GROUP,
            "readable",
            not broken,
            found=few(broken, 2) if broken else f"{len(whole)} libraries",
            cure="the file is damaged: build or download it again",
        ),
        holds(
            GROUP,
            "machine",
            len(machines) == 1,
            found=few(machines),
            wanted="one machine for all",
            cure="a library of another machine was packed: find where it came from",
        ),
        _search_paths(whole, around),
        *_needed(whole, around),
        *_cuda(whole, around),
        *_symbols(whole, around),
        _stacks(whole),
        _debug(whole),
        _openmp(whole),
    ]


def _search_paths(libraries: Sequence[Library], around: Surroundings) -> Check:
    foreign: list[str] = []
    useless: list[str] = []
    for library in libraries:
        for entry in library.search:
            if not entry.startswith("/") or _inside(entry, around.prefix):
                continue
            # A program of the package (torch/bin has tests) is not loaded into anyone's process.
            harmless = not looks_shared(library.path) or in_system_folder(entry)
            (useless if harmless else foreign).append(f"{library.path}: {entry}")
    cure = "patchelf --set-rpath '$ORIGIN' FILE, or configure with CMAKE_SKIP_INSTALL_RPATH"
    wanted = "paths that start at $ORIGIN"
    status: Status = "fail" if foreign else "warn" if useless else "pass"
    found = few(foreign or useless) or "none leads out of the package"
    return rated(GROUP, "search paths", status, found, wanted, cure)


def in_system_folder(path: str) -> bool:
    """Whether a path is where every such machine has its libraries."""
    return any(_inside(path, folder) for folder in _SYSTEM_FOLDERS)


def _inside(path: str, folder: str) -> bool:
    # /usr/local/cuda-12.6 is as well known a place as /usr/local/cuda.
    starts = (f"{folder}/", f"{folder}-") if folder.endswith("/cuda") else (f"{folder}/",)
    return bool(folder) and (path == folder or path.startswith(starts))


def _needed(libraries: Sequence[Library], around: Surroundings) -> Iterator[Check]:
    inside = {name for library in libraries for name in (library.name, library.soname)}
    here: dict[str, str] = {}
    nowhere: dict[str, str] = {}
    base = baseline()
    for library in libraries:
        for name in library.needed:
            if name in inside or name in around.present or name in base.system | base.driver:
                continue
            bringer = base.bringer(name)
            if _promised(bringer, around):
                continue
            if name in around.toolkit and of_cuda(name):
                continue
            (here if name in around.system else nowhere).setdefault(name, library.path)
    lost = [f"{name} (for {path})" for name, path in nowhere.items()]
    lent = [f"{name} (for {path})" for name, path in here.items()]
    wanted = "in the package, in a distribution it requires, or on every Linux"
    if lost:
        cure = "auditwheel repair puts libraries into a wheel; or link it statically"
        if any(base.bringer(name) == "torch" for name in nowhere):
            cure = "verify it with its torch: `verify TORCH.whl THIS.whl`, or their environment"
        yield Check(GROUP, "needed libraries", "fail", few(lost), wanted, cure=cure)
    elif lent and around.glibc:
        cure = "auditwheel repair; a manylinux tag promises that nothing else is needed"
        yield Check(GROUP, "needed libraries", "fail", few(lent), wanted, cure=cure)
    elif lent and not around.declared:
        cure = "other machines need these packages too; auditwheel repair packs them in"
        yield Check(GROUP, "needed libraries", "warn", few(lent), wanted, cure=cure)
    else:
        count = len({name for library in libraries for name in library.needed})
        yield Check(GROUP, "needed libraries", "pass", f"all {count} are accounted for")
        if lent:
            names = " ".join(sorted(here))
            yield Check(GROUP, "system libraries", "info", names, detail="the system's, as asked")


def of_cuda(name: str) -> bool:
    """Whether a library is one of NVIDIA's, which can be linked dynamically or statically."""
    return baseline().bringer(name).startswith("nvidia-")


def _cuda(libraries: Sequence[Library], around: Surroundings) -> Iterator[Check]:
    """Which of CUDA's libraries are linked dynamically, and where they come from."""
    inside = {name for library in libraries for name in (library.name, library.soname)}
    places = (
        (inside, "in the package"),
        (around.present, "beside it"),
        (around.toolkit, "the toolkit's"),
        (around.system, "the system's"),
    )
    found: dict[str, list[str]] = {}
    for name in sorted({name for item in libraries for name in item.needed if of_cuda(name)}):
        place = next((phrases for names, phrases in places if name in names), "not here")
        if place == "not here" and _promised(baseline().bringer(name), around):
            place = "in packages it requires"
        found.setdefault(place, []).append(name)
    phrases = [f"{' '.join(names)} ({place})" for place, names in found.items()]
    names = [name for group in found.values() for name in group]
    kernels = any(library.name.startswith("libtorch_cuda") for library in libraries)
    if kernels and not any(name.startswith("libcudart") for name in names):
        phrases.append("libcudart inside torch's own, linked statically")
    if phrases:
        yield Check(GROUP, "CUDA libraries", "info", ", ".join(phrases))


def _promised(bringer: str, around: Surroundings) -> bool:
    """Whether a requirement will bring a library; one that is installed has had its chance.

    A companion built for CUDA needs libtorch_cuda, which the torch beside it may not have.
    """
    if not bringer or any(brings(name, bringer) for name in around.installed):
        return False
    return any(brings(name, bringer) for name in around.requires)


def brings(required: str, bringer: str) -> bool:
    """nvidia-cublas-cu12 is nvidia-cublas; nvidia-cusparselt is not nvidia-cusparse."""
    return required == bringer or required.startswith(f"{bringer}-cu")


def newest(libraries: Sequence[Library], family: str) -> tuple[str, str]:
    """Return the newest symbol version any library needs, and which library does."""
    found = [(item.versions[family], item.path) for item in libraries if family in item.versions]
    return max(found, key=lambda pair: version_key(pair[0]), default=("", ""))


def _symbols(libraries: Sequence[Library], around: Surroundings) -> Iterator[Check]:
    # Of policies that are not listed, the nearest older one holds.
    table = baseline().libstdcxx
    older = [key for key in table if version_key(key) <= version_key(around.glibc)]
    limits = {
        "GLIBC": around.glibc,
        "GLIBCXX": table[max(older, key=version_key)] if around.glibc and older else "",
    }
    for family, title in (("GLIBC", "glibc needed"), ("GLIBCXX", "libstdc++ needed")):
        version, path = newest(libraries, family)
        limit = limits[family]
        if not version:
            continue
        found = f"{family}_{version}"
        if limit and version_key(version) > version_key(limit):
            wanted = f"at most {limit}, as its tag promises"
            cure = "build in the manylinux image of that tag, or tag it as what it is"
            yield Check(GROUP, title, "fail", f"{found} (for {path})", wanted, cure=cure)
        else:
            yield Check(GROUP, title, "pass" if limit else "info", found)


def _stacks(libraries: Sequence[Library]) -> Check:
    found = [library.path for library in libraries if library.executable_stack]
    return holds(
        GROUP,
        "executable stack",
        not found,
        found=few(found) if found else "none",
        wanted="none: glibc 2.41 and hardened kernels refuse to load such a library",
        cure="patchelf --clear-execstack FILE",
    )


def _debug(libraries: Sequence[Library]) -> Check:
    total = sum(library.debug_bytes for library in libraries)
    found = f"{total / MIB:.0f} MiB" if total >= MIB else f"{total} bytes" if total else "none"
    cure = "strip --strip-debug makes the package smaller; keep it for debugging"
    status: Status = "warn" if total > _MUCH_DEBUG else "info"
    return rated(GROUP, "debug information", status, found, cure=cure)


def _openmp(libraries: Sequence[Library]) -> Check:
    copies = [item.path for item in libraries if openmp_runtime(item.name)]
    asked = {name for item in libraries for name in item.needed if openmp_runtime(name)}
    kinds = {openmp_runtime(name) for name in [*asked, *copies]}
    found = few(sorted({*copies, *asked})) or "none"
    cure = "two OpenMP runtimes in one process start twice the threads, and may crash"
    status: Status = "warn" if len(kinds) > 1 or len(copies) > 1 else "info"
    return rated(GROUP, "openmp runtimes", status, found, "one", cure)


def openmp_runtime(name: str) -> str:
    """Which OpenMP a library is by its name: libgomp for torch.libs/libgomp-1a2b.so.1."""
    last = name.rpartition("/")[2]
    return next((kind for kind in _OPENMP if last.startswith((f"{kind}.", f"{kind}-"))), "")
