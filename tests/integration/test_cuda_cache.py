"""ccache with the real nvcc: found from any folder, and by parts for other architectures."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchsmith.toolchain import nvcc_parts
from torchsmith.toolchain.build_paths import names_from_within
from torchsmith.toolchain.cache import CompilerCache, compiler_cache
from torchsmith.toolchain.governor import Governor
from torchsmith.toolchain.governor_events import Event, Finished
from torchsmith.toolchain.memory_book import MIB
from torchsmith.verify.binary import read_files

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("build_tools")]

# With a variable and a function that only this file sees: nvcc invents names for those.
KERNELS = """\
#include <cassert>
#include "amount.h"
static __device__ int counter;
namespace { __device__ float more(float x) { atomicAdd(&counter, 1); return x + AMOUNT; } }
__global__ void add(float *x) { assert(x); x[threadIdx.x] = more(x[threadIdx.x]); }
extern "C" void go(float *x) { add<<<1, 8>>>(x); }
#ifdef TEXT
extern const char *text;
const char *text = TEXT;
#endif
"""
HOST = "#include <map>\nint empty() { return std::map<int, int>().size(); }\n"
# No architectures in the commands of files that are not for a GPU, and no test of the compiler,
# which CMake does with a file of its own that names them.
PROJECT = """\
cmake_minimum_required(VERSION 3.18)
set(CMAKE_CXX_COMPILER_FORCED TRUE)
set(CMAKE_CUDA_COMPILER_FORCED TRUE)
project(cached CXX CUDA)
add_library(kernels MODULE kernels.cu host.cpp)
set_target_properties(kernels PROPERTIES PREFIX "" CUDA_RUNTIME_LIBRARY None)
"""
OBJECT = "build/CMakeFiles/kernels.dir/kernels.cu.o"


def lay_out(work: Path, amount: int = 2) -> Path:
    source = work / "source"
    source.mkdir(parents=True, exist_ok=True)
    (source / "kernels.cu").write_text(KERNELS)
    (source / "amount.h").write_text(f"#define AMOUNT {amount}\n")
    (source / "host.cpp").write_text(HOST)
    (source / "CMakeLists.txt").write_text(PROJECT)
    return source


def build(
    work: Path, nvcc: Path, architectures: str, *, store: Path, amount: int = 2
) -> CompilerCache:
    """Build it as torchsmith builds, and return the cache that was asked."""
    cache = compiler_cache(store, work)
    assert cache.command, "tools/install_test_tools.sh installs ccache"
    source, folder = lay_out(work, amount), work / "build"
    peaks: dict[str, int] = {}

    def told(event: Event) -> None:
        if isinstance(event, Finished):
            peaks[Path(event.file).name] = event.peak

    with Governor(options=names_from_within(work), listener=told) as governor:
        variables = {
            **os.environ,
            **governor.environment(cache.command),
            **(cache.environment or {}),
        }
        where = ["-S", str(source), "-B", str(folder), f"-DCMAKE_CUDA_COMPILER={nvcc}"]
        for command in (
            ["cmake", "-G", "Ninja", *where, f"-DCMAKE_CUDA_ARCHITECTURES={architectures}"],
            ["ninja", "-C", str(folder)],
        ):
            done = subprocess.run(command, env=variables, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    assert not list(work.rglob("*.parts")), "temporary files are removed"
    if cache.parts_used()[1]:
        assert peaks["kernels.cu"] > 40 * MIB, "the governor sees what the steps take"
    return cache


def gpu_code(work: Path) -> tuple[str, ...]:
    (found,) = read_files(work / "build", ["kernels.so"])
    assert found.broken == found.gpu_unread == ""
    return found.gpu


def moved(nvcc: Path, work: Path) -> Path:
    """The toolkit, in a work folder, as it is where it comes from PyPI."""
    folder = work / "toolkit"
    shutil.copytree(nvcc.parents[1], folder, copy_function=os.link, symlinks=True)
    return folder / "bin/nvcc"


def test_a_cuda_file_compiled_in_one_folder_is_not_compiled_in_another(
    nvcc: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    one, two, edited = tmp_path / "one", tmp_path / "two", tmp_path / "edited, & moved"
    first = build(one, moved(nvcc, one), "80-real", store=store)
    assert first.used() == (0, 2)
    second = build(two, moved(nvcc, two), "80-real", store=store)
    assert second.used() == (2, 0)
    assert second.parts_used() == (0, 0)
    assert (two / OBJECT).read_bytes() == (one / OBJECT).read_bytes()
    third = build(edited, moved(nvcc, edited), "80-real", store=store, amount=3)
    assert third.used() == (1, 1), "a header that changed is seen"
    assert (edited / OBJECT).read_bytes() != (one / OBJECT).read_bytes()


def test_an_architecture_is_compiled_once_for_every_set_that_has_it(
    nvcc: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    one, both, ptx = tmp_path / "one", tmp_path / "both", tmp_path / "ptx"
    # Before the GPU's code there is the host's half of the file, which cudafe++ makes.
    first = build(one, moved(nvcc, one), "80-real", store=store)
    assert first.parts_used() == (0, 3)
    second = build(both, moved(nvcc, both), "80-real;90-real", store=store)
    assert second.used() == (1, 1), "of the host's files nothing is compiled again"
    assert second.parts_used() == (3, 2)
    assert gpu_code(both) == ("sm_80", "sm_90")
    third = build(ptx, moved(nvcc, ptx), "90", store=store)
    assert third.parts_used() == (3, 0)
    assert gpu_code(ptx) == ("compute_90", "sm_90")


def test_objects_are_the_same_in_any_folder_and_out_of_any_parts(
    nvcc: Path, tmp_path: Path
) -> None:
    one, before, other = tmp_path / "one", tmp_path / "before", tmp_path / "a/longer/name"
    build(one, moved(nvcc, one), "80-real;90-real", store=tmp_path / "store")
    build(before, moved(nvcc, before), "90-real", store=tmp_path / "store-other")
    cache = build(other, moved(nvcc, other), "80-real;90-real", store=tmp_path / "store-other")
    assert cache.parts_used() == (3, 2)
    assert (one / OBJECT).read_bytes() == (other / OBJECT).read_bytes()


class Compiler:
    """nvcc in a folder, by itself and step by step."""

    def __init__(self, nvcc: Path, folder: Path) -> None:
        self.nvcc = nvcc
        self.folder = folder
        self.variables = {
            **os.environ,
            nvcc_parts.PARTS: str(folder / "kept"),
            nvcc_parts.LOG: str(folder / "log"),
        }
        self.parts = [sys.executable, "-I", "-S", nvcc_parts.__file__]

    def run(self, words: list[str], *words_before: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words_before, str(self.nvcc), *words],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
        )

    def plainly(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(list(words))

    def by_parts(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = self.run(list(words), *self.parts)
        assert not list(self.folder.rglob("*.parts"))
        return done

    def counted(self) -> list[str]:
        log = self.folder / "log"
        text = log.read_text() if log.exists() else ""
        log.unlink(missing_ok=True)
        return text.split()

    def section(self, name: str) -> bytes:
        """The GPU code of an object."""
        copy = ["objcopy", "-O", "binary", "--set-section-flags", ".nv_fatbin=alloc"]
        out = f"{name}.fatbin"
        subprocess.run(
            [*copy, "-j", ".nv_fatbin", name, out], cwd=self.folder, check=True, timeout=60
        )
        return (self.folder / out).read_bytes()


@pytest.fixture
def compiler(nvcc: Path, tmp_path: Path) -> Compiler:
    lay_out(tmp_path)
    return Compiler(nvcc, tmp_path)


SETS = [
    "-gencode",
    "arch=compute_80,code=sm_80",
    "-gencode",
    "arch=compute_90,code=[compute_90,sm_90]",
]


@pytest.mark.parametrize("more", [[], ["-lineinfo", "-Xfatbin", "-compress-all", "--threads", "2"]])
def test_the_gpu_code_and_the_dependencies_are_those_of_plain_nvcc(
    compiler: Compiler, more: list[str]
) -> None:
    source, text = "source/kernels.cu", "-DTEXT=\"a b 'c' |;&<>\""
    words = ["-O2", *more, *SETS, text, "-c", "-x", "cu", source]
    deps = ["-MD", "-MT", "the target", "-MF"]
    assert compiler.plainly(*words, *deps, "plain.d", "-o", "plain.o").returncode == 0
    for _ in ("compiled", "found"):
        done = compiler.by_parts(*words, *deps, "ours.d", "-o", "ours.o")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        code = compiler.section("ours.o")
        assert len(code) > 1000
        assert code == compiler.section("plain.o")
        assert b"a b 'c' |;&<>" in (compiler.folder / "ours.o").read_bytes()
        ours, plain = ((compiler.folder / name).read_text() for name in ("ours.d", "plain.d"))
        assert "amount.h" in ours
        assert ours == plain
    assert compiler.counted() == ["compiled"] * 5 + ["found"] * 5


# Thrust has its types in a namespace called after the list of architectures.
TYPED = """\
// nvcc invents names out of that of the first function, so it is one without the list.
void nothing() {}
#include <thrust/complex.h>
__global__ void first(thrust::complex<float> *x, float *y) { *y = x->real(); }
"""


def test_what_has_the_list_of_architectures_in_its_names_is_respelled(compiler: Compiler) -> None:
    (compiler.folder / "typed.cu").write_text(TYPED)
    assert compiler.by_parts(*SETS[:2], "-c", "typed.cu", "-o", "first.o").returncode == 0
    assert compiler.counted() == ["compiled"] * 3
    words = [*SETS, "-c", "typed.cu", "-o"]
    assert compiler.by_parts(*words, "ours.o").returncode == 0
    # The host's half and PTX; machine code is made of the latter again.
    assert sorted(compiler.counted()) == ["compiled"] * 3 + ["found"] * 2
    assert compiler.plainly(*words, "plain.o").returncode == 0
    assert compiler.section("ours.o") == compiler.section("plain.o")
    symbols = [
        subprocess.check_output(["nm", name], cwd=compiler.folder, text=True)
        for name in ("ours.o", "plain.o")
    ]
    assert "SM_800_900_NS" in symbols[0]
    assert symbols[0] == symbols[1]


def test_the_object_is_what_nvcc_makes_where_it_names_its_files_plainly(compiler: Compiler) -> None:
    words = [*SETS, "-c", "source/kernels.cu", "-o"]
    (compiler.folder / "temporary").mkdir()
    kept = ["--keep", "--keep-dir", "temporary"]
    assert compiler.plainly(*words, "plain.o", *kept).returncode == 0
    assert compiler.by_parts(*words, "ours.o").returncode == 0
    assert compiler.counted() == ["compiled"] * 5
    ours, plain = ((compiler.folder / name).read_bytes() for name in ("ours.o", "plain.o"))
    assert ours == plain


@pytest.mark.parametrize(
    ("source", "more"),
    [
        ("__global__ void f(int *x) { *x = unknown; }", []),
        ("#include <not/there.h>", []),
        ('__global__ void f(int *x) { asm volatile("bogus.op;"); }', []),
        ("#ifndef __CUDA_ARCH__\nvoid f() { unknown(); }\n#endif", []),
        ("__global__ void f() {}", ["-gencode", "arch=compute_1,code=sm_1"]),
        ("__global__ void f() {}", ["--no-such-option"]),
    ],
)
def test_what_fails_fails_as_with_plain_nvcc(
    compiler: Compiler, source: str, more: list[str]
) -> None:
    (compiler.folder / "bad.cu").write_text(source)
    words = [*SETS, *more, "-c", "bad.cu", "-o", "bad.o"]
    plain, ours = compiler.plainly(*words), compiler.by_parts(*words)
    assert plain.returncode != 0
    assert ours.returncode == plain.returncode
    first = [
        next(found[1] for found in re.finditer("(?:error|fatal)(.*)", done.stderr))
        for done in (ours, plain)
    ]
    assert first[0] == first[1]
    assert not (compiler.folder / "bad.o").exists()


def test_warnings_are_told_again_where_a_step_was_found(compiler: Compiler) -> None:
    (compiler.folder / "odd.cu").write_text("__global__ void f() { int unused; }")
    words = [*SETS, "-Xptxas", "-v", "-c", "odd.cu", "-o", "odd.o"]
    plain = compiler.plainly(*words)
    assert "never referenced" in plain.stderr
    assert "ptxas info" in plain.stderr
    first, second = compiler.by_parts(*words), compiler.by_parts(*words)
    assert compiler.counted() == ["compiled"] * 5 + ["found"] * 5
    assert sorted(first.stderr.splitlines()) == sorted(second.stderr.splitlines())

    def told(done: subprocess.CompletedProcess[str]) -> list[str]:
        return sorted(line for line in done.stderr.splitlines() if "ms" not in line.split())

    assert told(first) == told(plain)


@pytest.mark.parametrize(
    "words",
    [
        ["-dc"],
        ["-c", "-rdc=true"],
        ["-ptx", "-arch=sm_80"],
        ["-c", "-MP", "-MD", "-MF", "d"],
        ["-E"],
    ],
)
def test_what_is_no_ordinary_compile_is_left_to_nvcc(compiler: Compiler, words: list[str]) -> None:
    done = compiler.by_parts(*words, "source/kernels.cu", "-o", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert (compiler.folder / "out").stat().st_size > 0
    assert compiler.counted() == []


def test_a_damaged_result_is_made_again(compiler: Compiler) -> None:
    words = [*SETS, "-c", "source/kernels.cu", "-o", "a.o"]
    assert compiler.by_parts(*words).returncode == 0
    before = (compiler.folder / "a.o").read_bytes()
    kept = [file for file in (compiler.folder / "kept").glob("*/*") if file.stat().st_size > 64]
    assert len(kept) == 5
    for file in kept:
        file.write_bytes(file.read_bytes()[:-20])
    compiler.counted()
    assert compiler.by_parts(*words).returncode == 0
    assert compiler.counted() == ["compiled"] * 5
    assert (compiler.folder / "a.o").read_bytes() == before
