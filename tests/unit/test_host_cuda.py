"""Toolkits, their libraries, and GPUs, which no test machine can be relied on to have."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsmith.host.cuda import read_gpus, read_libraries, read_toolkits
from torchsmith.host.models import InstalledGpu, Library, Toolkit
from torchsmith.host.probe import Programs

pytestmark = pytest.mark.unit


def script(path: Path, body: str) -> Path:
    """Put a program where a search path can find it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def nvcc(path: Path, version: str, top: Path | None = None) -> Path:
    """An nvcc with the words of the real one."""
    short = ".".join(version.split(".")[:2])
    says_top = f"echo '#$ TOP={top}/bin/..' >&2" if top else "echo 'nvcc fatal: no gcc' >&2; exit 1"
    return script(
        path,
        'if [ "$1" = --version ]; then\n'
        "echo 'nvcc: NVIDIA (R) Cuda compiler driver'\n"
        "echo 'Copyright (c) 2005-2025 NVIDIA Corporation'\n"
        f"echo 'Cuda compilation tools, release {short}, V{version}'\n"
        f"else {says_top}; fi",
    )


def toolkit(top: Path, version: str) -> Toolkit:
    found = nvcc(top / "bin/nvcc", version, top)
    write(top / "include/cuda.h")
    return Toolkit(version=version, path=str(top), nvcc=str(found))


def test_toolkits_are_found_where_they_are_usually_put_newest_first(tmp_path: Path) -> None:
    old = toolkit(tmp_path / "usr/local/cuda-9.2", "9.2.148")
    new = toolkit(tmp_path / "usr/local/cuda-12.4", "12.4.131")
    (tmp_path / "usr/local/cuda-odd").mkdir()
    assert read_toolkits(Programs({}), tmp_path) == (new, old)


def test_the_default_toolkit_comes_first_and_once(tmp_path: Path) -> None:
    default = toolkit(tmp_path / "usr/local/cuda-11.8", "11.8.89")
    other = toolkit(tmp_path / "usr/local/cuda-12.4", "12.4.131")
    (tmp_path / "usr/local/cuda").symlink_to("cuda-11.8")
    environ = {"PATH": str(tmp_path / "usr/local/cuda/bin")}
    assert read_toolkits(Programs(environ), tmp_path) == (default, other)


def test_cuda_home_comes_before_the_search_path(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "home", "12.1.105")
    path = toolkit(tmp_path / "path", "12.4.131")
    environ = {"CUDA_HOME": home.path, "PATH": f"{path.path}/bin"}
    assert read_toolkits(Programs(environ), tmp_path / "root") == (home, path)


def test_a_script_in_front_of_nvcc_leads_to_the_toolkit_it_calls(tmp_path: Path) -> None:
    real = toolkit(tmp_path / "usr/local/cuda-13.0", "13.0.88")
    script(tmp_path / "usr/local/bin/nvcc", f'exec {real.nvcc} "$@"')
    environ = {"PATH": str(tmp_path / "usr/local/bin")}
    assert read_toolkits(Programs(environ), tmp_path) == (real,)
    assert read_toolkits(Programs(environ), tmp_path / "elsewhere") == (real,)


def test_a_distributions_toolkit_has_its_headers_in_usr(tmp_path: Path) -> None:
    found = toolkit(tmp_path / "usr", "11.8.89")
    assert read_toolkits(Programs({"PATH": str(tmp_path / "usr/bin")}), tmp_path) == (found,)


def test_a_toolkit_may_have_its_headers_under_targets_only(tmp_path: Path) -> None:
    nvcc(tmp_path / "env/bin/nvcc", "12.4.131")
    write(tmp_path / "env/targets/x86_64-linux/include/cuda.h")
    (found,) = read_toolkits(Programs({"PATH": str(tmp_path / "env/bin")}), tmp_path)
    assert found.path == str(tmp_path / "env")


def test_an_nvcc_that_cannot_say_where_it_stands_is_no_toolkit(tmp_path: Path) -> None:
    nvcc(tmp_path / "bin/nvcc", "12.4.131")
    assert read_toolkits(Programs({"PATH": str(tmp_path / "bin")}), tmp_path) == ()


@pytest.mark.parametrize("body", ["", "exit 1", r"printf '\377V12\000'", "exec /bin/sleep 1000"])
def test_a_broken_nvcc_or_nvidia_smi_is_nothing(tmp_path: Path, body: str) -> None:
    script(tmp_path / "bin/nvcc", body)
    script(tmp_path / "bin/nvidia-smi", body)
    programs = Programs({"PATH": str(tmp_path / "bin"), "CUDA_HOME": str(tmp_path)}, timeout=0.5)
    assert read_toolkits(programs, tmp_path) == ()
    assert read_gpus(programs, tmp_path) == ((), None)


@pytest.mark.parametrize("home", ["", "relative", "/no/such/place", "/etc/passwd"])
def test_a_cuda_home_that_leads_nowhere_is_nothing(tmp_path: Path, home: str) -> None:
    assert read_toolkits(Programs({"CUDA_HOME": home}), tmp_path) == ()


# ---------------------------------------------------------------------------- libraries

CUDNN = "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 14\n#define CUDNN_PATCHLEVEL 0\n"
NCCL = '#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 3\n#define NCCL_SUFFIX ""\n'
MAGMA = (
    "#define MAGMA_VERSION_MAJOR 2\n#define MAGMA_VERSION_MINOR 6\n#define MAGMA_VERSION_MICRO 2\n"
)


def test_libraries_are_read_from_their_headers(tmp_path: Path) -> None:
    write(tmp_path / "usr/include/x86_64-linux-gnu/cudnn_version.h", CUDNN)
    write(tmp_path / "usr/include/nccl.h", NCCL)
    write(tmp_path / "usr/local/include/magma_types.h", MAGMA)
    assert read_libraries((), {}, "x86_64", tmp_path) == {
        "cudnn": Library(version="9.14.0", path=f"{tmp_path}/usr/include/x86_64-linux-gnu"),
        "nccl": Library(version="2.28.3", path=f"{tmp_path}/usr/include"),
        "magma": Library(version="2.6.2", path=f"{tmp_path}/usr/local/include"),
    }


def test_another_architectures_headers_do_not_count(tmp_path: Path) -> None:
    write(tmp_path / "usr/include/aarch64-linux-gnu/cudnn_version.h", CUDNN)
    assert read_libraries((), {}, "x86_64", tmp_path) == {}


def test_an_old_cudnn_keeps_its_version_in_its_only_header(tmp_path: Path) -> None:
    write(
        tmp_path / "usr/include/cudnn.h",
        '#include "x.h"\n#define CUDNN_MAJOR      7\n#define CUDNN_MINOR 6\n'
        "#define CUDNN_PATCHLEVEL 5\n"
        "#define CUDNN_VERSION (CUDNN_MAJOR * 1000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)\n",
    )
    assert read_libraries((), {}, "x86_64", tmp_path)["cudnn"].version == "7.6.5"


def test_a_new_cudnn_header_without_its_version_is_read_on(tmp_path: Path) -> None:
    write(tmp_path / "usr/include/cudnn.h", '#include "cudnn_version.h"\n')
    write(tmp_path / "usr/local/include/cudnn_version.h", CUDNN)
    found = read_libraries((), {}, "x86_64", tmp_path)["cudnn"]
    assert found.path == f"{tmp_path}/usr/local/include"


def test_what_a_person_names_comes_first_then_the_toolkit(tmp_path: Path) -> None:
    write(tmp_path / "named/cudnn_version.h", CUDNN)
    write(tmp_path / "named/include/nccl.h", NCCL)
    write(tmp_path / "cuda/include/nccl.h", NCCL.replace("28", "1"))
    write(tmp_path / "cuda/include/magma_types.h", MAGMA)
    write(tmp_path / "usr/include/magma_types.h", MAGMA.replace("6", "9"))
    environ = {
        "CUDNN_INCLUDE_DIR": f"{tmp_path}/named",
        "NCCL_ROOT_DIR": f"{tmp_path}/named",
        "MAGMA_HOME": "/no/such/place",
    }
    cuda = toolkit(tmp_path / "cuda", "12.4.131")
    found = read_libraries((cuda,), environ, "x86_64", tmp_path)
    assert {name: library.path.removeprefix(str(tmp_path)) for name, library in found.items()} == {
        "cudnn": "/named",
        "nccl": "/named/include",
        "magma": "/cuda/include",
    }
    assert found["magma"].version == "2.6.2"


def test_garbage_headers_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "usr/include").mkdir(parents=True)
    (tmp_path / "usr/include/nccl.h").write_bytes(b"\xff\xfe#define NCCL_MAJOR x\n")
    (tmp_path / "usr/include/cudnn_version.h").mkdir()
    assert read_libraries((), {"NCCL_ROOT": "\udcff"}, "x86_64", tmp_path) == {}


# --------------------------------------------------------------------------------- gpus


def smi(folder: Path, body: str) -> Programs:
    script(folder / "nvidia-smi", body)
    return Programs({"PATH": str(folder)})


def test_gpus_are_read_from_the_driver(tmp_path: Path) -> None:
    # The first line is what an H200 said.
    programs = smi(
        tmp_path,
        '[ "$1" = --query-gpu=name,compute_cap,memory.total,driver_version ] || exit 2\n'
        '[ "$2" = --format=csv,noheader,nounits ] || exit 2\n'
        "echo 'NVIDIA H200, 9.0, 143771, 580.159.04'\n"
        "echo 'NVIDIA GeForce RTX 3090, 8.6, 24576, 580.159.04'",
    )
    assert read_gpus(programs, tmp_path) == (
        (
            InstalledGpu(name="NVIDIA H200", arch="9.0", memory_mb=143771),
            InstalledGpu(name="NVIDIA GeForce RTX 3090", arch="8.6", memory_mb=24576),
        ),
        "580.159.04",
    )


def test_an_old_driver_tells_all_but_the_compute_capability(tmp_path: Path) -> None:
    programs = smi(
        tmp_path,
        "case $1 in *compute_cap*)\n"
        "echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2;; esac\n"
        "echo 'Tesla V100-SXM2-16GB, 16160, 450.80.02'",
    )
    assert read_gpus(programs, tmp_path) == (
        (InstalledGpu(name="Tesla V100-SXM2-16GB", memory_mb=16160),),
        "450.80.02",
    )


def test_a_gpu_that_shares_the_cpus_memory_does_not_tell_its_size(tmp_path: Path) -> None:
    programs = smi(tmp_path, "echo 'NVIDIA GB10, 12.1, [N/A], 580.95.05'")
    assert read_gpus(programs, tmp_path)[0] == (InstalledGpu(name="NVIDIA GB10", arch="12.1"),)


@pytest.mark.parametrize(
    "said",
    [
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        ", , , ",
        "a, b, c, d",
        "a,b,c,d,e,f,g",
    ],
)
def test_a_driver_that_only_complains_has_no_gpus(tmp_path: Path, said: str) -> None:
    assert read_gpus(smi(tmp_path, f'echo "{said}"'), tmp_path) == ((), None)


def test_the_kernel_tells_the_driver_where_nvidia_smi_is_missing(tmp_path: Path) -> None:
    write(
        tmp_path / "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
        "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n",
    )
    assert read_gpus(Programs({}), tmp_path) == ((), "535.104.05")
