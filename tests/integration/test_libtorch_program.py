"""A C++ program is built with a libtorch archive that was moved, and runs."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest
from tests.conftest import PUBLISHED_TORCH
from tests.unit.test_package_libtorch import TARGETS, wheel

from torchsmith.errors import OutputError
from torchsmith.package.libtorch import pack_libtorch
from torchsmith.plan.packages import Libtorch
from torchsmith.verify.binary import read_bytes

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("build_tools")]

MACHINE = platform.machine()
PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(program CXX)
find_package(Torch REQUIRED)
find_package(ATen REQUIRED)
if(NOT EXISTS "${ATEN_INCLUDE_DIR}/ATen/ATen.h")
  message(FATAL_ERROR "no headers in ${ATEN_INCLUDE_DIR}")
endif()
add_executable(program program.cpp)
target_link_libraries(program ${TORCH_LIBRARIES})
"""
PROGRAM = """
#include <torch/types.h>
#include <torch/version.h>
#include <iostream>
int main() {
  auto x = torch::ones({3, 3}, torch::requires_grad());
  x.mm(x).sum().backward();
  std::cout << x.grad().sum().item<float>() << " " << TORCH_VERSION;
}
"""


def test_a_program_builds_with_the_published_torch_and_runs(
    published_wheel: Path, tmp_path: Path
) -> None:
    made, archive = pack_libtorch(published_wheel, tmp_path)
    assert made.commit != "Unknown"
    # CMake unpacks it itself, modes and all; then it is somebody else's folder.
    subprocess.run(["cmake", "-E", "tar", "xf", archive], cwd=tmp_path, check=True)
    place = tmp_path / "some where" / "else"
    place.parent.mkdir()
    (tmp_path / "libtorch").rename(place)
    assert (place / "build-version").read_text().startswith(PUBLISHED_TORCH)
    assert (place / "build-hash").read_text().strip() == made.commit
    assert not list(place.rglob("libtorch_python*"))
    for library in (place / "lib").glob("*.so*"):
        assert library.stat().st_mode & stat.S_IXUSR
    for text in (place / "share/cmake").rglob("*Config*.cmake"):
        assert "/__w/" not in text.read_text()

    source = tmp_path / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(PROJECT)
    (source / "program.cpp").write_text(PROGRAM)
    build = ["-G", "Ninja", "-S", str(source), "-B", str(tmp_path / "build")]
    done = subprocess.run(
        ["cmake", *build, f"-DCMAKE_PREFIX_PATH={place}", "-Werror=dev"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "kineto" not in done.stderr
    subprocess.run(["ninja", "-C", str(tmp_path / "build")], check=True)
    said = subprocess.check_output([tmp_path / "build/program"], env={}, text=True)
    assert said == f"54 {PUBLISHED_TORCH}"


def library(folder: Path, name: str, *needs: Path, search: str = "", main: bool = False) -> bytes:
    """A small library, or a program, that needs others."""
    path = folder / name
    stem = name.partition(".")[0].replace("-", "_")
    called = [need.name.partition(".")[0].replace("-", "_") for need in needs]
    code = "".join(f"int {other}();\n" for other in called)
    total = " + ".join(["0", *(f"{other}()" for other in called)])
    code += f"int {'main' if main else stem}() {{ return {total}; }}"
    words = ["gcc", "-x", "c", "-", "-x", "none", *map(str, needs), "-o", str(path)]
    words += [] if main else ["-shared", "-fPIC", f"-Wl,-soname,{name}"]
    words += [f"-Wl,-rpath,{search}"] if search else []
    subprocess.run([*words, f"-Wl,-rpath-link,{folder}"], input=code.encode(), check=True)
    return path.read_bytes()


@pytest.fixture
def repaired(tmp_path: Path) -> Path:
    """A torch wheel with a library of the building machine brought along beside the package."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    away = "$ORIGIN/../../torch.libs:/home/somebody/lib"
    files = {
        "torch.libs/libblas-1a2b.so.0": library(folder, "libblas-1a2b.so.0"),
        "torch.libs/libpy-1a2b.so.0": library(folder, "libpy-1a2b.so.0"),
    }
    blas, py = (folder / name.partition("/")[2] for name in files)
    c10 = folder / "libc10.so"
    files["torch/lib/libc10.so"] = library(folder, "libc10.so")
    files["torch/lib/libtorch.so"] = library(folder, "libtorch.so", c10, blas, search=away)
    files["torch/lib/libtorch_python.so"] = library(folder, "libtorch_python.so", py)
    files["torch/bin/tool"] = library(folder, "tool", folder / "libtorch.so", main=True)
    files[f"torch/_C.cpython-311-{MACHINE}-linux-gnu.so"] = files["torch/lib/libc10.so"]
    files["torch/bin/test_api"] = b"a test"
    files["torch/include/torch/torch.h"] = b"// torch\n"
    files["torch/version.py"] = b"__version__ = '2.6.0'\ngit_version: str = 'abc123'\n"
    files["torch/share/cmake/Torch/TorchConfig.cmake"] = b"# nothing to change\n"
    files["torch/share/cmake/Caffe2/Caffe2Targets.cmake"] = TARGETS.encode()
    return wheel(tmp_path, files, machine=MACHINE)


def test_libraries_brought_along_are_found_and_those_for_python_left_out(
    repaired: Path, tmp_path: Path
) -> None:
    made, archive = pack_libtorch(repaired, tmp_path / "out")
    assert archive.name == f"libtorch-2.6.0-linux-{MACHINE}.zip"
    assert made.vendored == ("lib/libblas-1a2b.so.0",)
    assert made.missing == ()
    with zipfile.ZipFile(archive) as opened:
        names = {name.removeprefix("libtorch/") for name in opened.namelist()}
        found = {name: opened.read(f"libtorch/{name}") for name in names}
        assert names == set(made.files)
        opened.extractall(tmp_path / "moved")
    assert "bin/test_api" not in names
    assert not any("python" in name or "libpy" in name for name in names)
    for name, search in (("lib/libtorch.so", "$ORIGIN"), ("bin/tool", "$ORIGIN/../lib")):
        described = read_bytes(name, found[name])
        assert described is not None
        assert described.search == (search,)
        assert made.search_paths[name] == search
    assert found["build-hash"] == b"abc123\n"
    readme = found["README.txt"].decode()
    assert "Caffe2Targets.cmake: paths of the building machine are gone" in readme
    # The machine that built it is gone.
    shutil.rmtree(tmp_path / "libraries")
    tool = tmp_path / "moved/libtorch/bin/tool"
    tool.chmod(0o755)
    subprocess.run([tool], env={}, check=True)


def test_one_wheel_is_one_archive(repaired: Path, tmp_path: Path) -> None:
    digests = set()
    for threads, mask in ((1, 0o022), (3, 0o077)):
        before = os.umask(mask)
        try:
            _, path = pack_libtorch(repaired, tmp_path / f"out{threads}", threads=threads)
        finally:
            os.umask(before)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_where_nothing_can_be_written_nothing_is(repaired: Path, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("in the way")
    with pytest.raises(OutputError, match="cannot be written"):
        pack_libtorch(repaired, place)
    assert place.read_text() == "in the way"
    with pytest.raises(OutputError):
        pack_libtorch(repaired, Path("/proc/torchsmith"))
    # Stopped half-way, nothing is found by its name.
    limited = "ulimit -f 8; trap '' XFSZ; exec \"$@\""
    out = tmp_path / "small"
    words = ["-m", "torchsmith", "libtorch", str(repaired), "--output", str(out)]
    done = subprocess.run(
        ["bash", "-c", limited, "bash", sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert list(out.iterdir()) == []


def test_as_a_step_it_reads_what_to_do_from_its_input(repaired: Path, tmp_path: Path) -> None:
    def step(archive: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "torchsmith.package.libtorch"],
            input=msgspec.json.encode(Libtorch("torch-*.whl", archive)),
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )

    assert repaired.parent == tmp_path
    assert step(f"dist/libtorch-2.6.0-linux-{MACHINE}.zip").returncode == 0
    assert (tmp_path / f"dist/libtorch-2.6.0-linux-{MACHINE}.zip").is_file()
    wrong = step(f"other/libtorch-2.5.0-linux-{MACHINE}.zip")
    assert wrong.returncode == 2
    assert b"was planned" in wrong.stderr
    assert list((tmp_path / "other").iterdir()) == []
