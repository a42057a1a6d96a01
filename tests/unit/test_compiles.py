"""What a compiler's command line says, and what its last words mean."""

from __future__ import annotations

import pytest

from torchsmith.toolchain.cache import without_a_cache
from torchsmith.toolchain.compiles import killed_for_memory, read_compile

pytestmark = pytest.mark.unit

ROOTS = ("/src", "/src/build")


def test_a_file_is_named_from_its_source_folder() -> None:
    unit = read_compile(
        "/src/build",
        [
            "/usr/bin/c++",
            "-DX",
            "-I/src",
            "-O2",
            "-MF",
            "a.d",
            "-o",
            "a.o",
            "-c",
            "/src/aten/a.cpp",
        ],
        ROOTS,
    )
    assert (unit.file, unit.folder, unit.language) == ("aten/a.cpp", "aten", "c++")
    assert unit.output == "/src/build/a.o"
    assert not unit.cached


def test_a_generated_file_is_named_from_the_build_folder() -> None:
    unit = read_compile("/src/build", ["nvcc", "-x", "cu", "-c", "gen/k.cu", "-o", "k.o"], ROOTS)
    assert (unit.file, unit.language) == ("gen/k.cu", "cuda")


def test_a_cache_before_the_compiler_is_seen_and_changes_no_flags() -> None:
    bare = read_compile("/b", ["g++", "-O2", "-c", "a.cpp", "-o", "a.o"])
    cached = read_compile("/b", ["/usr/bin/ccache", "g++", "-O2", "-c", "a.cpp", "-o", "a.o"])
    assert cached.cached
    assert cached.flags == bare.flags


def test_what_stands_in_a_caches_place_is_not_the_compiler() -> None:
    bare = read_compile("/b", ["g++", "-O2", "-c", "a.cpp", "-o", "a.o"])
    assert (
        read_compile("/b", [*without_a_cache(), "g++", "-O2", "-c", "a.cpp", "-o", "a.o"]) == bare
    )


def test_flags_tell_optimisation_apart_but_not_places() -> None:
    def flags(*words: str) -> str:
        return read_compile("/b", ["g++", *words, "-c", "/s/a.cpp"]).flags

    assert flags("-O2") != flags("-O0")
    assert flags("-I/one", "-isystem", "/one") == flags("-I/two", "-isystem", "/two")
    assert flags("-o", "one.o", "-MF", "one.d") == flags("-o", "two.o", "-MF", "two.d")


def test_a_link_is_named_for_what_it_makes() -> None:
    unit = read_compile("/src/build", ["g++", "-shared", "-o", "lib/libtorch.so", "a.o"], ROOTS)
    assert (unit.file, unit.language) == ("lib/libtorch.so", "link")


@pytest.mark.parametrize(
    "words",
    [
        "g++: fatal error: Killed signal terminated program cc1plus",
        "g++: internal compiler error: Killed (program cc1plus)",
        "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
        "collect2: fatal error: ld terminated with signal 9 [Killed]",
        "clang: error: unable to execute command: Killed",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "virtual memory exhausted: Cannot allocate memory",
    ],
)
def test_the_words_of_a_killed_compiler_are_known(words: str) -> None:
    assert killed_for_memory(1, words.encode())
    assert not killed_for_memory(0, words.encode())


def test_an_ordinary_error_is_not_taken_for_a_kill() -> None:
    assert not killed_for_memory(1, b"a.cpp:1:1: error: expected ';'")
    assert killed_for_memory(137, b"")
