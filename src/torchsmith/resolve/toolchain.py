"""Deciding where the build happens and with which compiler, toolkit and base image."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from torchsmith.facts.cuda import find_toolkit, host_compiler
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import System, Toolkit
from torchsmith.facts.ranges import release, version_range
from torchsmith.facts.torch import entry_for
from torchsmith.host.models import Host
from torchsmith.recipe.models import Cuda
from torchsmith.resolve.models import Caution, Choice, CompilerChoice, Conflict, Evidence


class Decided(Struct):
    """What one decision adds to the account."""

    choices: list[Choice] = []
    cautions: list[Caution] = []
    conflicts: list[Conflict] = []


def find_system(facts: Facts, name: str) -> System | None:
    """What is known of a distribution."""
    return next((item for item in facts.systems.system if item.name == name), None)


def written_compiler(name: str) -> tuple[str, str]:
    """Split gcc-9 into ('gcc', '9'); a compiler of another name is taken as it is."""
    match = re.fullmatch(r"(gcc|g\+\+|clang|clang\+\+)(?:-?(\d{1,2}(?:\.\d+)*))?", name)
    if not match:
        return name, ""
    return ("gcc" if match[1].startswith("g") else "clang"), match[2] or ""


def _allowed(facts: Facts, torch: str, cuda: str) -> Callable[[str, str], bool]:
    cxx = entry_for(facts.torch.cxx, torch)

    def allows(kind: str, version: str) -> bool:
        if kind == "gcc" and cxx is not None and version not in version_range(cxx.gcc):
            return False
        limit = host_compiler(facts, cuda, kind) if cuda else None
        return limit is None or version in version_range(f":{limit.newest}")

    return allows


def _why(facts: Facts, torch: str, cuda: str) -> str:
    cxx = entry_for(facts.torch.cxx, torch)
    parts: list[str] = []
    if cxx is not None:
        parts.append(f"torch {torch} needs gcc {version_range(cxx.gcc)} (C++{cxx.standard})")
    limit = host_compiler(facts, cuda, "gcc") if cuda else None
    if limit is not None:
        parts.append(f"CUDA {cuda} accepts gcc up to {limit.newest}")
    return "; ".join(parts)


def decide_compiler(
    facts: Facts,
    *,
    needed: bool,
    torch: str,
    cuda: str,
    asked: str | None,
    system: System | None,
    host: Host,
    decided: Decided,
) -> CompilerChoice:
    """Choose the newest compiler that everything allows; what cannot be had here is said."""
    if not needed:
        return CompilerChoice("gcc", "", "gcc", "g++")
    allows = _allowed(facts, torch, cuda)
    why = _why(facts, torch, cuda)
    if asked is not None:
        kind, version = written_compiler(asked)
        if not version:
            version = _default_version(kind, system, host)
        decided.choices.append(Choice("compiler", asked, "the recipe says so"))
        return _named(kind, version, asked)
    if system is not None:
        majors = [system.gcc, *sorted(system.gccs, key=release, reverse=True)]
        for version in majors:
            if allows("gcc", version):
                own = version == system.gcc
                where = f"{system.name}'s own" if own else f"packaged by {system.name}"
                decided.choices.append(Choice("compiler", f"gcc {version}", f"{where}; {why}"))
                return _named("gcc", version, "gcc" if own else f"gcc-{release(version)[0]}")
        decided.conflicts.append(
            Conflict(
                "compiler-system",
                f"{system.name} has no gcc that torch {torch}"
                + (f" and CUDA {cuda} accept" if cuda else " accepts"),
                Evidence(
                    f"{system.name} packages gcc {', '.join(system.gccs or [system.gcc])}",
                    addresses(facts.systems.sources, system),
                ),
                Evidence(why),
                _other_systems(facts, allows),
            )
        )
        return _named("gcc", system.gcc, "gcc")
    fitting = [item for item in host.compilers if allows(item.kind, item.version)]
    if fitting:
        # gcc first: PyTorch's own builds use it, and nvcc is tested with it most.
        best = max(fitting, key=lambda item: (item.kind == "gcc", release(item.version)))
        decided.choices.append(
            Choice("compiler", f"{best.kind} {best.version}", f"the newest here; {why}")
        )
        return CompilerChoice(best.kind, best.version, best.path, best.cxx)
    major = _newest_major(allows)
    found = ", ".join(f"{item.kind} {item.version}" for item in host.compilers) or "none"
    decided.cautions.append(
        Caution(
            f"this machine has no compiler for it ({why}; here: {found})",
            f"apt-get install gcc-{major} g++-{major}, or build in an image: system = "
            f"'{default_system(facts, cuda, torch)}'",
        )
    )
    decided.choices.append(Choice("compiler", f"gcc {major}", f"the newest that fits; {why}"))
    return _named("gcc", major, f"gcc-{major}")


def _newest_major(allows: Callable[[str, str], bool]) -> str:
    return next((str(major) for major in range(15, 3, -1) if allows("gcc", str(major))), "9")


def _default_version(kind: str, system: System | None, host: Host) -> str:
    if system is not None:
        return system.gcc if kind == "gcc" else ""
    return next((item.version for item in host.compilers if item.kind == kind), "")


def _named(kind: str, version: str, name: str) -> CompilerChoice:
    if kind not in ("gcc", "clang"):
        return CompilerChoice(kind, version, name, name)
    cxx = name.replace("gcc", "g++") if kind == "gcc" else name.replace("clang", "clang++")
    return CompilerChoice(kind, version, name, cxx, package=cxx)


def _other_systems(facts: Facts, allows: Callable[[str, str], bool]) -> str:
    fitting = [
        system.name
        for system in facts.systems.system
        if any(allows("gcc", version) for version in (system.gcc, *system.gccs))
    ]
    return f"system = {' or '.join(fitting[:4])}" if fitting else ""


def image_tag(toolkit: Toolkit, distribution: str, cudnn: str) -> str:
    """The name of NVIDIA's own development image."""
    part = toolkit.image_cudnn or "cudnn"
    if cudnn and part != "cudnn":
        part = f"cudnn{release(cudnn)[0]}"
    return f"nvidia/cuda:{toolkit.image or toolkit.version}-{part}-devel-{distribution}"


def default_system(facts: Facts, cuda: str, torch: str) -> str:
    """The distribution to build an image on when the recipe names none."""
    toolkit = find_toolkit(facts, cuda) if cuda else None
    allows = _allowed(facts, torch, cuda)
    names = (
        [image.replace("ubuntu", "ubuntu-") for image in reversed(toolkit.images)]
        if toolkit
        else []
    )
    for name in [
        *names,
        "debian-12",
        "ubuntu-22.04",
        "ubuntu-20.04",
        "ubuntu-18.04",
        "ubuntu-16.04",
    ]:
        system = find_system(facts, name)
        if system and any(allows("gcc", version) for version in (system.gcc, *system.gccs)):
            return name
    return "ubuntu-20.04"


def decide_toolkit(
    facts: Facts,
    *,
    asked: Cuda,
    cuda: str,
    torch: str,
    system: System | None,
    board: str,
    host: Host,
    decided: Decided,
) -> str:
    """Decide where nvcc comes from: system, wheels or an image of NVIDIA's."""
    toolkit = find_toolkit(facts, cuda)
    if toolkit is None:
        return "system"
    evidence = Evidence(f"CUDA {cuda}", addresses(facts.cuda.sources, toolkit))
    distribution = system.name.replace("-", "") if system else ""
    if asked.toolkit == "wheels" and not toolkit.wheels:
        offered = [item.version for item in facts.cuda.toolkit if item.wheels]
        decided.conflicts.append(
            Conflict(
                "toolkit-wheels",
                f"nvcc {cuda} is not on PyPI",
                Evidence("asked for: cuda.toolkit = 'wheels'"),
                evidence,
                f"CUDA {', '.join(offered)}; or cuda.toolkit = 'system' or 'image'",
            )
        )
    if asked.toolkit == "image" and distribution not in toolkit.images:
        decided.conflicts.append(
            Conflict(
                "toolkit-image",
                f"NVIDIA publishes no CUDA {cuda} development image for "
                f"{system.name if system else 'this machine'}",
                Evidence("asked for: cuda.toolkit = 'image'"),
                Evidence(
                    f"images exist for {', '.join(toolkit.images) or 'none'}", evidence.source
                ),
                "system = one of these; or cuda.toolkit = 'wheels' or 'system'",
            )
        )
    if asked.toolkit is not None:
        decided.choices.append(Choice("CUDA toolkit", asked.toolkit, "the recipe says so"))
        return asked.toolkit
    if board:
        decided.choices.append(Choice("CUDA toolkit", "system", "on a Jetson, CUDA is JetPack's"))
        return "system"
    if system is not None and distribution in toolkit.images:
        decided.choices.append(
            Choice("CUDA toolkit", "image", f"NVIDIA publishes CUDA {cuda} for {system.name}")
        )
        return "image"
    here = [item for item in host.cuda if release(item.version)[:2] == release(toolkit.version)]
    if system is None and here:
        decided.choices.append(Choice("CUDA toolkit", "system", f"installed at {here[0].path}"))
        return "system"
    if toolkit.wheels:
        decided.choices.append(
            Choice("CUDA toolkit", "wheels", f"not installed here; NVIDIA ships {cuda} on PyPI")
        )
        return "wheels"
    decided.choices.append(Choice("CUDA toolkit", "system", "it is not on PyPI"))
    if system is None:
        place = default_system(facts, cuda, torch)
        decided.cautions.append(
            Caution(
                f"CUDA {cuda} is not installed on this machine, and PyPI does not have it",
                "install it from https://developer.nvidia.com/cuda-toolkit-archive, or build in an "
                f"image: system = '{place}'",
            )
        )
    return "system"
