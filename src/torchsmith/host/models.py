"""The shape of a host: every field may be missing, since a machine may hide anything."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from torchsmith.facts.ranges import release
from torchsmith.host.limits import HugePages


def _is_version(text: str) -> str:
    release(text)
    return text


Version = Annotated[str, AfterValidator(_is_version)]
Bytes = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Libc(_Model):
    """The C library programs here are linked with."""

    kind: Literal["glibc", "musl"]
    version: Version


class Python(_Model):
    """A CPython that was started and answered."""

    version: Version
    path: str = Field(description="The real executable, behind symbolic links and shims.")
    headers: bool = Field(description="Whether Python.h is there, without which nothing compiles.")
    free_threaded: bool = Field(False, description="Whether it is built without the GIL: 3.13t.")

    @property
    def name(self) -> str:
        """As recipes write it: 3.11, or 3.13t."""
        return ".".join(self.version.split(".")[:2]) + ("t" if self.free_threaded else "")


class InstalledTorch(_Model):
    """A torch that lies in the environment of some Python, and is used where it lies."""

    version: str = Field(description="In full, e.g. 2.6.0+cu124.")
    cuda: str = Field("", description="The CUDA it was built with; empty for none.")
    python: Version
    free_threaded: bool = Field(False, description="Whether that Python is free-threaded.")
    path: str = Field(description="The interpreter as it was named: a venv's own.")
    module: str = Field(description="The folder of the module torch.")
    packages: tuple[str, ...] = Field(
        (), description="The folders this Python keeps its packages in."
    )
    evidence: tuple[str, ...] = Field(
        (), description="Files of it that are different for any other torch."
    )
    beside: dict[str, str] = Field(
        default_factory=dict, description="Distributions in those folders, and their versions."
    )


class Compiler(_Model):
    """A C compiler and the C++ compiler that goes with it."""

    kind: Literal["gcc", "clang"]
    version: Version = Field(description="That of the C++ compiler.")
    path: str = Field(description="The C compiler, for CC.")
    cxx: str = Field(description="The C++ compiler, for CXX.")


class Tool(_Model):
    """A program that was started and told its version."""

    version: Version
    path: str


class Toolkit(_Model):
    """A CUDA toolkit whose nvcc answers."""

    version: Version = Field(description="In full, e.g. 13.0.88.")
    path: str = Field(description="Its root, for CUDA_HOME.")
    nvcc: str


class Library(_Model):
    """A library, as its own header tells it."""

    version: Version
    path: str = Field(description="The folder that holds the header.")


class InstalledGpu(_Model):
    """A GPU the driver answers for."""

    name: str
    arch: Annotated[str, Field(pattern=r"^\d{1,2}\.\d$")] | None = Field(
        None, description="Compute capability; drivers older than 510 do not tell it."
    )
    memory_mb: int | None = Field(
        None, description="In MiB; not told where CPU and GPU share one memory."
    )


class Engine(_Model):
    """A container engine."""

    name: Literal["podman", "docker", "buildah", "apptainer"]
    version: Version
    path: str
    running: bool = Field(
        description="Whether its daemon answers; true for an engine that has no daemon."
    )
    detail: str = Field("", description="What it said when it is not running, or whose it is.")


class Host(_Model):
    """A machine: what a recipe is resolved against."""

    platform: str = Field(description="linux-x86_64, linux-aarch64, or what else it is.")
    system: str = Field("", description="Distribution and release, e.g. debian-12.")
    libc: Libc | None = None
    kernel: str = ""
    board: str = Field("", description="The board's own name, e.g. NVIDIA Jetson TX2.")
    l4t: Version | None = Field(None, description="Jetson's Linux release, e.g. 32.4.4.")
    cpu_name: str = ""

    pythons: tuple[Python, ...] = Field((), description="The one running torchsmith comes first.")
    torches: tuple[InstalledTorch, ...] = Field(
        (), description="Looked for where a recipe uses an installed one."
    )
    compilers: tuple[Compiler, ...] = Field((), description="The default of each kind comes first.")
    tools: dict[str, Tool] = Field(
        default_factory=dict,
        description="By name: cmake, ninja, make, git, patch, ccache, sccache, mold, lld.",
    )
    cuda: tuple[Toolkit, ...] = Field((), description="The default one comes first.")
    libraries: dict[str, Library] = Field(
        default_factory=dict, description="By name: cudnn, nccl, magma."
    )
    gpus: tuple[InstalledGpu, ...] = ()
    driver: Version | None = Field(None, description="NVIDIA's driver, e.g. 580.159.04.")
    engines: tuple[Engine, ...] = ()

    cores: int = Field(1, ge=1, description="Cores this process may use.")
    memory_bytes: Bytes | None = Field(None, description="Memory this process may use.")
    memory_available_bytes: Bytes | None = Field(None, description="What of it is free now.")
    disk_free_bytes: Bytes | None = Field(None, description="Free where the work will happen.")
    shm_bytes: Bytes | None = Field(None, description="Size of /dev/shm.")
    huge_pages: HugePages = Field(
        "", description="When the kernel gives a program huge pages; empty if it does not say."
    )

    root: bool = Field(False, description="Whether torchsmith runs as root.")
    apt: bool = Field(False, description="Whether apt-get is here.")


# What people read, and no program.
_PROSE = frozenset(("board", "cpu_name", "detail", "kernel", "name"))
# Quoted where it is written, such a value would still be read by what runs $CC or $CXX through a
# shell, as make does, and a word after a space could be an option of the compiler's.
_FORM = re.compile(
    r"(?!-)(?:[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069$`\"'\\|&;<>(){}*?!#\s]"
    r"| (?!-))*"
)
_LONGEST = 4096


def check_described(described: object, key: str = "") -> None:
    """Refuse a description of a machine, in JSON, whose values could be read as commands.

    Paths and names out of it stand in scripts and Dockerfiles. `ValueError` says which.
    """
    if isinstance(described, dict):
        for name, value in described.items():
            check_described(name, "a key")
            check_described(value, str(name))
    elif isinstance(described, list):
        for value in described:
            check_described(value, key)
    elif (
        isinstance(described, str)
        and key not in _PROSE
        and (len(described) > _LONGEST or not _FORM.fullmatch(described))
    ):
        raise ValueError(f"{key} is {described[:80]!r}, which no path or name is")
