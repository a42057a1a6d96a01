"""The steps that pack a build: conda packages, the libtorch archive."""

from __future__ import annotations

from torchsmith.plan.models import Cost, Step
from torchsmith.plan.shell import needs_program, sh, unless
from torchsmith.plan.torch import env_folder
from torchsmith.resolve.models import Resolution

# Where libraries of a conda prefix are found from torch/ and from torch/lib/ in site-packages.
MODULE_RPATH = "$ORIGIN:$ORIGIN/lib:$ORIGIN/../../.."
LIBRARY_RPATH = "$ORIGIN:$ORIGIN/../../../.."

def rattler(recipe: str, variant: str, archive: str) -> tuple[str, ...]:
    """Commands that pack a recipe's folder into the variant's channel."""
    return (
        needs_program("rattler-build", "see https://rattler.build"),
        sh(
            "rattler-build",
            "build",
            "--recipe",
            f"{recipe}/recipe.yaml",
            "--output-dir",
            f"channel/{variant}",
            "--package-format",
            archive,
            "--no-build-id",
        ),
    )


def conda_step(resolution: Resolution, wheel: Step, after: tuple[str, ...]) -> Step:
    """Pack the wheel just built as a conda package."""
    variant = resolution.variant
    recipe = f"conda/{variant}/pytorch"
    name = f"pytorch-{resolution.torch}-{resolution.conda_build}"
    package = f"channel/{variant}/{conda_subdir(resolution.platform)}/{name}.tar.bz2"
    return Step(
        id=f"package-conda-{variant}",
        kind="package",
        title=f"Pack {name} for conda",
        why="the same build, with RPATHs that find the prefix's libraries",
        project="torch",
        variant=variant,
        needs=(wheel.id, *after),
        inputs=(f"{recipe}/recipe.yaml", f"{recipe}/build.sh"),
        commands=(
            *rattler(recipe, variant, "tar-bz2"),
            unless(f"test -f {package}", f"no {name} was packed"),
        ),
        outputs=(package,),
        cost=Cost(core_seconds=300, disk_mb=3000, basis="compression"),
        details=(
            ("build string", resolution.conda_build),
            ("RPATH of torch/*.so", MODULE_RPATH),
            ("RPATH of torch/lib/*.so", LIBRARY_RPATH),
        ),
    )


def libtorch_step(resolution: Resolution, wheel: Step) -> Step:
    """Pack headers, libraries and CMake files for C++ programs."""
    variant = resolution.variant
    tree = f"build/{variant}/libtorch"
    archive = f"dist/{variant}/libtorch-{resolution.version}-{resolution.platform}.tar.gz"
    return Step(
        id=f"package-libtorch-{variant}",
        kind="package",
        title="Pack libtorch",
        why="headers, libraries and CMake files for C++ programs",
        project="torch",
        variant=variant,
        needs=(wheel.id, f"environment-{variant}"),
        commands=(
            sh("rm", "-rf", tree),
            sh("mkdir", "-p", f"{tree}/libtorch"),
            # Not unzip, which a machine need not have.
            sh(f"{env_folder(variant)}/bin/python", "-m", "zipfile", "-e", wheel.outputs[0], tree),
            f"for part in lib include share bin; do "
            f"if test -d {tree}/torch/$part; then mv {tree}/torch/$part {tree}/libtorch/; fi; done",
            f"echo {resolution.version} > {tree}/libtorch/build-version",
            f"tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner "
            f"--use-compress-program='gzip -n' -C {tree} -cf {archive} libtorch",
        ),
        outputs=(archive,),
        cost=Cost(core_seconds=60, disk_mb=2500, basis="compression"),
    )
