"""Kernels that CMake has compiled for several kinds of CPU, by way of files it generates."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.accel_project import COUNT, Project

from torchsmith.toolchain.build_paths import names_from_within
from torchsmith.toolchain.cache import compiler_cache
from torchsmith.toolchain.governor import Governor

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("build_tools")]

KINDS = ("DEFAULT", "AVX2")
# As PyTorch's cmake/Codegen.cmake does.
CMAKE = f"""
cmake_minimum_required(VERSION 3.18)
project(kernels CXX)
file(GLOB kernels native/*.cpp)
foreach(kind {" ".join(KINDS)})
  foreach(IMPL ${{kernels}})
    get_filename_component(name ${{IMPL}} NAME)
    set(made ${{CMAKE_BINARY_DIR}}/native/${{name}}.${{kind}}.cpp)
    configure_file(include.cpp.in ${{made}})
    list(APPEND files ${{made}})
    set_source_files_properties(${{made}} PROPERTIES COMPILE_OPTIONS -DKIND=${{kind}})
  endforeach()
  # With options of its own a file is in no batch.
  set_source_files_properties(${{CMAKE_BINARY_DIR}}/native/k00.cpp.${{kind}}.cpp
    PROPERTIES COMPILE_OPTIONS "-DKIND=${{kind}};-DALONE")
endforeach()
add_executable(program ${{files}} main.cpp)
"""


class Kernels(Project):
    """A build folder inside its source folder, as PyTorch's is, and files that are all kernels."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.build = self.source / "build"
        self.folder = folder
        (self.source / "native").mkdir()
        for number in range(COUNT):
            self.file(number).unlink()
            self.kernel(number).write_text(
                f"namespace KIND {{ int f{number}() {{ return {number}; }}\n"
                f"const char* file{number}() {{ return __FILE__; }} }}\n"
            )
        (self.source / "include.cpp.in").write_text('#include "${IMPL}"\n')
        (self.source / "CMakeLists.txt").write_text(CMAKE)
        (self.source / "main.cpp").write_text(
            "".join(
                f"namespace {kind} {{ int f{n}(); const char* file{n}(); }}\n"
                for kind in KINDS
                for n in range(COUNT)
            )
            + "int main() {\n"
            + "".join(
                f'__builtin_printf("%d %s\\n", {kind}::f{n}(), {kind}::file{n}());\n'
                for kind in KINDS
                for n in range(COUNT)
            )
            + "}\n"
        )

    def kernel(self, number: int) -> Path:
        return self.source / "native" / f"k{number:02}.cpp"

    def generated(self) -> dict[Path, int]:
        """The files that CMake made of kernels, with their dates."""
        return {path: path.stat().st_mtime_ns for path in (self.build / "native").glob("*.cpp")}

    def built(self, store: Path) -> tuple[int, int]:
        """Configure and build as torchsmith does; how many compiles were in a cache, and not."""
        self.cache = compiler_cache(store, self.folder)
        self.lessons = store / "lessons" / "others.jsonl"
        with Governor(options=names_from_within(self.folder)) as governor:
            self.governor = governor
            self.configure()
            self.make()
        return self.cache.used()

    def environment(self, accel: str = "on") -> dict[str, str]:
        governed = self.governor.environment(self.cache.command)
        # Its shims are for another make, and would hide those for ninja.
        governed.pop("PATH", None)
        return {**super().environment(accel), **governed}


def test_kernels_compiled_in_one_folder_are_found_from_another(tmp_path: Path) -> None:
    store = tmp_path / "store"
    used = []
    programs = []
    for folder in ("one", "another/place"):
        kernels = Kernels(tmp_path / folder)
        used.append(kernels.built(store))
        programs.append((kernels.build / "program").read_bytes())
    assert used[0][0] == 0
    assert {part[0] for part in kernels.compiles()}.isdisjoint({f"k00.cpp.{k}.cpp" for k in KINDS})
    assert used[1] == (used[0][1], 0)
    assert programs[0] == programs[1]
    lines = [line.split() for line in kernels.result().splitlines()]
    assert [int(value) for value, _ in lines] == [n for _ in KINDS for n in range(COUNT)]
    # As a stock build's assertions quote it, seen from the folder it is built in; no folder of
    # this machine is in any.
    assert {name for value, name in lines if value == "0"} == {"../native/k00.cpp"}
    assert all(name.endswith(f"../native/k{int(value):02}.cpp") for value, name in lines)
    assert not any(name.startswith("/") for _, name in lines)


def test_cmake_run_again_has_no_kernel_compiled_again(tmp_path: Path) -> None:
    kernels = Kernels(tmp_path / "one")
    kernels.built(tmp_path / "store")
    before = kernels.generated()
    assert len(before) == COUNT * len(KINDS)
    assert kernels.built(tmp_path / "store") == (0, 0)
    assert kernels.generated() == before
    kernels.kernel(3).write_text(kernels.kernel(3).read_text().replace("return 3", "return 1003"))
    assert kernels.built(tmp_path / "store")[1] > 0
    assert [line.split()[0] for line in kernels.result().splitlines()].count("1003") == len(KINDS)
