"""Programs are made to fail here and now; what they say is known again."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import cmake
import pytest

from torchsmith.diagnose.diagnose import Diagnosis, diagnose

pytestmark = pytest.mark.integration

CMAKE = Path(cmake.CMAKE_BIN_DIR) / "cmake"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def failing(
    *command: object,
    cwd: Path,
    env: dict[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> Diagnosis:
    """What is known of a command that fails, from all it says."""
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(cwd), **(env or {})},
        preexec_fn=before,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    said = ended.stdout.decode(errors="replace")
    assert ended.returncode != 0, said
    found = diagnose(said.splitlines())
    assert found.named, said
    return found


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def shared(folder: Path, name: str, source: str, *more: str) -> Path:
    """A tiny library."""
    written = write(folder / f"{name}.c", source)
    made = folder / f"{name}.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, written, *more], cwd=folder, check=True)
    return made


def load(library: Path) -> list[object]:
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=2)"
    return [sys.executable, "-c", code, library]


def test_headers_of_python_that_are_missing(tmp_path: Path) -> None:
    source = write(tmp_path / "x.cpp", "#include <Python.h>\n")
    found = failing("g++", "-c", source, cwd=tmp_path)
    assert found.named[0].id == "python-headers-missing"


def test_headers_of_torch_that_are_missing(tmp_path: Path) -> None:
    source = write(tmp_path / "x.cpp", "#include <torch/extension.h>\n")
    found = failing("g++", "-c", source, cwd=tmp_path)
    assert found.named[0].id == "torch-headers-missing"


def test_an_integer_type_without_its_header(tmp_path: Path) -> None:
    source = write(tmp_path / "x.cpp", "constexpr uint8_t slot = 1;\n")
    found = failing("g++", "-c", source, cwd=tmp_path)
    assert found.named[0].id == "integer-types-missing"


def test_a_compiler_that_is_killed(tmp_path: Path) -> None:
    fake = write(tmp_path / "cc1plus", "#!/bin/sh\nkill -9 $$\n")
    fake.chmod(0o755)
    source = write(tmp_path / "x.cpp", "int x;\n")
    found = failing("g++", f"-B{tmp_path}", "-c", source, cwd=tmp_path)
    assert found.named[0].id == "compiler-killed"


def test_a_compiler_that_gets_no_memory(tmp_path: Path) -> None:
    source = write(tmp_path / "x.cpp", "#include <regex>\n#include <iostream>\nstd::regex r;\n")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (70 << 20, 70 << 20))

    found = failing("g++", "-c", source, cwd=tmp_path, before=limit)
    assert found.named[0].id == "compiler-out-of-memory"


def test_a_disk_without_room(tmp_path: Path) -> None:
    source = write(tmp_path / "x.cpp", "int f() { return 1; }\n")
    found = failing("g++", "-S", "-o", "/dev/full", source, cwd=tmp_path)
    assert found.named[0].id == "disk-full"


def test_a_function_nothing_has(tmp_path: Path) -> None:
    source = write(tmp_path / "x.cpp", "int answer(); int main() { return answer(); }\n")
    found = failing("g++", source, cwd=tmp_path)
    assert found.named[0].id == "undefined-reference"
    assert "answer()" in found.named[0].title


def test_a_function_two_have(tmp_path: Path) -> None:
    one = write(tmp_path / "a.cpp", "int threads_wanted = 1;\n")
    two = write(tmp_path / "b.cpp", "int threads_wanted = 2; int main() {}\n")
    found = failing("g++", one, two, cwd=tmp_path)
    assert found.named[0].id == "multiple-definition"


@pytest.mark.parametrize(
    ("library", "expected"), [("cudart", "cuda-library-not-linked"), ("nono", "library-not-linked")]
)
def test_a_library_the_linker_does_not_find(tmp_path: Path, library: str, expected: str) -> None:
    source = write(tmp_path / "x.cpp", "int main() {}\n")
    found = failing("g++", source, f"-l{library}", cwd=tmp_path)
    assert found.named[0].id == expected


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ("_ZN3c105ErrorC2ENS_14SourceLocationESs", "extension-for-another-torch"),
        ("ncclCommRegister", "nccl-mismatch"),
        ("cublasLtGetStatusString", "cublas-mismatch"),
        ("something_else", "undefined-symbol"),
    ],
)
def test_a_symbol_a_loaded_library_lacks(tmp_path: Path, symbol: str, expected: str) -> None:
    calls = f"extern int {symbol}(void); int f(void) {{ return {symbol}(); }}\n"
    library = shared(tmp_path, "ext", calls)
    found = failing(*load(library), cwd=tmp_path)
    assert found.named[0].id == expected


@pytest.mark.parametrize(
    ("needed", "expected"),
    [
        ("libtorch_cuda.so", "torch-library-missing"),
        ("libcudart.so.11.0", "cuda-library-missing"),
        ("libcuda.so.1", "driver-library-missing"),
        ("libopenblas.so.99", "blas-library-missing"),
    ],
)
def test_a_library_that_was_removed(tmp_path: Path, needed: str, expected: str) -> None:
    one = shared(tmp_path, "needed", "int f(void) { return 1; }\n", f"-Wl,-soname,{needed}")
    one.rename(tmp_path / needed)
    user = shared(
        tmp_path,
        "user",
        "extern int f(void); int g(void) { return f(); }\n",
        f"-L{tmp_path}",
        f"-l:{needed}",
    )
    (tmp_path / needed).unlink()
    found = failing(*load(user), cwd=tmp_path)
    assert found.named[0].id == expected


def test_a_version_of_a_library_that_is_not_there(tmp_path: Path) -> None:
    source = "int f(void) { return 1; }\n"
    calls = "extern int f(void); int g(void) { return f(); }\n"
    newer = write(tmp_path / "newer", "GLIBCXX_9.9.99 { global: f; };\n")
    older = write(tmp_path / "older", "GLIBCXX_1.0 { global: f; };\n")
    needed = shared(tmp_path, "libold", source, f"-Wl,--version-script={newer}")
    user = shared(tmp_path, "user", calls, f"-L{tmp_path}", f"-l:{needed.name}")
    shared(tmp_path, "libold", source, f"-Wl,--version-script={older}")
    found = failing(*load(user), cwd=tmp_path, env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert found.named[0].id == "libstdcxx-too-old"


def test_an_instruction_the_cpu_does_not_have(tmp_path: Path) -> None:
    # What gcc has for this, __builtin_trap, is a breakpoint on AArch64.
    word = ".inst 0" if platform.machine() == "aarch64" else "ud2"
    source = write(tmp_path / "x.c", f'int main(void) {{ __asm__("{word}"); }}\n')
    subprocess.run(["gcc", "-o", "x", source], cwd=tmp_path, check=True)
    found = failing("bash", "-c", "ulimit -c 0; ./x; exit 1", cwd=tmp_path)
    assert found.named[0].id == "illegal-instruction"


def test_a_wheel_for_another_platform(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-2.6.0-cp38-cp38-linux_aarch64.whl"
    with zipfile.ZipFile(wheel, "w"):
        pass
    found = failing(*PIP, "install", "--no-index", wheel, cwd=tmp_path)
    assert found.named[0].id == "wheel-for-another-platform"
    assert "cp38" in found.named[0].title


def test_a_package_no_index_has(tmp_path: Path) -> None:
    found = failing(*PIP, "install", "--no-index", "torch==99.0", cwd=tmp_path)
    assert found.named[0].id == "no-such-wheel"
    assert "torch==99.0" in found.named[0].title


def test_a_download_whose_hash_differs(tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    metadata = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    with zipfile.ZipFile(links / "tiny-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    wanted = write(tmp_path / "r.txt", f"tiny==1.0 --hash=sha256:{'0' * 64}\n")
    found = failing(
        *PIP, "download", "--no-index", "--find-links", links, "-r", wanted, cwd=tmp_path
    )
    assert found.named[0].id == "hashes-differ"


def test_a_tree_that_belongs_to_somebody_else(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    found = failing("git", "status", cwd=tmp_path, env={"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"})
    assert found.named[0].id == "git-dubious-ownership"


def test_a_server_that_does_not_exist(tmp_path: Path) -> None:
    none = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "")
    found = failing(
        *("git", "-c", "http.proxy=", "clone", "https://nowhere.invalid/x.git"),
        cwd=tmp_path,
        env={**none, "ALL_PROXY": "", "all_proxy": ""},
    )
    assert found.named[0].id == "host-not-reached"


@pytest.mark.parametrize(
    ("version", "expected"), [("99.0", "cmake-too-old"), ("2.8", "cmake-too-new")]
)
def test_a_cmake_that_is_too_old_or_too_new(tmp_path: Path, version: str, expected: str) -> None:
    write(
        tmp_path / "CMakeLists.txt", f"cmake_minimum_required(VERSION {version})\nproject(x NONE)\n"
    )
    found = failing(CMAKE, "-S", tmp_path, "-B", tmp_path / "build", cwd=tmp_path)
    assert found.named[0].id == expected


def test_a_tree_without_its_submodules(tmp_path: Path) -> None:
    (tmp_path / "third_party" / "psimd").mkdir(parents=True)
    project = "cmake_minimum_required(VERSION 3.20)\nproject(x NONE)\n"
    write(tmp_path / "CMakeLists.txt", f"{project}add_subdirectory(third_party/psimd)\n")
    found = failing(CMAKE, "-S", tmp_path, "-B", tmp_path / "build", cwd=tmp_path)
    assert found.named[0].id == "cmake-source-folder-empty"


def test_too_many_open_files(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))

    code = "files = [open('/dev/null') for _ in range(40)]"
    found = failing(sys.executable, "-c", code, cwd=tmp_path, before=limit)
    assert found.named[0].id == "too-many-open-files"


def test_a_gpu_that_nvcc_does_not_know(tmp_path: Path, nvcc: Path) -> None:
    source = write(tmp_path / "x.cu", "__global__ void x() {}\n")
    found = failing(str(nvcc), "-gencode", "arch=compute_10,code=sm_10", "-c", source, cwd=tmp_path)
    assert found.named[0].id == "gpu-unknown-to-nvcc"
    assert "compute_10" in found.named[0].lines[0].text


def test_a_gcc_that_is_newer_than_nvcc_takes(tmp_path: Path, nvcc: Path) -> None:
    """The compiler says it is version 99; the refusal is that of CUDA's own header."""
    source = write(tmp_path / "x.cu", "__global__ void x() {}\n")
    newer = "-U__GNUC__,-D__GNUC__=99"
    found = failing(str(nvcc), "-c", source, "-Xcompiler", newer, cwd=tmp_path)
    assert found.named[0].id == "gcc-too-new-for-cuda"
