"""What is kept of a build's jobs, with the real CMake, ninja, compiler and launcher."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from torchsmith.bench.timeline import lay_out
from torchsmith.engine import events
from torchsmith.engine.compile_log import CompileLog, gather, read_compiles, read_jobs
from torchsmith.toolchain.accel import acceleration
from torchsmith.toolchain.governor import Governor

pytestmark = pytest.mark.integration

RUN = "r"
COUNT = 8
CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(jobs CXX)
add_custom_command(OUTPUT "made $1.h" VERBATIM
  COMMAND ${CMAKE_COMMAND} -E sleep 1
  COMMAND ${CMAKE_COMMAND} -E copy ${CMAKE_SOURCE_DIR}/all.h "made $1.h")
add_custom_target(made DEPENDS "made $1.h")
file(GLOB files f*.cpp)
add_library(jobs SHARED ${files})
target_include_directories(jobs PRIVATE ${CMAKE_BINARY_DIR})
add_dependencies(jobs made)
"""


@pytest.mark.parametrize("accel", ["on", "off"])
def test_the_path_and_the_headers_are_those_of_the_build(
    build_tools: None, tmp_path: Path, accel: str
) -> None:
    source, build, logs = tmp_path / "the source", tmp_path / "the build", tmp_path / "logs"
    source.mkdir()
    (source / "all.h").write_text("#pragma once\n" + "// of some length\n" * 1000)
    (source / "CMakeLists.txt").write_text(CMAKE)
    for number in range(COUNT):
        text = f'#include "all.h"\n#include "made $1.h"\nint f{number}() {{ return {number}; }}\n'
        (source / f"f{number}.cpp").write_text(text)
    with (
        closing(CompileLog(logs, 1)) as log,
        Governor(cores=1, roots=[tmp_path], listener=log.add) as governor,
    ):
        variables = {
            **os.environ,
            **governor.environment(),
            **acceleration(tmp_path / "lessons", cores=1),
            "TORCHSMITH_ACCEL": accel,
        }
        variables.pop("PYTORCH_BUILD_VERSION", None)
        variables["PATH"] = f"{variables['TORCHSMITH_SHIMS']}{os.pathsep}{variables['PATH']}"
        log.heed(events.RunStarted(run=RUN, plan="p", work="w", total=1, to_run=("a",)))
        began = time.time()
        for command in (
            ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(build)],
            ["cmake", "--build", str(build)],
        ):
            subprocess.run(command, env=variables, capture_output=True, check=True)
    gather(logs, RUN, began)
    found = lay_out(read_compiles(logs, RUN), read_jobs(logs, RUN))
    assert found is not None
    (chain,) = found.chains
    assert [link.kind for link in chain.links] == ["command", "compile", "link"]
    assert chain.links[0].file == "made $1.h"
    assert chain.links[0].seconds >= 1
    assert chain.links[2].file == "libjobs.so"
    assert chain.seconds <= time.time() - began
    # The compile and the link of the path; the generator is no compile.
    assert sum(bar.critical for bar in found.bars) >= 2
    assert any(bar.critical and bar.file.endswith("libjobs.so") for bar in found.bars)
    assert found.headers is not None
    compiles = {cost.path: (cost.bytes, cost.compiles) for cost in found.headers.heaviest}
    size = (source / "all.h").stat().st_size
    expected = (size, found.headers.compiles)
    assert compiles[str(source / "all.h")] == compiles[str(build / "made $1.h")] == expected
    # With one core all of them fit into few batches; by itself each is a compile.
    assert found.headers.compiles == COUNT if accel == "off" else found.headers.compiles < COUNT
    assert not any(path.endswith(".cpp") for path in compiles)
