"""The steps that pack a build: conda packages, MAGMA's own, the libtorch archive."""

from __future__ import annotations

from torchsmith.plan.models import Cost, Step
from torchsmith.plan.shell import in_work, needs_program, sh, unless
from torchsmith.plan.sources import archive_commands
from torchsmith.plan.toolkit import toolkit_step
from torchsmith.plan.torch import build_env, env_folder, search_path
from torchsmith.resolve.models import MagmaChoice, Resolution, SourceChoice

# Where libraries of a conda prefix are found from torch/ and from torch/lib/ in site-packages.
MODULE_RPATH = "$ORIGIN:$ORIGIN/lib:$ORIGIN/../../.."
LIBRARY_RPATH = "$ORIGIN:$ORIGIN/../../../.."

_SUBDIRS = {"linux-x86_64": "linux-64", "linux-aarch64": "linux-aarch64"}


def conda_subdir(platform: str) -> str:
    """linux-x86_64 -> linux-64."""
    return _SUBDIRS[platform]


def gencode(archs: tuple[str, ...]) -> str:
    """nvcc's flags for a list of architectures."""
    return " ".join(f"-gencode arch=compute_{arch},code=sm_{arch}" for arch in archs)


def fetch_magma(magma: MagmaChoice) -> Step:
    """Bring MAGMA's release archive."""
    folder = f"sources/magma-{magma.version}"
    return Step(
        id=f"fetch-magma-{magma.version}",
        kind="fetch",
        title=f"Fetch MAGMA {magma.version}",
        why=magma.url,
        project="magma",
        commands=tuple(archive_commands(folder, magma.url, "", magma.sha256)),
        outputs=(folder,),
        source=SourceChoice("archive", url=magma.url, sha256=magma.sha256),
        cost=Cost(core_seconds=5, disk_mb=100, basis="a download"),
    )


def magma_steps(resolution: Resolution, magma: MagmaChoice, source: Step) -> list[Step]:
    """Build MAGMA and pack it as magma-cudaXYZ."""
    variant = resolution.variant
    folder = f"build/{variant}/magma"
    prefix = f"{folder}/prefix"
    subdir = conda_subdir(resolution.platform)
    package = f"channel/{variant}/{subdir}/{magma.package}-{magma.version}-1.tar.bz2"
    recipe = f"conda/{variant}/{magma.package}"
    toolkit = toolkit_step(resolution)
    compile_step = Step(
        id=f"compile-magma-{variant}",
        kind="compile",
        title=f"Compile MAGMA {magma.version} for {', '.join(magma.archs)}",
        why="GPU linear algebra: batched inverse, LU, QR, eigenvalues",
        project="magma",
        variant=variant,
        needs=(source.id, f"environment-{variant}", *([toolkit.id] if toolkit else [])),
        env=(*build_env(resolution), ("CUDA_ARCH_LIST", gencode(magma.archs))),
        path=search_path(resolution),
        commands=(
            sh("rm", "-rf", folder),
            sh("mkdir", "-p", f"{folder}/build"),
            f"cp -a {source.outputs[0]}/. {folder}",
            f"cd {folder}/build",
            "cmake .. -DUSE_FORTRAN=OFF -DGPU_TARGET=All -DCMAKE_BUILD_TYPE=Release "
            f'-DCMAKE_INSTALL_PREFIX={in_work(prefix)} -DCUDA_ARCH_LIST="$CUDA_ARCH_LIST"',
            'cmake --build . --target install --parallel "${MAX_JOBS:-$(nproc)}"',
        ),
        outputs=(prefix,),
        cost=Cost(core_seconds=12000, memory_mb=3000, disk_mb=4000, basis="estimated"),
    )
    pack = Step(
        id=f"package-magma-{variant}",
        kind="package",
        title=f"Pack {magma.package} {magma.version}",
        why="torch's conda package links against it",
        project="magma",
        variant=variant,
        needs=(compile_step.id,),
        inputs=(f"{recipe}/recipe.yaml", f"{recipe}/build.sh"),
        commands=(
            *_rattler(recipe, variant, "tar-bz2"),
            unless(f"test -f {package}", f"no {magma.package} was packed"),
        ),
        outputs=(package,),
        cost=Cost(core_seconds=60, disk_mb=500, basis="compression"),
    )
    return [compile_step, pack]


def _rattler(recipe: str, variant: str, archive: str) -> tuple[str, ...]:
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
            *_rattler(recipe, variant, "tar-bz2"),
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
