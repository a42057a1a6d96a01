"""The steps that pack a build for conda."""

from __future__ import annotations

from torchsmith.plan.models import Cost, Step
from torchsmith.plan.shell import needs_program, sh, unless
from torchsmith.resolve.models import Resolution

# Where libraries of a conda prefix are found from torch/ and from torch/lib/ in site-packages.
MODULE_RPATH = "$ORIGIN:$ORIGIN/lib:$ORIGIN/../../.."
LIBRARY_RPATH = "$ORIGIN:$ORIGIN/../../../.."

_SUBDIRS = {"linux-x86_64": "linux-64", "linux-aarch64": "linux-aarch64"}


def conda_subdir(platform: str) -> str:
    """linux-x86_64 -> linux-64."""
    return _SUBDIRS[platform]


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
