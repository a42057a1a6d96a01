"""A CUDA toolkit without root: assembled from NVIDIA's wheels on PyPI."""

from __future__ import annotations

from torchsmith.facts.ranges import release
from torchsmith.plan.models import Cost, Step, digest
from torchsmith.plan.shell import needs_program, pip_install, sh, unless
from torchsmith.resolve.models import CudaChoice, Resolution

# `cuda-toolkit` is NVIDIA's own list of which library belongs to which toolkit release; these
# are the parts of it that PyTorch's CMake asks for. Static libraries' tools are left out.
_PARTS = (
    "cccl",
    "cublas",
    "cudart",
    "cufft",
    "cufile",
    "cupti",
    "curand",
    "cusolver",
    "cusparse",
    "nvcc",
    "nvjitlink",
    "nvml",
    "nvrtc",
    "nvtx",
    "profiler",
)
_RUNTIME = tuple(part for part in _PARTS if part not in ("cccl", "nvcc", "nvml", "profiler"))


def from_wheels(resolution: Resolution) -> CudaChoice | None:
    """The CUDA that is to be assembled from wheels; None if it is installed otherwise."""
    cuda = resolution.cuda
    return cuda if cuda is not None and cuda.toolkit == "wheels" else None


def requirements(
    resolution: Resolution, cuda: CudaChoice, parts: tuple[str, ...] = _PARTS
) -> tuple[str, ...]:
    """The PyPI packages of a toolkit, held together by its release."""
    major = release(cuda.version)[0]
    wanted = [f"cuda-toolkit[{','.join(parts)}]=={cuda.version}.*"]
    for feature, version in (("cudnn", cuda.cudnn), ("nccl", cuda.nccl)):
        if resolution.feature(feature) not in (None, "off"):
            wanted.append(f"nvidia-{feature}-cu{major}" + (f"=={version}.*" if version else ""))
    return tuple(wanted)


def runtime_requirements(resolution: Resolution) -> tuple[str, ...]:
    """What torch loads when it runs, where the toolkit came from wheels."""
    cuda = from_wheels(resolution)
    return requirements(resolution, cuda, _RUNTIME) if cuda else ()


def toolkit_folder(resolution: Resolution) -> str:
    """Where a toolkit assembled from wheels lies; empty if it is installed otherwise."""
    cuda = from_wheels(resolution)
    if cuda is None:
        return ""
    # Variants that differ in Python share it; variants that differ in cuDNN or NCCL do not.
    # Its stubs are made by the compiler of the place it is used in.
    place = resolution.system if resolution.container else ""
    parts = (*requirements(resolution, cuda), resolution.compiler.cc, place)
    mark = digest("\n".join(parts).encode())[:8]
    return f"toolkit/cuda-{cuda.version}-{mark}"


def assemble(folder: str, packages: tuple[str, ...]) -> tuple[str, ...]:
    """Commands that make one tree (bin, include, lib64, nvvm) of what lies apart in wheels."""
    wheels = f"{folder}/wheels"
    python = f"{wheels}/bin/python"
    return (
        needs_program("python3", "install python3 and its venv module"),
        sh("rm", "-rf", folder),
        # The wheels hold no Python code: any Python can fetch them. Its own pip may be too old.
        sh("python3", "-m", "venv", wheels),
        sh(python, "-m", "pip", "install", "--quiet", "--upgrade", "pip"),
        pip_install(python, folder, *packages),
        f"{wheels}/bin/python -m pip list --format=freeze > {folder}/packages.txt",
        # Hard links, not symbolic ones: nvcc looks for its parts from where it really lies.
        f"for part in {wheels}/lib/python3*/site-packages/nvidia/*/; do "
        f'cp -rlf "$part." {folder}/; done',
        sh("rm", "-rf", wheels),
        f"test -e {folder}/lib64 || ln -s lib {folder}/lib64",
        # Wheels carry libcudart.so.13 only; a linker asks for libcudart.so.
        f"for library in {folder}/lib/lib*.so.*; do "
        'plain="${library%%.so.*}.so"; test -e "$plain" || ln -s "${library##*/}" "$plain"; done',
        # libcuda comes with the driver, which a building machine need not have: a stub of every
        # function cuda.h names is enough to link against.
        f"mkdir -p {folder}/lib/stubs",
        f"grep -Eo '\\bcu[A-Z][A-Za-z0-9]*(_v[0-9]+)?' {folder}/include/cuda.h | sort -u "
        "| sed 's/.*/void &(void) {}/' "
        '| "${CC:-cc}" -shared -fPIC -Wl,-soname,libcuda.so.1 -x c '
        f"-o {folder}/lib/stubs/libcuda.so -",
        unless(
            f"{folder}/bin/nvcc --version",
            "nvcc from the wheels does not start",
        ),
    )


def toolkit_step(resolution: Resolution) -> Step | None:
    """Assemble the toolkit, once for every variant that needs the same one."""
    cuda = from_wheels(resolution)
    if cuda is None:
        return None
    folder = toolkit_folder(resolution)
    return Step(
        id=folder.replace("/", "-"),
        kind="environment",
        title=f"CUDA {cuda.version} from PyPI",
        why="nothing of it is installed on this machine, and nothing needs root",
        env=(("CC", resolution.compiler.cc),),
        commands=assemble(folder, requirements(resolution, cuda)),
        outputs=(folder,),
        pip=("pip", *requirements(resolution, cuda)),
        cost=Cost(core_seconds=90, disk_mb=6000, basis="downloads"),
    )
