"""A CUDA toolkit made of NVIDIA's wheels compiles and links, on a machine without a driver."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchsmith.plan.torch import assemble_toolkit

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

PROGRAM = """
#include <cstdio>
#include <cuda.h>
__global__ void add(float *x) { x[threadIdx.x] += 1; }
int main() {
  CUdeviceptr pointer;
  cuInit(0);
  cuMemAlloc(&pointer, 32);  // cuda.h makes cuMemAlloc_v2 of it
  add<<<1, 8>>>(reinterpret_cast<float *>(pointer));
  printf("%d\\n", static_cast<int>(cudaDeviceSynchronize()));
}
"""


def test_nvcc_from_wheels_compiles_and_links(tmp_path: Path) -> None:
    # The compiler and the runtime only: the libraries are 3 GB and go the same way.
    commands = assemble_toolkit("toolkit", ("cuda-toolkit[nvcc,cudart,cccl]==13.0.*",))
    script = "\n".join(["set -eu", *commands])
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "WORK": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "release 13.0" in done.stdout
    home = tmp_path / "toolkit"
    for part in ("bin/nvcc", "include/cuda.h", "lib64/libcudart.so", "nvvm/libdevice"):
        assert (home / part).exists(), part
    assert "nvidia-cuda-nvcc==13.0." in (home / "packages.txt").read_text()
    assert not (home / "wheels").exists()
    (tmp_path / "a.cu").write_text(PROGRAM)
    for linking in ("static", "shared"):
        options = ["-ccbin", "g++", "-arch=sm_90", "-cudart", linking, "-o", linking, "-lcuda"]
        subprocess.run([home / "bin/nvcc", *options, "a.cu"], cwd=tmp_path, check=True)
    needed = subprocess.run(
        ["readelf", "-d", tmp_path / "shared"], capture_output=True, text=True, check=True
    ).stdout
    assert "libcuda.so.1" in needed
    assert "libcudart.so.13" in needed
