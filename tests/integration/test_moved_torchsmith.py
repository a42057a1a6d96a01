"""A build that one torchsmith began goes on with another, though the first is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import torchsmith
from torchsmith.engine.compile_log import read_compiles

pytestmark = pytest.mark.integration

# The plan of a compilation that fails at one of its files, once all others are compiled.
BUILD = """
import sys
from pathlib import Path
from torchsmith.engine.build import build
from torchsmith.engine.store import Store
from torchsmith.errors import StepFailed
from torchsmith.plan.models import Plan, Step
from torchsmith.toolchain.accel import SWITCH

folder = Path(sys.argv[1])
lines = (
    "cmake_minimum_required(VERSION 3.18)", "project(p CXX)",
    "add_library(p SHARED a.cpp b.cpp bad.cpp)",
)
configure = Step(
    id="configure", kind="configure", title="Configure", outputs=("tree",), key="1" * 64,
    commands=(
        "rm -rf tree; mkdir tree; cd tree",
        *(f"echo '{line}' >> CMakeLists.txt" for line in lines),
        "touch a.cpp b.cpp; echo '#include <no_such_header.h>' > bad.cpp",
        "cmake -G Ninja -S . -B build",
    ),
)
compile = Step(
    id="compile", kind="compile", title="Compile", needs=("configure",), key="2" * 64,
    commands=("cd tree; cmake --build build -- -k 0",), outputs=("none",), env=((SWITCH, "off"),),
)
try:
    build(Plan("p", (), (configure, compile)), Store(folder / "store"), project=folder, jobs=1)
except StepFailed as error:
    sys.exit(error.message)
"""


def test_a_tree_goes_on_when_the_torchsmith_that_configured_it_is_gone(
    build_tools: None, tmp_path: Path
) -> None:
    (tmp_path / "build.py").write_text(BUILD)
    first = tmp_path / "first"
    package = Path(torchsmith.__file__).parent
    shutil.copytree(package, first / "torchsmith", ignore=shutil.ignore_patterns("__pycache__"))
    (first / "python").symlink_to(sys.executable)

    def build(python: Path | str, source: Path) -> tuple[str, list[str]]:
        variables = {
            **os.environ,
            "CCACHE_DISABLE": "1",
            "PYTHONPATH": f"{source}:{sysconfig.get_path('purelib')}",
        }
        words = [python, "-B", tmp_path / "build.py", tmp_path]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        logs = tmp_path / "store/logs"
        run = max(path.name for path in logs.iterdir() if path.is_dir())
        text = "".join(path.read_text() for path in (logs / run).glob("compile*.log"))
        names = {Path(item.file).name for item in read_compiles(logs, run)}
        # CMake compiles some files of its own.
        return text, sorted(names & {"a.cpp", "b.cpp", "bad.cpp"})

    log, compiled = build(first / "python", first)
    assert "no_such_header.h" in log
    assert compiled == ["a.cpp", "b.cpp", "bad.cpp"]
    shutil.rmtree(first)
    log, compiled = build(sys.executable, package.parent)
    assert "no_such_header.h" in log
    assert compiled == ["bad.cpp"]
