"""A real MAGMA is packed for conda, solved, installed, and a program is compiled against it.

Debian has the library compiled, for x86-64 and CUDA 12: compiling it here would take hours. Of
CUDA the headers and the runtime are NVIDIA's; cuBLAS and cuSPARSE are 600 MB and stay away: a
library of the names that are left, and only theirs and LAPACK's may be, stands for them.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.conda_packages import MACHINE, make_index
from tests.plans import run_step

from torchsmith.plan.models import Plan, Step
from torchsmith.recipe.models import Recipe
from torchsmith.sources.debian import mirrors

pytestmark = pytest.mark.integration

Planned = Callable[[str | Path], tuple[Plan, Recipe]]
RECIPE = """\
name = "gpu"
torch = "2.6.0"
python = "3.11"
cuda = "12.4"
platform = "linux-x86_64"

[packages]
conda = true
magma = true
"""
SUITE = "trixie"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# What cublas_v2.h includes and names, as far as MAGMA's headers ask for it.
CUBLAS = """\
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cuComplex.h>
typedef struct cublasContext *cublasHandle_t;
typedef int cublasOperation_t, cublasFillMode_t, cublasDiagType_t, cublasSideMode_t;
"""
CUSPARSE = "#pragma once\ntypedef struct cusparseContext *cusparseHandle_t;\n"
PROGRAM = """\
#include <cublas_v2.h>
#include <magma_v2.h>
#include <cstdio>

int main(int count, char **words) {
    magma_int_t major, minor, micro, info;
    magma_version(&major, &minor, &micro);
    std::printf("%d.%d.%d\\n", (int)major, (int)minor, (int)micro);
    if (count > 1) {
        magma_init();
        magma_dgesv_gpu(1, 1, nullptr, 1, nullptr, nullptr, 1, &info);
    }
    return 0;
}
"""
# cuBLAS, cuSPARSE, LAPACK, and what Debian's newer C library calls strtol.
BROUGHT = re.compile(r"cublas\w+|cusparse\w+|[sdcz][a-z0-9]+_|__isoc23_strtol")


def run(*words: object, cwd: Path | None = None, code: int = 0) -> str:
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def debians_magma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Headers and static library out of Debian's package, which is not installed."""
    folder = tmp_path_factory.mktemp("debian")
    lists = [f"deb [signed-by={KEYRING}] {mirror} {SUITE} contrib" for mirror in mirrors()[:1]]
    (folder / "sources.list").write_text("\n".join([*lists, ""]))
    (folder / "lists/partial").mkdir(parents=True)
    options = [
        f"Dir::Etc::SourceList={folder / 'sources.list'}",
        "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={folder / 'lists'}",
        f"Dir::Cache={folder}",
        "APT::Sandbox::User=root",
        "APT::Architecture=amd64",
        "APT::Architectures=amd64",
    ]
    apt = ["apt-get", "--quiet", *(word for item in options for word in ("-o", item))]
    run(*apt, "update")
    run(*apt, "download", "libmagma-dev", cwd=folder)
    (package,) = folder.glob("libmagma-dev_*.deb")
    wanted = ["./usr/include", "./usr/lib/libmagma.a"]
    tar = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
    extract = ["tar", "-C", str(folder), "-x", "--strip-components=2", *wanted]
    subprocess.run(extract, stdin=tar.stdout, check=True)
    assert tar.wait() == 0
    package.unlink()
    return folder


@pytest.fixture(scope="module")
def cudart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime of CUDA 12, which Debian compiled this MAGMA for."""
    folder = tmp_path_factory.mktemp("cudart")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    run(*pip, folder, "nvidia-cuda-runtime-cu12==12.4.*")
    (library,) = folder.glob("nvidia/cuda_runtime/lib/libcudart.so.12")
    return library


def step_of(plan: Plan, start: str) -> Step:
    (step,) = (step for step in plan.steps if step.id.startswith(start))
    return step


def test_a_program_is_built_against_the_package_of_a_real_magma(
    planned: Planned,
    debians_magma: Path,
    cudart: Path,
    nvcc: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rattler import Channel, Gateway, install, solve

    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "rattler"))
    plan, _ = planned(RECIPE)
    built = tmp_path / step_of(plan, "compile-magma").outputs[0]
    built.parent.mkdir(parents=True)
    (built / "lib").mkdir(parents=True)
    (built / "lib/libmagma.a").hardlink_to(debians_magma / "lib/libmagma.a")
    (debians_magma / "include").rename(built / "include")
    # It has everything that PyTorch calls, and is seen to be for Debian's choice of GPUs.
    proof = run_step(step_of(plan, "verify-magma"), tmp_path)
    assert proof.returncode == 9, proof.stdout + proof.stderr
    assert re.search(r"^x   magma +sm_70 sm_75 compute_80 sm_80", proof.stdout, re.M)
    assert "2 passed, 1 failed" in proof.stdout
    package = step_of(plan, "package-magma")
    packed = run_step(package, tmp_path)
    assert packed.returncode == 0, packed.stdout + packed.stderr
    assert Path(package.outputs[0]).name == "magma-cuda124-2.9.0-1.conda"

    channel = tmp_path / "channel/gpu"
    make_index(channel)
    gateway = Gateway(cache_dir=tmp_path / "rattler")
    found = asyncio.run(
        solve([Channel(channel.as_uri())], ["magma-cuda124"], gateway, platforms=["linux-64"])
    )
    prefix = tmp_path / "prefix"
    asyncio.run(install(found, prefix, tmp_path / "pkgs", show_progress=False))

    stand_in = tmp_path / "stand-in"
    stand_in.mkdir()
    (stand_in / "cublas_v2.h").write_text(CUBLAS)
    for name in ("cusparse.h", "cusparse_v2.h"):
        (stand_in / name).write_text(CUSPARSE)
    (tmp_path / "program.cpp").write_text(PROGRAM)
    monkeypatch.setenv("PKG_CONFIG_PATH", str(prefix / "lib/pkgconfig"))
    flags = run("pkg-config", "--cflags", "--libs", "magma").split()
    assert flags == [f"-I{prefix}/include", f"-L{prefix}/lib", "-lmagma"]
    toolkit = nvcc.parent.parent / "include"
    headers = [f"-I{stand_in}", f"-I{toolkit}", f"-I{toolkit / 'cccl'}"]
    libraries = [str(cudart), f"-Wl,-rpath,{cudart.parent}:{stand_in}", "-fopenmp"]
    program = tmp_path / "program"
    if MACHINE != "x86_64":
        run("g++", "-fsyntax-only", *headers, f"{program}.cpp", *flags)
        return
    words = ["g++", *headers, f"{program}.cpp", *flags, *libraries, "-o", str(program)]
    lacking = subprocess.run(words, capture_output=True, text=True, check=False).stderr
    left = sorted(set(re.findall(r"undefined reference to `(\w+)'", lacking)))
    assert "cublasDtrsm_v2" in left
    assert [name for name in left if not BROUGHT.fullmatch(name)] == []
    brought = stand_in / "libbrought.so"
    source = "".join(f"void {name}(void) {{}}\n" for name in left)
    make = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(brought)]
    subprocess.run(make, input=source, text=True, check=True, capture_output=True)
    run(*words, brought)
    assert run(program).strip() == "2.9.0"
