"""ccache behind the memory governor's launcher, with the real one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchsmith.toolchain.cache import CompilerCache, compiler_cache
from torchsmith.toolchain.governor import Governor

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("build_tools")]


def build(work: Path, cache: CompilerCache) -> None:
    source = work / "source"
    source.mkdir(parents=True)
    (source / "a.cpp").write_text(
        "#include <map>\nint main() { return std::map<int, int>().size(); }\n"
    )
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(cached CXX)\nadd_executable(a a.cpp)\n"
    )
    with Governor() as governor:
        variables = {
            **os.environ,
            **governor.environment(cache.command),
            **(cache.environment or {}),
        }
        for command in (
            ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(work / "build")],
            ["ninja", "-C", str(work / "build")],
        ):
            subprocess.run(command, env=variables, check=True, capture_output=True)


def misses(cache: CompilerCache) -> int:
    said = subprocess.check_output(
        [*cache.command, "--print-stats"],
        env={**os.environ, **(cache.environment or {})},
        text=True,
    )
    counts = dict(line.split("\t") for line in said.splitlines())
    return int(counts["cache_miss"])


def test_a_file_compiled_in_one_folder_is_not_compiled_in_another(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = compiler_cache(store, tmp_path / "one")
    assert first.command, "tools/install_test_tools.sh installs ccache"
    build(tmp_path / "one", first)
    compiled = misses(first)
    assert compiled > 0
    assert first.used() == (0, compiled)
    second = compiler_cache(store, tmp_path / "two")
    build(tmp_path / "two", second)
    assert misses(second) == compiled
    assert second.used() == (compiled, 0)
    assert (store / "compiler-cache").is_dir()


def test_what_the_caller_set_stays_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCACHE_MAXSIZE", "1G")
    settings = compiler_cache(tmp_path, tmp_path).environment
    assert settings is not None
    assert settings["CCACHE_MAXSIZE"] == "1G"


def test_without_ccache_compilers_run_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler_cache(tmp_path, tmp_path) == CompilerCache()
