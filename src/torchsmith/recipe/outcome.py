"""The second half of a recipe: what becomes of the build (packages, images, shipping)."""

from __future__ import annotations

import zoneinfo
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from torchsmith.recipe.gpus import Gpus
from torchsmith.recipe.values import (
    AptPackage,
    Bucket,
    EnvName,
    Form,
    ImageName,
    ImageVariables,
    Label,
    Line,
    Login,
    Name,
    PipRequirement,
    ProjectPath,
    Section,
    Sha256,
    Size,
    SourcePath,
    Url,
    unique_names,
)

# Where a wheel finds libraries that are not torch's own.
Libraries = Literal["system", "vendor", "wheels"]


class Packages(Section):
    """What the build is packed into."""

    wheel: bool = Field(True, description="A wheel, for pip.")
    conda: bool = Field(False, description="A conda package.")
    conda_format: Literal["conda", "tar.bz2", "both"] = Field(
        "conda", description="How conda packages are written; clients of before 2019 read tar.bz2."
    )
    conda_by_gpu: bool = Field(
        False,
        description="Conda packages say which GPUs they have code for (`__cuda_arch`) and carry "
        "flags (`cuda`, `sm:90`); clients that do not know `__cuda_arch` do not install them.",
    )
    libtorch: bool = Field(False, description="An archive for C++ alone.")
    magma: bool = Field(False, description="MAGMA as a conda package of its own (magma-cuda110).")
    magma_gpus: Gpus | None = Field(
        None, description="What MAGMA is compiled for; default: what PyTorch's own packages have."
    )
    magma_archive: SourcePath | None = Field(
        None,
        description="MAGMA's release archive on this machine. Default: upstream's address, or "
        "Debian's source package where torch's comes from Debian and it has this release.",
    )
    magma_sha256: Sha256 | None = Field(None, description="Of that archive.")
    label: Label | None = Field(
        None, description="Local version label of the wheel; 'none' leaves it out. Default: cuXYZ."
    )
    libraries: Libraries = Field(
        "system",
        description="Libraries that wheels need: the machine's; put into them (vendor); or, for "
        "CUDA, NVIDIA's wheels on PyPI. Unless the machine's, wheels are finished: tagged "
        "manylinux, stripped, with no path of the building machine.",
    )
    strip: bool = Field(
        True, description="Drop symbols and debug information from wheels that are finished."
    )

    @model_validator(mode="after")
    def _archive_with_its_hash(self) -> Self:
        if bool(self.magma_archive) != bool(self.magma_sha256):
            raise ValueError("magma_archive needs its magma_sha256, and the other way round")
        return self


_TIMEZONE = Form(
    r"[A-Za-z][A-Za-z0-9_+-]{0,31}(?:/[A-Za-z0-9_+-]{1,31}){0,2}",
    "an IANA time zone name such as Asia/Seoul",
    ("Etc/UTC", "Asia/Seoul"),
)


def _is_timezone(text: str) -> str:
    # Opening one zone is quick; listing all of them reads the whole database.
    try:
        zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"expected {_TIMEZONE.expected}") from None
    return text


TimeZone = Annotated[str, _TIMEZONE, AfterValidator(_is_timezone)]


class Training(Section):
    """An image a person works in. Several may share one torch build."""

    name: Name = Field(description="Its tag: `pytorch_source:train_alice`.")
    user: Login = Field("torch", description="Login name inside.")
    uid: Annotated[int, Field(ge=1, le=2**31 - 1)] | Literal["caller"] = Field(
        "caller", description='User number; `"caller"`: that of whoever builds the image.'
    )
    gid: Annotated[int, Field(ge=1, le=2**31 - 1)] | Literal["caller"] = Field(
        "caller", description="Group number, likewise."
    )
    groups: list[Login] = Field(default_factory=list, description="More groups the user is in.")
    timezone: TimeZone = Field("Etc/UTC", description="IANA time zone.")
    locale: Annotated[
        str, Form(r"[A-Za-z_]{1,16}(?:\.[A-Za-z0-9-]{1,16})?", "a locale such as en_GB.UTF-8")
    ] = Field("C.UTF-8", description="LANG and LC_ALL.")
    shell: Annotated[str, Form(r"/[A-Za-z0-9/_-]{1,64}", "a path such as /bin/bash")] = Field(
        "/bin/bash", description="Login shell."
    )
    workdir: Annotated[str, Form(r"/[A-Za-z0-9/._-]{0,200}", "a path such as /workspace")] = Field(
        "/workspace", description="Folder one starts in; owned by the user."
    )
    apt: list[AptPackage] = Field(default_factory=list, description="More Debian packages.")
    pip: list[PipRequirement] = Field(default_factory=list, description="More Python packages.")
    conda: list[PipRequirement] = Field(default_factory=list, description="More conda packages.")
    env: ImageVariables = Field(default_factory=dict, description="Environment variables.")
    run: list[Line] = Field(default_factory=list, description="Commands run while building it.")


class Client(Section):
    """A vendor's installer, copied into the image and run there."""

    files: list[ProjectPath] = Field(
        min_length=1, description="Files beside the recipe to copy in."
    )
    run: list[Line] = Field(min_length=1, description="Commands that install them.")


class Foundation(Section):
    """A base image of one's own, built first and tagged, then built upon."""

    name: ImageName = Field(description="Its name once built.")
    start: ImageName = Field(alias="from", description="What it starts from.")
    apt: list[AptPackage] = Field(default_factory=list, description="Debian packages in it.")
    env: ImageVariables = Field(
        default_factory=dict, description="Environment variables set in it."
    )
    run: list[Line] = Field(default_factory=list, description="Commands run while building it.")


class Image(Section):
    """The container image."""

    name: ImageName = Field("torchsmith", description="Its name, with or without a tag.")
    base: ImageName | None = Field(None, description="Default: chosen from `system` and `cuda`.")
    foundation: Foundation | None = Field(None, description="Instead of `base`.")
    build: Literal["wheels", "inside"] = Field(
        "inside",
        description="Build what goes in inside a container of the image's base, or where `system` "
        "says.",
    )
    shm_size: Size = Field(
        "8G",
        description="Shared memory for DataLoader workers; the run command and the jobs name it.",
    )
    apt: list[AptPackage] = Field(default_factory=list, description="Debian packages in it.")
    pip: list[PipRequirement] = Field(default_factory=list, description="Python packages in it.")
    run: list[Line] = Field(default_factory=list, description="Commands run while building it.")
    env: ImageVariables = Field(
        default_factory=dict, description="Environment variables set in it."
    )
    client: list[Client] = Field(default_factory=list, description="Vendors' installers.")
    secrets: list[EnvName] = Field(
        default_factory=list,
        description="Variables that `pip`, `run` and `client.run` see while it is built; no layer "
        "keeps their values.",
    )
    healthcheck: Line | None = Field(
        None, description="Command that fails in a container that is not well."
    )
    train: Annotated[list[Training], Field(max_length=64), AfterValidator(unique_names)] = Field(
        default_factory=list, description="Images people work in; all share this one's torch."
    )


class Publish(Section):
    """Where results are shipped. Credentials come from the environment, never from here."""

    index: ProjectPath | None = Field(None, description="Folder of a static pip index.")
    channel: ProjectPath | None = Field(None, description="Folder of a conda channel.")
    anaconda_user: Name | None = Field(None, description="Upload to this user on anaconda.org.")
    anaconda_force: bool = Field(
        False, description="Replace packages of the same name there, as its --force does."
    )
    token_env: EnvName = Field("ANACONDA_TOKEN", description="Variable that holds the token.")
    repository: Url | None = Field(None, description="A PyPI-like upload URL.")
    bucket: Bucket | None = Field(
        None, description="An S3 bucket that is given a copy of `index` and `channel`."
    )
    registry: ImageName | None = Field(None, description="Push images under this name.")

    @model_validator(mode="after")
    def _bucket_of_something(self) -> Self:
        if self.bucket and not (self.index or self.channel):
            raise ValueError("bucket holds a copy of index or channel: name one of them too")
        return self
