"""Libraries a wheel needs and does not hold: who brings each of them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from msgspec import Struct
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchsmith.checks import few
from torchsmith.errors import HostError, UsageError
from torchsmith.package.finish.audit import Policies
from torchsmith.recipe.outcome import Libraries
from torchsmith.sources.tree import file_hash
from torchsmith.verify.binary import Library, read_library
from torchsmith.verify.linkage import baseline

# Whose version is CUDA's own.
_NAMED_AFTER_CUDA = ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cublas", "nvidia-cuda-nvrtc")
# Not of the toolkit: each has versions of its own, and names itself after a CUDA.
_APART = ("nvidia-cudnn", "nvidia-cusparselt", "nvidia-nccl", "nvidia-nvshmem")
# What `cuda-toolkit` calls them, where that is not the end of their own name.
_EXTRAS = {
    "nvidia-cuda-runtime": "cudart",
    "nvidia-cuda-nvrtc": "nvrtc",
    "nvidia-cuda-cupti": "cupti",
}


@dataclass(frozen=True, slots=True)
class Bringer:
    """A distribution, and the folder of site-packages its libraries lie in."""

    requirement: str
    folder: str


def read_pins(lines: Iterable[str]) -> dict[str, str]:
    """Distributions and their versions, from what `pip freeze` prints or wheels require."""
    found: dict[str, str] = {}
    for line in lines:
        try:
            wanted = Requirement(line.partition("#")[0].strip())
        except InvalidRequirement:
            continue
        exact = [item.version for item in wanted.specifier if item.operator in ("==", "===")]
        if len(exact) == 1:
            found[canonicalize_name(wanted.name)] = exact[0]
    return found


def brought_by_nvidia(library: str) -> str:
    """nvidia-cublas for libcublas.so.12; empty for what NVIDIA does not ship."""
    name = baseline().bringer(library)
    return name if name.startswith("nvidia-") else ""


def bringer(library: str, pins: Mapping[str, str]) -> Bringer:
    """The distribution that brings a library, in the version that is pinned.

    Where only the toolkit's release is, its own list of parts (`cuda-toolkit`) says the rest.
    """
    name = brought_by_nvidia(library)
    for pinned, version in pins.items():
        suffix = pinned.removeprefix(name)
        if pinned.startswith(name) and re.fullmatch(r"(-cu\d+)?", suffix):
            return _brought(f"{pinned}=={version}", name, suffix or _cuda(pins))
    cuda = _cuda(pins)
    if name in _APART and cuda:
        # The library's own number is its version's first.
        number = library.partition(".so.")[2].partition(".")[0]
        return _brought(f"{name}{cuda}=={number}.*", name, cuda)
    if "cuda-toolkit" in pins:
        extra = _EXTRAS.get(name, name.removeprefix("nvidia-"))
        return _brought(f"cuda-toolkit[{extra}]=={pins['cuda-toolkit']}", name, cuda)
    raise UsageError(
        f"{library} comes with {name}, and it is not known in which version",
        "Name the versions it was built with: --pins FILE, as `pip freeze` prints them.",
    )


def _cuda(pins: Mapping[str, str]) -> str:
    """-cu12, by the first that is named after CUDA; empty if none is."""
    known = next((pins[name] for name in _NAMED_AFTER_CUDA if name in pins), "")
    return f"-cu{known.partition('.')[0]}" if known else ""


def _brought(requirement: str, name: str, cuda: str) -> Bringer:
    """Up to CUDA 12 every part has a folder; from 13 on those of the toolkit share one."""
    part = name.removeprefix("nvidia-").replace("-", "_")
    if name not in _APART and int(cuda.removeprefix("-cu") or 0) >= 13:
        part = cuda.removeprefix("-")
    return Bringer(f'{requirement}; platform_system == "Linux"', f"nvidia/{part}/lib")


Origin = Literal["system", "vendor", "wheels", "torch", "driver", "python"]
Find = Callable[[str, Sequence[Path]], Path | None]

_PYTHON = re.compile(r"libpython\d+\.\d+[a-z]*\.so(\.\d+)*")
# Opened by name by others of their family when they are used: what is renamed is not found, and
# what nobody needs by the book must come along. cuDNN has been so from 8 on, NVRTC always.
_BY_NAME = {"libcudnn": "libcudnn*.so.{}", "libnvrtc": "libnvrtc-builtins.so.{}*"}
# Opens its parts by name, from where it was installed itself.
_UNMOVABLE = "libmkl"


class Outside(Struct, frozen=True, omit_defaults=True):
    """A library that is needed and not in the wheel.

    `needed_by` is the first file that needs it, `origin` who brings it; `found` is where it lies
    on this machine, `becomes` the file that is put into the wheel, or the requirement.
    """

    name: str
    needed_by: str
    origin: Origin
    found: str = ""
    becomes: str = ""


@dataclass(frozen=True, slots=True)
class Vendored:
    """A library of this machine that goes into the wheel, under another name."""

    name: str
    source: Path
    library: Library


@dataclass(slots=True)
class Settled:
    """What was decided about every library outside."""

    outside: list[Outside] = field(default_factory=list)
    vendored: dict[Path, Vendored] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    brought: dict[str, Bringer] = field(default_factory=dict)

    def of(self, *origins: Origin) -> frozenset[str]:
        """The names of those that come from there."""
        return frozenset(item.name for item in self.outside if item.origin in origins)


@dataclass(frozen=True, slots=True)
class Rules:
    """What decisions rest on: whose libraries, the pins of NVIDIA's wheels, the policies."""

    distribution: str
    libraries: Libraries
    pins: Mapping[str, str]
    policies: Policies
    find: Find
    read: Callable[[Path], Library | None]


def settle(libraries: Sequence[Library], rules: Rules) -> Settled:
    """Decide about every library that is needed and not there; what is lost is an error."""
    inside = {name for item in libraries for name in (item.path.rpartition("/")[2], item.soname)}
    made = Settled()
    lost: list[str] = []
    seen: set[str] = set()
    queue = deque((item, _folders(item, None)) for item in libraries)
    while queue:
        item, folders = queue.popleft()
        for name in item.needed:
            if name in inside or name in seen or rules.policies.everywhere(name):
                continue
            seen.add(name)
            origin = _origin(name, rules)
            path: Path | None = None
            becomes = ""
            if origin == "wheels":
                made.brought[name] = bringer(name, rules.pins)
                becomes = made.brought[name].requirement
            elif origin == "vendor":
                if name.startswith(_UNMOVABLE):
                    raise UsageError(
                        f"{name} (for {item.path}) cannot be put into a wheel: MKL opens its "
                        "parts by name, from where it is installed",
                        "Link MKL statically, or finish with --libraries system.",
                    )
                path = rules.find(name, folders)
                if path is None:
                    lost.append(f"{name} (for {item.path})")
                    continue
                for one in (path, *_opened_by_name(name, path)):
                    taken = _take(one, made, rules)
                    queue.append((taken.library, _folders(taken.library, taken.source)))
                    seen.add(taken.library.soname)
                becomes = made.renamed[name] = made.vendored[path.resolve()].name
            made.outside.append(
                Outside(name, item.path, origin, str(path) if path else "", becomes)
            )
    if lost:
        raise HostError(
            f"not on this machine: {few(lost)}",
            "Install them, or name their folders in LD_LIBRARY_PATH; or finish with "
            "--libraries system.",
        )
    return made


def _origin(name: str, rules: Rules) -> Origin:
    if name in baseline().driver:
        return "driver"
    if rules.distribution != "torch" and baseline().bringer(name) == "torch":
        return "torch"
    if rules.libraries == "system":
        return "system"
    if _PYTHON.fullmatch(name):
        return "python"
    if rules.libraries == "wheels" and brought_by_nvidia(name):
        return "wheels"
    return "vendor"


def _take(path: Path, made: Settled, rules: Rules) -> Vendored:
    real = path.resolve()
    if real not in made.vendored:
        library = rules.read(path)
        if library is None or library.broken:
            raise HostError(f"{path} is not a library that can be read", "Install it again.")
        own = library.soname or path.name
        name = own if _family(own) else _hashed(own, real)
        made.vendored[real] = Vendored(name, real, library)
    taken = made.vendored[real]
    # By either name: the one it has, and the one of the link that led here.
    for known in (taken.library.soname, path.name):
        if known:
            made.renamed.setdefault(known, taken.name)
    return taken


def _hashed(name: str, file: Path) -> str:
    """libgomp.so.1 -> libgomp-1a2b3c4d.so.1: two wheels' copies never pass for each other."""
    start, dot, end = name.partition(".")
    return f"{start}-{file_hash(file)[:8]}{dot}{end}"


def _family(name: str) -> str:
    return next((start for start in _BY_NAME if name.startswith(start)), "")


def _opened_by_name(name: str, path: Path) -> list[Path]:
    family = _family(name)
    if not family:
        return []
    major = name.partition(".so.")[2].partition(".")[0]
    return sorted(path.parent.glob(_BY_NAME[family].format(major)))


def _folders(library: Library, file: Path | None) -> tuple[Path, ...]:
    """Where a library itself says what it needs is to be found, on this machine."""
    found = []
    for entry in library.search:
        place = entry.replace("${ORIGIN}", "$ORIGIN")
        if file is not None:
            place = place.replace("$ORIGIN", str(file.parent))
        if place.startswith("/"):
            found.append(Path(place))
    return tuple(found)


def read_installed(path: Path) -> Library | None:
    """Read a library of this machine; None if there is none."""
    try:
        with path.open("rb") as stream:
            return read_library(str(path), stream, path.stat().st_size)
    except OSError:
        return None


@cache
def loader_folders() -> tuple[Path, ...]:
    """Where the loader looks: LD_LIBRARY_PATH, /etc/ld.so.conf, its own."""
    from auditwheel.lddtree import load_ld_paths
    from auditwheel.libc import Libc

    known = load_ld_paths(Libc.GLIBC)
    return tuple(dict.fromkeys(Path(name) for part in ("env", "conf") for name in known[part]))


def finder(machine: str) -> Find:
    """A function that finds libraries for one machine, and passes over those for others."""

    def find(name: str, first: Sequence[Path]) -> Path | None:
        for folder in (*first, *loader_folders()):
            library = read_installed(folder / name)
            if library is not None and library.dynamic and library.machine == machine:
                return folder / name
        return None

    return find
