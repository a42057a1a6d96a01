"""What torch prints about its build is understood, whichever generation prints it."""

from __future__ import annotations

import pytest

from torchsmith.verify.probing import archs_of, foreign_paths, parse_config

pytestmark = pytest.mark.unit

TORCH_1_1 = """PyTorch built with:
  - GCC 4.9
  - Intel(R) Math Kernel Library Version 2019.0.4 Product Build 20190411 for Intel(R) 64
  - Intel(R) MKL-DNN v0.18.1 (Git Hash 7de7e5d02bf687f971e7668963649728356e0c20)
  - OpenMP 201307 (a.k.a. OpenMP 4.0)
  - NNPACK is enabled
  - CUDA Runtime 9.0
  - NVCC architecture flags: -gencode;arch=compute_35,code=sm_35;-gencode;arch=compute_70,code=sm_70
  - CuDNN 7.5.1
  - Magma 2.5.0
  - Build settings: BLAS=MKL, BUILD_TYPE=Release, CXX_FLAGS= -Wno-deprecated -O2 -fPIC, \
DISABLE_NUMA=1, PERF_WITH_AVX=1, USE_CUDA=True, USE_GFLAGS=OFF, USE_MKLDNN=ON, USE_MPI=OFF, \
USE_NCCL=True, USE_NNPACK=True, USE_OPENMP=ON,
"""
TORCH_1_8 = """PyTorch built with:
  - GCC 7.3
  - C++ Version: 201402
  - Intel(R) Math Kernel Library Version 2020.0.0 Product Build 20191122 for Intel(R) 64
  - Intel(R) MKL-DNN v1.7.0 (Git Hash 7aed236906b1f7a05c0917e5257a1af05e9ff683)
  - OpenMP 201511 (a.k.a. OpenMP 4.5)
  - NNPACK is enabled
  - CPU capability usage: AVX2
  - CUDA Runtime 11.1
  - NVCC architecture flags: -gencode;arch=compute_37,code=sm_37;\
-gencode;arch=compute_86,code=sm_86;-gencode;arch=compute_86,code=compute_86
  - CuDNN 8.0.5
  - Magma 2.5.2
  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release, CUDA_VERSION=11.1, CUDNN_VERSION=8.0.5, \
CXX_COMPILER=/opt/rh/devtoolset-7/root/usr/bin/c++, CXX_FLAGS= -fopenmp -DNDEBUG -DUSE_KINETO \
-DUSE_FBGEMM -DUSE_QNNPACK -O2, LAPACK_INFO=mkl, TORCH_VERSION=1.8.1, USE_CUDA=ON, USE_CUDNN=ON, \
USE_MKL=ON, USE_MKLDNN=ON, USE_MPI=OFF, USE_NCCL=ON, USE_OPENMP=ON,
"""
TORCH_2_13 = """PyTorch built with:
  - GCC 13.3
  - C++ Version: 202002
  - Intel(R) MKL-DNN v3.12.0 (Git Hash 80afa71049cd69a3df32adcccb623b12cd7baa22)
  - OpenMP 201511 (a.k.a. OpenMP 4.5)
  - LAPACK is enabled (usually provided by MKL)
  - NNPACK is enabled
  - CPU capability usage: DEFAULT
  - Build settings: BLAS_INFO=open, BUILD_TYPE=Release, COMMIT_SHA=cf30153, CUDA_FLAGS= -Xfatbin \
-compress-all, CXX_COMPILER=/usr/bin/c++, CXX_FLAGS= -DUSE_PTHREADPOOL -DUSE_KINETO \
-DUSE_FBGEMM -O2, LAPACK_INFO=open, TORCH_VERSION=2.13.0, USE_CUDA=0, USE_CUDNN=OFF, \
USE_GLOO=ON, USE_MKLDNN=1, USE_MPI=OFF, USE_NCCL=OFF, USE_OPENMP=ON, \n"""


def test_the_first_generation_is_understood() -> None:
    config = parse_config(TORCH_1_1)
    assert (config.compiler, config.cxx) == ("GCC 4.9", "")
    assert (config.mkl, config.mkldnn, config.openmp) == ("2019.0.4", "0.18.1", "201307")
    assert (config.cuda, config.cudnn, config.magma) == ("9.0", "7.5.1", "2.5.0")
    assert config.archs == ("sm_35", "sm_70")
    assert config.setting("nccl") is True
    assert config.setting("mpi") is False


def test_machine_code_and_ptx_are_told_apart() -> None:
    assert parse_config(TORCH_1_8).archs == ("sm_37", "sm_86", "compute_86")
    assert archs_of("-gencode;arch=compute_90a,code=[sm_90a,compute_90a]") == (
        "sm_90a",
        "compute_90a",
    )


def test_flags_with_commas_do_not_start_a_setting() -> None:
    config = parse_config(TORCH_1_8)
    assert config.settings["CXX_FLAGS"].startswith("-fopenmp -DNDEBUG")
    assert config.settings["TORCH_VERSION"] == "1.8.1"


def test_a_feature_may_be_told_by_a_compiler_flag_only() -> None:
    config = parse_config(TORCH_1_8)
    assert config.setting("fbgemm") is True
    assert config.setting("kineto") is True
    assert config.setting("vulkan") is None


def test_todays_generation_is_understood() -> None:
    config = parse_config(TORCH_2_13)
    assert (config.compiler, config.cxx, config.cpu) == ("GCC 13.3", "202002", "DEFAULT")
    assert (config.mkl, config.mkldnn) == ("", "3.12.0")
    assert (config.cuda, config.archs) == ("", ())
    assert [config.setting(name) for name in ("cuda", "mkldnn", "nccl")] == [False, True, False]


def test_cudnn_is_read_where_it_is_written_right() -> None:
    text = "  - CuDNN 91.9  (built against CUDA 13.1)\n  - Build settings: CUDNN_VERSION=9.19.0, "
    assert parse_config(text).cudnn == "9.19.0"


@pytest.mark.parametrize("text", ["", "PyTorch built with:\n", "- Build settings:", "\0\n= , =,"])
def test_text_that_says_nothing_gives_nothing(text: str) -> None:
    assert parse_config(text).compiler == ""
    assert parse_config(text).setting("cuda") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("CXX_COMPILER=/opt/rh/gcc-toolset-11/root/usr/bin/c++, CXX_FLAGS= -O2", ()),
        ("CXX_COMPILER=/usr/bin/c++, CXX_FLAGS=-I/usr/include -fPIC", ()),
        ("CXX_COMPILER=/home/me/gcc/bin/g++, X=1", ("/home/me/gcc/bin/g++",)),
        ("CXX_FLAGS=-ffile-prefix-map=/build/work/torch=. -O2", ("/build/work/torch=.",)),
        ("CXX_FLAGS= -isystem /root/include -I/build/worked", ("/root/include",)),
    ],
)
def test_a_path_of_the_building_person_is_found(text: str, found: tuple[str, ...]) -> None:
    assert foreign_paths(text, ["/build/work"]) == found
