"""The document behind `gemfield-conda`: packages made in a container, a channel of one's own.

PyTorch and MAGMA take hours and a CUDA of 5 GB. A torch that only calls BLAS stands for the first,
compiled, packed and linked as torch is; a real MAGMA has test_conda_magma.py.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.containers import EngineHere
from tests.integration.conda_packages import (
    PYTHON,
    SUBDIR,
    TAG,
    installed,
    make_index,
    pack_empty,
    pack_python,
    solved,
)
from tests.integration.test_ship_uploads import anaconda as anaconda
from tests.integration.test_ship_uploads import programs as programs
from tests.lab import Torchsmith, from_preset
from tests.plans import run_step
from tests.tiny_packages import conda

from torchsmith.errors import OutputError
from torchsmith.package.conda.explain import explain, read_channels
from torchsmith.package.conda.pack import pack
from torchsmith.package.patchelf import Patch, patch
from torchsmith.plan.conda import CondaSpec
from torchsmith.plan.models import Plan
from torchsmith.recipe.models import Recipe
from torchsmith.ship.uploads import upload_packages

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.usefixtures("rendering_tools")]

Planned = Callable[[str | Path], tuple[Plan, Recipe]]
CHANGES = {
    'torch = "1.8.0"': 'torch = "2.6.0"',
    'python = "3.8"': f'python = "{PYTHON}"',
    'platform = "linux-x86_64"\n': "",
    'system = "ubuntu-20.04"': 'system = "debian-12"',
    'gpus = "6.1;7.0;7.5;8.0"\n': '\n[source]\nkind = "folder"\npath = "torch-src"\n',
    "[cuda]\n# The build of the toolkit is part of the packages' names.\n": "",
    'version = "11.0.221"\ncudnn = "8.0.5"\nnvcc_flags = ["-Xfatbin", "-compress-all"]\n': "",
    'cudnn = "static"\nnccl = "static"\nmagma = "on"\n': "",
    'mkl = "static"': 'mkl = "off"',
    'caffe2 = "on"\n': "",
    'pip = ["mkl-include==2022.2.1", "mkl-static==2022.2.1"]\n': "",
    'NCCL_ROOT_DIR = "/usr/local/cuda"\n': "",
    "magma = true\n# CUDA 11.0 knows no 8.6: with 11.1 or later it can be added here.\n": "",
    'magma_gpus = "6.0;6.1;7.0;7.5;8.0"\n': "",
    "[publish]\n": '[publish]\nchannel = "own"\n',
}
SETUP = """
import os, subprocess, sys
from setuptools import Extension, setup
compiler = os.environ["CXX"]
os.makedirs("build", exist_ok=True)
os.makedirs("torch/lib", exist_ok=True)
with open("build/CMakeCache.txt", "w") as cache:
    cache.write("USE_CUDA:BOOL=%s\\n" % os.environ["USE_CUDA"])
if "--cmake-only" in sys.argv:
    sys.exit()
library = "torch/lib/libtorch_cpu.so"
command = [compiler, "-shared", "-fPIC", "-O2", "cpu.cpp", "-lopenblas", "-o", library]
subprocess.run(command, check=True)
setup(
    name="torch", version=os.environ["PYTORCH_BUILD_VERSION"], packages=["torch"],
    package_data={"torch": ["lib/*.so"]}, install_requires=["typing-extensions>=4.10.0"],
    ext_modules=[Extension("torch._C", ["_C.cpp"], library_dirs=["torch/lib"],
                           libraries=["torch_cpu"], runtime_library_dirs=["$ORIGIN/lib"])],
)
"""
LIBRARY = """
extern "C" double cblas_ddot(int, const double*, int, const double*, int);
extern "C" double dot(const double* x, int n) { return cblas_ddot(n, x, 1, x, 1); }
"""
MODULE = """
#include <Python.h>
extern "C" double dot(const double*, int);
static PyObject* norm(PyObject*, PyObject*) {
  const double x[] = {1, 2, 3, 4, 5};
  return PyFloat_FromDouble(dot(x, 5));
}
static PyMethodDef methods[] = {{"norm", norm, METH_NOARGS, ""}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", "", -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }
"""
# Where the BLAS that is used lies.
USE = """
import torch._C
print(torch._C.norm())
print({line.split()[-1] for line in open("/proc/self/maps") if "libopenblas" in line})
"""
LOGS = {
    "a.o: relocation truncated to fit: R_X86_64_GOTPCREL against undefined symbol "
    "`__gmon_start__'": "Build for fewer GPUs",
    "conda_build.exceptions.DependencyNeedsBuildingError: Unsatisfiable dependencies for platform "
    "linux-64: {'magma-cuda110'}": "conda config --add channels pytorch",
    "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 804: "
    "forward compatibility was attempted on non supported HW": "libcuda newer than the kernel's",
}


@pytest.fixture(scope="module")
def lab(podman: EngineHere, tmp_path_factory: pytest.TempPathFactory) -> Torchsmith:
    """The preset's folder and what the container compiled: proving that wants a whole torch."""
    here = from_preset(tmp_path_factory.mktemp("gemfield"), "gemfield-conda", CHANGES, podman)
    files = {"setup.py": SETUP, "cpu.cpp": LIBRARY, "_C.cpp": MODULE, "torch/__init__.py": ""}
    for name, text in files.items():
        path = here.project / "torch-src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    steps = json.loads(here("plan", "--json"))["steps"]
    wanted = ("base", "fetch", "environment", "compile")
    chosen = [step["id"] for step in steps if step["id"].startswith(wanted)]
    here("build", "--quiet", *(word for name in chosen for word in ("--step", name)))
    return here


@pytest.fixture(scope="module")
def package(lab: Torchsmith, planned: Planned) -> Path:
    """What the plan's own step packs of the container's wheel."""
    plan, _ = planned(lab.project / "recipe.toml")
    (step,) = (step for step in plan.steps if step.id.startswith("package-conda"))
    (dist,) = lab.store.glob("work/*/dist")
    shutil.copytree(dist, lab.project / "packed/dist")
    done = run_step(step, lab.project / "packed")
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = lab.project.glob(f"packed/channel/*/{SUBDIR}/pytorch-*.tar.bz2")
    return made


@pytest.fixture(scope="module")
def channel(lab: Torchsmith, package: Path) -> Path:
    """One's own: the package, and what stands for the channel that has everything else."""
    lab("publish", str(package), "--channel", "own")
    others = lab.project / "others"
    pack_python(others, lab.project)
    pack_empty(others, "python_abi", PYTHON, f"1_{TAG}")
    for name, version in (("numpy", "1.26.4"), ("typing_extensions", "4.15.0")):
        pack_empty(others, name, version)
    make_index(others)
    return lab.project / "own"


@pytest.fixture(scope="module")
def blas(podman: EngineHere, lab: Torchsmith) -> Path:
    """A channel with the very BLAS of the container, as conda would have it."""
    tree = lab.project / "blas-tree"
    (tree / "lib").mkdir(parents=True)
    # Other tests leave images to build in, too: the one of this plan.
    steps = json.loads(lab("plan", "--json"))["steps"]
    (base,) = (step["task"]["arguments"]["name"] for step in steps if step["kind"] == "base")
    copy = (
        "cp -L /usr/lib/*/libopenblas.so.0 /usr/lib/*/libgfortran.so.5 /usr/lib/*/libquadmath* /out"
    )
    podman("run", "--rm", "--volume", f"{tree / 'lib'}:/out", base, "sh", "-euc", copy)
    for library in (tree / "lib").iterdir():
        patch(library, Patch(search=("$ORIGIN",)))
    spec = CondaSpec(
        output=str(lab.project / "blas"),
        name="libopenblas",
        version="0.3.21",
        subdir=SUBDIR,
        tree=str(tree),
    )
    pack(spec)
    make_index(lab.project / "blas")
    return lab.project / "blas"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "rattler"))


def test_a_package_like_pytorchs_own_comes_out_of_the_container(package: Path) -> None:
    build = f"cpu_py{PYTHON.replace('.', '')}_0"
    assert package.name == f"pytorch-2.6.0-{build}.tar.bz2"


def test_rattler_installs_it_from_ones_own_channel_and_its_blas_beside_it(
    channel: Path, blas: Path, tmp_path: Path
) -> None:
    where = [folder.as_uri() for folder in (channel, channel.parent / "others", blas)]
    prefix = installed(where, tmp_path / "prefix", "pytorch")
    done = subprocess.run(
        [prefix / "bin/python", "-c", USE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer, libraries = done.stdout.splitlines()
    assert answer == "55.0"
    assert str(prefix / "lib") in libraries


def test_without_its_blas_it_is_not_installed_and_that_is_explained(channel: Path) -> None:
    folders = [channel, channel.parent / "others"]
    with pytest.raises(Exception, match="Cannot solve") as refused:
        solved([folder.as_uri() for folder in folders], "pytorch")
    (told,) = explain(str(refused.value), read_channels(folders))
    assert told.name == "libopenblas"


def test_other_bytes_are_uploaded_with_force_alone(
    anaconda: tuple[str, Any],
    programs: Path,
    package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    api, server = anaconda
    (change,) = upload_packages([package], "gemfield", "ANACONDA_TOKEN", lambda _: None, api=api)
    place = f"{SUBDIR}/{package.name}"
    assert (change.action, change.path) == ("added", place)
    name, version, build = package.name.removesuffix(".tar.bz2").split("-")
    other = conda(tmp_path / "other", name, version, subdir=SUBDIR, form=".tar.bz2", build=build)
    assert other.name == package.name
    with pytest.raises(OutputError, match="with other bytes"):
        upload_packages([other], "gemfield", "ANACONDA_TOKEN", lambda _: None, api=api)
    (change,) = upload_packages(
        [other], "gemfield", "ANACONDA_TOKEN", lambda _: None, force=True, api=api
    )
    assert change.action == "replaced"
    md5 = hashlib.md5(other.read_bytes(), usedforsecurity=False).hexdigest()
    assert server.files[place]["md5"] == md5


@pytest.mark.parametrize("log", LOGS, ids=["relocation", "channel", "804"])
def test_what_the_author_met_is_explained(log: str, lab: Torchsmith) -> None:
    (lab.project / "build.log").write_text(f"{log}\n")
    assert LOGS[log] in " ".join(lab("diagnose", "build.log").split())
