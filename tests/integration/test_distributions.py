"""One recipe in several distributions, and Debian's own CUDA in those that have it.

Downloads gigabytes: each distribution gets its own Python's torch, each CUDA its whole toolkit.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.containers import EngineHere, debian_archive
from tests.lab import Torchsmith, in_folder

from torchsmith.verify.binary import read_bytes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.usefixtures("rendering_tools"),
]

SUITES = {"11": "bullseye", "12": "bookworm", "13": "trixie"}
PYTHONS = {"11": "39", "12": "311", "13": "313"}
RECIPE = """
name = "first"
system = "debian-SYSTEM"
torch = { release = "2.6.0", use = "wheel" }
[companions]
vision = "match"
[[companions.extension]]
name = "near"
folder = "near"
check = "import near; near.answer()"
[source]
kind = "debian"
suite = "trixie"
"""
# torch is only compiled against: a module with a version is enough to be asked.
TORCH = """
import os, sys
from setuptools import Distribution, setup
class Compiled(Distribution):
    def has_ext_modules(self):
        return True
os.makedirs("build", exist_ok=True)
with open("build/CMakeCache.txt", "w") as cache:
    cache.write("USE_CUDA:BOOL=1\\n")
if "--cmake-only" not in sys.argv:
    setup(name="torch", version=os.environ["PYTORCH_BUILD_VERSION"], py_modules=["torch"],
          distclass=Compiled)
"""
KERNEL = """
#include <cublas_v2.h>
__global__ void twice(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
extern "C" int blas(int* version) { return cublasGetVersion_v2(nullptr, version); }
extern "C" void run(float* x, int n) { twice<<<(n + 255) / 256, 256>>>(x, n); }
"""
SETUP = """
import os, subprocess
from setuptools import Distribution, setup
nvcc = os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc")
os.makedirs("near", exist_ok=True)
command = [nvcc, "-arch=ARCH", "-shared", "-Xcompiler", "-fPIC", "-ccbin", os.environ["CXX"]]
subprocess.run([*command, "near.cu", "-lcublas", "-o", "near/libnear.so"], check=True)
open("near/__init__.py", "w").close()
class Compiled(Distribution):
    def has_ext_modules(self):
        return True
setup(name="near", version="1.0", packages=["near"], package_data={"near": ["*.so"]},
      distclass=Compiled)
"""
CUDA_RECIPE = """
name = "kernels"
torch = "2.6.0"
system = "debian-SYSTEM"
gpus = ["8.6"]
profile = "minimal"
[cuda]
version = "CUDA"
toolkit = "debian"
[source]
kind = "folder"
path = "torch-src"
[[companions.extension]]
name = "near"
folder = "near"
"""


@pytest.fixture
def archives(
    published_wheel: Path, tmp_path: Path, pytestconfig: pytest.Config, number: str
) -> Iterator[Path]:
    assert pytestconfig.cache is not None
    kept = pytestconfig.cache.mkdir("base-image")
    with debian_archive(published_wheel, tmp_path, kept, SUITES[number]) as archive:
        yield archive


def built(here: Torchsmith, *words: str) -> None:
    here("build", "--quiet", "--network", "host", *words)


@pytest.mark.parametrize("number", ["11", "13"])
@pytest.mark.parametrize("tool", ["podman", "docker"])
def test_an_extension_and_torchvision_are_built_in_their_distribution(
    tool: str,
    number: str,
    archives: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    engine: EngineHere = request.getfixturevalue(tool)
    engine("import", archives, f"docker.io/library/debian:{number}")
    here = in_folder(tmp_path / "lab", RECIPE.replace("SYSTEM", number), engine)
    built(here)
    wheels = [path.name for path in (here.project / "dist").glob("*.whl")]
    assert sorted(name.split("-")[0] for name in wheels) == ["near", "torchvision"]
    assert all(f"-cp{PYTHONS[number]}-" in name for name in wheels)
    for path in (here.project / "dist").glob("*.verify.json"):
        report = json.loads(path.read_text())
        assert not [item for item in report["checks"] if item["status"] == "fail"]


@pytest.mark.parametrize(("number", "cuda"), [("12", "11.8"), ("13", "12.4")])
def test_debians_nvcc_compiles_kernels_in_its_distribution(
    number: str, cuda: str, archives: Path, podman: EngineHere, tmp_path: Path
) -> None:
    podman("import", archives, f"docker.io/library/debian:{number}")
    recipe = CUDA_RECIPE.replace("SYSTEM", number).replace("CUDA", cuda)
    here = in_folder(tmp_path / "lab", recipe, podman)
    shutil.rmtree(here.project / "near")
    for name, text in {
        "torch-src/setup.py": TORCH,
        "torch-src/torch.py": "__version__ = '2.6.0'\n",
        "near/setup.py": SETUP.replace("ARCH", "sm_86"),
        "near/near.cu": KERNEL,
    }.items():
        path = here.project / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    planned = json.loads(here("plan", "--json"))
    (step,) = (item["id"] for item in planned["steps"] if item["id"].startswith("compile-near"))
    built(here, "--step", step)
    (wheel,) = here.store.glob("work/*/dist/**/near-1.0-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        library = read_bytes("libnear.so", packed.read("near/libnear.so"))
    assert library is not None
    assert library.gpu == ("compute_86", "sm_86")
    assert f"libcublas.so.{cuda.partition('.')[0]}" in library.needed
