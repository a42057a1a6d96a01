"""The recipe file, as models. The JSON Schema and the reference in the docs come from here."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from torchsmith.facts.ranges import cuda_release
from torchsmith.recipe.gpus import Gpus
from torchsmith.recipe.job import Job
from torchsmith.recipe.outcome import Image, Packages, Publish
from torchsmith.recipe.values import (
    BRANCH,
    PACKAGE_VERSION,
    VERSION,
    AptPackage,
    BranchText,
    BuildVariables,
    Commit,
    CpuText,
    CudaVersion,
    FeatureMode,
    Line,
    Lines,
    Name,
    OrText,
    PackageVersion,
    Pin,
    PipRequirement,
    PlatformText,
    ProjectPath,
    Pythons,
    PythonText,
    Ref,
    Section,
    Sha256,
    Size,
    SourcePath,
    System,
    TorchRelease,
    Url,
    VersionText,
    WhenThere,
    unique_names,
)

Profile = Literal["release", "minimal", "debug"]


class Torch(Section):
    """Which PyTorch. `torch = "2.6.0"` is short for a table with only `release`."""

    release: TorchRelease = Field(
        description="A release such as 2.6.0; 2.6 means its newest patch release. With `ref`: "
        "the release whose facts apply to that ref."
    )
    ref: Ref | None = Field(None, description="Build this git tag, branch or commit instead.")
    commit: Commit | None = Field(None, description="The commit `ref` must point to.")
    version: PackageVersion | None = Field(
        None, description="Version written into the package; default: the release and a label."
    )
    build_number: Annotated[int, Field(ge=0, le=9999)] = Field(0, description="Conda build number.")
    use: Literal["source", "wheel", "installed"] = Field(
        "source",
        description="Build torch from source; or build only the companions, against the "
        "published wheel or against the torch that is installed already.",
    )
    environment: SourcePath | None = Field(
        None,
        description="With use = 'installed': the folder of the environment that has it. Default: "
        "the one that is switched on, or the one torchsmith runs in.",
    )

    @model_validator(mode="after")
    def _installed_somewhere(self) -> Self:
        if self.environment and self.use != "installed":
            raise ValueError("environment belongs to use = 'installed'")
        return self


def _short_torch(value: Any) -> Any:
    """A release as it is, or by its tag: v2.6.0."""
    return {"release": value.removeprefix("v")} if isinstance(value, str) else value


TorchValue = Annotated[
    Torch,
    BeforeValidator(_short_torch),
    OrText(VERSION.json_schema()),
]


class Cuda(Section):
    """Which CUDA. `cuda = "12.6"` is short for a table with only `version`."""

    version: CudaVersion | Literal["none", "host"] = Field(
        description="A toolkit release such as 12.6; 'none' for CPU only; 'host' for the newest "
        "toolkit this machine has."
    )
    toolkit: Literal["system", "wheels", "image", "apt", "debian"] | None = Field(
        None,
        description="Where nvcc comes from: installed on the system, NVIDIA's PyPI wheels, an "
        "nvidia/cuda container image, NVIDIA's apt repository in a container, or Debian's own "
        "packages (11.8 in Debian 12, 12.4 in Debian 13). Default: image if `system` names a "
        "distribution that has one.",
    )
    cudnn: VersionText | None = Field(None, description="cuDNN release, e.g. 8.0.5.")
    nccl: VersionText | None = Field(
        None,
        description="NCCL release, e.g. 2.4; makes `features.nccl` 'system' unless it is given.",
    )
    nvcc_flags: list[Line] = Field(
        default_factory=list, description="TORCH_NVCC_FLAGS, one argument each."
    )


def _short_cuda(value: Any) -> Any:
    """The release alone, for the table."""
    if value is False:
        return {"version": "none"}
    if isinstance(value, str):
        return {"version": cuda_release(value)}
    return value


CudaValue = Annotated[
    Cuda,
    BeforeValidator(_short_cuda),
    OrText({"enum": ["none", "host", False]}, VERSION.json_schema()),
]


class Source(Section):
    """Where torch's source comes from."""

    kind: Literal["auto", "git", "debian", "archive", "folder", "bundle"] = Field(
        "auto", description="'auto': git where it can be reached, else Debian's source package."
    )
    url: Url | None = Field(None, description="Git repository or archive.")
    mirrors: list[Url] = Field(default_factory=list, description="Tried in order after `url`.")
    suite: Name | None = Field(None, description="Debian suite, e.g. trixie.")
    path: SourcePath | None = Field(None, description="Archive, folder or bundle on this machine.")
    sha256: Sha256 | None = Field(None, description="Of the archive.")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "archive" and not (self.sha256 and (self.url or self.path)):
            raise ValueError("an archive needs a url or path, and its sha256")
        if self.kind in ("folder", "bundle") and not self.path:
            raise ValueError(f"a {self.kind} needs its path")
        if self.kind != "archive" and self.sha256:
            raise ValueError("sha256 belongs to kind = 'archive'")
        if self.suite and self.kind not in ("auto", "debian"):
            raise ValueError("suite belongs to kind = 'debian'")
        return self


class GitSource(Section):
    """A git repository at a ref."""

    url: Url = Field(description="The repository.")
    ref: Ref = Field(description="A tag, branch or commit of it.")


class Extension(Section):
    """Any other library built against this torch: by sdist, git repository or folder."""

    name: Name = Field(description="What the plan calls it.")
    sdist: Pin | None = Field(
        None, description="A source archive on PyPI, its version pinned: torch-scatter==2.1.2."
    )
    sha256: Sha256 | None = Field(None, description="Of the sdist; PyPI shows it with the file.")
    git: GitSource | None = Field(None, description="Or a git repository.")
    folder: ProjectPath | None = Field(None, description="Or a folder beside the recipe.")
    env: BuildVariables = Field(default_factory=dict, description="Environment of its build.")
    check: Line | None = Field(
        None,
        description="A line of Python that must run when it is installed beside its torch; "
        "default: import it.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.sdist, self.git, self.folder)) != 1:
            raise ValueError("an extension needs exactly one of sdist, git and folder")
        if bool(self.sdist) != bool(self.sha256):
            raise ValueError("an sdist needs its sha256, and sha256 belongs to an sdist")
        return self


def _companion(value: Any) -> Any:
    return {True: "match", False: "none"}[value] if isinstance(value, bool) else value


CompanionValue = Annotated[
    VersionText | Literal["match", "none"] | BranchText,
    BeforeValidator(_companion),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["match", "none", True, False]},
                VERSION.json_schema(),
                BRANCH.json_schema(),
            ],
            "description": "'match' for the release that goes with this torch, a release, a "
            "branch or commit of its repository, or 'none'.",
        }
    ),
]


class Companions(Section):
    """Libraries that only work with their matching torch."""

    vision: CompanionValue = Field("none", description="torchvision.")
    vision_formats: list[Literal["jpeg", "png"]] = Field(
        default_factory=list,
        description="What torchvision must read by itself; checked before and after it is built. "
        "Default: whatever it finds the libraries of.",
    )
    audio: CompanionValue = Field("none", description="torchaudio.")
    text: CompanionValue = Field("none", description="torchtext.")
    codec: CompanionValue = Field(
        "none", description="torchcodec, which decodes video and audio through FFmpeg."
    )
    unmatched: bool = Field(
        False,
        description="Build the releases named here against a torch they were not made for; "
        "whether they compile and work is then for you to see.",
    )
    extension: Annotated[list[Extension], Field(max_length=64), AfterValidator(unique_names)] = (
        Field(default_factory=list, description="Any other library built against this torch.")
    )

    @model_validator(mode="after")
    def _formats_of_something(self) -> Self:
        if self.vision_formats and self.vision == "none":
            raise ValueError("vision_formats needs vision")
        return self


StackValue = Annotated[
    PackageVersion | Literal["match"],
    BeforeValidator(lambda value: "match" if value is True else value),
    WithJsonSchema(
        {
            "anyOf": [{"enum": ["match", True]}, PACKAGE_VERSION.json_schema()],
            "description": "'match' for the newest release that goes with the rest, or a release.",
        }
    ),
]


class Patch(Section):
    """A patch of the recipe's own. A plain path is short for a table with only `file`."""

    file: ProjectPath = Field(description="The patch, beside the recipe.")
    project: Literal["torch", "vision", "audio", "text", "codec", "magma"] = Field(
        "torch", description="Whose source it changes."
    )
    strip: Annotated[int, Field(ge=0, le=5)] = Field(1, description="As `patch --strip`.")


def _short_patch(value: Any) -> Any:
    return {"file": value} if isinstance(value, str) else value


PatchValue = Annotated[
    Patch,
    BeforeValidator(_short_patch),
    OrText({"type": "string"}),
]


class Archive(Section):
    """A source archive and what it must hold."""

    url: Url = Field(description="Where it is.")
    sha256: Sha256 = Field(description="Of the archive.")


class Build(Section):
    """How the build itself runs."""

    compiler: Name | None = Field(
        None, description="e.g. gcc-9 or clang-14; default: the newest allowed."
    )
    jobs: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="Default: every core."
    )
    memory: Size | None = Field(None, description="Budget for compilers; default: what is free.")
    apt: list[AptPackage] = Field(
        default_factory=list, description="More Debian packages the build needs."
    )
    pip: list[PipRequirement] = Field(
        default_factory=list, description="More Python packages the build needs."
    )
    env: BuildVariables = Field(
        default_factory=dict, description="More environment for the build; wins over ours."
    )
    cmake: BuildVariables = Field(
        default_factory=dict, description="More CMake cache entries, passed as -DNAME=VALUE."
    )
    python_source: Archive | None = Field(
        None,
        description="The source of a Python that is built for want of packages; default: the last "
        "one of python.org.",
    )


class MatrixCell(Section):
    """A combination of axis values, in `exclude` and `include`."""

    torch: TorchValue | None = Field(None, description="A release.")
    python: PythonText | None = Field(None, description="A Python.")
    cuda: CudaValue | None = Field(None, description="A toolkit.")
    gpus: Gpus | None = Field(None, description="GPUs.")
    cpu: CpuText | None = Field(None, description="A CPU.")
    profile: Profile | None = Field(None, description="A profile.")
    platform: PlatformText | None = Field(None, description="A platform.")
    features: dict[str, FeatureMode] | None = Field(None, description="Features.")


class Matrix(Section):
    """Axes to build for: every combination becomes a variant."""

    torch: list[TorchValue] = Field(default_factory=list, max_length=1000, description="Releases.")
    python: list[PythonText] = Field(default_factory=list, max_length=1000, description="Pythons.")
    cuda: list[CudaValue] = Field(default_factory=list, max_length=1000, description="Toolkits.")
    gpus: list[Gpus] = Field(
        default_factory=list, max_length=1000, description="GPU sets: each entry is one."
    )
    cpu: list[CpuText] = Field(default_factory=list, max_length=1000, description="CPUs.")
    profile: list[Profile] = Field(default_factory=list, max_length=1000, description="Profiles.")
    platform: list[PlatformText] = Field(
        default_factory=list, max_length=1000, description="Platforms."
    )
    features: list[dict[str, FeatureMode]] = Field(
        default_factory=list,
        max_length=1000,
        description="Sets of features, laid over the recipe's own.",
    )
    exclude: list[MatrixCell] = Field(
        default_factory=list, max_length=1000, description="Combinations to leave out."
    )
    include: list[MatrixCell] = Field(
        default_factory=list,
        max_length=1000,
        description="Single variants to add; what a cell does not name is the recipe's own.",
    )


class Recipe(Section):
    """What is wanted: one file, one PyTorch (or a matrix of them)."""

    name: Name = Field("torch", description="Names the plan, its folders and its image.")
    description: Lines = Field("", description="For people; torchsmith does not read it.")
    torch: TorchValue = Field(description="Which PyTorch: a release such as 2.6.0, or a table.")
    python: Pythons = Field(["host"], description="One Python, or a list: a variant for each.")
    platform: PlatformText = Field("host", description="The machine the result runs on.")
    board: Name | None = Field(None, description="e.g. jetson-tx2; sets platform, GPU and patches.")
    jetpack: VersionText | None = Field(None, description="JetPack release on the board.")
    system: System | None = Field(
        None, description="Distribution to build and run on, e.g. ubuntu-20.04; default: this one."
    )
    cuda: CudaValue = Field(
        default_factory=lambda: Cuda(version="none"),
        description="Which CUDA: a toolkit release, 'none', 'host', or a table. Left out, it "
        "follows from `gpus` or `board`, if one is named.",
    )
    gpus: Gpus = Field(
        ["published"],
        description="GPU names or compute capabilities; default: the list of the published wheels.",
    )
    cpu: CpuText = Field("portable", description="'portable', 'native', or a CPU such as haswell.")
    profile: Profile = Field(
        "release", description="release, minimal (quick to build) or debug (with symbols)."
    )
    features: dict[str, FeatureMode] = Field(
        default_factory=dict,
        description="What to build with or without; `torchsmith facts features`.",
    )
    source: Source = Field(
        default_factory=Source.model_construct, description="Where torch's source comes from."
    )
    patches: list[PatchValue] = Field(
        default_factory=list, max_length=200, description="Patch files beside the recipe, in order."
    )
    build: Annotated[Build, WhenThere()] = Field(
        default_factory=Build.model_construct, description="How the build itself runs."
    )
    companions: Annotated[Companions, WhenThere()] = Field(
        default_factory=Companions.model_construct,
        description="Libraries that only work with their matching torch.",
    )
    stack: Annotated[dict[Name, StackValue], Field(max_length=64)] = Field(
        default_factory=dict,
        description="Packages of PyPI that are compiled against this torch and locked with it: "
        "`torchsmith facts stack` lists those that are known.",
    )
    packages: Annotated[Packages, WhenThere()] = Field(
        default_factory=Packages.model_construct, description="What the build is packed into."
    )
    image: Annotated[Image, WhenThere()] | None = Field(
        None, description="A container image; none unless this table is there."
    )
    publish: Annotated[Publish, WhenThere()] = Field(
        default_factory=Publish.model_construct, description="Where results are shipped."
    )
    job: Annotated[
        list[Annotated[Job, WhenThere()]], Field(max_length=200), AfterValidator(unique_names)
    ] = Field(default_factory=list, description="Workloads to run with the result.")
    matrix: Annotated[Matrix, WhenThere()] = Field(
        default_factory=Matrix.model_construct,
        description="Several at once: every combination becomes a variant.",
    )
