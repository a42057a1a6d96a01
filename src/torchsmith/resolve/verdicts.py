"""Judging a machine: line by line, what it has against what a plan needs there."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from torchsmith.checks import Check, Status
from torchsmith.facts.cuda import driver_standing, find_toolkit, runs_on
from torchsmith.facts.files import Facts
from torchsmith.facts.ranges import release, version_range
from torchsmith.host.limits import HUGE_PAGES
from torchsmith.host.models import Host
from torchsmith.resolve.archs import arch_of_installed
from torchsmith.resolve.build_rules import from_uv
from torchsmith.resolve.models import CompilerChoice, Resolution

GIB = 1 << 30
SHM_WANTED = 8 * GIB
_FROM_PYPI = "taken from PyPI"
_FASTER = "optional: faster builds"
_ESSENTIAL = (("git", "git"), ("patch", "patch"))
_USEFUL = (
    ("cmake", _FROM_PYPI),
    ("ninja", _FROM_PYPI),
    ("ccache", _FASTER),
    ("mold", _FASTER),
)


class Needs(Struct, frozen=True):
    """What a plan needs of a machine, beyond what its resolutions say."""

    memory_mb: int = 0
    disk_mb: int = 0
    images: bool = False


def _line(name: str, found: str, needed: str, status: Status, cure: str = "") -> Check:
    return Check("machine", name, status, found, needed, cure=cure)


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"


def examine(host: Host, facts: Facts, wanted: Resolution | None, needs: Needs) -> list[Check]:
    """Every line of the table. Without a resolution: what is here, and what is odd about it."""
    # In a container nothing of the host's toolchain is used.
    inside = wanted is not None and wanted.container
    lines = [
        _line("platform", f"{host.platform} {host.system}".strip(), "", "info"),
        _libc(host, wanted),
        _python(host, wanted),
    ]
    lines += list(_compiler(host, wanted))
    lines += list(_tools(host, inside=inside))
    lines.append(_toolkit(host, wanted))
    lines += list(_libraries(host, wanted))
    lines += list(_gpus(host, facts, wanted))
    lines += list(_driver(host, facts, wanted))
    lines += list(_room(host, wanted, needs))
    lines += list(_engines(host, needs, inside=inside))
    return lines


def _inside(wanted: Resolution | None) -> bool:
    return wanted is not None and wanted.container


def _libc(host: Host, wanted: Resolution | None) -> Check:
    if host.libc is None:
        return _line("libc", "unknown", "", "info" if _inside(wanted) else "warn")
    found = f"{host.libc.kind} {host.libc.version}"
    if host.libc.kind != "musl" or _inside(wanted):
        return _line("libc", found, "in the image" if _inside(wanted) else "", "info")
    rating: Status = "fail" if wanted is not None else "warn"
    cure = "build in an image: system = 'debian-12' in the recipe"
    return _line("libc", found, "glibc", rating, cure)


def _sudo(host: Host) -> str:
    return "" if host.root else "sudo "


def _apt(host: Host, *packages: str) -> str:
    return (
        f"{_sudo(host)}apt-get install {' '.join(packages)}"
        if host.apt
        else f"install {' '.join(packages)}"
    )


def _python(host: Host, wanted: Resolution | None) -> Check:
    found = ", ".join(dict.fromkeys(item.version for item in host.pythons)) or "none"
    if wanted is None or wanted.container:
        return _line("Python", found, "in the image" if _inside(wanted) else "", "info")
    needed = f"{wanted.python} with headers"
    fits = any(item.name == wanted.python and item.headers for item in host.pythons)
    if not fits and not from_uv(wanted.python):
        cure = (
            f"install python{wanted.python} with its headers: uv has none that old; or build where "
            "it is at home: `system` in the recipe"
        )
        return _line("Python", found, needed, "fail", cure)
    if fits or "uv" in host.tools:
        return _line("Python", found, needed, "pass")
    cure = "pip install uv: the plan takes this Python from uv"
    return _line("Python", found, needed, "warn", cure)


def _compiler(host: Host, wanted: Resolution | None) -> Iterator[Check]:
    found = (
        ", ".join(dict.fromkeys(f"{item.kind} {item.version}" for item in host.compilers)) or "none"
    )
    if wanted is None and not host.compilers:
        yield _line("compiler", found, "any", "fail", _apt(host, "build-essential"))
    elif wanted is None or wanted.container:
        yield _line("compiler", found, "in the image" if _inside(wanted) else "", "info")
    elif wanted.use == "source" or wanted.companions or wanted.extensions:
        choice = wanted.compiler
        here = any(
            item.kind == choice.kind
            and (not choice.version or item.version in version_range(choice.version))
            for item in host.compilers
        )
        needed = f"{choice.kind} {choice.version}".strip()
        if wanted.cuda is not None:
            needed += f" (one that nvcc {wanted.cuda.version} takes)"
        cure = "" if here else _compiler_cure(host, choice)
        yield _line("compiler", found, needed, "pass" if here else "fail", cure)


def _compiler_cure(host: Host, choice: CompilerChoice) -> str:
    names = ["gcc", "g++"] if choice.kind == "gcc" else [choice.kind]
    if choice.version:
        names = [f"{name}-{release(choice.version)[0]}" for name in names]
    return f"{_apt(host, *names)}; or build in an image: `system` in the recipe"


def _tools(host: Host, *, inside: bool) -> Iterator[Check]:
    for name, package in _ESSENTIAL:
        tool = host.tools.get(name)
        if inside:
            yield _line(name, tool.version if tool else "none", "in the image", "info")
        elif tool is None:
            yield _line(name, "none", "any", "fail", _apt(host, package))
        else:
            yield _line(name, tool.version, "", "pass")
    for name, needed in _USEFUL:
        tool = host.tools.get(name)
        if tool is not None:
            yield _line(name, tool.version, "", "info")
        elif not inside:
            cure = "" if needed == _FROM_PYPI else _apt(host, name)
            yield _line(name, "none", needed, "info", cure)


def _toolkit(host: Host, wanted: Resolution | None) -> Check:
    found = ", ".join(item.version for item in host.cuda) or "none"
    cuda = wanted.cuda if wanted is not None else None
    if cuda is None or _inside(wanted):
        return _line("CUDA toolkit", found, "in the image" if cuda else "", "info")
    if cuda.toolkit in ("wheels", "none"):
        needed = f"{cuda.version}, from PyPI"
        return _line("CUDA toolkit", found, needed, "pass")
    if any(release(item.version)[:2] == release(cuda.version) for item in host.cuda):
        return _line("CUDA toolkit", found, cuda.version, "pass")
    return _line(
        "CUDA toolkit",
        found,
        cuda.version,
        "fail",
        _apt(host, *cuda.apt)
        if cuda.toolkit == "debian"
        else "install it from https://developer.nvidia.com/cuda-toolkit-archive; or build in an "
        "image: `system` in the recipe",
    )


def _libraries(host: Host, wanted: Resolution | None) -> Iterator[Check]:
    cuda = wanted.cuda if wanted is not None else None
    elsewhere = (
        cuda is None
        or wanted is None
        or wanted.container
        or bool(wanted.board)
        or cuda.toolkit in ("wheels", "none")
    )
    for name in ("cudnn", "nccl", "magma"):
        library = host.libraries.get(name)
        mode = wanted.feature(name) if wanted is not None else None
        must = mode in ("system", "static") or (name == "cudnn" and mode not in (None, "off"))
        if elsewhere or not must:
            if library is not None:
                yield _line(name, library.version, "", "info")
            continue
        asked = getattr(cuda, name, "")
        fits = library is not None and (not asked or library.version in version_range(asked))
        cure = f"install {name} {asked}".rstrip() + f", or features.{name} = 'off'"
        yield _line(
            name,
            library.version if library else "none",
            asked or "any",
            "pass" if fits else "fail",
            "" if fits else cure,
        )


def _gpus(host: Host, facts: Facts, wanted: Resolution | None) -> Iterator[Check]:
    archs = {gpu.name: arch_of_installed(facts, gpu) for gpu in host.gpus}
    found = ", ".join(f"{gpu.name} ({archs[gpu.name] or '?'})" for gpu in host.gpus) or "none"
    cuda = wanted.cuda if wanted is not None else None
    if cuda is None or not cuda.archs:
        yield _line("GPU", found, "", "info")
    elif not host.gpus:
        yield _line("GPU", found, cuda.arch_list, "info", "it builds here and runs elsewhere")
    else:
        strange = [
            name
            for name, arch in archs.items()
            if arch and not any(runs_on(arch, code.arch, ptx=code.ptx) for code in cuda.archs)
        ]
        cure = (
            f'the {", ".join(strange)} is not covered: torch stops there with "no kernel image is '
            "available for execution on the device\"; add 'native' to gpus"
        )
        yield _line(
            "GPU", found, cuda.arch_list, "warn" if strange else "pass", cure if strange else ""
        )


def _driver(host: Host, facts: Facts, wanted: Resolution | None) -> Iterator[Check]:
    cuda = wanted.cuda if wanted is not None else None
    toolkit = find_toolkit(facts, cuda.version) if cuda is not None else None
    if toolkit is None or host.driver is None:
        if host.driver or toolkit:
            needed = f"{toolkit.driver} or newer where it runs" if toolkit else ""
            yield _line("driver", host.driver or "none", needed, "info")
        return
    standing = driver_standing(toolkit, host.driver)
    if standing == "enough":
        yield _line("driver", host.driver, f"{toolkit.driver} or newer", "pass")
    elif standing == "minor":
        yield _line(
            "driver",
            host.driver,
            f"{toolkit.driver} or newer",
            "warn",
            f"runs by minor-version compatibility; PTX needs {toolkit.driver} or newer",
        )
    else:
        yield _line(
            "driver",
            host.driver,
            f"{toolkit.driver_compat or toolkit.driver} or newer for the CUDA {toolkit.version} "
            "runtime",
            "fail",
            "update the driver and restart the machine, or build for an older CUDA; with this one "
            'torch says "The NVIDIA driver on your system is too old", in an image of NVIDIA\'s '
            '"Error 804: forward compatibility was attempted on non supported HW"',
        )


def _room(host: Host, wanted: Resolution | None, needs: Needs) -> Iterator[Check]:
    yield _line("cores", str(host.cores), "", "info")
    memory = host.memory_bytes
    if wanted is None or not needs.memory_mb:
        yield _line("memory", _gib(memory), "", "info")
    else:
        one = needs.memory_mb << 20
        short = memory is not None and memory < one
        tight = memory is not None and memory < one * host.cores
        yield _line(
            "memory",
            _gib(memory),
            f"{_gib(one)} for the hungriest file",
            "fail" if short else ("warn" if tight else "pass"),
            "add memory or swap, or use a larger machine"
            if short
            else (
                f"fewer compilers at once: --jobs {max(1, (memory or one) // one)}" if tight else ""
            ),
        )
    free = host.disk_free_bytes
    required = needs.disk_mb << 20
    if not required:
        yield _line("disk", f"{_gib(free)} free", "", "info")
    else:
        enough = free is None or free >= required
        yield _line(
            "disk",
            f"{_gib(free)} free",
            f"{_gib(required)}",
            "pass" if enough else "fail",
            ""
            if enough
            else f"free {_gib(required - (free or 0))} more, or work in another folder",
        )
    if host.huge_pages == "never":
        cure = f"echo madvise | {_sudo(host)}tee /{HUGE_PAGES}/enabled"
        yield _line("huge pages", host.huge_pages, _FASTER, "info", cure)
    elif host.huge_pages:
        yield _line("huge pages", host.huge_pages, "", "info")
    shm = host.shm_bytes
    small = shm is not None and shm < SHM_WANTED
    yield _line(
        "/dev/shm",
        _gib(shm),
        "8 GiB for DataLoader workers",
        "warn" if small else "pass",
        "mount -o remount,size=8G /dev/shm; in a container: --shm-size=8G" if small else "",
    )


def _engines(host: Host, needs: Needs, *, inside: bool) -> Iterator[Check]:
    running = [engine for engine in host.engines if engine.running]
    found = (
        ", ".join(
            f"{engine.name} {engine.version}" + ("" if engine.running else " (not running)")
            for engine in host.engines
        )
        or "none"
    )
    if not (needs.images or inside):
        yield _line("container engine", found, "", "info")
        return
    builders = [engine for engine in running if engine.name != "apptainer"]
    stopped = [
        engine for engine in host.engines if not engine.running and engine.name != "apptainer"
    ]
    cure = _apt(host, "podman")
    if stopped:
        detail = f" ({stopped[0].detail})" if stopped[0].detail else ""
        cure = f"start {stopped[0].name}{detail}; or {cure}"
    yield _line(
        "container engine",
        found,
        "podman, docker or buildah",
        "pass" if builders else "fail",
        "" if builders else cure,
    )
