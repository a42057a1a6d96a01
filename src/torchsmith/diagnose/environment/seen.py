"""An environment as it was read: everything the examination decides over."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from packaging.version import InvalidVersion, Version

from torchsmith.checks import Check
from torchsmith.host.models import Host
from torchsmith.verify.probing import Loaded, TorchFacts

# What changes which libraries are found, and how torch behaves.
VARIABLES = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "KMP_DUPLICATE_LIB_OK",
    "ATEN_CPU_CAPABILITY",
    "CUDA_VISIBLE_DEVICES",
)


def version_of(text: str) -> Version | None:
    """A version as packages write it; None for what is none."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


class FoundTorch(Struct, frozen=True):
    """A torch in a folder Python imports from; `recorded` are the versions pip notes there."""

    path: str
    version: str
    recorded: tuple[str, ...] = ()


class Built(Struct, frozen=True):
    """A distribution compiled against torch; `wants` is what it requires of torch."""

    name: str
    version: str
    wants: str = ""
    fits: bool = True
    modules: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


class Pin(Struct, frozen=True):
    """A library of NVIDIA's that torch asks for at one version; `found` is empty where it lacks."""

    name: str
    wanted: str
    found: str
    fits: bool


class Shadowed(Struct, frozen=True):
    """A library that a variable of the loader offers under the name of a bundled one."""

    name: str
    offered: str
    bundled: str
    variable: str


class Seen(Struct, frozen=True):
    """What was read.

    `archs` are the GPUs torch has code for (sm_90, compute_90 for PTX); `libcuda` the one
    the loader finds, and the version in its name. `cpu_flags` are what the processor can do;
    `openmp` the OpenMP runtimes that lie in the environment. `here` is a torch in the folder one
    stands in.
    """

    python: str
    version: str
    prefix: str
    host: Host
    torches: tuple[FoundTorch, ...]
    imported: Check
    facts: TorchFacts = TorchFacts()
    loaded: Loaded = Loaded()
    checks: tuple[Check, ...] = ()
    archs: tuple[str, ...] = ()
    built: tuple[Built, ...] = ()
    pins: tuple[Pin, ...] = ()
    numpy: str = ""
    openmp: tuple[str, ...] = ()
    shadowed: tuple[Shadowed, ...] = ()
    libcuda: tuple[str, str] = ("", "")
    cpu_flags: frozenset[str] = frozenset()
    environ: Mapping[str, str] = {}
    here: str = ""
    workers: int = 0
