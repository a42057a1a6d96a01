"""Compiles past the launchers are known by what they are, whoever starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchsmith.engine.shell import step_environment
from torchsmith.plan.models import Step
from torchsmith.toolchain import preload, stray_compiles
from torchsmith.toolchain.compiles import read_compile
from torchsmith.toolchain.governor import launcher
from torchsmith.toolchain.stray_compiles import StrayCompiles

pytestmark = pytest.mark.unit

SLEEP = "import sys, time; print(flush=True); time.sleep(60)"


def started(*words: str) -> subprocess.Popen[bytes]:
    """A process that goes by another name."""
    process = subprocess.Popen(words, executable=sys.executable, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("g++", "-c", SLEEP, "-c"), 1),
        (("/opt/x86_64-linux-gnu-gcc-12", "-c", SLEEP, "-o", "a.o"), 1),
        (("gcc-ar", "-c", SLEEP, "-o", "a.a"), 0),
        (("g++", "-c", SLEEP, "-E"), 0),
        (("ninja", "-c", SLEEP, "-o"), 0),
        ((*launcher()[:1], "-c", SLEEP, launcher()[-1], "g++", "-c"), 0),
    ],
)
def test_a_compile_that_lasts_is_counted_once(words: tuple[str, ...], count: int) -> None:
    with started(*words) as process:
        stray = StrayCompiles(os.getpid())
        for _ in range(3):
            stray.look()
        process.kill()
    assert len(stray.found) == count


def test_the_library_and_the_watch_know_the_same_compilers() -> None:
    source = preload.HOOK_SOURCE.read_text()
    names = re.findall(r'"([^"]+)"', source.partition("compilers[] = {")[2].partition("}")[0])
    caches = re.findall(r'"([^"]+)"', source.partition("caches[] = {")[2].partition("}")[0])
    for name in names:
        assert bool(stray_compiles._DRIVER.fullmatch(name)) == (name not in caches), name


def test_a_file_in_a_folder_that_pip_makes_anew_is_known_again() -> None:
    first, second = (
        read_compile(f"/tmp/pip-install-{name}/flash-attn_{'0a' * 16}", ["g++", "-c", "csrc/a.cpp"])
        for name in ("x8_2kk1z", "abcdefgh")
    )
    assert first.file == second.file
    assert first.file.endswith("csrc/a.cpp")


@pytest.mark.parametrize(
    ("kind", "project", "loads"),
    [("compile", "torch", False), ("compile", "flash-attn", True), ("environment", "x", False)],
)
def test_only_compiles_that_do_not_ask_by_themselves_load_the_library(
    kind: str, project: str, loads: bool, tmp_path: Path
) -> None:
    step = Step("a", kind, "A", project=project)  # type: ignore[arg-type]
    base = {"TORCHSMITH_HOOK": "/hook.so"}
    env = step_environment(step, tmp_path, base, frozenset(), resume=False)
    assert env.get("LD_PRELOAD") == ("/hook.so" if loads else None)
    assert "TORCHSMITH_HOOK" not in env
