"""The shape of every facts file. The data are in ``data/*.toml``; nothing here is data.

Each file starts with a ``[sources]`` table, and each entry names one or more of its keys
in ``source``: a fact whose origin nobody can check is not a fact.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from torchsmith.facts.ranges import release, version_range


def _is_version(text: str) -> str:
    release(text)
    return text


def _is_range(text: str) -> str:
    version_range(text)
    return text


Version = Annotated[str, AfterValidator(_is_version)]
Range = Annotated[str, AfterValidator(_is_range)]
# A compute capability as PyTorch writes it: 8.6, 9.0a, 10.0f.
Arch = Annotated[str, Field(pattern=r"^\d{1,2}\.\d[af]?$")]
Platform = Literal["linux-x86_64", "linux-aarch64"]
Profile = Literal["release", "minimal", "debug"]
Mode = Literal["on", "off", "system", "static"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(_Model):
    """Where a fact can be checked."""

    title: str
    url: str
    read: str = Field(description="The day it was read, YYYY-MM-DD.")


class Fact(_Model):
    """An entry with its origin, and the reason where the bare value does not say it."""

    source: str = Field(description="Keys of this file's [sources], separated by spaces.")
    note: str = ""


# ------------------------------------------------------------------------- releases.toml


class TorchRelease(Fact):
    """One release of PyTorch."""

    version: Version
    tag: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    wheel_commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = Field(
        None, description="What the published wheels say, where that is not the tag's."
    )
    date: str | None = None
    pythons: list[Version] = Field(description="CPythons it has published Linux wheels for.")


class ReleasesFile(_Model):
    """``releases.toml``."""

    sources: dict[str, Source]
    release: list[TorchRelease]


# ---------------------------------------------------------------------------- torch.toml


class TorchRange(Fact):
    """Something true of a range of torch releases: `value` is a range of versions."""

    torch: Range
    value: Range


class TorchCxx(Fact):
    """The C++ standard the sources are written in, and the oldest gcc that compiles them."""

    torch: Range
    standard: int
    gcc: Range


class TorchArchs(Fact):
    """The compute capabilities a release's own build scripts accept by name."""

    torch: Range
    known: list[Arch]


class PublishedArchs(Fact):
    """The arch list of the wheels the PyTorch project itself publishes."""

    torch: Range
    cuda: Range
    platform: Platform = "linux-x86_64"
    archs: str = Field(description="As TORCH_CUDA_ARCH_LIST, e.g. 7.0;8.0;8.6;9.0+PTX")


class TorchFrontend(Fact):
    """How a release turns its source tree into a wheel."""

    torch: Range
    command: Literal["setup.py", "build"]
    cmake_only: bool = Field(description="Whether setup.py can stop after configuring.")
    requires: list[str] = Field(description="Python packages its build needs.")


class TorchFile(_Model):
    """``torch.toml``."""

    sources: dict[str, Source]
    cuda: list[TorchRange]
    cudnn: list[TorchRange]
    cmake: list[TorchRange]
    setuptools: list[TorchRange]
    numpy: list[TorchRange]
    cxx: list[TorchCxx]
    archs: list[TorchArchs]
    published: list[PublishedArchs]
    frontend: list[TorchFrontend]


# ----------------------------------------------------------------------- companions.toml


class CompanionProject(Fact):
    """A library that only works with its matching torch."""

    name: Literal["vision", "audio", "text"]
    package: str = Field(description="Its name on PyPI, e.g. torchvision.")
    repository: str
    ended: Version | None = Field(None, description="Its last release, if there are no more.")
    ended_reason: str = ""


class CompanionRelease(Fact):
    """One release of a companion and the torch it is built against."""

    name: Literal["vision", "audio", "text"]
    version: Version
    torch: Range
    tag: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="Of the tag's source archive."
    )


class CompanionsFile(_Model):
    """``companions.toml``."""

    sources: dict[str, Source]
    project: list[CompanionProject]
    release: list[CompanionRelease]


# ----------------------------------------------------------------------------- cuda.toml


class Toolkit(Fact):
    """One CUDA toolkit release."""

    version: Version = Field(description="major.minor")
    builds: list[Version] = Field(default_factory=list, description="Full versions, in order.")
    driver: Version = Field(description="Oldest Linux x86_64 driver that runs it.")
    driver_compat: Version | None = Field(
        None, description="Oldest driver under minor-version compatibility (CUDA 11 and later)."
    )
    images: list[str] = Field(
        default_factory=list,
        description="Distributions with an nvidia/cuda:…-devel image, e.g. ubuntu20.04.",
    )
    image: str = Field(
        "", description="The tag of those images, before -devel: nvidia/cuda:{image}-devel-…"
    )
    image_cudnn: str = Field(
        "", description="The part of the tag that brings cuDNN: cudnn7, cudnn8, or just cudnn."
    )
    wheels: bool = Field(False, description="Whether nvcc can be assembled from PyPI wheels.")


class CudaArch(Fact):
    """An architecture and the toolkits that can compile for it."""

    arch: Arch
    family: str = Field(description="Maxwell, Pascal, …")
    cuda: Range


class HostCompiler(Fact):
    """The newest host compiler a range of toolkits accepts."""

    cuda: Range
    compiler: Literal["gcc", "clang"]
    newest: Version


class Cudnn(Fact):
    """A cuDNN release line and the CUDA toolkits it is built for."""

    cudnn: Range
    cuda: Range


class CudaFile(_Model):
    """``cuda.toml``."""

    sources: dict[str, Source]
    toolkit: list[Toolkit]
    arch: list[CudaArch]
    host_compiler: list[HostCompiler]
    cudnn: list[Cudnn]


# ----------------------------------------------------------------- gpus.toml, boards.toml


class Gpu(Fact):
    """A GPU by the name on its box."""

    name: str
    arch: Arch
    kind: Literal["datacentre", "workstation", "geforce", "jetson"]
    aliases: list[str] = Field(default_factory=list)


class AmbiguousGpu(Fact):
    """A name that people use for cards of different compute capabilities."""

    name: str
    between: list[str] = Field(description="The names of the cards it could mean.")


class GpusFile(_Model):
    """``gpus.toml``."""

    sources: dict[str, Source]
    gpu: list[Gpu]
    ambiguous: list[AmbiguousGpu] = Field(default_factory=list)


class Lack(_Model):
    """A feature a board cannot have, and why."""

    feature: str
    reason: str
    instead: str = ""


class Jetpack(Fact):
    """A JetPack release: the only way CUDA reaches a Jetson."""

    version: Version
    system: str
    cuda: Version
    cudnn: Version
    python: Version


class Board(Fact):
    """A board with its GPU on the package."""

    name: str
    title: str
    arch: Arch
    platform: Platform
    cpu: str = Field(description="For -mcpu, e.g. cortex-a57.")
    memory_gb: int
    max_threads_per_block: int | None = Field(
        None, description="Where PyTorch's default of 1024 exhausts the registers."
    )
    lacks: list[Lack] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    jetpack: list[Jetpack] = Field(default_factory=list)


class BoardsFile(_Model):
    """``boards.toml``."""

    sources: dict[str, Source]
    board: list[Board]


# ------------------------------------------------------------------------- features.toml


class Switch(Fact):
    """The setup.py environment that turns a feature, for a range of releases."""

    torch: Range
    on: dict[str, str] = Field(default_factory=dict)
    off: dict[str, str] = Field(default_factory=dict)
    system: dict[str, str] = Field(default_factory=dict)
    static: dict[str, str] = Field(default_factory=dict)


class Feature(Fact):
    """Something PyTorch can be built with or without."""

    name: str
    title: str
    torch: Range = Field(description="Releases that know this feature.")
    modes: list[Mode]
    needs: list[str] = Field(
        default_factory=list,
        description="Other features, or 'cuda', 'linux-x86_64', 'linux-aarch64'.",
    )
    default: dict[Profile, Mode]
    cache: str | None = Field(None, description="CMake cache entry that tells whether it is in.")
    apt: list[str] = Field(default_factory=list, description="Debian packages mode 'system' needs.")
    switch: list[Switch]


class FeaturesFile(_Model):
    """``features.toml``."""

    sources: dict[str, Source]
    feature: list[Feature]


# ---------------------------------------------------------------------------- costs.toml


class CompileCost(Fact):
    """What compiling a project takes, before anything is known of this machine."""

    project: str = Field(description="torch, vision, …; 'extension' for any other.")
    torch: Range
    profile: Profile
    core_seconds: float
    cuda_core_seconds: float = Field(0, description="More with CUDA, whatever the GPUs.")
    arch_core_seconds: float = Field(0, description="More for each architecture.")
    memory_mb: int = Field(description="The hungriest single compile.")
    disk_mb: int
    measured: bool = Field(description="False: an estimate from the notes.")


class CostsFile(_Model):
    """``costs.toml``."""

    sources: dict[str, Source]
    compile: list[CompileCost]


# ----------------------------------------------------------- systems.toml, patches.toml


class System(Fact):
    """A Linux distribution release."""

    name: str = Field(description="e.g. ubuntu-20.04, debian-12")
    image: str = Field(description="Its container base image, e.g. ubuntu:20.04")
    glibc: Version
    gcc: Version = Field(description="Its default gcc.")
    gccs: list[Version] = Field(
        default_factory=list, description="Majors it packages as gcc-N, the default included."
    )
    python: Version = Field(description="Its own python3.")
    cmake: Version


class DebianSource(Fact):
    """A source package in a Debian suite."""

    suite: str
    package: str
    project: Literal["torch", "vision", "audio", "text", "magma", "nccl"]
    version: Version = Field(description="Upstream version.")
    component: Literal["main", "contrib", "non-free"]


class SystemsFile(_Model):
    """``systems.toml``."""

    sources: dict[str, Source]
    system: list[System]
    debian: list[DebianSource]


class MagmaRelease(Fact):
    """The MAGMA PyTorch's own builds of a CUDA toolkit go with."""

    cuda: Range
    version: Version
    url: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    archs: list[Arch] = Field(description="What its package is compiled for.")


class PatchFact(Fact):
    """A patch file shipped with torchsmith and when it applies."""

    name: str
    file: str = Field(description="Under data/patches/.")
    project: Literal["torch", "vision", "audio", "text", "magma"]
    releases: Range
    boards: list[str] = Field(default_factory=list, description="Empty: any board or none.")
    cuda: Range | None = None
    gcc: Range | None = Field(
        None, description="Compilers that need it; harmless with others. Empty: any."
    )
    sources: list[str] = Field(
        default_factory=list, description="Kinds of source that need it; empty: any."
    )
    submodule: str | None = Field(
        None, description="The submodule it changes: source archives may come without."
    )
    why: str


class PatchesFile(_Model):
    """``patches.toml``."""

    sources: dict[str, Source]
    patch: list[PatchFact]
    magma: list[MagmaRelease] = Field(default_factory=list)
