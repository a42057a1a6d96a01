"""Checks before a long run, so that nobody waits hours for a missing header or package."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torchsmith.errors import HostError
from torchsmith.host.models import Host
from torchsmith.host.probe import ask, read_text
from torchsmith.plan.companions import header_flags, include_folders
from torchsmith.plan.models import Plan
from torchsmith.resolve.models import FormatChoice, Resolution

Install = Callable[[Sequence[str]], None]


def _missing(resolution: Resolution, item: FormatChoice) -> str:
    """What the build of a format lacks here; empty if nothing."""
    flags = header_flags(item.header, include_folders(resolution))
    answer = ask([resolution.compiler.cc, *flags, "/dev/null"])
    if answer is None or answer.code != 0:
        return item.header
    return item.program if item.program and shutil.which(item.program) is None else ""


def ensure_formats(resolutions: Iterable[Resolution], install: Install) -> None:
    """Have what the formats are built with; `install` gets the missing packages and may raise."""
    wanted = [
        (resolution, companion.package, item)
        for resolution in resolutions
        for companion in resolution.companions
        for item in companion.formats
    ]
    lacking = [item.apt for resolution, _, item in wanted if _missing(resolution, item)]
    if lacking:
        install(list(dict.fromkeys(lacking)))
    for resolution, package, item in wanted:
        if lost := _missing(resolution, item):
            raise HostError(
                f"{package} is to read {item.name.upper()}, but {lost} is missing",
                f"Install what Debian calls {item.apt}, or leave {item.name!r} out of "
                "companions.vision_formats.",
            )


def ensure_programs(plan: Plan, install: Install) -> bool:
    """Have the programs a plan needs; return whether `install` got any missing packages."""
    lacking = [
        package
        for resolution in plan.variants
        if resolution.variant not in plan.inside
        for package in _programs(plan, resolution)
    ]
    if lacking:
        install(list(dict.fromkeys(lacking)))
    return bool(lacking)


def ensure_platform(plan: Plan, host: Host) -> str:
    """Refuse to compile for a platform that this machine cannot run; what it costs where it can."""
    compiled = {step.variant for step in plan.steps if step.kind == "compile"}
    for item in plan.variants:
        if item.variant not in compiled or item.platform == host.platform:
            continue
        if item.variant not in plan.inside:
            raise HostError(
                f"{item.platform} cannot be compiled on this {host.platform} machine itself",
                "Name the distribution to build in, such as system = 'debian-12': its container "
                "runs here through an emulator. Or build on such a machine.",
            )
        if item.platform not in emulated():
            raise HostError(
                f"this {host.platform} machine cannot run programs of {item.platform}",
                "Register an emulator: apt-get install qemu-user-static binfmt-support. "
                "Or build on such a machine.",
            )
        return f"{item.platform} is emulated here: compiling takes many times as long"
    return ""


def ensure_toolkits(plan: Plan, host: Host) -> None:
    """Refuse to compile with a CUDA that this machine does not have."""
    compiled = {step.variant for step in plan.steps if step.kind == "compile"} - plan.inside
    for item in plan.variants:
        if item.variant not in compiled or item.cuda is None or item.cuda.toolkit != "system":
            continue
        wanted = item.cuda.version
        if wanted not in {".".join(found.version.split(".")[:2]) for found in host.cuda}:
            found = ", ".join(found.version for found in host.cuda) or "none"
            raise HostError(
                f"this machine has no CUDA {wanted} (here: {found})",
                "`torchsmith plan` says where it comes from, and which distribution's container "
                "brings it.",
            )


# What the kernel calls the emulator of each platform, where Debian's packages register it.
_EMULATORS = {"linux-x86_64": "qemu-x86_64", "linux-aarch64": "qemu-aarch64"}


def emulated(registered: Path = Path("/proc/sys/fs/binfmt_misc")) -> frozenset[str]:
    """The platforms whose programs this kernel hands to an emulator."""
    found: list[str] = []
    for platform, name in _EMULATORS.items():
        text = read_text(registered / name)
        if text is not None and text.startswith("enabled"):
            found.append(platform)
    return frozenset(found)


def lacks_cache(plan: Plan) -> bool:
    """Whether several Pythons' torch of one release, nearly the same, is built without a cache."""
    compiled = {
        step.variant for step in plan.steps if step.kind == "compile" and step.project == "torch"
    }
    built = [item.torch for item in plan.variants if item.variant in compiled - plan.inside]
    return len(built) > len(set(built)) and shutil.which("ccache") is None


def _programs(plan: Plan, resolution: Resolution) -> list[str]:
    """Packages of the programs that are missing for a variant."""
    steps = [step for step in plan.steps if step.variant in ("", resolution.variant)]
    wanted: dict[str, str] = {}
    if any(step.kind == "compile" for step in steps):
        for path in (resolution.compiler.cc, resolution.compiler.cxx):
            wanted[path] = path.rpartition("/")[2].replace("clang++", "clang")
    fetched = [step.source for step in steps if step.source is not None]
    if any(source.kind == "git" for source in fetched):
        wanted["git"] = "git"
    # A Debian source has patches of its own.
    if any(step.kind == "patch" for step in steps) or any(
        source.kind == "debian" for source in fetched
    ):
        wanted["patch"] = "patch"
    lacking = [package for program, package in wanted.items() if shutil.which(program) is None]
    # A Python without headers is left for one of uv's, where uv is.
    served = (
        resolution.installed is not None
        or not any(step.kind == "environment" for step in steps)
        or (resolution.python_from == "uv" and shutil.which("uv") is not None)
    )
    return lacking if served else lacking + _parts_of_python(f"python{resolution.python}")


# What Debian packs apart from the interpreter: a module each, and the headers.
_PYTHON_PARTS = """
import importlib.util, os.path, sysconfig
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
print("" if os.path.exists(headers) else "dev")
print("" if importlib.util.find_spec("ensurepip") else "venv")
"""


def _parts_of_python(python: str) -> list[str]:
    """Debian's packages of what an interpreter lacks for building extensions."""
    if shutil.which(python) is None:
        return []
    answer = ask([python, "-c", _PYTHON_PARTS])
    return [f"{python}-{part}" for part in (answer.out.split() if answer else [])]


def missing_packages(names: Sequence[str]) -> list[str]:
    """Those of the packages that are not installed; none where there is no dpkg to ask."""
    if not names or shutil.which("dpkg-query") is None:
        return []
    # It complains of packages it does not know and goes on: what it does not name is missing.
    shown = "--showformat=${Package} ${db:Status-Status}\n"
    asked = ask(["dpkg-query", "--show", shown, *names], timeout=60)
    lines = asked.out.splitlines() if asked is not None else []
    installed = {line.split()[0] for line in lines if line.endswith(" installed")}
    return [name for name in names if name.partition("=")[0] not in installed]


def ensure_packages(names: Sequence[str], *, install: bool) -> None:
    """Have these packages; `install` them as root, or end with the command that does."""
    missing = missing_packages(names)
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    plain = " ".join(command)
    root = os.geteuid() == 0
    if not (install and root):
        raise HostError(
            f"{len(missing)} system packages are missing: {', '.join(missing)}",
            ("" if root else "sudo ") + plain + ("; or --install-deps" if root else ""),
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["apt-get", "update"], command):
        done = subprocess.run(words, env=environment, check=False, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise HostError(f"{words[0]} {words[1]} failed", f"Try it by hand: {plain}")


def add_packages(names: Sequence[str]) -> None:
    """Install optional packages where this user may; a build works without them."""
    if os.geteuid() == 0:
        with contextlib.suppress(HostError):
            ensure_packages(names, install=True)
