"""A program of many small files, for building in batches with the real tools."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

from torchsmith.toolchain.accel import acceleration
from torchsmith.toolchain.cache import CompilerCache

COUNT = 16


class Project:
    """A program of many small files, among them some that cannot be compiled together."""

    def __init__(self, folder: Path, cache: CompilerCache | None = None) -> None:
        self.cache = cache or CompilerCache()
        self.cores = 1
        self.headers: Path | None = None
        self.source = folder / "source"
        self.build = folder / "build"
        self.lessons = folder / "lessons" / "others.jsonl"
        self.source.mkdir(parents=True)
        (self.source / "unguarded.h").write_text("struct Unguarded { int value; };\n")
        (self.source / "common.h").write_text(COMMON)
        for number in range(COUNT):
            self.file(number).write_text(text_of(number))
        calls = "".join(f"int f{number}();\n" for number in range(COUNT))
        total = " + ".join(f"f{number}()" for number in range(COUNT))
        (self.source / "main.cpp").write_text(
            f'{calls}int main() {{ __builtin_printf("%d\\n", {total}); }}\n'
        )
        (self.source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.18)\nproject(batches CXX)\n"
            "file(GLOB files *.cpp)\nadd_executable(program ${files})\n"
        )

    def file(self, number: int) -> Path:
        return self.source / f"f{number:02}.cpp"

    def environment(self, accel: str = "on") -> dict[str, str]:
        more = acceleration(self.lessons.parent, self.cores, self.headers)
        variables = {**os.environ, **more}
        variables["TORCHSMITH_ACCEL"] = accel
        # As the environment of a release's own build would say: lessons are kept by release.
        variables.pop("PYTORCH_BUILD_VERSION", None)
        variables |= self.cache.environment or {}
        if self.cache.command:
            variables["CMAKE_CXX_COMPILER_LAUNCHER"] = ";".join(self.cache.command)
        folders = [variables["TORCHSMITH_SHIMS"], sysconfig.get_path("scripts")]
        variables["PATH"] = ":".join([*folders, variables["PATH"]])
        return variables

    def configure(self, accel: str = "on") -> None:
        self._run(["cmake", "-G", "Ninja", "-S", str(self.source), "-B", str(self.build)], accel)

    def make(self, accel: str = "on") -> str:
        return self._run(["cmake", "--build", str(self.build)], accel)

    def _run(self, command: list[str], accel: str) -> str:
        done = subprocess.run(
            command, env=self.environment(accel), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        return done.stdout

    def result(self) -> str:
        return subprocess.check_output([self.build / "program"], text=True).strip()

    def compiles(self) -> list[list[str]]:
        """The files of every part that was compiled, in all batches."""
        states = (self.build / "torchsmith-batches").glob("*.state")
        return [
            [Path(name).name for name in part["names"]]
            for state in states
            for part in json.loads(state.read_text())["parts"]
        ]


COMMON = "#pragma once\ninline int common() { return 0; }\n"


def text_of(number: int) -> str:
    lines = ['#include "common.h"', "#define LOCAL 1", f"#define OWN {number}"]
    lines += ["#ifdef LEAKED", "#error a macro of another file", "#endif", "#define LEAKED"]
    if number % 2 == 0:
        lines.append("static int helper() { return OWN; }")
    else:
        lines.append("#define helper() OWN")
    if number in (1, 3):
        lines.append('#include "unguarded.h"')
    lines.append(f"int f{number}() {{ return helper() + LOCAL + common(); }}")
    return "\n".join(lines) + "\n"


EXPECTED = str(sum(range(COUNT)) + COUNT)
