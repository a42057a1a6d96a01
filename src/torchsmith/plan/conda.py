"""Conda packages as a plan describes them, for torchsmith.package.conda to pack."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from torchsmith.facts.ranges import release
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.naming import abi_tag

# Conda's names for projects that PyPI names otherwise, by PyPI's normalised name: from the table of
# conda-forge, for what torch and its companions require.
# https://github.com/conda-forge/cf-graph-countyfair/blob/master/mappings/pypi/name_mapping.yaml
CONDA_NAMES: Mapping[str, str] = {
    "build": "python-build",
    "faiss-cpu": "faiss",
    "graphviz": "python-graphviz",
    "kaleido": "python-kaleido",
    "matplotlib": "matplotlib-base",
    "ml-dtypes": "ml_dtypes",
    "msgpack": "msgpack-python",
    "opencv-python": "py-opencv",
    "opencv-python-headless": "py-opencv",
    "ruamel-yaml": "ruamel.yaml",
    "tables": "pytables",
    "torch": "pytorch",
    "typing-extensions": "typing_extensions",
    "pytorch-triton": "triton",
    # NVIDIA's libraries, which its wheels name by CUDA: nvidia-cublas-cu12.
    "nvidia-cublas": "libcublas",
    "nvidia-cuda-cupti": "cuda-cupti",
    "nvidia-cuda-nvrtc": "cuda-nvrtc",
    "nvidia-cuda-runtime": "cuda-cudart",
    "nvidia-cudnn": "cudnn",
    "nvidia-cufft": "libcufft",
    "nvidia-cufile": "libcufile",
    "nvidia-curand": "libcurand",
    "nvidia-cusolver": "libcusolver",
    "nvidia-cusparse": "libcusparse",
    "nvidia-cusparselt": "cusparselt",
    "nvidia-nccl": "nccl",
    "nvidia-nvjitlink": "libnvjitlink",
    "nvidia-nvshmem": "libnvshmem3",
    "nvidia-nvtx": "cuda-nvtx",
}

_SUBDIRS = {"linux-x86_64": "linux-64", "linux-aarch64": "linux-aarch64"}
# From this release on, minor releases run on the driver of the first of them:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
_COMPATIBLE_CUDA = (11,)
# What torch 2's wheels name in Requires-Dist; conda does not read that.
_SINCE_TORCH_2 = ("filelock", "fsspec", "jinja2", "networkx", "sympy")
# A version that nobody can install: so two packages exclude each other.
_NEVER = "<0"


class CondaSpec(Struct, frozen=True):
    """A conda package to be packed, from a wheel or from the folder of a prefix.

    Paths are those of the work folder; `wheel` may be a pattern. Empty fields are filled from the
    wheel; entries of `depends` replace what was found for the same package. `texts` are more files
    of the package, in which @PREFIX@ stands for the prefix it will be installed to; `record` are
    files kept below info/recipe.
    """

    output: str
    build: str = ""
    number: int = 0
    name: str = ""
    version: str = ""
    subdir: str = ""
    formats: tuple[str, ...] = ("conda",)
    wheel: str = ""
    tree: str = ""
    python: str = ""
    # The prefix its files were built for, if they hold one.
    prefix: str = ""
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    run_exports: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    record: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    license: str = ""
    summary: str = ""
    home: str = ""


def conda_subdir(platform: str) -> str:
    """linux-x86_64 -> linux-64."""
    return _SUBDIRS[platform]


def conda_library(wheel: str) -> str:
    """Conda's name for a wheel's library: dist/lab/torch_scatter-*.whl -> torch-scatter."""
    return wheel.rpartition("/")[2].partition("-")[0].lower().replace("_", "-").replace(".", "-")


def archive_formats(choice: str) -> tuple[str, ...]:
    """The formats that a recipe chooses by one word."""
    return ("conda", "tar.bz2") if choice == "both" else (choice,)


def conda_requirements(requires: Sequence[str]) -> dict[str, str]:
    """Python requirements as conda writes them: 'numpy<3' -> 'numpy <3'."""
    found: dict[str, list[str]] = {}
    for text in requires:
        split = re.fullmatch(r"([A-Za-z0-9._-]+)\s*(.*)", text.split(";")[0].strip())
        assert split, text
        name = split[1].lower()
        name = CONDA_NAMES.get(name, name)
        found.setdefault(name, []).extend([split[2]] if split[2] else [])
    return {name: f"{name} {','.join(limits)}".strip() for name, limits in found.items()}


def following(version: str) -> str:
    """The minor release after this one: 11.0 -> 11.1."""
    numbers = release(version)[:2]
    return f"{numbers[0]}.{numbers[1] + 1}"


def python_requirements(python: str) -> tuple[str, str]:
    """The Python a compiled module needs, and its ABI."""
    abi = f"python_abi {python}.* *_{abi_tag(python)}"
    return f"python >={python},<{following(python)}.0a0", abi


def cuda_requirements(version: str) -> tuple[str, str]:
    """The toolkit's libraries, and the driver that runs them."""
    numbers = release(version)
    toolkit = "cudatoolkit" if numbers < (12,) else "cuda-version"
    driver = f"{numbers[0]}.0" if numbers >= _COMPATIBLE_CUDA else version
    return f"{toolkit} >={version},<{following(version)}", f"__cuda >={driver}"


def gpu_requirements(resolution: Resolution) -> tuple[str, ...]:
    """The GPUs that the code runs on: https://conda.org/learn/ceps/cep-0046"""
    cuda = resolution.cuda
    if cuda is None or not cuda.archs:
        return ()
    numbers = sorted(release(item.arch.rstrip("af"))[:2] for item in cuda.archs)
    lowest, highest = numbers[0], numbers[-1]
    # PTX is translated for every newer GPU, machine code runs within its major release.
    above = "" if any(item.ptx for item in cuda.archs) else f",<{highest[0] + 1}.0a0"
    return (f"__cuda_arch >={lowest[0]}.{lowest[1]}{above}",)


def gpu_flags(resolution: Resolution) -> tuple[str, ...]:
    """What a person can ask for in brackets: https://conda.org/learn/ceps/cep-0045"""
    cuda = resolution.cuda
    if cuda is None:
        return ("cpu",)
    return ("cuda", f"cuda:{cuda.short}", *(f"sm:{item.number}" for item in cuda.archs))


def torch_depends(resolution: Resolution) -> tuple[str, ...]:
    """What torch needs besides Python, for packages made without its wheel."""
    needs = conda_requirements(resolution.requires)
    found = [needs.get(name, name) for name in ("numpy", "typing_extensions")]
    if release(resolution.torch) >= (2,):
        found += _SINCE_TORCH_2
    if resolution.cuda is not None:
        found += cuda_requirements(resolution.cuda.version)
    return tuple(found)


def blas_packages(resolution: Resolution) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The packages with the BLAS that torch is built with, and those it needs later."""
    mkl = dict(resolution.features).get("mkl", "off")
    if mkl == "static":
        return ("mkl-static", "mkl-include"), ()
    # Unless one is named, torch takes the first that it finds: MKL in conda on x86-64.
    named = dict((*resolution.env, *resolution.feature_env)).get("BLAS", "")
    if mkl == "on" or (resolution.platform == "linux-x86_64" and named in ("", "MKL")):
        return ("mkl-devel", "mkl-include"), ("mkl",)
    return ("openblas",), ("libopenblas",)


def linked_blas(resolution: Resolution) -> tuple[str, ...]:
    """The package with the BLAS that a torch built in a container is linked to."""
    mkl = dict(resolution.features).get("mkl", "off")
    named = dict((*resolution.env, *resolution.feature_env)).get("BLAS", "OpenBLAS")
    ours = resolution.container and resolution.use == "source"
    return ("libopenblas",) if ours and mkl == "off" and named == "OpenBLAS" else ()


def exact_torch(resolution: Resolution) -> str:
    """The exact torch that a library was compiled against; a torch by others may have any build."""
    if resolution.use != "source":
        return f"pytorch =={resolution.torch}"
    return f"pytorch =={resolution.torch} {resolution.conda_build}"


def torch_constraints(version: str, *, cuda: bool) -> tuple[str, ...]:
    """Constraints on the packages that only choose a kind of torch."""
    if cuda:
        # PyTorch's own channel chooses by the first, conda-forge by the others.
        return (f"cpuonly {_NEVER}", f"pytorch-cpu {_NEVER}", f"pytorch-gpu =={version}")
    return (f"pytorch-gpu {_NEVER}", f"pytorch-cpu =={version}")


def torch_run_exports(version: str) -> tuple[str, ...]:
    """What a package built against torch needs: the same minor release."""
    return (f"pytorch >={version},<{following(version)}.0a0",)
