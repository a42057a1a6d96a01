"""CUDA files compiled in batches by the real CMake, ninja and nvcc."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from benchmarks.batches import kernels
from tests.integration.accel_project import Project

from torchsmith.toolchain.accel import CUDA
from torchsmith.toolchain.accel.lessons import read_lessons

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("build_tools")]

COUNT = 8
# A file sets a macro that must not reach the next, and all have a kernel of the same name. Those
# with an even number define the same function, so no two of them go together.
_TEXT = """\
#ifdef LEAKED
#error a macro of another file
#endif
#define LEAKED
#include "common.cuh"
namespace {{ template <int N> __global__ void k{number}(int *x) {{ *x = more(N); }} }}
{helper}
extern "C" void f{number}(int *x) {{ k{number}<{number}><<<1, 1>>>(x); }}
"""
_PROJECT = """\
cmake_minimum_required(VERSION 3.18)
set(CMAKE_CUDA_COMPILER_FORCED TRUE)
project(batches CUDA)
file(GLOB files *.cu)
add_library(kernels MODULE ${files})
set_target_properties(kernels PROPERTIES PREFIX "" CUDA_RUNTIME_LIBRARY None)
"""


class CudaProject(Project):
    def __init__(self, folder: Path, nvcc: Path) -> None:
        super().__init__(folder)
        self.nvcc = nvcc
        for path in self.source.iterdir():
            path.unlink()
        (self.source / "common.cuh").write_text(
            "#pragma once\ninline __device__ int more(int x) { return x + 1; }\n"
        )
        for number in range(COUNT):
            helper = "static int same() { return 1; }" if number % 2 == 0 else ""
            text = _TEXT.format(number=number, helper=helper)
            (self.source / f"f{number}.cu").write_text(text)
        (self.source / "CMakeLists.txt").write_text(_PROJECT)

    def environment(self, accel: str = "on") -> dict[str, str]:
        return {**super().environment(accel), CUDA: "on"}

    def configure(self, accel: str = "on") -> None:
        where = ["-S", str(self.source), "-B", str(self.build)]
        compiler = [f"-DCMAKE_CUDA_COMPILER={self.nvcc}", "-DCMAKE_CUDA_ARCHITECTURES=90"]
        self._run(["cmake", "-G", "Ninja", *where, *compiler], accel)

    def found_kernels(self) -> frozenset[str]:
        return kernels(self.build / "CMakeFiles/kernels.dir")


def test_cuda_files_in_batches_hold_the_same_kernels(tmp_path: Path, nvcc: Path) -> None:
    by_itself = CudaProject(tmp_path / "stock", nvcc)
    by_itself.configure("off")
    by_itself.make("off")
    project = CudaProject(tmp_path / "ours", nvcc)
    project.configure()
    said = project.make()
    assert "files as one, from f" in said
    assert project.found_kernels() == by_itself.found_kernels() != frozenset()
    assert len(project.compiles()) < COUNT
    assert max(map(len, project.compiles())) > 1
    # Only those that define the same function left, and that is known the next time.
    names = {Path(name).name for pair in read_lessons(project.lessons).apart for name in pair}
    assert names == {"f0.cu", "f2.cu", "f4.cu", "f6.cu"}
    for number in range(COUNT):
        listed = subprocess.check_output(["nm", project.build / "kernels.so"], text=True)
        assert f"T f{number}\n" in listed
    # With nothing to do nothing is done, and an edited file is compiled by itself.
    assert "no work to do" in project.make()
    edited = project.source / "f1.cu"
    edited.write_text(edited.read_text().replace("<<<1, 1>>>", "<<<2, 2>>>"))
    assert "Compiling" in project.make()
    assert ["f1.cu"] in project.compiles()
    assert project.found_kernels() == by_itself.found_kernels()


def test_a_call_on_the_gpu_keeps_its_meaning_in_a_batch(tmp_path: Path, nvcc: Path) -> None:
    project = CudaProject(tmp_path, nvcc)
    # By itself f1 calls its own function with a conversion. In a batch the other one fits better.
    (project.source / "better.cuh").write_text("__device__ inline int pick(int) { return 2; }\n")
    (project.source / "f0.cu").write_text('#include "better.cuh"\n__global__ void k0(int *x) {}\n')
    (project.source / "f1.cu").write_text(
        "static __device__ int pick(long) { return 1; }\n"
        "__global__ void k1(int *x) { *x = pick(3); }\n"
    )
    project.configure()
    project.make()
    assert ["f1.cu"] in project.compiles()


def test_a_cuda_file_that_does_not_compile_says_so_as_by_itself(tmp_path: Path, nvcc: Path) -> None:
    project = CudaProject(tmp_path, nvcc)
    (project.source / "f3.cu").write_text('#include "common.cuh"\nint wrong = more_or_less;\n')
    project.configure()
    with pytest.raises(RuntimeError, match='identifier "more_or_less" is undefined'):
        project.make()
