"""The step that packs libtorch: what C++ programs need of a torch, without Python."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from torchsmith.plan.models import Cost, Step, Task
from torchsmith.plan.shell import sh
from torchsmith.plan.torch import env_folder
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
    tree = f"build/{variant}/libtorch"
    archive = f"dist/{variant}/{archive_name(resolution.version, resolution.platform)}"
    python = f"{env_folder(variant)}/bin/python"
    given = Libtorch(wheel.outputs[0], archive)
    return Step(
        id=f"package-libtorch-{variant}",
        kind="package",
        title="Pack libtorch",
        why="headers, libraries and CMake files for C++ programs",
        project="torch",
        variant=variant,
        needs=(wheel.id, f"environment-{variant}"),
        commands=(
            sh("rm", "-rf", tree, archive),
            sh("mkdir", "-p", f"{tree}/libtorch"),
            # Not unzip or zip, which a machine need not have.
            f"{python} -m zipfile -e {wheel.outputs[0]} {tree}",
            f"for part in lib include share bin; do "
            f"if test -d {tree}/torch/$part; then mv {tree}/torch/$part {tree}/libtorch/; fi; done",
            f"if test -d {tree}/torch.libs; then mv {tree}/torch.libs/* {tree}/libtorch/lib/; fi",
            f"rm -rf {tree}/libtorch/lib/libtorch_python.so {tree}/libtorch/lib/libshm*",
            f"rm -f {tree}/libtorch/bin/torch_shm_manager",
            f"if test -d {tree}/libtorch/bin; then chmod -R a+x {tree}/libtorch/bin; fi",
            # A folder of the building machine, and the one such in every torch's CMake files.
            f"sed -i '/^set(ATEN_INCLUDE_DIR /d' {tree}/libtorch/share/cmake/ATen/ATenConfig.cmake",
            f"echo {resolution.version} > {tree}/libtorch/build-version",
            sh(python, "-m", "zipfile", "-c", archive, f"{tree}/libtorch"),
        ),
        outputs=(archive,),
        task=Task("torchsmith.package.libtorch", msgspec.json.encode(given).decode()),
        cost=Cost(core_seconds=60, disk_mb=2500, basis="compression"),
    )
