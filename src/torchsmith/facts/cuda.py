"""Questions about CUDA toolkits, architectures and host compilers."""

from __future__ import annotations

from functools import cache
from typing import Literal

from torchsmith.facts.files import Facts
from torchsmith.facts.models import (
    CudaArch,
    DebianToolkit,
    HostCompiler,
    ImageEnd,
    Repository,
    RepositoryPackages,
    Toolkit,
)
from torchsmith.facts.ranges import release, version_range


@cache
def toolkits(facts: Facts) -> tuple[Toolkit, ...]:
    """Every toolkit we know, oldest first."""
    return tuple(sorted(facts.cuda.toolkit, key=lambda item: release(item.version)))


@cache
def find_toolkit(facts: Facts, version: str) -> Toolkit | None:
    """Return the toolkit of a version such as 11.0, 11.0.221 or 13."""
    wanted = release(version)
    if len(wanted) == 1:
        same = [item for item in toolkits(facts) if release(item.version)[:1] == wanted]
        return same[-1] if same else None
    return next((item for item in toolkits(facts) if release(item.version) == wanted[:2]), None)


@cache
def image_end(facts: Facts, cuda: str) -> ImageEnd | None:
    """Whether NVIDIA's images of a toolkit are gone, or may go; None: they are maintained."""
    return next((item for item in facts.cuda.image_end if cuda in version_range(item.cuda)), None)


@cache
def has_image(facts: Facts, cuda: str, system: str) -> bool:
    """Whether NVIDIA publishes an image of a toolkit for a distribution, and has not deleted it."""
    toolkit = find_toolkit(facts, cuda)
    end = image_end(facts, cuda)
    published = toolkit is not None and system.replace("-", "") in toolkit.images
    return published and not (end is not None and end.gone)


@cache
def repositories(facts: Facts, cuda: str, system: str, platform: str) -> tuple[Repository, ...]:
    """NVIDIA's apt repositories that have a toolkit for a distribution; none: it is in none."""
    found = tuple(
        item
        for item in facts.cuda.repository
        if (item.system, item.platform) == (system, platform) and cuda in version_range(item.cuda)
    )
    return found if any(item.holds == "toolkit" for item in found) else ()


@cache
def repository_packages(facts: Facts, cuda: str) -> RepositoryPackages | None:
    """The packages of a toolkit in those repositories."""
    return next(
        (item for item in facts.cuda.repository_packages if cuda in version_range(item.cuda)), None
    )


@cache
def debian_toolkit(facts: Facts, system: str) -> DebianToolkit | None:
    """The CUDA a Debian release packages itself."""
    return next((item for item in facts.cuda.debian if item.system == system), None)


def brings_toolkit(facts: Facts, cuda: str, system: str, platform: str) -> bool:
    """Whether anything brings a toolkit to an image of a distribution."""
    toolkit, own = find_toolkit(facts, cuda), debian_toolkit(facts, system)
    return (
        has_image(facts, cuda, system)
        or bool(repositories(facts, cuda, system, platform))
        or (own is not None and own.cuda == cuda)
        or (toolkit is not None and toolkit.wheels)
    )


def driver_standing(toolkit: Toolkit, driver: str) -> Literal["enough", "minor", "older"]:
    """Whether a driver runs what a toolkit makes; `minor`: machine code, and no PTX."""
    have = release(driver)
    if have >= release(toolkit.driver):
        return "enough"
    return "minor" if have >= release(toolkit.driver_compat or toolkit.driver) else "older"


@cache
def find_arch(facts: Facts, arch: str) -> CudaArch | None:
    """Return what is known of a compute capability."""
    return next((item for item in facts.cuda.arch if item.arch == arch), None)


def compiles(facts: Facts, cuda: str, arch: str) -> bool:
    """Whether this toolkit can compile for this compute capability."""
    known = find_arch(facts, arch)
    return known is not None and cuda in version_range(known.cuda)


@cache
def archs_of(facts: Facts, cuda: str) -> tuple[CudaArch, ...]:
    """The compute capabilities a toolkit compiles for."""
    return tuple(item for item in facts.cuda.arch if cuda in version_range(item.cuda))


@cache
def host_compiler(facts: Facts, cuda: str, kind: str) -> HostCompiler | None:
    """The newest gcc or clang a toolkit accepts."""
    return next(
        (
            item
            for item in facts.cuda.host_compiler
            if item.compiler == kind and cuda in version_range(item.cuda)
        ),
        None,
    )


@cache
def arch_number(arch: str) -> tuple[int, int, str]:
    """Split 9.0a into (9, 0, 'a')."""
    digits = arch.rstrip("af")
    major, minor = digits.split(".")
    return int(major), int(minor), arch[len(digits) :]


# Tegra's own. Code for these runs there only, and code for desktops does not run on them:
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#binary-compatibility
TEGRA_ARCHS = ("3.2", "5.3", "6.2", "7.2", "8.7", "10.1", "11.0")


@cache
def renamed_arch(cuda: str, arch: str) -> str:
    """What this toolkit calls an architecture: CUDA 13 renamed Thor's 10.1 to 11.0."""
    old, new = ("10.1", "11.0") if release(cuda) >= (13,) else ("11.0", "10.1")
    return new + arch[len(old) :] if arch.rstrip("af") == old else arch


@cache
def runs_on(gpu: str, code: str, *, ptx: bool = False) -> bool:
    """Whether code compiled for one compute capability runs on a GPU of another."""
    gpu, code = renamed_arch("13", gpu), renamed_arch("13", code)
    major, minor, _ = arch_number(gpu)
    have_major, have_minor, suffix = arch_number(code)
    if (have_major, have_minor) == (major, minor):
        return True
    if suffix == "a":
        return False
    if ptx and not suffix and (have_major, have_minor) < (major, minor):
        return True
    tegra = {arch_number(arch)[:2] for arch in TEGRA_ARCHS}
    if (major, minor) in tegra or (have_major, have_minor) in tegra:
        return False
    return have_major == major and have_minor < minor
