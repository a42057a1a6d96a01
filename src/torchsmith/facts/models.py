"""The shape of every facts file. The data are in ``data/*.toml``; nothing here is data.

Each file starts with a ``[sources]`` table, and each entry names one or more of its keys
in ``source``: a fact whose origin nobody can check is not a fact.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

_NUMBERS = r"\d{1,6}(\.\d{1,6}){0,5}"
Version = Annotated[str, Meta(pattern=rf"^{_NUMBERS}$")]
# LOW:HIGH, see `ranges`.
Range = Annotated[str, Meta(pattern=rf"^(({_NUMBERS})?:({_NUMBERS})?|{_NUMBERS})$")]
# A compute capability as PyTorch writes it: 8.6, 9.0a, 10.0f.
Arch = Annotated[str, Meta(pattern=r"^\d{1,2}\.\d[af]?$")]
Commit = Annotated[str, Meta(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
# A CPython, 3.14t for the free-threaded one.
PythonVersion = Annotated[str, Meta(pattern=r"^\d\.\d{1,2}t?$")]
Platform = Literal["linux-x86_64", "linux-aarch64"]
Companion = Literal["vision", "audio", "text", "codec"]
Profile = Literal["release", "minimal", "debug"]
Mode = Literal["on", "off", "system", "static"]


class _Model(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """msgspec rather than pydantic: facts are read at every start.

    These classes are made and filled in a tenth of the time. `kw_only` and `frozen` are not
    handed down by themselves.
    """


class Source(_Model, frozen=True, kw_only=True):
    """Where a fact can be checked."""

    title: str
    url: str
    # The day it was read, YYYY-MM-DD.
    read: str


class Fact(_Model, frozen=True, kw_only=True):
    """An entry with its origin, and the reason where the bare value does not say it."""

    # Keys of this file's [sources], separated by spaces.
    source: str
    note: str = ""


class _File(_Model, frozen=True, kw_only=True):
    """A whole file: its sources, then its entries."""

    sources: dict[str, Source]


# ------------------------------------------------------------------------- releases.toml


class TorchRelease(Fact, frozen=True, kw_only=True):
    """One release of PyTorch."""

    version: Version
    tag: str
    commit: Commit | None = None
    # What the published wheels say, where that is not the tag's.
    wheel_commit: Commit | None = None
    date: str | None = None
    # CPythons it has published Linux wheels for.
    pythons: list[PythonVersion]
    # Those of a platform whose wheels are for others; none: it has no wheels there.
    pythons_on: dict[Platform, list[PythonVersion]] = {}
    # CPythons upstream builds for and calls experimental; published or not.
    experimental: list[PythonVersion] = []
    # Those of a platform whose wheels are on PyTorch's own index and not on PyPI.
    index_on: dict[Platform, list[PythonVersion]] = {}
    # The CUDA of the wheel on PyPI itself, and where that wheel has it.
    pypi_cuda: Version | None = None
    pypi_cuda_on: list[Platform] = []
    # What that wheel is pinned to: triton, cudnn, nccl.
    pypi_brings: dict[str, Version] = {}
    # Its version on PyTorch's own index, where that is not this release with a label such as +cu92.
    on_index: str | None = None
    # The folder of that index, where it has one of its own.
    index_folder: str = ""


class ReleasesFile(_File, frozen=True, kw_only=True):
    """``releases.toml``."""

    release: list[TorchRelease]


# ---------------------------------------------------------------------------- torch.toml


class TorchRange(Fact, frozen=True, kw_only=True):
    """Something true of a range of torch releases: `value` is a range of versions."""

    torch: Range
    value: Range


class TorchCuda(TorchRange, frozen=True, kw_only=True):
    """The toolkits upstream builds a range of releases with, and what is known of others."""

    # Built by others; upstream does not publish it.
    works: Range | None = None
    # Nobody has been seen to build it, nor to fail.
    unknown: Range | None = None
    # Seen to fail.
    fails: Range | None = None


class Conditions(Fact, frozen=True, kw_only=True):
    """When a fact holds: every condition that is given."""

    platform: Platform | None = None
    # The host compiler; a bare major stands for all its patch releases.
    gcc: Range | None = None
    # The C library, and the Linux headers, of the system that is built on.
    glibc: Range | None = None
    kernel: Range | None = None
    cuda: Range | None = None
    # A feature whose copy under third_party is built.
    feature: str = ""


class Trouble(Conditions, frozen=True, kw_only=True):
    """What keeps a range of releases from being built somewhere, and how well that is known."""

    name: str
    torch: Range
    standing: Literal["fails", "unknown"]
    why: str


class TorchSwitch(Fact, frozen=True, kw_only=True):
    """Variables that upstream sets for its own wheels, and a build has to set itself."""

    torch: Range
    platform: Platform | None = None
    env: dict[str, str]
    why: str


class TorchCxx(Fact, frozen=True, kw_only=True):
    """The C++ standard the sources are written in, and the oldest gcc that compiles them."""

    torch: Range
    standard: int
    # Its headers refuse a compiler that is told an older one.
    strict: bool = False
    gcc: Range


class TorchArchs(Fact, frozen=True, kw_only=True):
    """The compute capabilities a release's own build scripts accept by name."""

    torch: Range
    known: list[Arch]
    # Taken as a number by torch's own CMake, and not by its cpp_extension.py: torch alone.
    torch_alone: list[Arch] = []
    # NVIDIA built it for a board of these all the same.
    boards: list[Arch] = []


class PublishedArchs(Fact, frozen=True, kw_only=True):
    """The arch list of the wheels the PyTorch project itself publishes."""

    torch: Range
    cuda: Range
    platform: Platform = "linux-x86_64"
    # As TORCH_CUDA_ARCH_LIST, e.g. 7.0;8.0;8.6;9.0+PTX; empty: nobody has looked inside.
    archs: str
    # Whether the version of these wheels tells the CUDA: 2.6.0+cu126.
    labelled: bool = True


class WheelLibc(Fact, frozen=True, kw_only=True):
    """The oldest glibc that published wheels run with."""

    torch: Range
    platform: Platform | None = None
    # Only the wheels of these toolkits.
    cuda: Range | None = None
    glibc: Version


class WheelCudnn(Fact, frozen=True, kw_only=True):
    """The cuDNN that published wheels bring."""

    torch: Range
    cuda: Range
    cudnn: Version


class TorchFrontend(Fact, frozen=True, kw_only=True):
    """How a release turns its source tree into a wheel."""

    torch: Range
    command: Literal["setup.py", "build"]
    # Whether setup.py can stop after configuring.
    cmake_only: bool
    # Python packages its build needs.
    requires: list[str]


class TorchFile(_File, frozen=True, kw_only=True):
    """``torch.toml``."""

    # The releases all of this has been looked up for.
    looked_at: list[Version]
    cuda: list[TorchCuda]
    # Toolkits upstream's source does not build with, and with our patches does.
    patched_cuda: list[TorchRange] = []
    cudnn: list[TorchRange]
    cmake: list[TorchRange]
    setuptools: list[TorchRange]
    numpy: list[TorchRange]
    cxx: list[TorchCxx]
    # The Pythons that torch.compile runs on.
    compile: list[TorchRange]
    archs: list[TorchArchs]
    published: list[PublishedArchs]
    wheel_libc: list[WheelLibc]
    wheel_cudnn: list[WheelCudnn]
    trouble: list[Trouble]
    switch: list[TorchSwitch] = []
    frontend: list[TorchFrontend]


# ----------------------------------------------------------------------- companions.toml


class Library(Fact, frozen=True, kw_only=True):
    """A library that only works with the torch it was built against."""

    name: str
    # Its name on PyPI, e.g. torchvision.
    package: str
    repository: str
    # Its last release, if there are no more.
    ended: Version | None = None
    ended_reason: str = ""
    # What its setup.py has to be told, and the Debian packages with what it looks for.
    env: dict[str, str] = {}
    apt: list[str] = []


class CompanionProject(Library, frozen=True, kw_only=True):
    """A library that is released with torch."""

    name: Companion


class LibraryRelease(Fact, frozen=True, kw_only=True):
    """One release of a library and the torch it is built against."""

    name: str
    version: str
    torch: Range
    # The torch it came out with, where it goes with others too.
    beside: Version | None = None
    tag: str
    commit: Commit | None = None
    # Of the tag's source archive.
    sha256: Sha256 | None = None


class CompanionRelease(LibraryRelease, frozen=True, kw_only=True):
    """One release of a companion."""

    name: Companion
    version: Version
    # The newest Python it was published for, where its torch came out for newer ones.
    newest_python: Version | None = None


class CompanionFormat(Fact, frozen=True, kw_only=True):
    """A kind of file a companion can be built to read, and what its build looks for."""

    project: Companion
    name: str
    releases: Range
    header: str
    # A program it asks where the library lies; empty if it asks none.
    program: str = ""
    # A function of the library that only a build with it calls.
    symbol: str
    # The variable of its setup.py.
    switch: str
    apt: str


class CompanionsFile(_File, frozen=True, kw_only=True):
    """``companions.toml``."""

    project: list[CompanionProject]
    release: list[CompanionRelease]
    format: list[CompanionFormat] = []


# ---------------------------------------------------------------------------- stack.toml


class StackPackage(Library, frozen=True, kw_only=True):
    """A library that is compiled against torch, and how its own setup is called.

    `env` is what its setup is told; `cuda_env` the same where it is built with CUDA, with
    `{archs}` for 8.6;9.0, `{numbers}` for 86;90 and `{majors}` for 80;90. `apt` are Debian
    packages its build needs.
    `cuda_edit` is an expression of `sed -E` for its setup.py, where a setup names GPUs of its own
    and has no switch: what it does not name, torch takes from TORCH_CUDA_ARCH_LIST.
    """

    # Its name, which is as PyPI normalizes it.
    package: str = ""
    module: str
    cuda_env: dict[str, str] = {}
    cuda_edit: str = ""
    # Its setup chooses the GPUs itself, whatever the recipe says.
    own_archs: bool = False
    # The C++ standard that its setup tells the compiler, whatever torch asks for.
    standard: int | None = None
    # The variable that says how many files it may compile at once, where MAX_JOBS does not.
    jobs: str = ""
    # What pip installs before it is built, and what its wheel needs to be used.
    build: list[str] = []
    requires: list[str] = []
    # Packages of the stack, and companions, that it imports.
    uses: list[str] = []
    # Without CUDA there is nothing to build, or nothing that works.
    needs_cuda: bool = False
    # Why its build uses the network, if it does.
    network: str = ""
    # A line of Python that uses it on the CPU, and one for a GPU.
    check: str
    gpu_check: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "package", self.name)


class StackRelease(LibraryRelease, frozen=True, kw_only=True):
    """A release of such a library, and what it is built with; `sha256` is its sdist's."""

    version: Annotated[str, Meta(pattern=rf"^{_NUMBERS}(\.post\d{{1,4}})?$")]
    tag: str = ""
    python: Range = ":"
    cuda: Range = ":"
    # The oldest compute capability it has code for, or all it has code for.
    oldest_arch: Arch | None = None
    archs: list[Arch] = []


class StackFile(_File, frozen=True, kw_only=True):
    """``stack.toml``."""

    package: list[StackPackage]
    release: list[StackRelease]


# ----------------------------------------------------------------------------- cuda.toml


class Toolkit(Fact, frozen=True, kw_only=True):
    """One CUDA toolkit release."""

    # major.minor
    version: Version
    # Full versions, in order.
    builds: list[Version] = []
    # Oldest Linux x86_64 driver that runs it.
    driver: Version
    # Oldest driver under minor-version compatibility (CUDA 11 and later).
    driver_compat: Version | None = None
    # Distributions an nvidia/cuda:…-devel image was published for, e.g. ubuntu20.04.
    images: list[str] = []
    # The tag of those images, before -devel: nvidia/cuda:{image}-devel-…
    image: str = ""
    # The part of the tag that brings cuDNN: cudnn7, cudnn8, or just cudnn.
    image_cudnn: str = ""
    # Whether nvcc can be assembled from PyPI wheels.
    wheels: bool = False


class ImageEnd(Fact, frozen=True, kw_only=True):
    """Toolkits whose images NVIDIA has deleted, or no longer maintains and may delete."""

    cuda: Range
    # Year and month.
    since: str
    gone: bool


class Repository(Fact, frozen=True, kw_only=True):
    """An apt repository of NVIDIA's."""

    # The distribution it is for, e.g. ubuntu-16.04.
    system: str
    platform: Platform
    # The toolkits it serves.
    cuda: Range
    # Whether nvcc is in it, or only cuDNN and NCCL.
    holds: Literal["toolkit", "libraries"] = "toolkit"
    url: str
    # The key it is signed with: a file beside its packages.
    key: str
    fingerprint: str


class RepositoryPackages(Fact, frozen=True, kw_only=True):
    """What a toolkit is called in NVIDIA's apt repositories; {cuda} stands for 12-6."""

    cuda: Range
    build: list[str]
    runtime: list[str]


class DebianToolkit(Fact, frozen=True, kw_only=True):
    """The CUDA toolkit that a Debian release packages itself, in non-free."""

    system: str
    cuda: Version
    build: list[str]
    # The libraries a program needs to run.
    runtime: list[str]
    # Its NCCL; empty if it has none.
    nccl: str = ""


class CudaArch(Fact, frozen=True, kw_only=True):
    """An architecture and the toolkits that can compile for it."""

    arch: Arch
    # Maxwell, Pascal, …
    family: str
    cuda: Range
    # The last branch of drivers that runs it, where there are newer ones.
    last_driver: str = ""


class HostCompiler(Fact, frozen=True, kw_only=True):
    """The newest host compiler a range of toolkits accepts."""

    cuda: Range
    compiler: Literal["gcc", "clang"]
    newest: Version


class Cudnn(Fact, frozen=True, kw_only=True):
    """A cuDNN release line and the CUDA toolkits it is built for."""

    cudnn: Range
    cuda: Range
    # Toolkits inside that range it was not built for.
    lacks: list[Version] = []
    # The oldest and the newest compute capability it runs on, where they are not CUDA's own.
    oldest_arch: Arch | None = None
    newest_arch: Arch | None = None


class CudaFile(_File, frozen=True, kw_only=True):
    """``cuda.toml``."""

    toolkit: list[Toolkit]
    image_end: list[ImageEnd]
    repository: list[Repository]
    repository_packages: list[RepositoryPackages]
    debian: list[DebianToolkit]
    arch: list[CudaArch]
    host_compiler: list[HostCompiler]
    cudnn: list[Cudnn]


# ----------------------------------------------------------------- gpus.toml, boards.toml


class Gpu(Fact, frozen=True, kw_only=True):
    """A GPU by the name on its box."""

    name: str
    arch: Arch
    kind: Literal["datacentre", "workstation", "geforce", "jetson", "mining"]
    # The only platform it exists on: it sits on one board with its CPU.
    platform: Platform | None = None
    aliases: list[str] = []


class AmbiguousGpu(Fact, frozen=True, kw_only=True):
    """A name that people use for cards of different compute capabilities."""

    name: str
    # The names of the cards it could mean.
    between: list[str]


class OtherCards(Fact, frozen=True, kw_only=True):
    """Cards nothing is built for here: another maker's, or too old."""

    vendor: str
    # A regular expression for the name, in lower case.
    pattern: str
    # What there is for them.
    exists: str


class GpusFile(_File, frozen=True, kw_only=True):
    """``gpus.toml``."""

    gpu: list[Gpu]
    ambiguous: list[AmbiguousGpu] = []
    other: list[OtherCards] = []


class Lack(_Model, frozen=True, kw_only=True):
    """A feature a board cannot have, and why."""

    feature: str
    reason: str
    instead: str = ""


class Jetpack(Fact, frozen=True, kw_only=True):
    """A JetPack release: the only way CUDA reaches a Jetson."""

    version: Version
    system: str
    cuda: Version
    cudnn: Version
    python: Version
    # Toolkits NVIDIA lets one install on top of it.
    upgrades: Range | None = None


class Board(Fact, frozen=True, kw_only=True):
    """A board with its GPU on the package."""

    name: str
    title: str
    arch: Arch
    platform: Platform
    # For -mcpu, e.g. cortex-a57.
    cpu: str
    memory_gb: int
    # On the module itself.
    storage_gb: int | None = None
    # Where PyTorch's default of 1024 exhausts the registers.
    max_threads_per_block: int | None = None
    lacks: list[Lack] = []
    env: dict[str, str] = {}
    jetpack: list[Jetpack] = []


class BoardsFile(_File, frozen=True, kw_only=True):
    """``boards.toml``."""

    board: list[Board]


# ------------------------------------------------------------------------- features.toml


class Switch(Fact, frozen=True, kw_only=True):
    """The setup.py environment that turns a feature, for a range of releases."""

    torch: Range
    on: dict[str, str] = {}
    off: dict[str, str] = {}
    system: dict[str, str] = {}
    static: dict[str, str] = {}


class Partner(_Model, frozen=True, kw_only=True):
    """Another feature, for a range of releases."""

    torch: Range
    feature: str


class Where(_Model, frozen=True, kw_only=True):
    """Builds that can have a feature: every condition that is given."""

    torch: Range = ":"
    platform: Platform | None = None
    cuda: Range = ":"


class Feature(Fact, frozen=True, kw_only=True):
    """Something PyTorch can be built with or without."""

    name: str
    title: str
    # Releases that know this feature.
    torch: Range
    modes: list[Mode]
    # Other features, or 'cuda'.
    needs: list[str] = []
    # Where it exists, if not everywhere: one of these holds.
    only: list[Where] = []
    # Features some releases need too.
    also_needs: list[Partner] = []
    # Features that do not work without this one.
    required_by: list[Partner] = []
    # Features, or 'cuda', that cannot be in the same build.
    excludes: list[str] = []
    default: dict[Profile, Mode]
    # Releases the default is for; off in others.
    default_in: Range = ":"
    # Platforms where upstream has it unless told otherwise; empty: wherever it can be.
    usual_on: list[Platform] = []
    # What upstream does untold, where that is not what profile release wants.
    upstream: Mode | None = None
    # Where it can be had, if torchsmith does not build it.
    elsewhere: str = ""
    # CMake cache entry that tells whether it is in.
    cache: str | None = None
    # Debian packages mode 'system' needs.
    apt: list[str] = []
    # Packages of PyPI mode 'static' is linked from.
    pip: list[str] = []
    switch: list[Switch]


class FeaturesFile(_File, frozen=True, kw_only=True):
    """``features.toml``."""

    feature: list[Feature]


# ---------------------------------------------------------------------------- costs.toml


class CompileCost(Fact, frozen=True, kw_only=True):
    """What compiling a project takes, before anything is known of this machine."""

    # torch, vision, …; 'extension' for any other.
    project: str
    torch: Range
    profile: Profile
    # Every file by itself, and in batches where that has been measured.
    core_seconds: float
    batched_core_seconds: float = 0
    # For another Python, where the compiler cache has everything but its bindings.
    python_core_seconds: float = 0
    # More with CUDA, whatever the GPUs.
    cuda_core_seconds: float = 0
    # More for each architecture.
    arch_core_seconds: float = 0
    # The hungriest single compile.
    memory_mb: int
    disk_mb: int
    # False: an estimate from the notes.
    measured: bool


class CostsFile(_File, frozen=True, kw_only=True):
    """``costs.toml``."""

    compile: list[CompileCost]


# ----------------------------------------------------------- systems.toml, patches.toml


class System(Fact, frozen=True, kw_only=True):
    """A Linux distribution release."""

    # e.g. ubuntu-20.04, debian-12
    name: str
    # e.g. focal, bookworm
    codename: str
    # Its container base image, its name in full: docker.io/library/ubuntu:20.04
    image: str
    glibc: Version
    # The Linux whose headers programs are compiled with.
    kernel: Version
    # Its default gcc.
    gcc: Version
    # Majors it packages as gcc-N, the default included.
    gccs: list[Version] = []
    # Where its packages are now, once its own servers have them no longer.
    archive: str = ""
    # Its own python3.
    python: Version
    # Others that it packages as pythonX.Y with -dev and -venv, and uv does not have.
    pythons: list[Version] = []
    cmake: Version


class DebianSource(Fact, frozen=True, kw_only=True):
    """A source package in a Debian suite."""

    suite: str
    package: str
    project: Literal["torch", "vision", "audio", "text", "magma", "nccl"]
    # Upstream version.
    version: Version
    component: Literal["main", "contrib", "non-free"]


class VendoredFile(_Model, frozen=True, kw_only=True):
    """A file or folder Debian took out of a source, as another package still has it."""

    # Where the build looks for it.
    path: str
    # Who lends it: a source package of this suite, or one file of Debian's pool; with neither, a
    # wheel of PyPI's.
    suite: str = ""
    pool: str = ""
    package: str
    version: Version
    # Where it lies there, not through a link. Out of a wheel or the pool's file it may be a
    # folder, or "." for all of it.
    file: str
    # The file's; for a wheel or the pool's file, that one's.
    sha256: Sha256
    # Toolkits whose builds need it; empty: every build.
    cuda: Range | None = None
    # The feature whose builds need it; empty: every build.
    feature: str = ""


class DebianBuild(Fact, frozen=True, kw_only=True):
    """What building from Debian's source takes: it comes without the libraries it bundles."""

    torch: Range
    env: dict[str, str]
    # Packages with the libraries the sources were parted from.
    apt: list[str]
    # The oldest distribution whose libraries it was built with.
    oldest: str
    # Whether it can be done with upstream's part alone, where no mirror has Debian's.
    upstream_alone: bool = False
    # What no package brings.
    vendored: list[VendoredFile] = []
    # Features that cannot be had from it, with the reason.
    lacks: dict[str, str] = {}


class CPython(Fact, frozen=True, kw_only=True):
    """The last source archive of a Python that hardly anybody packs any more."""

    python: Version
    version: Version
    url: str
    sha256: Sha256


class Pinned(Fact, frozen=True, kw_only=True):
    """Releases that pip takes for a Python where the newest would have to be compiled."""

    python: PythonVersion
    pins: list[str]


class OtherPlatform(Fact, frozen=True, kw_only=True):
    """A platform nothing is built for here."""

    # A regular expression for its names, in lower case.
    pattern: str
    # What there is for it.
    exists: str


class OtherSystem(Fact, frozen=True, kw_only=True):
    """A distribution nothing is built in here, by what decides what runs there."""

    name: str
    # A regular expression for its names, in lower case: centos-7, rhel-7.9.
    pattern: str
    glibc: Version


class SystemsFile(_File, frozen=True, kw_only=True):
    """``systems.toml``."""

    system: list[System]
    pinned: list[Pinned] = []
    other_platform: list[OtherPlatform] = []
    other_system: list[OtherSystem] = []
    cpython: list[CPython]
    debian: list[DebianSource]
    debian_build: list[DebianBuild] = []
    # Platform -> the names gcc has for its CPUs.
    cpus: dict[str, list[str]] = {}


class MagmaRelease(Fact, frozen=True, kw_only=True):
    """The MAGMA that is built for a CUDA toolkit."""

    cuda: Range
    version: Version
    url: str
    sha256: Sha256
    # What PyTorch's own package for this CUDA is compiled for.
    archs: list[Arch]


class PatchFact(Conditions, frozen=True, kw_only=True):
    """A patch file shipped with torchsmith and when it applies."""

    name: str
    # Under data/patches/.
    file: str
    project: Literal["torch", "vision", "audio", "text", "codec", "magma"]
    releases: Range
    # Empty: any board or none.
    boards: list[str] = []
    # Kinds of source that need it; empty: any.
    sources: list[str] = []
    # The submodule it changes: source archives may come without.
    submodule: str | None = None
    # Left out where the tree has this path, or has it not: two sources of a release may differ.
    unless: str | None = None
    only_with: str | None = None
    # A feature that makes it needless where it is built.
    without: str = ""
    why: str


class PatchesFile(_File, frozen=True, kw_only=True):
    """``patches.toml``."""

    patch: list[PatchFact]
    magma: list[MagmaRelease] = []
