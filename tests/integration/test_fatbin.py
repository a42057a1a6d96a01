"""What is read out of a library is what the real nvcc was told to put into it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchsmith.verify.binary import Library, read_files

pytestmark = pytest.mark.integration

SOURCE = """
__global__ void add(float *x) { x[threadIdx.x] += 1; }
extern "C" void go(float *x) { add<<<1, 8>>>(x); }
"""


def compiled(nvcc: Path, folder: Path, codes: list[str], *flags: str) -> Library:
    (folder / "a.cu").write_text(SOURCE)
    words = [str(nvcc), "-ccbin", "g++", "-Xcompiler", "-fPIC", "-shared", "-cudart", "none"]
    for code in codes:
        words += ["-gencode", f"arch=compute_{code.partition('_')[2]},code={code}"]
    subprocess.run([*words, *flags, "-o", "a.so", "a.cu"], cwd=folder, check=True)
    (found,) = read_files(folder, ["a.so"])
    assert found.broken == found.gpu_unread == ""
    return found


@pytest.mark.parametrize(
    "codes",
    [
        ["sm_90"],
        ["compute_80", "sm_80", "sm_90"],
        ["compute_90a", "sm_90a", "compute_100f", "sm_100f", "sm_120"],
    ],
)
def test_the_architectures_nvcc_was_given_are_found(
    nvcc: Path, tmp_path: Path, codes: list[str]
) -> None:
    assert compiled(nvcc, tmp_path, codes).gpu == tuple(codes)


def test_compressed_code_is_found(nvcc: Path, tmp_path: Path) -> None:
    found = compiled(nvcc, tmp_path, ["compute_90", "sm_90"], "-Xfatbin", "-compress-all")
    assert found.gpu == ("compute_90", "sm_90")


def test_code_that_nvcc_links_apart_is_found(nvcc: Path, tmp_path: Path) -> None:
    assert compiled(nvcc, tmp_path, ["sm_90"], "-rdc=true").gpu == ("sm_90",)


def test_a_library_without_kernels_has_no_gpu_code(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int one(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "a.so", "a.c"], cwd=tmp_path, check=True)
    (found,) = read_files(tmp_path, ["a.so"])
    assert found.gpu == ()
