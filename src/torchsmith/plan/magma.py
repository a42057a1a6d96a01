"""The steps that build MAGMA's dense routines as a static library, and pack it."""

from __future__ import annotations

from torchsmith.facts.ranges import release
from torchsmith.plan.conda import CondaSpec, archive_formats, conda_subdir, cuda_requirements
from torchsmith.plan.expects import Expects
from torchsmith.plan.models import Cost, Step, Task
from torchsmith.plan.shell import fresh_copy, sh, unless
from torchsmith.plan.sources import fetching
from torchsmith.plan.torch import build_env, search_path, toolkit_step
from torchsmith.resolve.models import MagmaChoice, Resolution

LIBRARY = "lib/libmagma.a"
PKGCONFIG = "lib/pkgconfig/magma.pc"
# As PyTorch's own channel has it: magma-cuda110-2.5.2-1.
BUILD_NUMBER = 1
# The first release whose CMake knows CUDA as a language, and with it every architecture by number.
_MODERN = (2, 9)
# A few of what PyTorch calls, of every kind: one matrix and batches, every precision.
# https://github.com/pytorch/pytorch/blob/v2.6.0/aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp
SYMBOLS = (
    "magma_init",
    "magma_dgesv_gpu",
    "magma_sgetrf_gpu",
    "magma_zgetrf_gpu",
    "magma_sgetrf_batched",
    "magma_dgetrf_batched",
    "magma_cgetrf_batched",
    "magma_zgetrf_batched",
    "magma_dgetri_outofplace_batched",
    "magma_dpotrf_batched",
    "magma_dgeqrf2_gpu",
    "magma_dsyevd_gpu",
    "magma_dgels_gpu",
)
_BUILD_TOOLS = (
    # Without a number of jobs Ninja uses the memory governor's job slots; Make would run one job.
    'if [ -n "${MAX_JOBS:-}" ]; then export CMAKE_BUILD_PARALLEL_LEVEL="$MAX_JOBS"; fi',
    "if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; "
    'elif [ -z "${MAX_JOBS:-}" ]; then CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)"; '
    "export CMAKE_BUILD_PARALLEL_LEVEL; fi",
    # PATH may have another toolkit than the one torch is built with, or none.
    'if [ -n "${CUDA_HOME:-}" ]; then export CUDACXX="$CUDA_HOME/bin/nvcc"; '
    "elif ! command -v nvcc >/dev/null; then export CUDACXX=/usr/local/cuda/bin/nvcc; fi",
)


def gencode(archs: tuple[str, ...]) -> str:
    """nvcc's flags for a list of architectures."""
    return " ".join(f"-gencode arch=compute_{arch},code=sm_{arch}" for arch in archs)


def configure_words(magma: MagmaChoice) -> str:
    """CMake's options: static, position-independent, no Fortran; one shell line.

    The library is linked into torch's own, and LAPACK with it: CMake need not find one.
    """
    words = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DUSE_FORTRAN=OFF",
        "-DBUILD_SHARED_LIBS=OFF",
        "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
        "-DLAPACK_LIBRARIES=-llapack;-lblas",
    ]
    if release(magma.version) >= _MODERN:
        archs = ";".join(f"{arch}-real" for arch in magma.archs)
        return sh(*words, "-DMAGMA_ENABLE_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={archs}")
    # CMake 4 else refuses a project that was written for CMake 2.
    words += ["-DCMAKE_POLICY_VERSION_MINIMUM=3.5", "-DGPU_TARGET=All"]
    return f'{sh(*words)} -DCUDA_ARCH_LIST="$CUDA_ARCH_LIST"'


def install_commands(source: str, build: str, prefix: str) -> tuple[str, ...]:
    """Commands that put headers and library under a prefix, all three paths as shell words.

    MAGMA's own install target would first compile the sparse library, which PyTorch never uses.
    """
    return (
        f"mkdir -p {prefix}/include {prefix}/lib",
        f"cp {source}/include/*.h {prefix}/include/",
        # magma_config.h, from the release on that has one.
        f"if [ -d {build}/include ]; then cp {build}/include/*.h {prefix}/include/; fi",
        f"cp {build}/{LIBRARY} {prefix}/lib/",
    )


def fetch_magma(magma: MagmaChoice) -> Step:
    """Bring MAGMA's source."""
    folder = f"sources/magma-{magma.version}"
    source = magma.source
    where = source.url or source.path
    if source.kind == "debian":
        where = f"Debian {source.suite}, source package {source.package}"
    return Step(
        id=f"fetch-magma-{magma.version}",
        kind="fetch",
        title=f"Fetch MAGMA {magma.version}",
        why=where,
        project="magma",
        task=fetching(source, folder, magma.version),
        outputs=(folder,),
        cost=Cost(core_seconds=5, disk_mb=100, basis="a download"),
    )


def magma_steps(
    resolution: Resolution, magma: MagmaChoice, source: Step, archive: str = "conda"
) -> list[Step]:
    """Compile MAGMA, check the library, and pack it as magma-cudaXYZ."""
    variant = resolution.variant
    folder = f"build/{variant}/magma"
    prefix = f"{folder}-prefix"
    toolkit = toolkit_step(resolution)
    compile_step = Step(
        id=f"compile-magma-{variant}",
        kind="compile",
        title=f"Compile MAGMA {magma.version} for {', '.join(magma.archs)}",
        why="GPU linear algebra: batched inverse, LU, QR, eigenvalues",
        project="magma",
        variant=variant,
        needs=(source.id, f"environment-{variant}", *([toolkit.id] if toolkit else [])),
        env=(
            *build_env(resolution),
            ("CUDA_ARCH_LIST", gencode(magma.archs)),
            # Its files define the same macros and helpers: they would clash in batches.
            ("TORCHSMITH_ACCEL", "off"),
        ),
        path=search_path(resolution),
        commands=(
            fresh_copy(source.outputs[0], folder),
            sh("rm", "-rf", prefix),
            *_BUILD_TOOLS,
            f"cmake -S {folder} -B {folder}/build {configure_words(magma)}",
            # Everything but its library is testers and sparse matrices.
            f"cmake --build {folder}/build --target magma",
            *install_commands(folder, f"{folder}/build", prefix),
            unless(f"test -s {prefix}/{LIBRARY}", f"the build made no {LIBRARY}"),
        ),
        outputs=(prefix,),
        cost=Cost(core_seconds=12000, memory_mb=3000, disk_mb=4000, basis="estimated"),
    )
    verify = _verify(resolution, magma, compile_step)
    return [compile_step, verify, _pack(resolution, magma, verify, archive)]


def _verify(resolution: Resolution, magma: MagmaChoice, compiled: Step) -> Step:
    """Check that the library has what PyTorch calls, and code for each GPU."""
    variant = resolution.variant
    library = f"{compiled.outputs[0]}/{LIBRARY}"
    folder = f"verify/{variant}/magma"
    return Step(
        id=f"verify-magma-{variant}",
        kind="verify",
        title=f"Verify MAGMA {magma.version}",
        why="torch's own build takes whatever library lies there: what it calls, for these GPUs",
        project="magma",
        variant=variant,
        needs=(compiled.id,),
        outputs=tuple(f"{folder}/libmagma.a.verify.{end}" for end in ("json", "txt")),
        task=Task(
            "verify",
            Expects(
                package="magma",
                version=magma.version,
                cuda=resolution.cuda.version if resolution.cuda else "",
                archs=tuple(f"sm_{arch}" for arch in magma.archs),
                symbols=SYMBOLS,
                wheel=library,
                folder=folder,
            ),
        ),
        cost=Cost(core_seconds=30, disk_mb=10, basis="reading it"),
    )


def _pack(resolution: Resolution, magma: MagmaChoice, verified: Step, archive: str) -> Step:
    """Pack what was compiled for conda."""
    variant = resolution.variant
    subdir = conda_subdir(resolution.platform)
    formats = archive_formats(archive)
    name = f"{magma.package}-{magma.version}-{BUILD_NUMBER}"
    packages = tuple(f"channel/{variant}/{subdir}/{name}.{form}" for form in formats)
    assert resolution.cuda is not None
    spec = CondaSpec(
        output=f"channel/{variant}",
        name=magma.package,
        version=magma.version,
        build=str(BUILD_NUMBER),
        number=BUILD_NUMBER,
        subdir=subdir,
        formats=formats,
        tree=f"build/{variant}/magma-prefix",
        constrains=cuda_requirements(resolution.cuda.version)[:1],
        texts=((PKGCONFIG, pkgconfig(magma)),),
        commands=("test -s $PREFIX/lib/libmagma.a", f"test -s $PREFIX/{PKGCONFIG}"),
        license="BSD-3-Clause",
        summary=f"MAGMA {magma.version} for CUDA {resolution.cuda.version}",
        home="https://icl.utk.edu/magma/",
    )
    return Step(
        id=f"package-magma-{variant}",
        kind="package",
        title=f"Pack {magma.package} {magma.version}",
        why="torch's conda package links against it",
        project="magma",
        variant=variant,
        needs=(*verified.needs, verified.id),
        outputs=packages,
        task=Task("conda", spec),
        cost=Cost(core_seconds=60, disk_mb=500, basis="compression"),
    )


def pkgconfig(magma: MagmaChoice) -> str:
    """The file for pkg-config; @PREFIX@ stands for the prefix it is installed to."""
    return (
        "prefix=@PREFIX@\n"
        "libdir=${prefix}/lib\n"
        "includedir=${prefix}/include\n\n"
        "Name: magma\n"
        "Description: Dense linear algebra on GPUs, compiled without Fortran\n"
        f"Version: {magma.version}\n"
        "Cflags: -I${includedir}\n"
        "Libs: -L${libdir} -lmagma\n"
        "Libs.private: -lcublas -lcusparse -lcudart -llapack -lblas\n"
    )
