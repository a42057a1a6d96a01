"""What CMake builds has the same bytes wherever, and however, it is built."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from torchsmith.engine.build import build
from torchsmith.engine.door import with_same_batches
from torchsmith.engine.store import Store
from torchsmith.plan.build import with_keys
from torchsmith.plan.models import Plan, Step
from torchsmith.plan.shell import fresh_copy, in_project
from torchsmith.toolchain.build_paths import names_from_within
from torchsmith.toolchain.compiles import read_compile

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("build_tools")]

COUNT = 12
TREE = "build/one/torch"
CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(tiny CXX)
add_compile_options(-g -O1)
file(GLOB files f*.cpp)
add_library(inner SHARED inner.cpp)
add_library(outer SHARED ${files})
target_link_libraries(outer inner)
set_target_properties(inner outer PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS inner outer DESTINATION lib)
"""
PLAN = with_keys(
    Plan(
        "tiny",
        (),
        (
            Step(
                "fetch-torch",
                "fetch",
                "Fetch",
                project="torch",
                commands=(
                    "mkdir -p sources",
                    f"rm -rf sources/torch; cp -a {in_project('source')} sources/torch",
                ),
                outputs=("sources/torch",),
            ),
            Step(
                "compile-torch-one",
                "compile",
                "Compile",
                project="torch",
                variant="one",
                needs=("fetch-torch",),
                commands=(
                    fresh_copy("sources/torch", TREE),
                    f"cd {TREE}",
                    # As PyTorch's setup.py does: what is called CMAKE_ is handed on.
                    "cmake -G Ninja -S . -B build -DCMAKE_INSTALL_PREFIX=installed "
                    '-DCMAKE_BUILD_RPATH_USE_ORIGIN="$CMAKE_BUILD_RPATH_USE_ORIGIN"',
                    "cmake --build build",
                    "cmake --install build",
                    'mkdir -p "$WORK"/dist/one',
                    'cp installed/lib/* "$WORK"/dist/one/',
                ),
                outputs=("dist/one",),
            ),
        ),
    ),
    {},
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Files that tell where they lie, with code that is made in them and in their header."""
    source = tmp_path / "project" / "source"
    source.mkdir(parents=True)
    (source / "CMakeLists.txt").write_text(CMAKE)
    (source / "inner.cpp").write_text("const char* inner() { return __FILE__ __DATE__; }\n")
    (source / "where.h").write_text(
        "#pragma once\n#include <cassert>\nconst char* inner();\n"
        "template <class T> const char* where(T x) { assert(x >= 0);"
        " return __FILE__ + x; }\n"
    )
    for number in range(COUNT):
        (source / f"f{number:02}.cpp").write_text(
            '#include "where.h"\nnamespace { struct Made'
            f"{number} {{ const char* name = inner(); }} made{number}; }}\n"
            f"const char* f{number}() {{ assert(made{number}.name); return where({number}L)"
            " + (__FILE__[0] != 0); }\n"
        )
    return tmp_path / "project"


def built(project: Path, store: Path, jobs: int) -> dict[str, str]:
    """Build in a store; each library's hash. None of them names the folder."""
    done = build(with_same_batches(PLAN), Store(store), project=project, jobs=jobs)
    (folder,) = done.artifacts["compile-torch-one"]
    found = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    for name, content in found.items():
        assert str(store).encode() not in content, name
        assert b"f00.cpp" in content or name == "libinner.so"
    return {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}


def test_folder_cores_umask_time_zone_and_cache_leave_no_trace(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = built(project, tmp_path / "a", 1)
    assert set(first) == {"libinner.so", "libouter.so"}

    monkeypatch.setenv("TZ", "Asia/Seoul")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USER", "somebody")
    mask = os.umask(0o077)
    try:
        second = built(project, tmp_path / "another-folder-of-a-longer-name", 4)
    finally:
        os.umask(mask)
    assert second == first

    # A machine without ccache: every program but that one.
    programs = tmp_path / "programs"
    programs.mkdir()
    folders = os.environ["PATH"].split(os.pathsep)
    for folder in folders:
        for path in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if path.name != "ccache" and not (programs / path.name).exists():
                (programs / path.name).symlink_to(path)
    monkeypatch.setenv("PATH", str(programs))
    assert shutil.which("ccache") is None
    assert built(project, tmp_path / "no-cache", 2) == first


def test_a_cuda_file_does_not_name_its_folder_either(nvcc: Path, tmp_path: Path) -> None:
    source = tmp_path / "deep" / "er"
    source.mkdir(parents=True)
    (source / "k.cu").write_text(
        "#include <cstdio>\n__global__ void k() {}\n"
        "void go() { k<<<1, 1>>>(); std::puts(__FILE__); }\n"
    )
    command = [str(nvcc), "-c", str(source / "k.cu"), "-o", str(source / "k.o")]
    options = names_from_within(tmp_path)(read_compile(str(source), command))
    assert options, "nvcc and its host compiler know the option"
    subprocess.run([*command, *options], cwd=source, check=True)
    assert str(tmp_path).encode() not in (source / "k.o").read_bytes()
