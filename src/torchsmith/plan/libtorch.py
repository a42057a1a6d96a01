"""The step that packs libtorch: what C++ programs need of a torch, without Python."""

from __future__ import annotations

from msgspec import Struct

from torchsmith.plan.models import Cost, Step, Task
from torchsmith.resolve.models import Resolution


class Libtorch(Struct, frozen=True):
    """What is packed, and into what: paths of the work folder; the wheel's may be a pattern."""

    wheel: str
    archive: str


def archive_name(version: str, platform: str) -> str:
    """What the archive of a version is called, on linux-x86_64 say."""
    return f"libtorch-{version}-{platform}.zip"


def libtorch_step(resolution: Resolution, wheel: Step) -> Step:
    """Pack headers, libraries and CMake files for C++ programs."""
    variant = resolution.variant
    archive = f"dist/{variant}/{archive_name(resolution.version, resolution.platform)}"
    return Step(
        id=f"package-libtorch-{variant}",
        kind="package",
        title="Pack libtorch",
        why="headers, libraries and CMake files for C++ programs",
        project="torch",
        variant=variant,
        needs=(wheel.id, f"environment-{variant}"),
        outputs=(archive,),
        task=Task("libtorch", Libtorch(wheel.outputs[0], archive)),
        cost=Cost(core_seconds=60, disk_mb=2500, basis="compression"),
    )
