"""Compilers on huge pages, with the machine's own compiler and kernel."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from torchsmith.engine.build import build
from torchsmith.engine.store import Store
from torchsmith.plan.build import with_keys
from torchsmith.plan.models import Plan, Step
from torchsmith.toolchain import preload as module
from torchsmith.toolchain.accel import SWITCH
from torchsmith.toolchain.cache import ON_A_MISS
from torchsmith.toolchain.preload import PRELOAD, huge_pages

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("build_tools")]

GIVEN = "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
HEADERS = "#include <algorithm>\n#include <map>\n#include <regex>\n#include <string>\n"
TEXT = (
    f'{HEADERS}bool f(const std::string& s) {{ return std::regex_match(s, std::regex("a+b")); }}\n'
)
# Threads that map, fill, look and unmap, all at once.
THREADS = r"""
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <thread>
#include <vector>
static void work(int mine) {
  for (int i = 0; i < 3000; i++) {
    size_t size = 4096 * (1 + (i * 7 + mine) % 9);
    void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) abort();
    auto *bytes = static_cast<unsigned char *>(at);
    for (size_t j = 0; j < size; j += 512) if (bytes[j]) abort();
    memset(bytes, mine, size);
    for (size_t j = 0; j < size; j += 512) if (bytes[j] != mine) abort();
    munmap(at, size);
  }
}
int main() {
  std::vector<std::thread> all;
  for (int i = 1; i <= 8; i++) all.emplace_back(work, i);
  for (auto &one : all) one.join();
}
"""


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is preloaded on this machine: something wherever the kernel gives huge pages."""
    found = huge_pages(tmp_path_factory.mktemp("store"))
    assert bool(found) == GIVEN
    return {"LD_PRELOAD": found[PRELOAD]} if found else {}


def compile_in(folder: Path, *words: str, **variables: str) -> bytes:
    """What g++ makes of words, and that it has nothing to say."""
    command = ["g++", "-O2", *words, "-o", "made"]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return (folder / "made").read_bytes()


def test_the_same_is_compiled(tmp_path: Path, preload: dict[str, str]) -> None:
    (tmp_path / "f.cpp").write_text(TEXT)
    plain = compile_in(tmp_path, "-c", "f.cpp")
    assert compile_in(tmp_path, "-c", "f.cpp", **preload) == plain


def test_with_headers_that_are_ready_the_same_is_compiled(
    tmp_path: Path, preload: dict[str, str]
) -> None:
    (tmp_path / "first.hpp").write_text(HEADERS)
    (tmp_path / "f.cpp").write_text(TEXT)
    subprocess.run(
        ["g++", "-O2", "-x", "c++-header", "first.hpp", "-o", "first.hpp.gch"],
        cwd=tmp_path,
        env={**os.environ, **preload},
        check=True,
    )
    # Larger than what the library leaves to the kernel.
    assert (tmp_path / "first.hpp.gch").stat().st_size > 16 << 20
    words = ("-Winvalid-pch", "-include", "first.hpp", "-c", "f.cpp")
    plain = compile_in(tmp_path, *words)
    assert compile_in(tmp_path, *words, **preload) == plain


def test_memory_and_code_are_on_huge_pages(tmp_path: Path, preload: dict[str, str]) -> None:
    (tmp_path / "f.cpp").write_text(TEXT)
    proper = subprocess.check_output(["g++", "-print-prog-name=cc1plus"], text=True).strip()
    subprocess.run(["g++", "-E", "f.cpp", "-o", "f.ii"], cwd=tmp_path, check=True)
    command = [proper, "-quiet", "-fpreprocessed", "-O2", "f.ii", "-o", os.devnull]
    most = code = 0
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **preload}) as process:
        while process.poll() is None:
            try:
                maps = Path(f"/proc/{process.pid}/smaps").read_text()
            except OSError:
                break
            held = [int(line.split()[1]) for line in maps.splitlines() if "AnonHuge" in line]
            most = max(most, sum(held))
            lines = [line for line in maps.splitlines() if " r-xp " in line]
            # Code that was moved is of no file any more.
            code = max(code, sum(line.split()[4] == "0" and "[" not in line for line in lines))
            time.sleep(0.01)
    assert process.returncode == 0
    if GIVEN:
        # In KiB: the code alone is more than that.
        assert most > 16 << 10
        assert code == 1


def test_threads_each_have_their_own(tmp_path: Path, preload: dict[str, str]) -> None:
    (tmp_path / "threads.cpp").write_text(THREADS)
    compile_in(tmp_path, "-pthread", "threads.cpp")
    subprocess.run([tmp_path / "made"], env={**os.environ, **preload}, check=True)


def test_a_limit_on_addresses_is_kept(tmp_path: Path, preload: dict[str, str]) -> None:
    (tmp_path / "f.cpp").write_text(TEXT)
    # Less than is taken ahead, and enough for the compiler.
    command = "ulimit -v 900000 && exec g++ -O2 -c f.cpp -o made"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env={**os.environ, **preload},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_it_is_compiled_once(tmp_path: Path) -> None:
    first = huge_pages(tmp_path)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")}
    assert huge_pages(tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")} == made
    assert len(made) == GIVEN
    assert len(list(tmp_path.rglob("*"))) == 2 * GIVEN


@pytest.mark.parametrize("place", ["a folder", "a:folder"])
def test_a_name_the_loader_cannot_read_is_not_used(tmp_path: Path, place: str) -> None:
    assert huge_pages(tmp_path / place) == {}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("#error not here", 0),
        # Compiled, and then gcc does not start with it.
        ("#include <stdlib.h>\n__attribute__((constructor)) void f() { abort(); }", 1),
    ],
)
def test_what_does_not_compile_or_start_is_not_preloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, made: int
) -> None:
    source = tmp_path / "source.c"
    source.write_text(f"{text}\n")
    monkeypatch.setattr(module, "PAGES_SOURCE", source)
    assert huge_pages(tmp_path / "store") == {}
    assert len(list((tmp_path / "store").rglob("*.so"))) == made * GIVEN


def test_without_a_compiler_nothing_is_preloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert huge_pages(tmp_path / "store") == {}


@pytest.mark.parametrize(
    ("name", "switch", "expected"),
    [
        ("g++", "on", "ours theirs"),
        ("aarch64-linux-gnu-gcc-12", "on", "ours theirs"),
        ("g++", "off", "theirs"),
        ("clang++", "on", "theirs"),
    ],
)
def test_it_is_for_gcc_alone(tmp_path: Path, name: str, switch: str, expected: str) -> None:
    compiler = tmp_path / name
    compiler.write_text('#!/bin/sh\necho "$LD_PRELOAD"\n')
    compiler.chmod(0o755)
    variables = {PRELOAD: "ours", "TORCHSMITH_ACCEL": switch, "LD_PRELOAD": "theirs"}
    said = subprocess.run(
        [ON_A_MISS, compiler], env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert said.stdout.strip() == expected


@pytest.mark.parametrize("switch", ["on", "off"])
def test_a_build_has_it_unless_it_is_to_be_a_plain_one(tmp_path: Path, switch: str) -> None:
    step = Step(
        "compile-one",
        "compile",
        "Compile",
        env=((SWITCH, switch),),
        commands=(f'echo "${{{PRELOAD}-nothing}}" > seen',),
        outputs=("seen",),
    )
    store = Store(tmp_path / "store")
    done = build(with_keys(Plan("tiny", (), (step,)), {}), store, project=tmp_path)
    (seen,) = done.artifacts["compile-one"]
    given = GIVEN and switch == "on"
    assert (seen.read_text() != "nothing\n") == given
    assert str(store.root / "tools") in seen.read_text() or not given
