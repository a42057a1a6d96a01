"""Judging a machine: line by line, what it has against what a plan needs there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from torchsmith.facts.cuda import find_toolkit
from torchsmith.facts.files import Facts
from torchsmith.facts.ranges import release, version_range
from torchsmith.host.models import Host
from torchsmith.resolve.models import Resolution

Rating = Literal["ok", "warn", "fail", "info"]
GIB = 1 << 30
SHM_WANTED = 8 * GIB


class Verdict(Struct, frozen=True):
    """One line of the doctor's table."""

    subject: str
    found: str
    needed: str
    rating: Rating
    cure: str = ""


class Needs(Struct, frozen=True):
    """What a plan needs of a machine, beyond what its resolutions say."""

    memory_mb: int = 0
    disk_mb: int = 0
    images: bool = False


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"


def examine(host: Host, facts: Facts, wanted: Resolution | None, needs: Needs) -> list[Verdict]:
    """Every line of the table. Without a resolution: what is here, and what is odd about it."""
    lines = [
        Verdict("platform", f"{host.platform} {host.system}".strip(), "", "info"),
        _libc(host),
    ]
    # In a container nothing of the host's toolchain is used.
    inside = wanted is not None and wanted.container
    lines += list(_toolchain(host, facts, wanted, inside=inside))
    lines += list(_cuda(host, facts, wanted, inside=inside))
    lines += list(_room(host, wanted, needs))
    lines += list(_engines(host, needs, inside=inside))
    return lines


def _libc(host: Host) -> Verdict:
    if host.libc is None:
        return Verdict("libc", "unknown", "", "warn")
    found = f"{host.libc.kind} {host.libc.version}"
    if host.libc.kind == "musl":
        return Verdict(
            "libc", found, "glibc", "fail", "build in an image: system = 'debian-12' in the recipe"
        )
    return Verdict("libc", found, "", "info")


def _apt(host: Host, *packages: str) -> str:
    sudo = "" if host.root else "sudo "
    return (
        f"{sudo}apt-get install {' '.join(packages)}"
        if host.apt
        else f"install {' '.join(packages)}"
    )


def _toolchain(
    host: Host, facts: Facts, wanted: Resolution | None, *, inside: bool
) -> Iterator[Verdict]:
    found = ", ".join(dict.fromkeys(item.version for item in host.pythons)) or "none"
    if wanted is None or inside:
        yield Verdict("Python", found, "in the image" if inside else "", "info")
    else:
        fits = any(
            release(item.version)[:2] == release(wanted.python) and item.headers
            for item in host.pythons
        )
        cure = "" if fits else "pip install uv: the plan takes this Python from uv"
        has_uv = "uv" in host.tools
        rating: Rating = "ok" if fits else ("ok" if has_uv else "warn")
        yield Verdict(
            "Python", found, f"{wanted.python} with headers", rating, cure if rating != "ok" else ""
        )

    compilers = (
        ", ".join(dict.fromkeys(f"{item.kind} {item.version}" for item in host.compilers)) or "none"
    )
    if wanted is None or inside:
        rating = "info" if compilers != "none" or inside else "fail"
        cure = "" if rating == "info" else _apt(host, "build-essential")
        yield Verdict("compiler", compilers, "in the image" if inside else "", rating, cure)
    elif wanted.use == "source" or wanted.companions or wanted.extensions:
        choice = wanted.compiler
        here = any(
            item.kind == choice.kind
            and (not choice.version or item.version in version_range(choice.version))
            for item in host.compilers
        )
        needed = f"{choice.kind} {choice.version}".strip()
        if wanted.cuda is not None:
            needed += f" (for nvcc {wanted.cuda.version})"
        cure = ""
        if not here:
            major = choice.version.split(".")[0]
            names = [f"gcc-{major}", f"g++-{major}"] if choice.kind == "gcc" else [f"clang-{major}"]
            cure = f"{_apt(host, *names)}; or build in an image: `system` in the recipe"
        yield Verdict("compiler", compilers, needed, "ok" if here else "fail", cure)

    for name, package, essential in (
        ("git", "git", True),
        ("patch", "patch", True),
        ("cmake", "cmake", False),
        ("ninja", "ninja-build", False),
        ("ccache", "ccache", False),
        ("mold", "mold", False),
    ):
        tool = host.tools.get(name)
        if tool is not None:
            yield Verdict(name, tool.version, "", "ok" if essential else "info")
        elif essential and not inside:
            yield Verdict(name, "none", "any", "fail", _apt(host, package))
        elif name in ("cmake", "ninja"):
            yield Verdict(name, "none", "taken from PyPI", "info")
        else:
            yield Verdict(name, "none", "optional: faster builds", "info", _apt(host, package))


def _cuda(
    host: Host, facts: Facts, wanted: Resolution | None, *, inside: bool
) -> Iterator[Verdict]:
    toolkits = ", ".join(item.version for item in host.cuda) or "none"
    cuda = wanted.cuda if wanted is not None else None
    if cuda is None or inside:
        yield Verdict("CUDA toolkit", toolkits, "in the image" if cuda and inside else "", "info")
    elif cuda.toolkit == "wheels":
        yield Verdict("CUDA toolkit", toolkits, f"{cuda.version}, from PyPI", "ok")
    else:
        fits = any(release(item.version)[:2] == release(cuda.version) for item in host.cuda)
        yield Verdict(
            "CUDA toolkit",
            toolkits,
            cuda.version,
            "ok" if fits else "fail",
            ""
            if fits
            else "install it from https://developer.nvidia.com/cuda-toolkit-archive, or build in an "
            "image: `system` in the recipe",
        )
    for name in ("cudnn", "nccl", "magma"):
        library = host.libraries.get(name)
        found = library.version if library else "none"
        mode = wanted.feature(name) if wanted is not None and cuda is not None else None
        asked = getattr(cuda, name, "") if cuda is not None else ""
        outside = (
            inside
            or (cuda is not None and cuda.toolkit == "wheels")
            or bool(wanted and wanted.board)
        )
        must = not outside and (
            (name == "cudnn" and mode not in (None, "off")) or mode in ("system", "static")
        )
        if not must:
            if library is not None:
                yield Verdict(name, found, "", "info")
            continue
        fits = library is not None and (not asked or library.version in version_range(asked))
        yield Verdict(
            name,
            found,
            asked or "any",
            "ok" if fits else "fail",
            "" if fits else f"install {name} {asked}".rstrip() + f", or features.{name} = 'off'",
        )
    yield from _driver(host, facts, wanted)


def _driver(host: Host, facts: Facts, wanted: Resolution | None) -> Iterator[Verdict]:
    gpus = ", ".join(f"{gpu.name} ({gpu.arch or '?'})" for gpu in host.gpus) or "none"
    cuda = wanted.cuda if wanted is not None else None
    if cuda is None:
        yield Verdict("GPU", gpus, "", "info")
        if host.driver:
            yield Verdict("driver", host.driver, "", "info")
        return
    archs = {arch.arch.rstrip("af") for arch in cuda.archs}
    covered = [
        gpu
        for gpu in host.gpus
        if gpu.arch and _runs(gpu.arch, archs, ptx=any(a.ptx for a in cuda.archs))
    ]
    if not host.gpus:
        yield Verdict("GPU", gpus, cuda.arch_list, "info", "it builds here and runs elsewhere")
    elif covered:
        yield Verdict("GPU", gpus, cuda.arch_list, "ok")
    else:
        yield Verdict(
            "GPU",
            gpus,
            cuda.arch_list,
            "warn",
            'this machine\'s GPU is not in the list: "no kernel image is available" if run here; '
            "add 'native' to gpus",
        )
    toolkit = find_toolkit(facts, cuda.version)
    if host.driver is None or toolkit is None:
        yield Verdict("driver", host.driver or "none", toolkit.driver if toolkit else "", "info")
        return
    driver = release(host.driver)
    if driver >= release(toolkit.driver):
        yield Verdict("driver", host.driver, f"{toolkit.driver} or newer", "ok")
    elif toolkit.driver_compat and driver >= release(toolkit.driver_compat):
        yield Verdict(
            "driver",
            host.driver,
            f"{toolkit.driver} or newer",
            "warn",
            f"runs by minor-version compatibility; PTX needs {toolkit.driver} or newer",
        )
    else:
        oldest = toolkit.driver_compat or toolkit.driver
        yield Verdict(
            "driver",
            host.driver,
            f"{oldest} or newer for the CUDA {cuda.version} runtime",
            "fail",
            "update the driver and restart the machine, or build for an older CUDA; with this one "
            'torch stops with "Error 804: forward compatibility was attempted on non supported HW"',
        )


def _runs(gpu: str, archs: set[str], *, ptx: bool) -> bool:
    major, minor = release(gpu)
    for arch in archs:
        have_major, have_minor = release(arch)
        if have_major == major and have_minor <= minor:
            return True
        if ptx and (have_major, have_minor) <= (major, minor):
            return True
    return False


def _room(host: Host, wanted: Resolution | None, needs: Needs) -> Iterator[Verdict]:
    yield Verdict("cores", str(host.cores), "", "info")
    memory = host.memory_bytes
    if wanted is None or not needs.memory_mb:
        yield Verdict("memory", _gib(memory), "", "info")
    else:
        one = needs.memory_mb << 20
        short = memory is not None and memory < one
        tight = memory is not None and memory < one * host.cores
        yield Verdict(
            "memory",
            _gib(memory),
            f"{_gib(one)} for the hungriest file",
            "fail" if short else ("warn" if tight else "ok"),
            "add memory or swap, or use a larger machine"
            if short
            else (
                f"fewer compilers at once: MAX_JOBS={max(1, (memory or one) // one)}"
                if tight
                else ""
            ),
        )
    free = host.disk_free_bytes
    required = needs.disk_mb << 20
    if not required:
        yield Verdict("disk", f"{_gib(free)} free", "", "info")
    else:
        enough = free is None or free >= required
        yield Verdict(
            "disk",
            f"{_gib(free)} free",
            f"{_gib(required)}",
            "ok" if enough else "fail",
            ""
            if enough
            else f"free {_gib(required - (free or 0))} more, or work in another folder",
        )
    shm = host.shm_bytes
    small = shm is not None and shm < SHM_WANTED
    yield Verdict(
        "/dev/shm",
        _gib(shm),
        "8 GiB for DataLoader workers",
        "warn" if small else "ok",
        "mount -o remount,size=8G /dev/shm; in a container: --shm-size=8G" if small else "",
    )


def _engines(host: Host, needs: Needs, *, inside: bool) -> Iterator[Verdict]:
    running = [engine for engine in host.engines if engine.running]
    found = (
        ", ".join(
            f"{engine.name} {engine.version}" + ("" if engine.running else " (not running)")
            for engine in host.engines
        )
        or "none"
    )
    if not (needs.images or inside):
        yield Verdict("container engine", found, "", "info")
        return
    builders = [engine for engine in running if engine.name != "apptainer"]
    yield Verdict(
        "container engine",
        found,
        "podman, docker or buildah",
        "ok" if builders else "fail",
        "" if builders else f"{_apt(host, 'podman')}, or start the engine that is there",
    )


def worst(lines: list[Verdict]) -> Rating:
    """The rating that decides the exit code."""
    for rating in ("fail", "warn"):
        if any(line.rating == rating for line in lines):
            return rating
    return "ok"
