"""Deciding where the build happens and with which compiler, toolkit and base image."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchsmith.facts.conditions import ANYWHERE, Place
from torchsmith.facts.cuda import (
    brings_toolkit,
    debian_toolkit,
    find_toolkit,
    has_image,
    image_end,
    repositories,
)
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import System, Toolkit
from torchsmith.facts.ranges import release, version_range
from torchsmith.host.models import Host
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.build_rules import (
    allows_compiler,
    fails_anyway,
    find_system,
    from_uv,
    gccs_of,
    on_system,
    pythons_of,
    source_of_python,
    why_compiler,
)
from torchsmith.resolve.models import Case, CompilerChoice

if TYPE_CHECKING:
    from torchsmith.resolve.target import Target


def written_compiler(name: str) -> tuple[str, str]:
    """Split gcc-9 into ('gcc', '9'); a compiler of another name is taken as it is."""
    match = re.fullmatch(r"(gcc|g\+\+|clang|clang\+\+)(?:-?(\d{1,2}(?:\.\d+)*))?", name)
    if not match:
        return name, ""
    return ("gcc" if match[1].startswith("g") else "clang"), match[2] or ""


def own_base(recipe: Recipe) -> bool:
    """Whether the recipe names a base image of its own: what is in it is not ours to decide."""
    image = recipe.image
    return image is not None and bool(image.base or image.foundation)


def compiled(recipe: Recipe) -> bool:
    """Whether anything is compiled, torch itself or what is built against it."""
    beside = recipe.companions
    wishes = (beside.vision, beside.audio, beside.text, beside.codec)
    return bool(
        recipe.torch.use == "source"
        or any(wish != "none" for wish in wishes)
        or recipe.companions.extension
        or recipe.stack
    )


def decide_compiler(case: Case, cuda: str, system: System | None, place: Place) -> CompilerChoice:
    """Choose the newest compiler that everything allows; note what is not installed here."""
    facts, torch, asked = case.facts, case.torch, case.recipe.build.compiler
    if not compiled(case.recipe):
        return CompilerChoice("gcc", "", "gcc", "g++")
    place = on_system(place, system)
    why = why_compiler(facts, torch, cuda, place)
    if asked is not None:
        return _asked_compiler(case, asked, system)
    if system is not None:
        for version in gccs_of(system):
            if allows_compiler(facts, torch, cuda, "gcc", version, place):
                own = version == system.gcc
                where = f"{system.name}'s own" if own else f"packaged by {system.name}"
                case.choose("compiler", f"gcc {version}", f"{where}; {why}")
                return _named("gcc", version, "gcc" if own else f"gcc-{release(version)[0]}")
        # The rules say so with the cure.
        return _named("gcc", system.gcc, "gcc")
    fitting = [
        item
        for item in case.host.compilers
        if allows_compiler(facts, torch, cuda, item.kind, item.version, place)
    ]
    if fitting:
        # gcc first: PyTorch's own builds use it, and nvcc is tested with it most.
        best = max(fitting, key=lambda item: (item.kind == "gcc", release(item.version)))
        case.choose("compiler", f"{best.kind} {best.version}", f"the newest here that fits; {why}")
        return CompilerChoice(best.kind, best.version, best.path, best.cxx)
    return _missing_compiler(case, cuda, why, place)


def _missing_compiler(case: Case, cuda: str, why: str, place: Place) -> CompilerChoice:
    """The gcc to install: one this distribution packages, if any of them fits."""
    facts = case.facts
    own = find_system(facts, case.host.system)
    packaged = gccs_of(own) if own else ()
    majors = [*packaged, *(str(major) for major in range(16, 3, -1))]
    fitting = (m for m in majors if allows_compiler(facts, case.torch, cuda, "gcc", m, place))
    version = next(fitting, "9")
    major = release(version)[0]
    default = own is not None and version == own.gcc
    found = ", ".join(f"{item.kind} {item.version}" for item in case.host.compilers) or "none"
    case.caution(
        f"this machine has no compiler for it ({why}; here: {found})",
        f"apt-get install {'g++' if default else f'gcc-{major} g++-{major}'}, or build in an "
        f"image: system = '{default_system(facts, cuda, case.torch, place)}'",
    )
    where = f"packaged by {own.name}" if own and version in packaged else "the newest that fits"
    case.choose("compiler", f"gcc {version}", f"{where}; {why}")
    return _named("gcc", version, "gcc" if default else f"gcc-{major}")


def _asked_compiler(case: Case, asked: str, system: System | None) -> CompilerChoice:
    kind, version = written_compiler(asked)
    if kind in ("gcc", "clang"):
        # gcc13 is gcc-13, as distributions call it.
        asked = f"{kind}-{version}" if version else kind
    own = _own_version(kind, version, system, case.host)
    case.choose("compiler", asked, "the recipe says so")
    if kind not in ("gcc", "clang"):
        case.caution(
            f"{asked} is not a compiler we know: whether torch and CUDA take it is not checked",
            "build.compiler = 'gcc-…' or 'clang-…'",
        )
    elif system is None and not own:
        name = "g++" if kind == "gcc" else kind
        package = f"{name}-{version}" if version else name
        case.caution(f"this machine has no {asked}", f"apt-get install {package}")
    return _named(kind, own or version, asked)


def _own_version(kind: str, version: str, system: System | None, host: Host) -> str:
    """The version in full of the compiler that a name means there, where that is known."""
    if system is not None:
        default = system.gcc if kind == "gcc" else ""
        return default if not version or default.split(".")[0] == version else ""
    mine = [item.version for item in host.compilers if item.kind == kind]
    return next((item for item in mine if not version or item in version_range(version)), "")


def _named(kind: str, version: str, name: str) -> CompilerChoice:
    if kind not in ("gcc", "clang"):
        return CompilerChoice(kind, version, name, name)
    cxx = name.replace("gcc", "g++") if kind == "gcc" else name.replace("clang", "clang++")
    return CompilerChoice(kind, version, name, cxx, package=cxx)


def image_tag(toolkit: Toolkit, distribution: str, cudnn: str) -> str:
    """The name of NVIDIA's own development image."""
    part = toolkit.image_cudnn or "cudnn"
    if cudnn and part != "cudnn":
        part = f"cudnn{release(cudnn)[0]}"
    return f"docker.io/nvidia/cuda:{toolkit.image or toolkit.version}-{part}-devel-{distribution}"


def default_system(
    facts: Facts,
    cuda: str,
    torch: str,
    place: Place = ANYWHERE,
    python: str = "",
    compiler: str = "",
) -> str:
    """The distribution to build an image on when the recipe names none."""
    kind, wanted = written_compiler(compiler)
    toolkit = find_toolkit(facts, cuda) if cuda else None
    names = (
        [image.replace("ubuntu", "ubuntu-") for image in reversed(toolkit.images)]
        if toolkit
        else []
    )
    names += [
        "debian-12",
        "ubuntu-22.04",
        "ubuntu-20.04",
        "debian-10",
        "ubuntu-18.04",
        "ubuntu-16.04",
        "ubuntu-24.04",
        "debian-13",
    ]
    platform = place.platform or "linux-x86_64"
    known = [system for name in names if (system := find_system(facts, name)) is not None]
    brought = python == "" or from_uv(python)
    homes = [system for system in known if brought or python in pythons_of(system)]
    # Where it is not at home, its source may be built.
    others = known if source_of_python(facts, python) is not None else []
    for system in (*homes, *others):
        if toolkit and not brings_toolkit(facts, toolkit.version, system.name, platform):
            continue
        there = on_system(place, system)
        packaged = [
            item
            for item in gccs_of(system)
            if kind != "gcc" or not wanted or release(item)[0] == release(wanted)[0]
        ]
        if fails_anyway(facts, torch, cuda, there) is None and any(
            allows_compiler(facts, torch, cuda, "gcc", item, there) for item in packaged
        ):
            return system.name
    if compiler:
        return default_system(facts, cuda, torch, place, python)
    return default_system(facts, cuda, torch, place) if python else (*names, "ubuntu-20.04")[0]


def decide_toolkit(case: Case, target: Target, cuda: str, system: System | None) -> str:
    """Decide where nvcc comes from: the system, wheels, an image of NVIDIA's, or packages."""
    facts, host, asked = case.facts, case.host, case.recipe.cuda
    toolkit = find_toolkit(facts, cuda)
    if toolkit is None:
        return "system"
    if asked.toolkit is not None:
        case.choose("CUDA toolkit", asked.toolkit, "the recipe says so")
        return asked.toolkit
    if target.board:
        case.choose("CUDA toolkit", "system", "on a Jetson, CUDA is JetPack's")
        return "system"
    if system is not None:
        found = _in_container(case, toolkit, system, target.platform)
        if found:
            return found
    here = [item for item in host.cuda if release(item.version)[:2] == release(toolkit.version)]
    if system is None and here:
        case.choose("CUDA toolkit", "system", f"installed at {here[0].path}")
        return "system"
    if toolkit.wheels:
        case.choose("CUDA toolkit", "wheels", f"not installed here; NVIDIA ships {cuda} on PyPI")
        return "wheels"
    if system is None and (own := debian_toolkit(facts, host.system)) and own.cuda == cuda:
        case.choose(
            "CUDA toolkit",
            "debian",
            f"not installed here; {host.system} packages CUDA {cuda} itself",
            addresses(facts.cuda.sources, own),
        )
        return "debian"
    why = "it is not on PyPI, and has to be installed"
    if system is None:
        where = default_system(facts, cuda, case.torch)
        found = ", ".join(item.version for item in host.cuda) or "none"
        case.caution(
            f"this machine has no CUDA {cuda} (here: {found})",
            "install it from https://developer.nvidia.com/cuda-toolkit-archive, or build in an "
            f"image: system = '{where}'",
        )
    case.choose("CUDA toolkit", "system", why)
    return "system"


def _in_container(case: Case, toolkit: Toolkit, system: System, platform: str) -> str:
    """What brings a toolkit to a distribution's image; empty if only wheels are left."""
    facts = case.facts
    cuda = toolkit.version
    table = facts.cuda.sources
    end = image_end(facts, cuda)
    published = system.name.replace("-", "") in toolkit.images
    if own_base(case.recipe):
        if published:
            case.choose("CUDA toolkit", "image", "the recipe's base image has it")
        return "image" if published else ""
    if has_image(facts, cuda, system.name):
        case.choose("CUDA toolkit", "image", f"NVIDIA publishes CUDA {cuda} for {system.name}")
        if end is not None:
            case.caution(
                f"NVIDIA has not maintained its CUDA {cuda} images since {end.since} and "
                "announced to delete them",
                f"if it is gone: cuda.toolkit = 'apt' has the same packages put on {system.image}"
                if repositories(facts, cuda, system.name, platform)
                else "keep a copy of it, and name that in image.base",
            )
        return "image"
    own = debian_toolkit(facts, system.name)
    if own is not None and own.cuda == cuda:
        case.choose(
            "CUDA toolkit",
            "debian",
            f"{system.name} packages CUDA {cuda} itself, in non-free",
            addresses(table, own),
        )
        return "debian"
    found = repositories(facts, cuda, system.name, platform)
    if not found:
        return ""
    reason = "NVIDIA's apt repository has it; there is no image"
    if end is not None and published:
        reason = f"NVIDIA deleted its image in {end.since}; its apt repository still has it"
        case.caution(
            f"NVIDIA's image of CUDA {cuda} for {system.name} is gone from Docker Hub since "
            f"{end.since}: its packages are put on {system.image} instead",
            "image.base names a copy of it, if you have one",
        )
    case.choose(
        "CUDA toolkit",
        "apt",
        reason,
        " ".join(addresses(table, item) for item in (end, *found[:1])),
    )
    return "apt"
