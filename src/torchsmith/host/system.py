"""The system itself: platform, distribution, libc, board, CPU, its Pythons and their torches."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from torchsmith.facts.ranges import release
from torchsmith.host.models import InstalledTorch, Libc, Python
from torchsmith.host.probe import Programs, first_version, is_executable, read_text, together

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# A 64-bit kernel under a 32-bit system (Raspberry Pi OS ships so) reports the kernel's machine.
_NARROW = {"x86_64": "i686", "aarch64": "armv7l"}

_PYTHON = re.compile(r"python(3(\.\d+t?)?)?")
# -S: site-packages can be large and slow, and can print.
_PYTHON_ASKS = (
    "import sys; v = sys.version_info; print('\\n'.join(['torchsmith',"
    " sys.implementation.name, '%d.%d.%d' % v[:3], sys.executable, sys.base_prefix,"
    " getattr(sys, 'abiflags', '')]))"
)


def read_platform() -> str:
    """Return the platform as facts name it, e.g. ``linux-x86_64``."""
    name = os.uname()
    machine = _MACHINES.get(name.machine, name.machine)
    if sys.maxsize < 2**32:
        machine = _NARROW.get(machine, machine)
    return f"{name.sysname.lower()}-{machine}"


def read_system(root: Path = Path("/")) -> str:
    """Return the distribution and its release, e.g. ``ubuntu-22.04``; `""` if it does not say."""
    text = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release") or ""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            try:
                fields[key.strip()] = "".join(shlex.split(value)[:1])
            except ValueError:  # a quote without its end
                continue
    # Rolling distributions (arch, Debian's sid) have no VERSION_ID.
    return "-".join(filter(None, (fields.get("ID"), fields.get("VERSION_ID"))))


def read_libc(programs: Programs, root: Path = Path("/")) -> Libc | None:
    """Return the C library: glibc says it itself, musl through its loader."""
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return read_musl(programs, root)
    version = first_version(name)
    return Libc(kind="glibc", version=version) if version else read_musl(programs, root)


def read_musl(programs: Programs, root: Path = Path("/")) -> Libc | None:
    """Return musl's version: its loader prints it on standard error and exits with 1."""
    for loader in _listed(root / "lib", "ld-musl-*.so.1"):
        answer = programs.ask(loader)
        if answer is not None and "musl" in answer.err:
            version = first_version(answer.err)
            if version:
                return Libc(kind="musl", version=version)
    return None


def read_board(root: Path = Path("/")) -> str:
    """Return the board's name from the device tree; `""` on machines without one."""
    text = read_text(root / "proc/device-tree/model") or ""
    name = text.strip("\0 \n")
    return name if name.isprintable() else ""


def read_l4t(root: Path = Path("/")) -> str | None:
    """Return the release of a Jetson's Linux, from ``# R32 (release), REVISION: 4.4, …``."""
    text = read_text(root / "etc/nv_tegra_release") or ""
    found = re.search(r"R(\d{1,3}) \(release\), REVISION: (\d{1,3}(?:\.\d{1,3})?)", text)
    return f"{found[1]}.{found[2]}" if found else None


def read_cpu_name(programs: Programs, root: Path = Path("/")) -> str:
    """Return the CPU's name; on ARM the kernel gives numbers only, and lscpu has the names."""
    found = re.search(
        r"^model name\s*:\s*(\S.*)$", read_text(root / "proc/cpuinfo") or "", re.MULTILINE
    )
    if found is None:
        lscpu = programs.find("lscpu")
        output = programs.run(lscpu) if lscpu else None
        found = re.search(r"^Model name:\s*(\S.*)$", output or "", re.MULTILINE)
    return found[1].strip() if found else ""


def read_pythons(programs: Programs, running: Path | None = None) -> tuple[Python, ...]:
    """Return the Pythons on the search path, after the running one, each once."""
    paths = [running or Path(sys.executable), *_python_candidates(programs)]
    # Names of one executable are asked once, before and after: a shim hides which one it is.
    different = {os.path.realpath(path): None for path in paths if is_executable(path)}
    answers = together(lambda path: read_python(programs, Path(path)), different)
    return tuple({found.path: found for found in answers if found}.values())


def _python_candidates(programs: Programs) -> Iterator[Path]:
    for path in programs.matching(_PYTHON):
        # pyenv, asdf and mise have a folder "shims" with a slow script for every name of every
        # version they hold, which refuses all but the selected one. The versions themselves
        # are beside it.
        manager = path.parent.parent
        versions = _listed(manager / "versions", "*") + _listed(manager / "installs/python", "*")
        if path.parent.name == "shims" and versions:
            versions.sort(
                key=lambda folder: release(first_version(folder.name) or "0"), reverse=True
            )
            yield from (folder / "bin" / path.name for folder in versions)
        else:
            yield path


_PATCHLEVEL = re.compile(r'#define\s+PY_VERSION\s+"(\d+\.\d+\.\d+)"')


def _from_headers(path: Path) -> Python | None:
    """Read what CPython it is from the headers beside it: far quicker than starting it."""
    for header in _listed(path.parent.parent / "include", f"{path.name}*/patchlevel.h"):
        found = _PATCHLEVEL.search(read_text(header) or "")
        parent = header.parent.name
        short = "python" + ".".join(found[1].split(".")[:2]) if found else ""
        # The folder says more than the file: include/python3.13t is the free-threaded one's.
        if found and path.name in (short, f"{short}t") and parent in (path.name, f"{path.name}m"):
            return Python(
                version=found[1],
                path=str(path),
                headers=(header.parent / "Python.h").is_file(),
                free_threaded=path.name.endswith("t"),
            )
    return None


def read_python(programs: Programs, path: Path) -> Python | None:
    """Say what an interpreter is; `None` unless it is a working CPython 3."""
    if (known := _from_headers(path)) is not None:
        return known
    lines = (programs.run(path, "-I", "-S", "-c", _PYTHON_ASKS) or "").split("\n")
    if len(lines) < 6 or lines[:2] != ["torchsmith", "cpython"]:
        return None
    version, executable, prefix, flags = lines[2:6]
    if first_version(version) != version or not executable:
        return None
    name = ".".join(version.split(".")[:2]) + flags
    header = Path(prefix) / "include" / f"python{name}" / "Python.h"
    return Python(
        version=version,
        path=os.path.realpath(executable),
        headers=header.is_file(),
        free_threaded="t" in flags,
    )


def _listed(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


# Found, not imported: that takes seconds. Without the folder we happen to stand in, which may
# be PyTorch's own sources.
_ASKS = (
    "import importlib.util as u, json, os, platform, site, sys;"
    " sys.path = [p for p in sys.path if p]; found = u.find_spec('torch');"
    " origin = found.origin if found else None;"
    " own = site.getsitepackages() + ([site.getusersitepackages()] if site.ENABLE_USER_SITE"
    " else []);"
    " print(json.dumps([platform.python_version(), os.path.dirname(origin) if origin else '',"
    " [p for p in own if os.path.isdir(p)], getattr(sys, 'abiflags', '')]))"
)
_RECORD = "torch-*.dist-info/RECORD"
_VERSION = re.compile(r"^__version__ = ['\"]([0-9][0-9A-Za-z.+]*)['\"]", re.MULTILINE)
_CUDA = re.compile(r"^cuda(?:: Optional\[str\])? = ['\"]([0-9.]+)['\"]", re.MULTILINE)


def environment_python(programs: Programs, environment: str, python: str) -> Path | None:
    """The interpreter meant by an environment's folder, or else by a Python's version.

    'host' is the environment that is switched on, or the one torchsmith runs in.
    """
    if environment:
        place = Path(environment)
        return next(filter(is_executable, (place / "bin/python", place / "bin/python3")), None)
    if python != "host":
        return programs.find(f"python{python}")
    named = [programs.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    paths = [*(Path(folder) / "bin/python" for folder in named if folder), Path(sys.executable)]
    return next(filter(is_executable, paths), None)


def read_torch(programs: Programs, python: Path) -> InstalledTorch | None:
    """The torch an interpreter would import; `None` if it has none that says what it is."""
    # -E: what PYTHONPATH adds does not reach a build.
    output = programs.run(python, "-E", "-c", _ASKS) or ""
    try:
        version, module, packages, flags = json.loads(output.strip().rpartition("\n")[2])
    except (ValueError, TypeError):
        return None
    about_file = Path(module) / "version.py"
    own = torch_version(Path(module)) if module else ""
    if not own or first_version(version) != version:
        return None
    cuda = _CUDA.search(read_text(about_file) or "")
    return InstalledTorch(
        version=own,
        cuda=cuda[1] if cuda else "",
        python=version,
        free_threaded="t" in flags,
        # Not resolved: behind the link of a venv is the Python without its packages.
        path=str(python.absolute()),
        module=module,
        packages=tuple(packages),
        # The list of its files with their hashes, which only a torch in development lacks.
        evidence=(str(about_file), *map(str, sorted(Path(module).parent.glob(_RECORD)))),
        beside=_distributions(packages),
    )


def torch_version(module: Path) -> str:
    """What a folder of torch says it is; empty where it does not."""
    found = _VERSION.search(read_text(module / "version.py") or "")
    return found[1] if found else ""


def _distributions(folders: Iterable[str]) -> dict[str, str]:
    """What is installed in these folders, by the names of the folders pip keeps its notes in."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(Path(folder).glob("*.dist-info")):
            name, _, version = path.stem.rpartition("-")
            if name:
                found.setdefault(str(canonicalize_name(name)), version)
    return found


def read_torches(
    programs: Programs, places: Iterable[tuple[str, str]]
) -> tuple[InstalledTorch, ...]:
    """The torches meant by pairs of an environment's folder and a Python's version."""
    pythons = [environment_python(programs, *place) for place in dict.fromkeys(places)]
    read = [read_torch(programs, python) for python in dict.fromkeys(pythons) if python]
    return tuple(item for item in read if item)
